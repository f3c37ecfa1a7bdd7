"""Sinks for the output of operations, and live copies of it.

`MemorySink` dies with the process; `SpoolSink` does not, once output is longer than its threshold;
`PullSink` hands output to one reader at the reader's pace. A `Tee` is a live copy for a streaming
client: a slow one slows the command (no credit is granted), one that has gone away no longer
matters. All of them bound what they hold.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from typing import Final, Self

from skerry.errors import Bug, InvalidRequest, Unavailable
from skerry.guest.api import Stream
from skerry.guest.spool import HeadTail, SpoolFile
from skerry.spec.limits import split_limit
from skerry.wire.frames import WINDOW

SPOOL_THRESHOLD: Final = 32 * 1024
TEE_BYTES_MAX: Final = 64 * 1024
UNPACED_BYTES_MAX: Final = 1024 * 1024
_NAMES: Final = {Stream.STDOUT: "stdout", Stream.STDERR: "stderr"}


class Tee:
    """A queue of output for one reader: `async for stream, data in tee`.

    A paced one holds at most `bytes_max` when credit is granted, and so never more than that and
    a window of each stream. One that is not is cut off when its reader falls UNPACED_BYTES_MAX
    behind. `finish` ends the iteration, `close` is for a reader that goes away.
    """

    __slots__ = (
        "_bytes_max",
        "_closed",
        "_cut",
        "_finished",
        "_held",
        "_pieces",
        "_reader",
        "_room",
        "paced",
    )

    def __init__(self, *, paced: bool = True, bytes_max: int = TEE_BYTES_MAX) -> None:
        self.paced = paced
        self._bytes_max = bytes_max
        self._pieces: deque[tuple[Stream, bytes]] = deque()
        self._held = 0  # Invariant: the sum of the lengths in _pieces
        self._finished = False
        self._closed = False
        self._cut = False
        self._reader: asyncio.Future[None] | None = None
        self._room = asyncio.Event()
        self._room.set()

    def push(self, stream: Stream, data: bytes) -> None:
        """Adds bytes; they vanish if the reader has gone away."""
        if self._closed or not data:
            return
        self._pieces.append((stream, data))
        self._held += len(data)
        if self._held > self._bytes_max:
            self._room.clear()
        if self._held > UNPACED_BYTES_MAX and not self.paced:
            self.cut_slow()
        self._wake()

    def finish(self) -> None:
        """Nothing more will come; safe to call twice."""
        self._finished = True
        self._wake()

    def close(self) -> None:
        """The reader goes away: nothing is held for it, and nobody waits for it any more."""
        self._closed = True
        self._pieces.clear()
        self._held = 0
        self._room.set()
        self._wake()

    def cut_slow(self) -> None:
        """A reader that is behind gets no more: its iteration raises Unavailable."""
        if not self._room.is_set():
            self._cut = True
            self.close()

    async def wait_room(self) -> None:
        """Returns when the reader has caught up, or has gone away, or sets no pace."""
        if self.paced:
            await self._room.wait()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> tuple[Stream, bytes]:
        if not await self._more():
            raise StopAsyncIteration
        piece = self._pieces.popleft()
        self._held -= len(piece[1])
        if self._held <= self._bytes_max:
            self._room.set()
        return piece

    async def take(self) -> bytes:
        """Returns all that is here, of both streams, at least a byte; b"" at the end."""
        return self.take_here() if await self._more() else b""

    def take_here(self) -> bytes:
        """Returns what `take` would if it need not wait for it; b"" if there is nothing yet."""
        if not self._pieces:
            return b""
        pieces = [data for _, data in self._pieces]
        self._pieces.clear()
        self._held = 0
        self._room.set()
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    async def _more(self) -> bool:
        """Waits for a piece; False at the end."""
        while not self._pieces:
            if self._cut:
                raise Unavailable("the stream was cut off: its reader was too slow for too long")
            if self._finished or self._closed:
                return False
            self._reader = asyncio.get_running_loop().create_future()
            await self._reader
        return True

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)


class MemorySink:
    """Keeps head and tail of each stream, half of `limit` each, and counts the rest.

    Everything counts as safe at once: nothing outlives this process anyway.
    """

    __slots__ = ("_limit", "_streams")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._streams: dict[Stream, HeadTail] = {}

    def write(self, stream: Stream, offset: int, data: bytes) -> None:
        """Takes bytes; what was taken before is dropped."""
        kept = self._streams.get(stream)
        if kept is None:
            kept = self._streams[stream] = HeadTail(self._limit)
        kept.write(offset, data)

    def safe_offset(self, stream: Stream) -> int:
        """Returns how many bytes came."""
        return self.total(stream)

    async def drain(self) -> None:
        """Returns at once."""

    def output(self, stream: Stream) -> bytes:
        """Returns what is kept of a stream."""
        kept = self._streams.get(stream)
        return kept.content() if kept is not None else b""

    def total(self, stream: Stream) -> int:
        """Returns how many bytes came."""
        kept = self._streams.get(stream)
        return kept.total if kept is not None else 0

    @property
    def truncated(self) -> bool:
        """Whether bytes were cut out of the middle of a stream."""
        return any(kept.total > self._limit for kept in self._streams.values())


class PullSink:
    """Hands stdout to one reader through `tee`, at its pace; keeps the head and tail of stderr."""

    __slots__ = ("_errors", "_total", "tee")

    def __init__(self, stderr_limit: int = 4096, bytes_max: int = TEE_BYTES_MAX) -> None:
        self.tee = Tee(bytes_max=bytes_max)
        self._total = 0
        self._errors = HeadTail(stderr_limit)

    def write(self, stream: Stream, offset: int, data: bytes) -> None:
        """Takes bytes."""
        if stream is Stream.STDERR:
            self._errors.write(offset, data)
        else:
            self._total = offset + len(data)
            self.tee.push(stream, data)

    def safe_offset(self, stream: Stream) -> int:
        """Returns how many bytes came."""
        return self._errors.total if stream is Stream.STDERR else self._total

    async def drain(self) -> None:
        """Returns when the reader has caught up."""
        await self.tee.wait_room()

    def errors(self) -> bytes:
        """Returns what is kept of stderr."""
        return self._errors.content()


class SpoolSink:
    """Keeps head and tail of each stream so that a later process can go on.

    A stream is held in memory up to `threshold` bytes, and counts as not safe; then it goes to the
    file `DIRECTORY/OP.stdout` or `.stderr`, and all of it is safe. After SIGKILL, `reopen` finds
    the files; `safe_offset` says from where to attach, and what is sent again changes nothing: the
    output at the end is the same, byte for byte. Writes go to the page cache, not to the disk.
    """

    __slots__ = (
        "_directory",
        "_early",
        "_files",
        "_hurried",
        "_limit",
        "_op",
        "_tees",
        "_threshold",
    )

    def __init__(
        self, directory: str, op: str, limit: int, threshold: int = SPOOL_THRESHOLD
    ) -> None:
        if not 0 <= threshold <= WINDOW // 2:
            raise InvalidRequest(f"a threshold of {threshold} bytes would hold up credit")
        if "/" in op or op.startswith("."):
            raise InvalidRequest(f"{op!r} cannot be the name of a spool file")
        self._directory = directory
        self._op = op
        self._limit = limit
        self._threshold = threshold
        # Invariant: a stream is in at most one of the two; early holds <= threshold bytes of it.
        self._early: dict[Stream, bytearray] = {}
        self._files: dict[Stream, SpoolFile] = {}
        self._tees: list[Tee] = []
        self._hurried = False

    @classmethod
    def reopen(
        cls, directory: str, op: str, limit: int, threshold: int = SPOOL_THRESHOLD
    ) -> SpoolSink:
        """Returns the sink that another process left; an empty one if it left no files."""
        sink = cls(directory, op, limit, threshold)
        for stream in Stream:
            file = SpoolFile.open(sink._path(stream))
            if file is not None:
                sink._files[stream] = file
        return sink

    def tee_to(self, tee: Tee) -> None:
        """What comes from now on is also given to `tee`, and its reader's pace is the command's."""
        self._tees.append(tee)

    def untee(self, tee: Tee) -> None:
        """Its reader has gone away; safe to call twice."""
        tee.close()
        if tee in self._tees:
            self._tees.remove(tee)

    def cut_slow_readers(self) -> None:
        """Nobody's pace is the command's any more; who is behind, now or later, is cut off."""
        self._hurried = True
        for tee in self._tees:
            tee.cut_slow()

    def finish(self) -> None:
        """All output has come: the tees end after it."""
        for tee in self._tees:
            tee.finish()

    def write(self, stream: Stream, offset: int, data: bytes) -> None:
        """Takes bytes; what was taken before is dropped. Raises StorageFailed."""
        file = self._files.get(stream)
        fresh = file.write(offset, data) if file else self._write_early(stream, offset, data)
        for tee in self._tees:
            tee.push(stream, fresh)

    def safe_offset(self, stream: Stream) -> int:
        """Returns how many bytes are in the file."""
        file = self._files.get(stream)
        return file.total if file is not None else 0

    async def drain(self) -> None:
        """Returns when every streaming client has caught up."""
        for tee in list(self._tees):
            if self._hurried:
                tee.cut_slow()
            await tee.wait_room()

    def output(self, stream: Stream) -> bytes:
        """Returns what is kept of a stream: all of it, or its head and its tail."""
        file = self._files.get(stream)
        if file is not None:
            return file.content()
        early = self._early.get(stream, b"")
        if len(early) <= self._limit:
            return bytes(early)
        head, tail = split_limit(self._limit)
        return bytes(early[:head] + early[len(early) - tail :])

    def total(self, stream: Stream) -> int:
        """Returns how many bytes came."""
        file = self._files.get(stream)
        return file.total if file is not None else len(self._early.get(stream, b""))

    @property
    def truncated(self) -> bool:
        """Whether bytes were cut out of the middle of a stream."""
        return self.total(Stream.STDOUT) > self._limit or self.total(Stream.STDERR) > self._limit

    def detach(self) -> None:
        """Closes the files and leaves them to a later process."""
        for file in self._files.values():
            file.close()

    def close(self) -> None:
        """Removes the files; safe to call twice."""
        for tee in self._tees:
            tee.finish()
        self._tees.clear()
        for file in self._files.values():
            file.remove()

    def _path(self, stream: Stream) -> str:
        return os.path.join(self._directory, f"{self._op}.{_NAMES[stream]}")

    def _write_early(self, stream: Stream, offset: int, data: bytes) -> bytes:
        early = self._early.get(stream)
        if early is None:
            early = self._early[stream] = bytearray()
        if offset > len(early):
            raise Bug(f"output at {offset} after {len(early)} bytes: a gap")
        data = data[len(early) - offset :]
        if len(early) + len(data) <= self._threshold:
            early += data
            return data
        file = SpoolFile.create(self._path(stream), self._limit)
        self._files[stream] = file
        del self._early[stream]
        file.write(0, bytes(early))
        file.write(len(early), data)
        return data
