"""Instances of the real launcher from start to end; a small program stands in for the guest agent.

What is promised: an instance is what its plan says, a launcher that was killed finds its instances
again, and after everything nothing is left on the machine.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import signal
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from native_launcher import OWNER, UID_BASE, Launcher
from skerry.backends.shared import proc
from skerry.wire import plan, replies
from waiting import ended, soon

pytestmark = pytest.mark.root


def test_fifty_instances_started_and_stopped_leave_nothing(launcher: Launcher) -> None:
    for slot in range(2, 10):
        launcher.slot(slot)
    launcher.start("warm", 0)
    launcher.stop("warm")
    before = launcher.descriptors()
    for round_ in range(5):
        names = {f"i{round_}-{slot}": slot for slot in range(10)}
        replies = launcher.ask(*(launcher.plan(name, slot) for name, slot in names.items()))
        assert [reply.failure for reply in replies] == [None] * 10
        assert launcher.uppers() == set(names)
        replies = launcher.ask(*(plan.Stop(instance=name) for name in names))
        assert all(reply.stop().slot_clean for reply in replies)
    assert launcher.uppers() == set()
    assert launcher.descriptors() == before
    assert launcher.ok(plan.Status()).status().instance == ()
    for slot in range(10):
        launcher.drop(slot)
    launcher.end()


def test_inside_is_what_the_plan_says(launcher: Launcher) -> None:
    pid = launcher.start("a", 0, config=b"\x42\0\0\0\0")
    files = 1 if launcher.pids else 0
    # 7 was the configuration; by now it is the connection that asks.
    assert launcher.say("a", "fds").split() == [b"%d" % n for n in range(8 + files)]
    status = Path(f"/proc/{pid}/status").read_text()
    assert status.split("Uid:")[1].split()[:4] == [str(OWNER)] * 4
    for line in ("CapPrm", "CapEff", "CapBnd", "CapInh", "CapAmb"):
        assert int(status.split(f"{line}:")[1].split()[0], 16) == 0
    assert "NoNewPrivs:\t0" in status
    assert "Seccomp:\t2" in status
    assert launcher.say("a", "refused") == b"3"
    assert launcher.say("a", "cat /proc/sys/kernel/hostname") == b"host-0\n"
    assert launcher.say("a", "cat /etc/os-release") == b"NAME=small\n"
    assert launcher.say("a", "cat /proc/1/cmdline") == b"skerry-init\0"
    config = launcher.say("a", "config")
    assert config.startswith(b"\x42\0\0\0\0")
    assert config[5:14] == b"\x40\x08\0\0\0" + bytes([files, 0, 0, 0])
    # Not dumpable: what hangs on that belongs to root.
    assert os.stat(f"/proc/{pid}/environ").st_uid == 0


def test_no_name_of_the_host_shows_inside(launcher: Launcher) -> None:
    tasks = launcher.plan("x", 2).tasks
    launcher.slot(2, rooted=True)
    launcher.start("a", 2)
    if tasks:
        assert launcher.say("a", "tasks") == b"1"
    seen = [
        launcher.say("a", f"cat /proc/self/{name}") for name in ("mountinfo", "cgroup", "environ")
    ]
    for text in seen:
        for word in (launcher.base.name, "skerry-test", "pool", "layers", "small"):
            assert word.encode() not in text
    assert b"0::/agent\n" in seen[1]
    if tasks:
        assert b":pids:/\n" in seen[1]


def test_stopped_twice_or_unknown_answers_ok(launcher: Launcher) -> None:
    launcher.start("a", 0)
    assert launcher.stop("a").wait_status == signal.SIGKILL
    again = launcher.stop("a")
    assert (again.wait_status, again.slot_clean) == (0, False)
    launcher.start("ghost", 0)
    launcher.stop("ghost", keep_upper=True)
    (launcher.run / "i" / "ghost").touch()
    assert launcher.uppers() == {"ghost"}
    assert launcher.stop("ghost").wait_status == 0
    assert not (launcher.run / "i" / "ghost").exists()
    assert launcher.uppers() == set()


def test_read_files_come_back_after_the_end(launcher: Launcher) -> None:
    launcher.start("a", 0)
    procs = launcher.group(0) / "agent" / "cgroup.procs"
    reply = launcher.stop("a", read=(str(procs), str(launcher.group(0) / "none")))
    assert reply.read == (b"", b"")
    assert launcher.stop("b", read=(str(launcher.group(0) / "cgroup.type"),)).read == (b"domain\n",)


def test_first_process_that_ends_is_reported(launcher: Launcher) -> None:
    launcher.start("a", 0)
    with contextlib.suppress(OSError):
        launcher.say("a", "exit 3")
    assert soon(lambda: bool(launcher.ask(plan.Status())) and bool(launcher.exited))
    assert launcher.exited == [replies.Exited(instance="a", wait_status=3 << 8)]
    assert launcher.stop("a").wait_status == 3 << 8


def test_waiting_connection_gets_the_slot_a_new_network(launcher: Launcher) -> None:
    def network(pid: int) -> str:
        return os.readlink(f"/proc/{pid}/ns/net")

    first = network(launcher.start("a", 0))
    assert launcher.stop("a").slot_clean
    second = network(launcher.start("b", 0))
    assert second == first
    assert launcher.say("b", "waiting") == b"0"
    assert launcher.stop("b").slot_clean
    assert network(launcher.start("c", 0)) != first


def test_killed_launcher_comes_back_to_its_instances(launcher: Launcher) -> None:
    pid = launcher.start("a", 0)
    launcher.start("lost", 1)
    launcher.stop("lost", keep_upper=True)
    launcher.process.kill()
    launcher.process.wait()
    launcher.begin()
    status = launcher.ok(plan.Status()).status()
    assert (status.layer, status.upper, status.instance) == (("small",), "btrfs", ())
    assert launcher.uppers() == {"a", "lost"}
    same = launcher.plan("a", 0)
    adopt = plan.Adopt(
        instance="a", slot=0, pid=pid, agent_group=same.agent_group,
        work_group=same.work_group, socket=same.socket,
    )  # fmt: skip
    wrong = launcher.plan("a", 1).agent_group
    assert (
        launcher.failure(plan.Adopt(**{**vars_of(adopt), "agent_group": wrong})).errno
        == errno.ESRCH
    )
    launcher.ok(adopt)
    assert launcher.say("a", "cat /etc/os-release") == b"NAME=small\n"
    assert launcher.failure(plan.LayerUnmount("small")).errno == errno.EBUSY
    reply = launcher.stop("a")
    assert not reply.slot_clean
    assert ended(pid)
    launcher.ok(plan.UpperDrop("lost"))
    assert launcher.uppers() == set()
    launcher.slot(0)
    launcher.start("b", 0)
    launcher.stop("b")
    for slot in (0, 1):
        launcher.drop(slot)
    launcher.end()


def vars_of(body: plan.Adopt) -> dict[str, object]:
    return {name: getattr(body, name) for name in body.__struct_fields__}


def test_slot_that_is_being_made_is_known_and_stays(launcher: Launcher) -> None:
    """Whoever asked for it may be gone: the node that comes next must not take its number for free."""
    slots = range(2, 10)
    made = [launcher.slot_make(slot) for slot in slots]
    for _ in range(50):
        *answers, dropped, status = launcher.ask(*made, launcher.slot_drop(9), plan.Status())
        assert [reply.failure for reply in answers] == [None] * len(made)
        if dropped.failure is not None:
            break
        for slot in slots[:-1]:  # the last one was there already when it was to be dropped
            launcher.drop(slot)
    assert dropped.failure is not None
    assert (dropped.failure.error_step, dropped.failure.errno) == ("slot", errno.EBUSY)
    assert set(slots) <= set(status.status().slot)
    for slot in slots:
        launcher.drop(slot)
    assert not set(slots) & set(launcher.ok(plan.Status()).status().slot)


def test_lock_of_a_launcher_that_is_still_ending_is_waited_for(
    make: Callable[..., Launcher],
) -> None:
    """A busy host lets the killed one keep its copy for a while; the next one starts all the same."""
    found = make()
    found.run.mkdir()
    held = os.open(found.run, os.O_RDONLY | os.O_DIRECTORY)
    fcntl.flock(held, fcntl.LOCK_EX)
    threading.Timer(0.5, os.close, (held,)).start()
    found.begin()
    found.prepare(0)


def test_frozen_instance_thaws_and_can_be_stopped(launcher: Launcher) -> None:
    launcher.start("a", 0)
    launcher.ok(plan.Freeze("a"))
    assert "frozen 1" in (launcher.group(0) / "w" / "cgroup.events").read_text()
    assert launcher.say("a", "cat /etc/os-release") == b"NAME=small\n"
    launcher.ok(plan.Thaw("a"))
    launcher.ok(plan.Freeze("a"))
    assert launcher.stop("a").slot_clean
    assert launcher.failure(plan.Freeze("a")).errno == errno.ENOENT


def test_disk_limit_holds_and_is_lifted_for_the_next(launcher: Launcher) -> None:
    launcher.start("a", 0, disk_bytes=4 << 20)
    assert int(launcher.say("a", "fill 8")) == errno.EDQUOT
    launcher.stop("a")
    launcher.start("b", 0)
    assert launcher.say("b", "fill 8") == b"0"
    launcher.stop("b")


def test_snapshot_carries_files_to_the_next_instance(launcher: Launcher) -> None:
    launcher.slot(5, uid_base=UID_BASE)
    launcher.start("a", 0)
    assert launcher.say("a", "deep 3") == b"0"
    launcher.ok(plan.UpperSnapshot(instance="a", text="kept"))
    launcher.start("b", 5, upper_from="a", disk_bytes=16 << 20)
    launcher.start("c", 1)
    assert launcher.inside("upper/b/u/tmp/d/d/d").is_dir()
    launcher.stop("b")
    assert launcher.uppers() == {"a", "c", "kept"}
    launcher.ok(plan.UpperDrop("kept"))


def test_snapshot_in_another_range_of_ids_belongs_to_that_range(launcher: Launcher) -> None:
    """What a copy shows is its own range's; on disk all stays in the first one's."""
    launcher.slot(2)
    launcher.slot(3)
    launcher.start("a", 0)
    assert launcher.say("a", "deep 1") == b"0"
    os.chown(launcher.inside("upper/a/u/tmp/d"), UID_BASE + 7, UID_BASE + 7)
    launcher.ok(plan.UpperSnapshot(instance="a", text="kept"))
    for name, slot, source in (("b", 2, "kept"), ("c", 3, "b")):
        pid = launcher.start(name, slot, upper_from=source, uid_base=UID_BASE)
        root, base = Path(f"/proc/{pid}/root"), UID_BASE + slot * 65536
        assert (root.stat().st_uid, (root / "tmp/d").stat().st_uid) == (base, base + 7)
        os.chown(root / "tmp/d", base + 9, base + 9)
        assert launcher.inside(f"upper/{name}/u/tmp/d").stat().st_uid == UID_BASE + 9
        os.chown(root / "tmp/d", base + 7, base + 7)
    for name in "abc":
        launcher.stop(name)
    launcher.ok(plan.UpperDrop("kept"))


def test_copies_are_made_at_once_and_leave_nothing_beside_them(launcher: Launcher) -> None:
    """Each is made in a directory of its own, for a snapshot holds its directory's lock."""
    slots = range(2, 6)
    for slot in slots:
        launcher.slot(slot)
    launcher.start("a", 0)
    assert launcher.say("a", "deep 1") == b"0"
    launcher.ok(plan.UpperSnapshot(instance="a", text="kept"))
    wanted = [launcher.plan(f"c{slot}", slot, upper_from="kept") for slot in slots]
    assert [reply.failure for reply in launcher.ask(*wanted)] == [None] * len(slots)
    no_room = launcher.failure(launcher.plan("b", 1, upper_from="kept", disk_bytes=1))
    assert no_room.error_step == "overlay"
    assert all(launcher.inside(f"upper/c{slot}/u/tmp/d").is_dir() for slot in slots)
    assert launcher.uppers() == {"a", "kept", *(f"c{slot}" for slot in slots)}
    assert not list(launcher.inside("upper").glob(".at-*"))
    for name in ("a", *(f"c{slot}" for slot in slots)):
        launcher.stop(name)
    launcher.ok(plan.UpperDrop("kept"))


