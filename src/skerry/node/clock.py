"""Time, as an argument: the node reads no clock but the one it is given."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Protocol


class Clock(Protocol):
    """Two readings, and one wake-up."""

    def monotonic(self) -> float:
        """Seconds that never jump."""

    def wall(self) -> float:
        """Seconds since the epoch."""

    def wake_at(self, deadline: float, call: Callable[[], None]) -> Callable[[], None]:
        """Calls once `monotonic` has reached the deadline; returns what takes that back."""


class SystemClock:
    """The machine's clock, waking through the running event loop."""

    monotonic = staticmethod(time.monotonic)
    wall = staticmethod(time.time)

    def wake_at(self, deadline: float, call: Callable[[], None]) -> Callable[[], None]:
        """Calls once the deadline has passed."""
        delay = max(0.0, deadline - time.monotonic())
        return asyncio.get_running_loop().call_later(delay, call).cancel


def born_at(clock: Clock, created: float, born: float, *, same_boot: bool) -> float:
    """Returns on the monotonic clock when something was made that an earlier process has recorded.

    `born` is that reading, which holds over processes as long as the host runs; over a restart of the
    host only the wall clock (`created`) knows.
    """
    return born if same_boot else clock.monotonic() - max(0.0, clock.wall() - created)


async def sleep(clock: Clock, seconds: float) -> None:
    """Returns when that much time has passed on the clock."""
    passed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def wake() -> None:
        if not passed.done():
            passed.set_result(None)

    take_back = clock.wake_at(clock.monotonic() + seconds, wake)
    try:
        await passed
    finally:
        take_back()
