"""A number that changes when anything does, and a way to wait for that."""

from __future__ import annotations

import asyncio


class Pulse:
    """Invariant: whoever waits for another version than the current one waits no longer."""

    def __init__(self) -> None:
        self.version = 1
        self._event = asyncio.Event()

    def tick(self) -> None:
        """Something has changed."""
        self.version += 1
        self._event.set()
        self._event = asyncio.Event()

    async def wait(self, seen: int, seconds: float) -> None:
        """Returns when the version is another one than was seen, or the time has passed."""
        if self.version != seen or seconds <= 0:
            return
        try:
            async with asyncio.timeout(seconds):
                await self._event.wait()
        except TimeoutError:
            return
