"""Cells whose making fails, hangs or is killed at each step; what of other calls is in their memory."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from function_rig import CELL, FAILED, GONE, Container, FunctionLauncher
from native_agent import CFG_DEADLINE, ERRNO, ERROR_STEP, REAL, pack

from skerry.wire import plan
from waiting import soon

pytestmark = REAL

# Of the maker, then of the cell's first process; `clone` fails when that one lives.
STEPS = ("user", "net", "unshare", "clone", "identity", "places", "proc", "masks", "drop")


@pytest.fixture
def make(image: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Container]]:
    with contextlib.ExitStack() as stack:

        def build(words: str = "", *, binary: str = "weak", **more: object) -> Container:
            base = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sk")))
            launcher = FunctionLauncher(image, base, binary=binary)
            stack.callback(launcher.clear)
            monkeypatch.setenv("SKERRY_WEAK", words)
            launcher.begin()
            launcher.prepare(0)
            start = launcher.function_plan("f", 0)
            config = start.config + b"".join(pack(t, v) for t, v in more.get("config", ()))
            box = launcher.function("f", 0, config=config)
            stack.callback(box.client.close)
            return box

        yield build


def children(box: Container) -> list[int]:
    return [int(n) for n in Path(f"/proc/{box.pid}/task/{box.pid}/children").read_text().split()]


def waiting(box: Container) -> list[int]:
    """The first processes of its cells that have nothing more to do."""
    return [pid for pid in children(box) if "pause" in Path(f"/proc/{pid}/wchan").read_text()]


def finish(box: Container) -> None:
    box.client.close()
    box.launcher.stop("f")
    box.launcher.drop(0)
    box.launcher.end()


@pytest.mark.parametrize("step", STEPS)
def test_step_that_fails_is_named_and_leaves_nothing(
    make: Callable[..., Container], step: str
) -> None:
    box = make(f"fail-{step}")
    held = len(os.listdir(f"/proc/{box.pid}/fd"))
    for _ in range(3):
        box.ask(0, 1)
        said = box.answer()
        assert said == {CELL: 0, 7: FAILED, ERROR_STEP: step, ERRNO: errno.EIO}
        assert not children(box)
    assert len(os.listdir(f"/proc/{box.pid}/fd")) == held
    finish(box)


@pytest.mark.parametrize("step", [step for step in STEPS if step != "clone"])
def test_maker_that_hangs_or_is_killed_is_given_up(
    make: Callable[..., Container], step: str
) -> None:
    box = make(f"hang-{step}", config=[(CFG_DEADLINE, 400)])
    box.ask(0, 1)
    said = box.answer()
    assert said == {CELL: 0, 7: FAILED, ERROR_STEP: "deadline", ERRNO: errno.ETIMEDOUT}
    assert not children(box)
    box.ask(0, 1)
    assert soon(lambda: bool(children(box)))
    for pid in children(box):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    said = box.answer()
    assert (said[7], said[ERROR_STEP]) == (FAILED, "deadline")
    assert not children(box)
    box.ask(0, 2)  # one that was never there goes, too
    assert box.answer() == {CELL: 0, 7: GONE}
    finish(box)


@pytest.mark.parametrize("step", ["view", "places", "seal", "exec"])
def test_start_of_a_function_container_that_fails_is_undone(image: Path, step: str) -> None:
    with tempfile.TemporaryDirectory(prefix="sk") as base:
        launcher = FunctionLauncher(image, Path(base), binary="san")
        try:
            launcher.begin("--fail-at", step)
            launcher.prepare(0)
            failure = launcher.failure(launcher.function_plan("f", 0))
            assert (failure.error_step, failure.errno) == (step, errno.EIO)
            launcher.drop(0)
            launcher.end()
        finally:
            launcher.clear()


def test_slot_serves_its_own_profile_only(image: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="sk") as base:
        launcher = FunctionLauncher(image, Path(base))
        try:
            launcher.begin()
            launcher.prepare(0)
            launcher.ok(launcher.slot_make(1))
            ordinary = launcher.plan("a", 0, layer=("image",))
            assert launcher.failure(ordinary).error_step == "slot"
            assert launcher.failure(launcher.function_plan("b", 1)).error_step == "slot"
            assert launcher.ok(plan.Status()).status().instance == ()
        finally:
            launcher.clear()


def test_first_process_of_a_cell_remembers_nothing_of_other_calls(
    make: Callable[..., Container],
) -> None:
    box = make(binary="release")
    box.renew(0)
    mine, theirs = b"word of the call", b"answer of the call"
    box.client.auto_credit = False  # what it says stays with the agent
    op = box.start(
        0, "sh", "-c", f"echo {theirs.decode()}; exec sleep 1000", env=[f"X={mine.decode()}"]
    )
    while not op.stdout:
        box.client.step()
    box.renew(1)
    assert soon(lambda: len(waiting(box)) == 2)
    inits = waiting(box)
    assert {mine, theirs} & remembered(box.pid, mine, theirs) == {mine, theirs}  # the control
    for pid in inits:
        assert remembered(pid, mine, theirs) == set()


def remembered(pid: int, *words: bytes) -> set[bytes]:
    """Which of the words lie in the memory of a process."""
    found = set()
    with open(f"/proc/{pid}/mem", "rb") as memory:
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            begin, end = (int(n, 16) for n in line.split()[0].split("-"))
            with contextlib.suppress(OSError, ValueError, OverflowError):
                memory.seek(begin)
                text = memory.read(end - begin)
                found |= {word for word in words if word in text}
    return found
