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
