"""Starts that the real launcher refuses, that fail or hang: each is undone, and others go on."""

from __future__ import annotations

import errno
import os
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from native_launcher import BUILD, Launcher
from skerry.wire import plan, replies

pytestmark = pytest.mark.root


def test_root_that_would_be_read_only_is_no_sandbox(launcher: Launcher) -> None:
    """The kernel mounts an overlay read-only where it has no room for its work directory."""
    refused = launcher.failure(launcher.plan("a", 0, disk_bytes=1))
    assert (refused.error_step, refused.errno) == ("overlay", errno.EROFS)
    assert launcher.uppers() == set()
    launcher.start("a", 0)
    assert launcher.say("a", "fill 1") == b"0"
    launcher.stop("a")


@pytest.mark.parametrize(
    "field", ["agent_group", "work_group", "tasks", "socket", "oom_file", "step"]
)
def test_path_outside_of_the_roots_is_refused(launcher: Launcher, field: str) -> None:
    values: dict[str, object] = {
        "tasks": ("/etc/passwd",), "step": ("write /etc/passwd x",), "socket": "/tmp/x",
        "agent_group": str(launcher.unified / "agent"),
    }  # fmt: skip
    failure = launcher.failure(launcher.plan("a", 0, **{field: values.get(field, "/etc/passwd")}))
    assert failure.errno == errno.EACCES
    assert launcher.uppers() == set()


STEPS = (  # noqa: SIM905
    "mkdir socket upper limit clone session join hostname tasks work lower overlay shared node leave "
    "root dev run proc devpts mqueue chroot hide readonly limits config descriptors seccomp identity "
    "exec"
).split()


@pytest.mark.parametrize("step", STEPS)
def test_start_that_fails_is_undone(make: Callable[..., Launcher], step: str) -> None:
    launcher = make(san=True)
    if step == "tasks" and not launcher.pids:
        pytest.skip("no v1 pids hierarchy")
    launcher.begin("--fail-at", step)
    launcher.prepare(0)
    before = launcher.descriptors()
    extra = launcher.group(0) / "more"
    request = launcher.plan(
        "a", 0, disk_bytes=1 << 20, step=(f"mkdir {extra} 755 -1",), node=("gpu0 1:7",)
    )
    failure = launcher.failure(request)
    assert (failure.error_step, failure.errno) == (step, errno.EIO)
    assert launcher.uppers() == set()
    assert not extra.exists()
    assert list((launcher.run / "i").iterdir()) == []
    assert launcher.descriptors() == before
    launcher.drop(0)
    launcher.end()


def test_start_that_hangs_ends_at_its_deadline_while_others_go_on(
    make: Callable[..., Launcher],
) -> None:
    launcher = make(san=True)
    launcher.begin("--fail-at", "hang:hostname")
    launcher.prepare(0)
    number = next(launcher.ids)
    launcher.socket.send(launcher.plan("a", 0).encode(number))
    assert launcher.ok(plan.Status()).status().instance == ("a",)
    reply = replies.decode(launcher.socket.recv(1 << 16))
    assert isinstance(reply, replies.Reply)
    assert reply.failure is not None
    assert (reply.failure.error_step, reply.failure.errno) == ("deadline", errno.ETIMEDOUT)
    launcher.drop(0)
    launcher.end()


def test_slot_whose_groups_get_no_processor_for_longer_than_a_deadline_is_made_all_the_same(
    launcher: Launcher,
) -> None:
    freeze = launcher.unified / "cgroup.freeze"
    thaw = threading.Timer(12.0, freeze.write_text, ("0",))  # a deadline is 10 s
    freeze.write_text("1")  # as starved as a group can be
    thaw.start()
    try:
        began = time.monotonic()
        launcher.slot(2, rooted=True)
        assert time.monotonic() - began > 10.0  # else nothing was in the group
    finally:
        thaw.join()
    for slot in range(3):
        launcher.drop(slot)
    launcher.end()


def test_plan_is_printed_without_privilege(tmp_path: Path) -> None:
    spawn = BUILD / "release" / "skerry-spawn"
    if not spawn.exists():
        pytest.skip("the launcher is not built")
    start = plan.StartPlan(
        instance="a", slot=1, layer=("low", "high"), hostname="box", shm_bytes=65536, config=b"",
        step=("mkdir /cg/s 755 7",), agent_group="/cg/s/agent", socket="/run/i/a",
    )  # fmt: skip
    slot = plan.SlotMake(slot=1, uid_base=200000, owner_uid=77)
    command = ["setpriv", "--reuid=65534", "--clear-groups"] if os.geteuid() == 0 else []
    found = subprocess.run(
        [*command, spawn, "--dry-run"],
        input=slot.encode(1) + start.encode(2), capture_output=True, check=True,
    )  # fmt: skip
    words = [line.split()[1:3] for line in found.stdout.decode().splitlines()[1:]]
    assert words[0] == ["launcher", "mkdir"]
    assert [who for who, _ in words] == sorted((who for who, _ in words), reverse=True)
    assert words[-3:] == [["child", "seccomp"], ["child", "identity"], ["child", "exec"]]
    text = found.stdout.decode()
    assert text.index("/layers/high") < text.index("/layers/low")
    assert "uid and gid 77" in text
    assert "owned by 200000" in text
