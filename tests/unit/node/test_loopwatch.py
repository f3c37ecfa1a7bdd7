"""The lag of the event loop is counted, and what held it up is named."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace
from typing import Any

from skerry.node.gauges.loopwatch import BEAT_S, BOUNDS_S, LoopWatch, where


class Now:
    def __init__(self) -> None:
        self.value = 100.0

    def __call__(self) -> float:
        return self.value


def test_late_beats_are_counted_by_their_lag() -> None:
    now = Now()
    watch = LoopWatch(now)
    for lag in (0.0, 0.0, 0.02, 4.0):
        now.value += BEAT_S + lag
        watch.beat()
    counted = watch.beats.buckets
    assert sum(counted) == 4
    assert counted[0] == 2
    assert counted[BOUNDS_S.index(0.025)] == 1
    assert counted[BOUNDS_S.index(5.0)] == 1
    assert round(watch.gauges()["loop_lag_seconds_max"], 6) == 4.0
    assert round(watch.last_s, 6) == 4.0
    now.value += BEAT_S
    watch.beat()
    assert watch.last_s < 0.001


async def test_beat_that_is_due_counts_before_it_comes() -> None:
    now = Now()
    watch = LoopWatch(now)
    assert watch.lag() == 0.0
    async with watch.watching():
        now.value += BEAT_S + 2.0
        assert round(watch.lag(), 6) == 2.0
    assert watch.lag() == 0.0


async def test_what_blocks_the_loop_is_named() -> None:
    watch = LoopWatch()
    async with watch.watching():
        await asyncio.sleep(0)
        deadline = time.monotonic() + 20
        while not watch.caught[1] and time.monotonic() < deadline:  # blocks the loop on purpose
            time.sleep(0.01)  # noqa: ASYNC251
        await asyncio.sleep(0.01)
    assert "test_loopwatch.py" in watch.caught[1]
    assert watch.worst_s > 0.2


def test_warning_names_what_was_caught_at_that_beat_and_nothing_older(caplog) -> None:
    now = Now()
    watch = LoopWatch(now)
    watch.caught = (watch._due, "node/files.py:7 (f)")
    for _ in range(2):
        now.value += 100.0
        watch.beat()
    first, second = (record.getMessage() for record in caplog.records)
    assert first.endswith("held up by node/files.py:7 (f)")
    assert second.endswith("held up by nothing of its own: the machine did not let it run")


def test_innermost_line_of_ours_is_named() -> None:
    import sys

    assert "test_loopwatch.py" in where(sys._getframe())


def stack(*names: str) -> Any:
    """Frames of files, the innermost first."""
    frame = None
    for name in reversed(names):
        code = SimpleNamespace(co_filename=name, co_name="f")
        frame = SimpleNamespace(f_code=code, f_lineno=7, f_back=frame)
    return frame


def test_loop_that_stands_in_no_code_at_all_is_the_machines_doing() -> None:
    below = ("/lib/asyncio/runners.py", "/x/skerry/cli/node.py")
    idle = where(stack(*below))
    assert "machine" in idle
    assert where(stack("/lib/selectors.py", "/lib/asyncio/base_events.py", *below)) == idle
    assert where(stack("/x/skerry/node/files.py", *below)) == "node/files.py:7 (f)"
    assert where(stack("/lib/json.py", "/x/skerry/wire/a.py", *below)) == "wire/a.py:7 (f)"
    assert where(stack("/lib/ssl.py", *below)) == "/lib/ssl.py:7 (f)"
