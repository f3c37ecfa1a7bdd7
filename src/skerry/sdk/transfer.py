"""Files and trees to and from a sandbox, in constant memory, safe on this side.

Reading and writing local files blocks, so it happens in a thread, one piece ahead of the stream. What
a sandbox sends is unpacked by `skerry.sdk.unpack`, which nothing leads outside.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import secrets
import stat
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from pathlib import Path

import msgspec

from skerry.errors import InvalidRequest
from skerry.sdk import holes
from skerry.sdk.pack import changed, pack
from skerry.sdk.tarstream import damaged
from skerry.sdk.unpack import unpack, write_all, write_pieces

CHUNK = 1 << 20
QUEUE_CHUNKS = 16

Progress = Callable[[int], None]


class Transfer(msgspec.Struct, frozen=True):
    """What a transfer did.

    `notes` name what was left out ("skipped PATH ...": FIFOs, sockets, devices; "unreadable PATH": no
    right to it) and what changed while it was read ("changed PATH": a mixture of old and new is there).
    """

    bytes: int
    notes: tuple[str, ...] = ()


class Counter:
    """Counts the bytes of a transfer, and passes them on to who wants to know."""

    def __init__(self, progress: Progress | None) -> None:
        self.count = 0
        self._progress = progress

    def __call__(self, size: int) -> None:
        """Counts a piece."""
        self.count += size
        if self._progress is not None:
            self._progress(size)


async def in_thread(make: Callable[[], Iterator[bytes]]) -> AsyncGenerator[bytes]:
    """Yields what a blocking iterator yields; the next piece is made while this one is sent."""
    iterator: Iterator[bytes] | None = None

    def step() -> bytes | None:
        nonlocal iterator
        if iterator is None:
            iterator = make()
        return next(iterator, None)

    ahead = asyncio.ensure_future(asyncio.to_thread(step))
    try:
        while (piece := await ahead) is not None:
            ahead = asyncio.ensure_future(asyncio.to_thread(step))
            yield piece
    finally:
        await asyncio.wait({ahead})
        if not ahead.cancelled():
            ahead.exception()
        close = getattr(iterator, "close", None)
        if close is not None:
            await asyncio.to_thread(close)


async def pack_tree(
    source: Path,
    progress: Progress | None = None,
    prefix: str = "/",
    notes: list[str] | None = None,
) -> AsyncGenerator[bytes]:
    """Yields a tar of the directory's content, beneath `prefix`: links, modes, holes, odd names kept.

    What is left out, or changes meanwhile, is told in `notes`.
    """
    if not source.is_dir():
        raise InvalidRequest(f"{source} is not a directory")
    told: list[str] = [] if notes is None else notes

    def pieces() -> Iterator[bytes]:
        root = os.open(source, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            yield from pack(root, prefix, told)
        finally:
            os.close(root)

    async for piece in in_thread(pieces):
        if progress:
            progress(len(piece))
        yield piece


async def file_chunks(
    path: Path,
    progress: Progress | None = None,
    *,
    sparse: bool = False,
    notes: list[str] | None = None,
) -> AsyncGenerator[bytes]:
    """Yields a local file's content up to its end when this began, or (`sparse`) a map and pieces of it.

    If it changes meanwhile, `notes` gets a line. Raises InvalidRequest for what is no regular file.
    """

    def pieces() -> Iterator[bytes]:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        try:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode):
                raise InvalidRequest(f"{path} is no regular file")
            if sparse:
                found = holes.find_pieces(fd, status.st_size)
                yield holes.encode_map(found)
                yield from holes.read_pieces(fd, found)
            else:
                left = status.st_size
                while left and (data := os.read(fd, min(CHUNK, left))):
                    left -= len(data)
                    yield data
            if notes is not None and changed(status, os.fstat(fd)):
                notes.append(f"changed {path.name}")
        finally:
            os.close(fd)

    async for piece in in_thread(pieces):
        if progress:
            progress(len(piece))
        yield piece


class _Source:
    """File-like: a thread reads what the loop feeds, with back-pressure."""

    def __init__(self) -> None:
        self._queue: queue.Queue[bytes | None] = queue.Queue(QUEUE_CHUNKS)
        self._chunk = b""
        self._at = 0
        self._ended = False
        self.failed = False  # nobody reads any more

    async def feed(self, chunk: bytes | None) -> None:
        try:
            self._queue.put_nowait(chunk)
        except queue.Full:
            await asyncio.to_thread(self._queue.put, chunk)

    def read(self, size: int, /) -> bytes:
        """Returns at most `size` bytes, at least one unless it is the end."""
        if self._at == len(self._chunk) and not self._ended:
            self._chunk, self._at = self._queue.get() or b"", 0
            self._ended = not self._chunk
        if self._at == 0 and len(self._chunk) <= size:
            piece = self._chunk  # whole, and not copied
        else:
            piece = self._chunk[self._at : self._at + size]
        self._at += len(piece)
        return piece

    def exactly(self, size: int) -> bytes:
        """Returns that many bytes."""
        parts = []
        while size:
            data = self.read(size)
            if not data:
                raise damaged("it is cut off")
            parts.append(data)
            size -= len(data)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def skip_to_end(self) -> None:
        while not self._ended:
            self._ended = self._queue.get() is None


async def _drain(
    chunks: AsyncIterator[bytes], work: Callable[[_Source], None], progress: Progress | None
) -> int:
    """Feeds the chunks to work in a thread; returns how many bytes came."""
    source = _Source()
    total = 0

    def run() -> None:
        try:
            work(source)
        except BaseException:
            source.failed = True
            raise
        finally:
            source.skip_to_end()

    thread = asyncio.create_task(asyncio.to_thread(run))
    try:
        async for chunk in chunks:
            await source.feed(chunk)
            total += len(chunk)
            if progress:
                progress(len(chunk))
            if source.failed:
                break
    except BaseException:
        # What broke the stream is the error, not that its end is missing.
        await source.feed(None)
        await asyncio.gather(thread, return_exceptions=True)
        raise
    await source.feed(None)
    await thread
    return total


async def unpack_tree(
    chunks: AsyncIterator[bytes], target: Path, progress: Progress | None = None
) -> Transfer:
    """Unpacks a tar stream beneath `target`, which is made if it is missing.

    Raises SandboxFailed for a stream that tries to leave the target or is damaged.
    """
    target.mkdir(parents=True, exist_ok=True)
    notes: list[str] = []

    def work(source: _Source) -> None:
        notes.extend(unpack(source, target).notes)

    total = await _drain(chunks, work, progress)
    return Transfer(total, tuple(notes))


async def save_file(
    chunks: AsyncIterator[bytes],
    target: Path,
    mode: int,
    mtime: float,
    progress: Progress | None = None,
    *,
    sparse: bool = False,
) -> int:
    """Puts a stream into a local file, which appears whole or not at all; returns the bytes that came.

    The mode is kept without set-id bits. `sparse`: the stream is a map of pieces and the pieces.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f".skerry-{secrets.token_hex(8)}.part")

    def work(source: _Source) -> None:
        fd = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            if sparse:
                pieces, _ = holes.decode_map(source.exactly)
                size = max((offset + length for offset, length in pieces), default=0)
                write_pieces(fd, pieces, size, source.exactly)
            else:
                while data := source.read(CHUNK):
                    write_all(fd, data)
            os.fchmod(fd, mode & 0o777)
            os.utime(fd, (mtime, mtime))
        finally:
            os.close(fd)

    try:
        total = await _drain(chunks, work, progress)
        partial.replace(target)
    finally:
        with contextlib.suppress(FileNotFoundError):
            partial.unlink()
    return total
