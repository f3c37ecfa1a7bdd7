"""Bytes that cross between the event loop and threads that block, no faster than they are taken."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Generator, Iterator

from skerry.errors import InvalidRequest
from skerry.guest.files import STALL_S

BATCH_BYTES = 256 * 1024


class Pieces:
    """An archive that is made piece by piece, for threads; a cancelled one may still be at it."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = iter(pieces)
        self._turn = threading.Lock()

    def batch(self) -> bytes:
        """Returns the next BATCH_BYTES or so; b"" at the end."""
        parts, total = [], 0
        with self._turn:
            for piece in self._pieces:
                parts.append(piece)
                total += len(piece)
                if total >= BATCH_BYTES:
                    break
        return b"".join(parts)

    def close(self) -> None:
        """Closes what is open, after the piece that is under way."""
        with self._turn:
            if isinstance(self._pieces, Generator):
                self._pieces.close()


class ChunkReader:
    """A blocking file over an asynchronous body: each read pulls the next chunk through the loop."""

    def __init__(self, chunks: AsyncIterator[bytes], loop: asyncio.AbstractEventLoop) -> None:
        self._chunks = chunks
        self._loop = loop
        self._held = b""
        self._ended = False

    def read(self, size: int = -1, /) -> bytes:
        """Returns at most `size` bytes (all that is left if it is negative); b"" at the end."""
        if size < 0:
            parts = [self._held]
            self._held = b""
            while chunk := self._pull():
                parts.append(chunk)
            return b"".join(parts)
        if not self._held:
            self._held = self._pull()
        data, self._held = self._held[:size], self._held[size:]
        return data

    def _pull(self) -> bytes:
        if self._ended:
            return b""
        chunk = asyncio.run_coroutine_threadsafe(self._next(), self._loop).result()
        self._ended = not chunk
        return chunk

    async def _next(self) -> bytes:
        try:
            async with asyncio.timeout(STALL_S):
                return await anext(self._chunks, b"")
        except TimeoutError:
            raise InvalidRequest(f"body: nothing came for {STALL_S:g} s") from None
