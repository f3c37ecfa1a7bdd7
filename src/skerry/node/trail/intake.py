"""Takes a content as it streams by: hashed, and kept if it is long, in a thread beside the stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Final

from skerry.trajectory.shipping.contents import Content, Contents, Writer

AT_ONCE_BYTES: Final = 1 << 20
PART_BYTES_MIN: Final = 1 << 16


class Intake:
    """One content. At most one piece of work is in the thread, and one piece waits for it."""

    def __init__(self, contents: Contents) -> None:
        self._writer: Writer = contents.writer()
        self._inline_bytes = contents.inline_bytes
        self._parts: list[bytes] = []
        self._size = 0
        self._work: asyncio.Future[None] | None = None
        self._all = 0

    async def add(self, piece: bytes) -> None:
        """Takes the next piece; StorageFailed if what came before could not be kept."""
        self._parts.append(piece)
        self._size += len(piece)
        self._all += len(piece)
        if self._size >= AT_ONCE_BYTES:
            await self._pass_on()

    async def through(self, pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """Gives the pieces on as they come, each of them taken."""
        async for piece in pieces:
            await self.add(piece)
            yield piece

    async def end(self) -> Content:
        """Returns the content, kept; StorageFailed."""
        if self._all <= self._inline_bytes:  # it stays in memory: no thread is needed
            self._writer.add(b"".join(self._parts))
            return self._writer.end()
        await self._pass_on()
        await self._settled()
        return await asyncio.to_thread(self._writer.end)

    async def close(self) -> None:
        """Lets go of it; what was ended stays as long as its record needs it. Idempotent."""
        work, self._work = self._work, None
        if work is not None:
            await asyncio.wait((work,))
            if not work.cancelled():
                work.exception()
        self._writer.drop()

    async def _pass_on(self) -> None:
        await self._settled()
        parts, self._parts, self._size = self._parts, [], 0
        if parts:
            self._work = asyncio.ensure_future(asyncio.to_thread(_add_all, self._writer, parts))

    async def _settled(self) -> None:
        work = self._work
        if work is not None:
            await asyncio.shield(work)
            self._work = None


def _add_all(writer: Writer, parts: list[bytes]) -> None:
    for part in _long_enough(parts):
        writer.add(part)


def _long_enough(parts: list[bytes]) -> Iterator[bytes]:
    """Gives parts, short ones joined.

    A digest leaves the interpreter to the loop, and has to get it back: that costs more than a short
    part, and copying it costs more than that for a long one.
    """
    short: list[bytes] = []
    for part in parts:
        if len(part) < PART_BYTES_MIN:
            short.append(part)
            continue
        if short:
            yield b"".join(short)
            short = []
        yield part
    if short:
        yield b"".join(short)
