"""Gives up work in which nothing moves."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self


class Stall:
    """A block that is ended with TimeoutError when nothing has moved in it for so long.

    What moves is said by `moved`, which costs a look at the clock: a transfer may say it for each
    piece, where a timeout of its own would cost more than the piece. Without seconds it never ends.
    """

    __slots__ = ("_last", "_loop", "_seconds", "_timeout", "_timer")

    def __init__(self, seconds: float | None) -> None:
        self._seconds = seconds
        self._loop = asyncio.get_running_loop()
        self._last = 0.0
        self._timeout = asyncio.timeout(None)
        self._timer: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> Self:
        await self._timeout.__aenter__()
        self.moved()
        if self._seconds is not None:
            self._timer = self._loop.call_later(self._seconds, self._due)
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
        await self._timeout.__aexit__(exc_type, exc, traceback)

    def moved(self) -> None:
        """It goes on: the time begins anew."""
        self._last = self._loop.time()

    def _due(self) -> None:
        left = self._last + (self._seconds or 0.0) - self._loop.time()
        if left > 0:
            self._timer = self._loop.call_later(left, self._due)
        else:
            self._timeout.reschedule(self._loop.time())