def test_pool_is_mounted_so_that_no_commit_waits_for_the_disk_below(launcher: Launcher) -> None:
    mounts = Path(f"/proc/{launcher.process.pid}/mountinfo").read_text().splitlines()
    (pool,) = (line for line in mounts if line.split()[4] == "/upper")
    assert "nobarrier" in pool.split()[-1].split(",")


def test_what_a_copy_left_that_was_killed_goes(launcher: Launcher) -> None:
    """With its sandbox, and what nobody knows of with the next launcher."""
    upper = launcher.inside("upper")

    def broken_off(name: str) -> None:
        (upper / f".at-{name}").mkdir()
        made = [*("btrfs", "subvolume", "create"), upper / f".at-{name}" / name]
        subprocess.run(made, check=True, capture_output=True)

    launcher.start("a", 0)
    broken_off("a")
    launcher.stop("a")
    assert not list(upper.glob(".at-*"))
    broken_off("b")
    launcher.process.kill()
    launcher.process.wait()
    launcher.begin()
    assert not list(launcher.inside("upper").glob(".at-*"))


def test_plain_directories_serve_without_limits_and_deep_trees_go(
    make: Callable[..., Launcher],
) -> None:
    launcher = make(upper="dir")
    launcher.begin()
    launcher.prepare(0)
    refused = launcher.failure(launcher.plan("a", 0, disk_bytes=1 << 20))
    assert refused.errno == errno.EOPNOTSUPP
    launcher.start("a", 0)
    assert launcher.say("a", "deep 5000") == b"0"
    launcher.stop("a")
    trash = launcher.state / "pool" / ".trash"
    assert soon(lambda: not any(trash.iterdir()), 60)  # thousands of renames, on a busy machine
    launcher.drop(0)
    launcher.end()


