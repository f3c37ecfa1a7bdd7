"""What backends say of themselves, asked at most once a second: the health route needs no token."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from skerry.backends.api import Backend
from skerry.errors import SkerryError
from skerry.node.clock import Clock

FRESH_S = 1.0


class Probes:
    """Remembers the last answer; whoever asks while one is being made waits for the same."""

    def __init__(self, backends: Mapping[str, Backend], clock: Clock) -> None:
        self._backends = backends
        self._clock = clock
        self._asking = asyncio.Lock()
        self._asked = float("-inf")
        self._said: dict[str, str] = {}

    async def __call__(self) -> dict[str, str]:
        """Returns, by backend, "usable" or the reason why not."""
        async with self._asking:
            if self._clock.monotonic() - self._asked >= FRESH_S:
                self._said = {name: await _ask(one) for name, one in self._backends.items()}
                self._asked = self._clock.monotonic()
        return self._said


async def _ask(backend: Backend) -> str:
    try:
        seen = await backend.probe()
    except SkerryError as error:
        return error.message
    return "usable" if seen.usable else seen.reason
