"""Connections that share one socket: none may hold up the others.

Who sends keeps within what the other side has taken and WINDOW more; who receives holds no more than
that, and so never stops reading the socket for one connection's sake.
"""

from __future__ import annotations

import asyncio

WINDOW = 1 << 18  # bytes; the message that begins within it may end behind it


class Pieces:
    """What has come for one connection and was not carried on yet; for one writer and one reader."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._ended = False
        self._taken = 0
        self._told = 0
        self._moved = asyncio.Event()

    async def put(self, data: bytes) -> None:
        """Takes bytes; waits only for a sender that does not keep within the window."""
        while len(self._data) >= WINDOW and not self._ended:
            await self._wait()
        if not self._ended:
            self._data += data
            self._moved.set()

    def end(self) -> None:
        """Nothing more comes; what has come can be taken."""
        self._ended = True
        self._moved.set()

    async def take(self) -> bytes:
        """Returns what has come, at least a byte; b"" at the end."""
        while not self._data and not self._ended:
            await self._wait()
        data = bytes(self._data)
        self._data.clear()
        self._moved.set()
        return data

    def carried(self, size: int) -> int:
        """Counts bytes that were carried on; returns the total if it is time to tell it, else 0."""
        self._taken += size
        if self._taken - self._told < WINDOW // 4:
            return 0
        self._told = self._taken
        return self._taken

    async def _wait(self) -> None:
        self._moved.clear()
        await self._moved.wait()


class Room:
    """How much may be sent now. Without limits `wait` never waits."""

    def __init__(self, *, limited: bool = True) -> None:
        self._limited = limited
        self._sent = 0
        self._taken = 0
        self._moved = asyncio.Event()

    def sent(self, size: int) -> None:
        """Counts bytes that were sent."""
        self._sent += size

    def taken(self, total: int) -> None:
        """The other side has carried on that many in all."""
        self._taken = max(self._taken, min(total, self._sent))
        self._moved.set()

    def open(self) -> None:
        """Nobody waits any more: the connection is over."""
        self._limited = False
        self._moved.set()

    async def wait(self) -> None:
        """Returns when a message may be sent."""
        while self._limited and self._sent >= self._taken + WINDOW:
            self._moved.clear()
            await self._moved.wait()
