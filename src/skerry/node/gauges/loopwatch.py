"""How late the event loop is: a heartbeat on the loop, and a thread that looks when it is missed.

The heartbeat measures the lag that every callback suffers. Python cannot ask a blocked loop what
blocks it, so a thread beside it does: when a heartbeat is overdue it reads the loop's stack and
keeps the innermost line of ours, which is what an operator wants to see.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import FrameType
from typing import Final

from skerry.node.gauges.metrics import Histogram

log = logging.getLogger("skerry.node")

BEAT_S = 0.25
OVERDUE_S = 0.5  # from here on the stack is read
WARN_S = 1.0
WARN_EVERY_S = 60.0
# What runs a loop; uvloop shows no frames of its own.
LOOPS: Final = ("/asyncio/runners.py", "/asyncio/base_events.py", "/selectors.py")
NOTHING: Final = "nothing of its own: the machine did not let it run"
BOUNDS_S: Final = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class LoopWatch:
    """The lag of one loop. Read from the loop only; the thread writes `caught` and nothing else.

    `beats` counts heartbeats by lag in seconds.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._due = now() + BEAT_S
        self._alive = False
        self._thread_id = 0
        self._stop = threading.Event()
        self._timer: asyncio.TimerHandle
        self._warned = float("-inf")
        self.last_s = 0.0
        self.worst_s = 0.0
        self.beats = Histogram(BOUNDS_S)
        self.caught: tuple[float, str] = (0.0, "")  # the beat that was due, what held it up

    def lag(self) -> float:
        """Returns the seconds by which the loop is behind: of the last beat, or of the one due."""
        if not self._alive:
            return 0.0
        return max(self.last_s, self._now() - self._due)

    def gauges(self) -> dict[str, float]:
        """Returns the lag in seconds; `beats` has the histogram."""
        return {
            "loop_lag_seconds": round(self.lag(), 6),
            "loop_lag_seconds_max": round(self.worst_s, 6),
        }

    def beat(self) -> None:
        """The heartbeat has come; takes its lag."""
        now, due = self._now(), self._due
        lag = max(0.0, now - due)
        self._due = now + BEAT_S
        self.last_s = lag
        self.worst_s = max(self.worst_s, lag)
        self.beats.add(lag)
        if lag >= WARN_S and now - self._warned >= WARN_EVERY_S:
            self._warned = now
            # Nothing was caught if the whole process stood still.
            at = self.caught[1] if self.caught[0] == due else NOTHING
            log.warning("the event loop was %.1f s late, held up by %s", lag, at)

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        """Watches the running loop within the block."""
        loop = asyncio.get_running_loop()
        self._thread_id = threading.get_ident()
        self._due = self._now() + BEAT_S
        self._alive = True
        self._stop.clear()

        def tick() -> None:
            self.beat()
            self._timer = loop.call_later(BEAT_S, tick)

        self._timer = loop.call_later(BEAT_S, tick)
        thread = threading.Thread(target=self._look, name="skerry-loop-watch", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._timer.cancel()
            self._alive = False
            self._stop.set()
            thread.join()

    def _look(self) -> None:
        while not self._stop.wait(BEAT_S):
            due = self._due
            if self._now() - due > OVERDUE_S:
                frame = sys._current_frames().get(self._thread_id)  # noqa: SLF001
                if frame is not None:
                    self.caught = (due, where(frame))


def where(frame: FrameType) -> str:
    """Returns file:line (function) of the innermost frame of Skerry's, or of the innermost.

    Below the loop's own frame nothing holds it up: then it is the machine that does not run it.
    """
    inner: FrameType | None = frame
    while inner is not None and not inner.f_code.co_filename.endswith(LOOPS):
        name = inner.f_code.co_filename
        if "/skerry/" in name:
            return f"{name.rpartition('/skerry/')[2]}:{inner.f_lineno} ({inner.f_code.co_name})"
        inner = inner.f_back
    if frame.f_code.co_filename.endswith(LOOPS):
        return NOTHING
    return f"{frame.f_code.co_filename}:{frame.f_lineno} ({frame.f_code.co_name})"
