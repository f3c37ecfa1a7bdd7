"""Files with holes: where something is, and making a hole again."""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Iterator
from typing import Final

_PUNCH: Final = 1 | 2  # KEEP_SIZE, PUNCH_HOLE
_libc: Final = ctypes.CDLL(None, use_errno=True)
_libc.fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)


def extents(handle: int) -> Iterator[tuple[int, int]]:
    """Gives where a file is no hole: start and end of each piece; OSError."""
    at = 0
    while True:
        try:
            start = os.lseek(handle, at, os.SEEK_DATA)
            at = os.lseek(handle, start, os.SEEK_HOLE)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return
            raise
        yield start, at


def punch(handle: int, offset: int, length: int) -> None:
    """Makes a hole; the size stays. OSError: not every file system can."""
    if _libc.fallocate(handle, _PUNCH, offset, length) < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
