"""Making a data blob: the bytes of a layer's files, each read once, and where they came to lie.

A file is cut into units of 64 KiB, the last one shorter; each begins in a block of 4 KiB. Equal units
are stored once, whole units of zeros not at all. The order is that of the calls, so equal trees give
equal blobs. One thread reads and finds what is equal, a second one digests the chunks and writes:
both do so without the interpreter's lock.

The blob goes to the disk past the page cache where the file system can do so. A gigabyte that is
dirty at once is written out in one go when anybody syncs, and who has to sync a line of a journal
on the same disk waits for it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import mmap
import os
from array import array
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import IO, Final, NamedTuple, Self

from skerry.errors import ImageBroken
from skerry.images.format.chunks import ChunkList, ChunkListBuilder, Codec
from skerry.images.scratch import storage_errors
from skerry.images.sparse import CHUNK_BYTES, ZEROS
from skerry.images.tree.entry import show

UNIT_BITS: Final = 16
UNIT_BYTES: Final = 1 << UNIT_BITS
BLOCK_BITS: Final = 12
BLOCK_BYTES: Final = 1 << BLOCK_BITS
HOLE: Final = 0xFFFFFFFF
_BUFFER_BYTES: Final = 1 << 20
_BUFFERS_MAX: Final = 8
_ZEROS: Final = bytes(UNIT_BYTES)
_HOLES: Final = array("I", [HOLE]) * (CHUNK_BYTES // UNIT_BYTES)


class Extents(NamedTuple):
    """Where a file's bytes are: pieces of `1 << bits` bytes, by their first block, or HOLE."""

    bits: int
    blocks: array[int]


class DataWriter:
    """Writes one data blob to a new file; to be closed. Memory: 10 MiB, and 150 bytes a unit."""

    def __init__(self, path: str, codec: Codec = Codec.NONE) -> None:
        with storage_errors("making a data blob"):
            self._sink = _Plain(path) if codec is Codec.NONE else _Frames(path)
        self._thread = ThreadPoolExecutor(1, "data-blob")
        self._under_way: deque[Future[mmap.mmap]] = deque()
        self._known: dict[bytes, int] = {}  # by the digest of a unit: its first block
        self._buffer = mmap.mmap(-1, _BUFFER_BYTES)  # aligned, as such writes want it
        self._filled = 0
        self._end = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def size(self) -> int:
        """How many bytes the blob has so far."""
        return self._end

    def add(self, size: int, pieces: Iterable[bytes], path: bytes) -> Extents:
        """Takes the bytes of one file, at least one; returns where they are.

        Raises ImageBroken if they are not as many as `size` says, StorageFailed if the disk fails.
        """
        blocks = array("I")
        left = size
        for run in _runs(pieces):
            left -= len(run)
            if left < 0:
                break
            if run.obj is ZEROS:
                blocks.extend(_HOLES[: -(-len(run) >> UNIT_BITS)])
                continue
            blocks.extend(
                self._place(run[at : at + UNIT_BYTES]) for at in range(0, len(run), UNIT_BYTES)
            )
        if left != 0:
            raise ImageBroken(f"{show(path)} changed while it was read")
        if _in_one_piece(blocks):
            return Extents(max(UNIT_BITS, (size - 1).bit_length()), blocks[:1])
        return Extents(UNIT_BITS, blocks)

    def finish(self) -> ChunkList:
        """Returns the chunk list of all that was added; it is written, and not yet synced."""
        self._hand_over()
        while self._under_way:
            self._under_way.popleft().result()
        return self._sink.finish()

    def close(self) -> None:
        """Closes the file."""
        self._thread.shutdown(cancel_futures=True)
        self._sink.close()

    def _place(self, unit: memoryview) -> int:
        if not unit[0] and unit == _ZEROS:
            return HOLE
        digest = hashlib.sha256(unit).digest()
        block = self._known.get(digest)
        if block is None:
            block = self._known[digest] = self._end >> BLOCK_BITS
            self._append(unit)
            self._append(memoryview(_ZEROS)[: -len(unit) % BLOCK_BYTES])
        return block

    def _append(self, piece: memoryview) -> None:
        self._end += len(piece)
        while piece:
            part = piece[: _BUFFER_BYTES - self._filled]
            self._buffer[self._filled : self._filled + len(part)] = part
            self._filled += len(part)
            piece = piece[len(part) :]
            if self._filled == _BUFFER_BYTES:
                self._hand_over()

    def _hand_over(self) -> None:
        self._under_way.append(self._thread.submit(self._pass, self._buffer, self._filled))
        if len(self._under_way) < _BUFFERS_MAX:
            self._buffer = mmap.mmap(-1, _BUFFER_BYTES)
        else:
            self._buffer = self._under_way.popleft().result()
        self._filled = 0

    def _pass(self, buffer: mmap.mmap, length: int) -> mmap.mmap:
        self._sink.take(memoryview(buffer)[:length])
        return buffer


class _Plain:
    """A blob as it is. What is taken is whole blocks."""

    def __init__(self, path: str) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        self._fd = os.open(path, flags, 0o600)
        self._builder = ChunkListBuilder()
        with contextlib.suppress(OSError):  # not every file system can
            fcntl.fcntl(self._fd, fcntl.F_SETFL, os.O_DIRECT)

    def take(self, content: memoryview) -> None:
        self._builder.add(content)
        with storage_errors("writing a data blob"):
            while content:
                content = content[self._write(content) :]

    def _write(self, content: memoryview) -> int:
        try:
            return os.write(self._fd, content)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
        # It wants another alignment, or wrote a part at the end of the disk.
        fcntl.fcntl(self._fd, fcntl.F_SETFL, 0)
        return os.write(self._fd, content)

    def finish(self) -> ChunkList:
        return self._builder.finish()

    def close(self) -> None:
        os.close(self._fd)


class _Frames:
    """A blob as zstd frames."""

    def __init__(self, path: str) -> None:
        self._file: IO[bytes] = open(path, "xb", buffering=_BUFFER_BYTES)  # noqa: SIM115 - see `close`
        self._builder = ChunkListBuilder(self._file)

    def take(self, content: memoryview) -> None:
        self._builder.add(content)

    def finish(self) -> ChunkList:
        chunks = self._builder.finish()
        with storage_errors("writing a data blob"):
            self._file.flush()
        return chunks

    def close(self) -> None:
        with contextlib.suppress(OSError):  # what was not flushed is of no use
            self._file.close()


def _runs(pieces: Iterable[bytes]) -> Iterator[memoryview]:
    """Gives the same bytes, cut at units."""
    rest = b""
    for piece in pieces:
        joined = rest + piece if rest else piece
        whole = len(joined) - len(joined) % UNIT_BYTES
        if whole:
            yield memoryview(joined)[:whole]
        rest = joined[whole:]
    if rest:
        yield memoryview(rest)


def _in_one_piece(blocks: array[int]) -> bool:
    first = blocks[0]
    step = 0 if first == HOLE else UNIT_BYTES >> BLOCK_BITS
    return all(block == first + at * step for at, block in enumerate(blocks))
