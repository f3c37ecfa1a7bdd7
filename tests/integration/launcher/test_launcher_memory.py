"""RECLAIM and PREFETCH of the real launcher, built with sanitizers, over processes of the test's own."""

from __future__ import annotations

import errno
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from native_launcher import Launcher
from skerry.density.zram import Zram, offered
from skerry.wire import plan

pytestmark = pytest.mark.root

MIB = 1 << 20
HOLDER = (
    "x = bytearray(b'ab' * (int(__import__('sys').argv[1]) << 19)); print(1, flush=True); input()"
)
ALL = 1 << 60


@pytest.fixture(scope="module")
def swap():
    """Compressed swap for this module."""
    if not offered():
        pytest.skip("this kernel has no zram")
    zram = Zram("lmem2")
    zram.open(128 * MIB)
    yield
    zram.close()


@pytest.fixture
def launcher(programs):
    with tempfile.TemporaryDirectory(prefix="sk") as base:
        made = Launcher(programs, Path(base), san=True)
        made.begin()
        made.prepare(0, 1)
        yield made
        made.clear()
        assert "runtime error" not in (Path(base) / "log").read_text()


class Holder:
    """A process that holds memory, in a group of the launcher's."""

    def __init__(self, group: Path | None, mib: int) -> None:
        argv = [sys.executable, "-c", HOLDER, str(mib)]
        self.process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == b"1\n"
        if group is not None:
            (group / "cgroup.procs").write_text(str(self.process.pid))

    def kib(self, field: str) -> int:
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(text.split(f"{field}:")[1].split(maxsplit=1)[0])

    def __enter__(self) -> Holder:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()


def finish(launcher: Launcher, *instances: str) -> None:
    """Stops what lives and finds the machine as it was."""
    for name in instances:
        launcher.stop(name)
    for slot in (0, 1):
        launcher.drop(slot)
    launcher.end()


def moved(launcher: Launcher, request: plan.Request) -> int:
    return launcher.ok(request).moved().bytes


def test_memory_of_the_group_goes_and_comes_and_nobody_elses(launcher, swap):
    launcher.start("a", 0)
    launcher.start("b", 1)
    below = launcher.group(0) / "w" / "c1" / "d"
    below.mkdir(parents=True)
    with (
        Holder(launcher.group(0) / "w", 20) as own,
        Holder(below, 10) as nested,
        Holder(launcher.group(1) / "w", 10) as other,
        Holder(None, 10) as stranger,
    ):
        assert moved(launcher, plan.Reclaim(instance="a", bytes=ALL)) > 25 * MIB
        assert own.kib("VmSwap") > 18 << 10
        assert nested.kib("VmSwap") > 9 << 10
        assert other.kib("VmSwap") == stranger.kib("VmSwap") == 0
        assert moved(launcher, plan.Prefetch(instance="a", bytes=ALL)) > 25 * MIB
    finish(launcher, "a", "b")


def test_no_more_goes_than_was_asked_for(launcher, swap):
    launcher.start("a", 0)
    with Holder(launcher.group(0) / "w", 40) as own:
        gone = moved(launcher, plan.Reclaim(instance="a", bytes=8 * MIB))
        assert 7 * MIB < gone < 16 * MIB
        assert own.kib("VmSwap") < 18 << 10
    finish(launcher, "a")


def test_only_the_steps_are_done_for_no_bytes(launcher, swap):
    launcher.start("a", 0)
    pids = launcher.group(0) / "w/pids.max"
    step = f"write {launcher.group(0)}/w/cgroup.max.depth 7"
    with Holder(launcher.group(0) / "w", 5) as own:
        assert moved(launcher, plan.Reclaim(instance="a", bytes=0, step=(step,))) == 0
        assert own.kib("VmSwap") == 0
    assert (launcher.group(0) / "w/cgroup.max.depth").read_text() == "7\n"
    outside = plan.Reclaim(instance="a", bytes=1, step=("write /sys/fs/cgroup/x/y 1",))
    assert launcher.failure(outside).errno == errno.EACCES
    assert not pids.exists()
    finish(launcher, "a")


def test_stop_overtakes_and_the_launcher_goes_on_answering(launcher, swap):
    launcher.start("a", 0)
    with Holder(launcher.group(0) / "w", 60):
        reclaim, status, *_ = launcher.ask(plan.Reclaim(instance="a", bytes=ALL), plan.Status())
        assert status.failure is None
        assert reclaim.failure is None
    reclaim, stop = launcher.ask(plan.Reclaim(instance="a", bytes=ALL), plan.Stop(instance="a"))
    assert stop.failure is None
    assert reclaim.failure is None
    failure = launcher.failure(plan.Reclaim(instance="a", bytes=ALL))
    assert failure.errno == errno.ENOENT
    finish(launcher)


def test_workers_are_bounded_and_leave_no_descriptor(launcher, swap):
    launcher.start("a", 0)
    before = launcher.descriptors()
    with Holder(launcher.group(0) / "w", 100):
        # More than can be taken while the others are asked for.
        replies = launcher.ask(*[plan.Reclaim(instance="a", bytes=ALL) for _ in range(96)])
        refused = [reply.failure.errno for reply in replies if reply.failure is not None]
        assert set(refused) <= {errno.EAGAIN}
        assert len(refused) >= 1
        until = time.monotonic() + 10
        while launcher.descriptors() != before:
            assert time.monotonic() < until
            time.sleep(0.01)
        launcher.ok(plan.Reclaim(instance="a", bytes=ALL))
    finish(launcher, "a")


def test_killed_launcher_leaves_no_worker(launcher, swap):
    launcher.start("a", 0)
    with Holder(launcher.group(0) / "w", 60):
        launcher.socket.send(plan.Reclaim(instance="a", bytes=ALL).encode(900))
        time.sleep(0.02)
        launcher.process.kill()
        launcher.process.wait()
        name = f"--run {launcher.run}"
        until = time.monotonic() + 20
        while any(name in words for words in command_lines()):
            assert time.monotonic() < until
            time.sleep(0.05)
    launcher.begin()
    (launcher.group(0) / "cgroup.kill").write_text("1")  # as the backend does with what is left
    while "populated 1" in (launcher.group(0) / "cgroup.events").read_text():
        assert time.monotonic() < until
        time.sleep(0.01)
    launcher.ok(plan.Stop(instance="a"))
    for slot in (0, 1):
        launcher.drop(slot)
    launcher.ok(plan.Shutdown())
    assert launcher.process.wait(20) == 0  # its first process is the host's init's to collect


def command_lines() -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found.append(path.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
        except OSError:
            continue
    return found
