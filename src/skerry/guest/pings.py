"""Questions whether an agent still answers, each by its token."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from skerry.errors import Overloaded, SkerryError
from skerry.guest.channel import same_error

PINGS_MAX: Final = 16


class Pings:
    """Those of one connection that wait for their answer; at most 16."""

    def __init__(self, send: Callable[[bytes], None]) -> None:
        self._send = send
        self._waiting: dict[bytes, asyncio.Future[None]] = {}
        self._tokens = 0

    async def ask(self) -> None:
        """Returns when the agent has answered; the caller sets the timeout."""
        if len(self._waiting) >= PINGS_MAX:
            raise Overloaded("the guest agent answers no pings", limit="pings", retry_after_s=1.0)
        self._tokens += 1
        token = self._tokens.to_bytes(8, "little")
        future = asyncio.get_running_loop().create_future()
        self._send(token)
        self._waiting[token] = future
        await future

    def answered(self, token: bytes) -> None:
        """Takes an answer; one that nobody waits for is nothing."""
        future = self._waiting.pop(token, None)
        if future is not None and not future.done():
            future.set_result(None)

    def lose(self, error: SkerryError) -> None:
        """The connection has ended: whoever waits is told."""
        waiting, self._waiting = self._waiting, {}
        for future in waiting.values():
            if not future.done():
                future.set_exception(same_error(error))
                future.exception()
