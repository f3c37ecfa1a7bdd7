"""Files with holes: where something is, reading around the holes, and making a hole again.

A file that a sandbox wrote may be of any size and hold nothing. Who walks it reads what it holds.
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Iterator
from typing import Final

CHUNK_BYTES: Final = 1 << 20
# A whole piece of a hole is this very object, so that who gets it needs not look at the bytes.
ZEROS: Final = bytes(CHUNK_BYTES)
_PUNCH: Final = 1 | 2  # KEEP_SIZE, PUNCH_HOLE
_libc: Final = ctypes.CDLL(None, use_errno=True)
_libc.fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)


class EndsEarly(Exception):
    """A file is shorter than what was to be read of it."""


def extents(handle: int, at: int = 0) -> Iterator[tuple[int, int]]:
    """Gives where a file is no hole, from `at` on: start and end of each piece; OSError."""
    while True:
        try:
            start = os.lseek(handle, at, os.SEEK_DATA)
            at = os.lseek(handle, start, os.SEEK_HOLE)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return
            raise
        yield start, at


def holes_beyond(handle: int, size: int, bytes_max: int) -> bool:
    """Says whether a file has more than so many bytes of holes; looks no further than it needs to."""
    left, at = bytes_max, 0
    if size <= bytes_max:
        return False
    for start, end in extents(handle):
        left -= min(start, size) - at
        if left < 0 or end >= size:
            return left < 0
        at = end
    return left < size - at


def read_extents(handle: int, size: int) -> Iterator[tuple[int, bytes]]:
    """Gives what a file of that size holds and its offset, in pieces of at most CHUNK_BYTES.

    Raises EndsEarly if the file is shorter, OSError.
    """
    for start, end in extents(handle):
        at = start
        for piece in _stretch(handle, start, min(end, size)):
            yield at, piece
            at += len(piece)
        if end >= size:
            break
    if os.fstat(handle).st_size < size:
        raise EndsEarly


def read_around_holes(handle: int, offset: int, length: int) -> Iterator[bytes]:
    """Gives the bytes of a part of a file in pieces of `CHUNK_BYTES`, the last one shorter.

    Nothing of its holes is read. Raises EndsEarly if the file ends before that, OSError.
    """
    end = offset + length
    if length <= CHUNK_BYTES:  # nothing to be gained
        yield from _stretch(handle, offset, end)
        return
    found = extents(handle, offset)
    data = next(found, (end, end))
    for at in range(offset, end, CHUNK_BYTES):
        stop = min(at + CHUNK_BYTES, end)
        while data[1] <= at < end and data[0] < end:
            data = next(found, (end, end))
        if data[0] >= stop:
            yield ZEROS[: stop - at]  # of the full length that is the object itself
            continue
        parts: list[bytes] = []
        filled = at
        while data[0] < stop:
            start, filled_before = max(data[0], at), filled
            filled = min(data[1], stop)
            if start > filled_before:
                parts.append(ZEROS[: start - filled_before])
            parts += _stretch(handle, start, filled)
            if data[1] > stop:
                break
            data = next(found, (end, end))
        if filled < stop:
            parts.append(ZEROS[: stop - filled])
        yield b"".join(parts)  # of one part that itself
    if os.fstat(handle).st_size < end:  # what was taken for a hole was no part of it
        raise EndsEarly


def _stretch(handle: int, at: int, end: int) -> Iterator[bytes]:
    """Gives bytes that lie in one piece; EndsEarly."""
    while at < end:
        piece = os.pread(handle, min(CHUNK_BYTES, end - at), at)
        if not piece:
            raise EndsEarly
        at += len(piece)
        yield piece


def punch(handle: int, offset: int, length: int) -> None:
    """Makes a hole; the size stays. OSError: not every file system can."""
    if _libc.fallocate(handle, _PUNCH, offset, length) < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
