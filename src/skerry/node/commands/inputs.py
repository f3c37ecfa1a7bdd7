"""Standard input that came with a command: short in memory and in the journal, long in a file.

STATE/spool/SANDBOX-OP.stdin is written before START leaves and removed at the command's end, so
that a restarted node goes on with it, and no node holds it in memory.
"""

from __future__ import annotations

import contextlib
import os
from typing import Protocol

from skerry.errors import StorageFailed

INLINE_BYTES_MAX = 64 * 1024  # longer input is spooled
PIECE_BYTES = 128 * 1024


class Input(Protocol):
    """Bytes for a command; `size` of them."""

    @property
    def size(self) -> int:
        """How many there are."""

    def read(self, offset: int) -> bytes:
        """Returns a piece from there on, b"" at the end; StorageFailed if it is lost."""

    def close(self) -> None:
        """Nothing is read any more; safe to call twice."""


class ShortInput:
    """Input in memory."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    @property
    def size(self) -> int:
        """How many bytes there are."""
        return len(self._data)

    def read(self, offset: int) -> bytes:
        """Returns all from there on."""
        return self._data[offset:]

    def close(self) -> None:
        """Does nothing."""


class SpooledInput:
    """Input in a file, read piece by piece from the page cache."""

    def __init__(self, path: str, size: int) -> None:
        self._path = path
        self._size = size
        self._fd = -1

    @classmethod
    def write(cls, path: str, data: bytes) -> SpooledInput:
        """Returns the input written to a new file; blocks. Raises StorageFailed, and none is left."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            fd = os.open(path, flags, 0o600)
            try:
                view = memoryview(data)
                while view:
                    view = view[os.write(fd, view[: 1 << 20]) :]
            except BaseException:
                os.unlink(path)
                raise
            finally:
                os.close(fd)
        except OSError as error:
            raise StorageFailed(f"cannot keep standard input: {error.strerror}") from error
        return cls(path, len(data))

    @property
    def size(self) -> int:
        """How many bytes there are."""
        return self._size

    def read(self, offset: int) -> bytes:
        """Returns a piece from there on, b"" at the end; StorageFailed if the file is short."""
        wanted = min(PIECE_BYTES, self._size - offset)
        if wanted <= 0:
            return b""
        try:
            if self._fd < 0:
                self._fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            piece = os.pread(self._fd, wanted, offset)
        except OSError as error:
            raise StorageFailed(f"standard input is lost: {error.strerror}") from error
        if not piece:
            raise StorageFailed("standard input is lost: its file is too short")
        return piece

    def close(self) -> None:
        """Removes the file; safe to call twice."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path)
