"""Where long output is kept: head and tail of a stream, in memory or in a file.

A spool file survives SIGKILL of the process that writes it:

    0      magic "SKRYSPL1"
    8      u64 limit       head_max = limit - limit // 2, tail_max = limit // 2
    16     u64 total       bytes of the stream that are in the file, or were cut out
    24     u32 crc32 of the 24 bytes before it, u32 0
    32     head            the first head_max bytes of the stream, in place
    32+head_max            ring of tail_max + SLACK bytes: byte b of the stream, for b >= head_max,
                           is at (b - head_max) % (tail_max + SLACK)

Content is written first, at most SLACK bytes at a time, and the header after it. So what a header
vouches for is never overwritten by content that no header counts yet.
"""

from __future__ import annotations

import contextlib
import os
import struct
import zlib
from typing import Final, Self

from skerry.errors import Bug, StorageFailed
from skerry.spec.limits import split_limit

SLACK: Final = 65_536
MAGIC: Final = b"SKRYSPL1"
HEADER_BYTES: Final = 32
_HEADER = struct.Struct("<8sQQ")
_CRC = struct.Struct("<II")


def fresh_part(total: int, offset: int, data: bytes) -> bytes:
    """Returns what of `data` lies behind `total`: bytes that were sent again are dropped."""
    if offset > total:
        raise Bug(f"output at {offset} after {total} bytes: a gap")
    return data if offset == total else data[total - offset :]


class HeadTail:
    """Head and tail of a stream in memory: at most limit + limit // 2 bytes."""

    __slots__ = ("_head", "_head_max", "_tail", "_tail_max", "total")

    def __init__(self, limit: int) -> None:
        self.total = 0
        self._head_max, self._tail_max = split_limit(limit)
        self._head = bytearray()
        self._tail = bytearray()  # Invariant: ends with the last min(_tail_max, ...) bytes

    def write(self, offset: int, data: bytes) -> bytes:
        """Takes bytes; returns those that are new."""
        data = fresh_part(self.total, offset, data)
        self.total += len(data)
        rest = data
        if len(self._head) < self._head_max:
            taken = self._head_max - len(self._head)
            self._head += data[:taken]
            rest = data[taken:]
        if rest:
            self._tail += rest[-self._tail_max :] if self._tail_max else b""
            if len(self._tail) > 2 * self._tail_max:
                del self._tail[: -self._tail_max]
        return data

    def content(self) -> bytes:
        """Returns what is kept; the whole stream if it is not longer than the limit."""
        tail = self._tail[-self._tail_max :] if self._tail_max else b""
        return bytes(self._head + tail)


class SpoolFile:
    """Head and tail of a stream in a file; `total` is what a later process will find."""

    __slots__ = ("_fd", "_head_max", "_limit", "_ring", "_tail_max", "path", "total")

    def __init__(self, path: str, fd: int, limit: int, total: int) -> None:
        self.path = path
        self.total = total
        self._fd = fd
        self._limit = limit
        self._head_max, self._tail_max = split_limit(limit)
        self._ring = self._tail_max + SLACK

    @classmethod
    def create(cls, path: str, limit: int) -> Self:
        """Returns a new, empty file, in place of any other; raises StorageFailed."""
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            return cls(path, os.open(path, flags, 0o600), limit, 0)
        except OSError as error:
            raise StorageFailed(f"cannot make the spool file {path}: {error.strerror}") from error

    @classmethod
    def open(cls, path: str) -> Self | None:
        """Returns the file as its writer left it; None if there is none, or no valid header."""
        try:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StorageFailed(f"cannot open the spool file {path}: {error.strerror}") from error
        header = os.pread(fd, HEADER_BYTES, 0)
        if len(header) == HEADER_BYTES:
            magic, limit, total = _HEADER.unpack_from(header)
            if magic == MAGIC and _CRC.unpack_from(header, 24) == (zlib.crc32(header[:24]), 0):
                return cls(path, fd, limit, total)
        os.close(fd)
        return None

    def write(self, offset: int, data: bytes) -> bytes:
        """Takes bytes, safe against the loss of this process afterwards; returns those new.

        Raises StorageFailed; then `total` still says what is in the file.
        """
        data = fresh_part(self.total, offset, data)
        for at in range(0, len(data), SLACK):
            piece = data[at : at + SLACK]
            self._write_piece(piece)
            total = self.total + len(piece)
            header = _HEADER.pack(MAGIC, self._limit, total)
            self._pwrite(header + _CRC.pack(zlib.crc32(header), 0), 0)
            self.total = total
        return data

    def content(self) -> bytes:
        """Returns what is kept; the whole stream if it is not longer than the limit."""
        head = self._pread(min(self.total, self._head_max), HEADER_BYTES)
        start = max(self._head_max, self.total - self._tail_max)
        if self.total <= start:
            return head
        at, size = (start - self._head_max) % self._ring, self.total - start
        first = min(size, self._ring - at)
        base = HEADER_BYTES + self._head_max
        return head + self._pread(first, base + at) + self._pread(size - first, base)

    def close(self) -> None:
        """Closes the descriptor; safe to call twice."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def remove(self) -> None:
        """Closes and deletes the file; safe to call twice."""
        self.close()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path)

    def _write_piece(self, piece: bytes) -> None:
        head_room = self._head_max - self.total
        if head_room > 0:
            self._pwrite(piece[:head_room], HEADER_BYTES + self.total)
            piece = piece[head_room:]
        if not piece or not self._tail_max:
            return
        at = (max(self.total, self._head_max) - self._head_max) % self._ring
        first = min(len(piece), self._ring - at)
        base = HEADER_BYTES + self._head_max
        self._pwrite(piece[:first], base + at)
        if first < len(piece):
            self._pwrite(piece[first:], base)

    def _pwrite(self, data: bytes, offset: int) -> None:
        try:
            while data:
                written = os.pwrite(self._fd, data, offset)
                data, offset = data[written:], offset + written
        except OSError as error:
            raise StorageFailed(f"cannot write {self.path}: {error.strerror}") from error

    def _pread(self, size: int, offset: int) -> bytes:
        pieces = []
        while size:
            try:
                piece = os.pread(self._fd, size, offset)
            except OSError as error:
                raise StorageFailed(f"cannot read {self.path}: {error.strerror}") from error
            if not piece:
                raise StorageFailed(f"the spool file {self.path} is shorter than its header says")
            pieces.append(piece)
            size, offset = size - len(piece), offset + len(piece)
        return b"".join(pieces)
