"""Where the output of a call goes: kept up to its limit, or handed to a client as it comes."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

from skerry.guest.api import Stream
from skerry.wire.frames import WINDOW

NAMES = {Stream.STDOUT: "stdout", Stream.STDERR: "stderr"}


class CallSink:
    """Keeps the first `limit` bytes of each stream; `full` is called once a stream has more.

    Everything counts as safe at once: what a call says is lost with the node.
    """

    __slots__ = ("_full", "_kept", "_limit", "_totals", "over")

    def __init__(self, limit: int, full: Callable[[], None]) -> None:
        self.over = False
        self._limit = limit
        self._full = full
        self._kept: dict[Stream, bytearray] = {}
        self._totals: dict[Stream, int] = {}

    def write(self, stream: Stream, offset: int, data: bytes) -> None:
        """Takes bytes."""
        kept = self._kept.get(stream)
        if kept is None:
            kept = self._kept[stream] = bytearray()
        room = self._limit - len(kept)
        if room > 0:
            kept += data if len(data) <= room else data[:room]
        self._totals[stream] = offset + len(data)
        if len(data) > room and not self.over:
            self.over = True
            self._full()

    def safe_offset(self, stream: Stream) -> int:
        """Returns how many bytes came."""
        return self._totals.get(stream, 0)

    async def drain(self) -> None:
        """Returns at once."""

    def output(self, stream: Stream) -> bytes:
        """Returns what is kept of a stream."""
        return bytes(self._kept.get(stream, b""))


class StreamSink:
    """Hands pieces to `give`, one after the other: its pace is the call's.

    Invariant: it holds at most what the agent sends without credit, a window of each stream.
    """

    __slots__ = ("_full", "_give", "_giving", "_limit", "_pieces", "_totals", "error", "over")

    def __init__(
        self, limit: int, full: Callable[[], None], give: Callable[[str, bytes], Awaitable[None]]
    ) -> None:
        self.over = False
        self.error: BaseException | None = None
        self._limit = limit
        self._full = full
        self._give = give
        self._pieces: deque[tuple[Stream, bytes]] = deque()
        self._totals: dict[Stream, int] = {}
        self._giving: asyncio.Task[None] | None = None

    def write(self, stream: Stream, offset: int, data: bytes) -> None:
        """Takes bytes."""
        before = self._totals.get(stream, 0)
        self._totals[stream] = offset + len(data)
        room = self._limit - before
        if room > 0 and self.error is None:
            self._pieces.append((stream, data[:room]))
            if self._giving is None:
                self._giving = asyncio.ensure_future(self._hand_over())
        if len(data) > room and not self.over:
            self.over = True
            self._full()

    def safe_offset(self, stream: Stream) -> int:
        """Returns how many bytes came and were handed over."""
        held = sum(len(data) for one, data in self._pieces if one is stream)
        return self._totals.get(stream, 0) - held

    async def drain(self) -> None:
        """Returns when less than half a window is held."""
        while self._giving is not None and sum(len(d) for _, d in self._pieces) > WINDOW // 2:
            await asyncio.wait({self._giving}, timeout=0.05)

    def output(self, stream: Stream) -> bytes:  # noqa: ARG002
        """Returns nothing: it was handed over."""
        return b""

    async def finish(self) -> None:
        """Returns when all was handed over; raises what `give` raised."""
        if self._giving is not None:
            await asyncio.wait({self._giving})
        if self.error is not None:
            raise self.error

    def close(self) -> None:
        """Nobody takes any more; safe to call twice."""
        self._pieces.clear()
        if self._giving is not None:
            self._giving.cancel()

    async def _hand_over(self) -> None:
        try:
            while self._pieces:
                stream, data = self._pieces[0]
                await self._give(NAMES[stream], data)
                if self._pieces:
                    self._pieces.popleft()
        except Exception as error:  # noqa: BLE001 - it is raised to whoever waits for the end
            self.error = error
            self._pieces.clear()
            self._full()
        finally:
            self._giving = None
