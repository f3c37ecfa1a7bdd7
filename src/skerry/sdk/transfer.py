"""Trees to and from a sandbox as tar streams, in constant memory, safe on this side.

tarfile is synchronous, so packing and unpacking run in a thread; a bounded queue ties the thread to
the stream. What a sandbox sends is unpacked by `skerry.sdk.unpack`, which nothing leads outside.
"""

from __future__ import annotations

import asyncio
import os
import queue
import tarfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import BinaryIO, cast

from skerry.errors import InvalidRequest
from skerry.sdk.unpack import unpack

CHUNK = 256 * 1024
QUEUE_CHUNKS = 8

Progress = Callable[[int], None]


class _Sink:
    """File-like: what a thread writes comes out of `chunks` on the loop, with back-pressure."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.chunks: asyncio.Queue[bytes | None] = asyncio.Queue(QUEUE_CHUNKS)
        self._buffer = bytearray()
        self.abandoned = False

    def write(self, data: bytes) -> int:
        self._buffer += data
        if len(self._buffer) >= CHUNK:
            self.flush()
        return len(data)

    def flush(self) -> None:
        if self._buffer:
            self._put(bytes(self._buffer))
            self._buffer.clear()

    def finish(self) -> None:
        self.flush()
        self._put(None)

    def _put(self, chunk: bytes | None) -> None:
        if self.abandoned:
            raise BrokenPipeError("the transfer was given up")
        asyncio.run_coroutine_threadsafe(self.chunks.put(chunk), self._loop).result()


class _Source:
    """File-like: a thread reads what the loop feeds, with back-pressure."""

    def __init__(self) -> None:
        self._queue: queue.Queue[bytes | None] = queue.Queue(QUEUE_CHUNKS)
        self._rest = b""
        self._ended = False

    async def feed(self, chunk: bytes | None) -> None:
        try:
            self._queue.put_nowait(chunk)
        except queue.Full:
            await asyncio.to_thread(self._queue.put, chunk)

    def read(self, size: int = -1) -> bytes:
        parts = [self._rest]
        have = len(self._rest)
        while not self._ended and (size < 0 or have < size):
            chunk = self._queue.get()
            if chunk is None:
                self._ended = True
                break
            parts.append(chunk)
            have += len(chunk)
        joined = b"".join(parts)
        if size < 0:
            size = len(joined)
        self._rest = joined[size:]
        return joined[:size]

    def skip_to_end(self) -> None:
        while not self._ended:
            self._ended = self._queue.get() is None


def _pack(source: Path, sink: _Sink, prefix: str) -> None:
    with tarfile.open(fileobj=cast("BinaryIO", sink), mode="w|", format=tarfile.PAX_FORMAT) as tar:
        place = ""
        for part in prefix.strip("/").split("/") if prefix.strip("/") else ():
            place = f"{place}{part}/"
            directory = tarfile.TarInfo(place)
            directory.type, directory.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(directory)
        for entry in sorted(os.scandir(source), key=lambda item: item.name):
            tar.add(entry.path, arcname=place + entry.name, filter=_as_root)
    sink.finish()


def _as_root(member: tarfile.TarInfo) -> tarfile.TarInfo:
    # Ids of this host mean nothing inside; the user inside owns what is put there.
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


async def pack_tree(
    source: Path, progress: Progress | None = None, prefix: str = "/"
) -> AsyncIterator[bytes]:
    """Yields a tar of the directory's content, beneath `prefix`: links, modes, odd names kept."""
    if not source.is_dir():
        raise InvalidRequest(f"{source} is not a directory")
    sink = _Sink(asyncio.get_running_loop())
    thread = asyncio.create_task(asyncio.to_thread(_pack, source, sink, prefix))
    try:
        while True:
            getter = asyncio.create_task(sink.chunks.get())
            await asyncio.wait({getter, thread}, return_when=asyncio.FIRST_COMPLETED)
            if thread.done() and thread.exception() is not None:
                getter.cancel()
                await thread
            chunk = await getter
            if chunk is None:
                return
            if progress:
                progress(len(chunk))
            yield chunk
    finally:
        sink.abandoned = True
        while not sink.chunks.empty():
            sink.chunks.get_nowait()
        await asyncio.gather(thread, return_exceptions=True)


def _unpack(source: _Source, target: Path) -> None:
    try:
        unpack(source, target)
    finally:
        source.skip_to_end()


async def unpack_tree(
    chunks: AsyncIterator[bytes], target: Path, progress: Progress | None = None
) -> None:
    """Unpacks a tar stream beneath `target`, which is made if it is missing.

    Raises SandboxFailed for a stream that tries to leave the target or is damaged.
    """
    target.mkdir(parents=True, exist_ok=True)
    source = _Source()
    thread = asyncio.create_task(asyncio.to_thread(_unpack, source, target))
    try:
        async for chunk in chunks:
            await source.feed(chunk)
            if progress:
                progress(len(chunk))
    finally:
        await source.feed(None)
        await thread


async def file_chunks(path: Path, progress: Progress | None = None) -> AsyncIterator[bytes]:
    """Yields a local file's content."""
    with path.open("rb") as file:
        while chunk := await asyncio.to_thread(file.read, CHUNK):
            if progress:
                progress(len(chunk))
            yield chunk
