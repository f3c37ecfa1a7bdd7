"""File contents that stay where they are until they are packed: of a tree that does not change."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator

from skerry.errors import ImageBroken
from skerry.images.scratch import Content
from skerry.images.tree.cursor import Cursor
from skerry.images.tree.entry import show
from skerry.images.tree.files import lstat, read_content


class InPlace:
    """The files of one directory. Read in the order of their paths they cost one open each.

    The directory must not change: it is a snapshot, or its writers stand still. What did change is
    ImageBroken.
    """

    def __init__(self, top: str) -> None:
        self._cursor = Cursor(top)
        self._paths: list[bytes] = []
        self._replaced: dict[bytes, bytes] = {}

    def replace(self, path: bytes, content: bytes) -> None:
        """From now on this is a file's content; to be said before it is noted."""
        self._replaced[path] = content

    def note(self, path: bytes, info: os.stat_result) -> Content:
        """Returns where a file's content will be found; nothing is read, and its hash not known."""
        self._paths.append(path)
        size = len(self._replaced[path]) if path in self._replaced else info.st_size
        return Content(len(self._paths) - 1, size, b"")

    def read(self, content: Content) -> Iterator[bytes]:
        """Gives the bytes of a file."""
        path = self._paths[content.offset]
        if path in self._replaced:
            yield self._replaced[path]
            return
        parent, _, name = path.rpartition(b"/")
        self._cursor.move(parent)
        info = lstat(self._cursor.fd, name)
        if info is None or not stat.S_ISREG(info.st_mode) or info.st_size != content.size:
            raise ImageBroken(f"{show(path)} changed while it was read")
        yield from read_content(self._cursor.fd, name, info, path, once=True)

    def close(self) -> None:
        """Lets go of the directory."""
        self._cursor.close()
