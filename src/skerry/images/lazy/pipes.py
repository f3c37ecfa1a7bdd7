"""Bytes of a file to the kernel without passing through this process: file, pipe, /dev/fuse."""

from __future__ import annotations

import fcntl
import os
import resource
from typing import Final

_SET_SIZE: Final = 1031
_PAGE: Final = resource.getpagesize()
_WANTED: Final = 1 << 20


class FileFailed(OSError):
    """The file could not be read; nothing was sent."""


class Conveyor:
    """Of one thread. What does not fit into the pipe is copied instead."""

    def __init__(self, fuse: int) -> None:
        self._fuse = fuse
        self._out = self._in = -1
        self._room = 0
        self._open()

    def send(self, head: bytes, handle: int, offset: int, length: int) -> None:
        """Answers with `head` and a part of the file.

        Raises FileFailed before anything was sent, OSError if the kernel did not take it.
        """
        if length + 2 * _PAGE > self._room:
            self._copy(head, handle, offset, length)
            return
        clean = False
        try:
            os.write(self._in, head)
            self._load(handle, offset, length)
            os.splice(self._out, self._fuse, len(head) + length)
            clean = True
        finally:
            if not clean:  # something may be left in the pipe
                self.close()
                self._open()

    def close(self) -> None:
        """Closes the pipe."""
        for end in (self._in, self._out):
            if end >= 0:
                os.close(end)
        self._in = self._out = -1

    def _open(self) -> None:
        self._out, self._in = os.pipe2(os.O_CLOEXEC)
        try:
            self._room = fcntl.fcntl(self._in, _SET_SIZE, _WANTED) - _PAGE  # `head` takes a page
        except OSError:  # the user has too many pipes
            self._room = 0

    def _load(self, handle: int, offset: int, length: int) -> None:
        end = offset + length
        while offset < end:
            try:
                moved = os.splice(handle, self._in, end - offset, offset_src=offset)
            except OSError as error:
                raise FileFailed(error.errno, error.strerror) from error
            if not moved:
                raise FileFailed(0, "the file is shorter than it was")
            offset += moved

    def _copy(self, head: bytes, handle: int, offset: int, length: int) -> None:
        try:
            data = os.pread(handle, length, offset)
        except OSError as error:
            raise FileFailed(error.errno, error.strerror) from error
        if len(data) != length:
            raise FileFailed(0, "the file is shorter than it was")
        os.writev(self._fuse, (head, data))