def test_client_that_is_late_finds_all_answers(launcher: Launcher) -> None:
    """A node on a busy host: the answers of a crowd of starts and ends wait for it."""
    asked = range(1000, 3000)
    for number in asked:
        launcher.socket.send(plan.Status().encode(number))
    answers = [replies.decode(launcher.socket.recv(1 << 17)) for _ in asked]
    assert [answer.request_id for answer in answers] == list(asked)


def test_log_is_bounded(make: Callable[..., Launcher]) -> None:
    launcher = make(san=True)
    launcher.run.mkdir(mode=0o700)
    log, old = launcher.run / "spawn.log", launcher.run / "spawn.log.1"
    for _ in range(2):  # the second time there is an older one, which goes
        log.write_bytes(b"x" * (1 << 20))
        launcher.begin("--log", str(log))
        launcher.prepare()
        launcher.failure(launcher.plan("a", 7))
        launcher.failure(launcher.plan("b", 7))
        assert log.stat().st_size < 2000
        assert log.read_text().count("\n") == 2
        assert old.stat().st_size == 1 << 20
        launcher.ok(plan.Shutdown())
        assert launcher.process.wait(20) == 0
    log.unlink()
    old.unlink()
    launcher.census()


def test_without_a_client_what_is_not_kept_ends_and_then_the_launcher(
    make: Callable[..., Launcher],
) -> None:
    launcher = make(san=True)
    launcher.run.mkdir(mode=0o700)
    keep = launcher.run / "keep"
    keep.mkdir()
    launcher.begin("--orphan-after", "1", "--keep", str(keep))
    launcher.prepare(0, 1)
    (keep / "a").touch()
    kept, goes = launcher.start("a", 0), launcher.start("b", 1)
    launcher.socket.close()
    assert ended(goes)
    assert proc.runs(kept)
    assert launcher.process.poll() is None
    (keep / "a").unlink()  # it is not to be kept any more, and nobody comes back
    assert launcher.process.wait(20) == 0
    keep.rmdir()
    launcher.census()
