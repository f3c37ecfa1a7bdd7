"""A position in a directory tree that may be hostile, however deep it is.

Every step opens one name relative to the directory before it, and follows no link. Only the
deepest directories keep a descriptor; on the way up a closed one is opened again as `..` and must
be the directory that it was, so a tree that is moved about cannot lead outside.
"""

from __future__ import annotations

import os
from types import TracebackType

from skerry.errors import ImageBroken

_OPEN = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Cursor:
    """Starts at the directory `path`, which is trusted; at most `window` + 1 descriptors.

    Raises OSError where a directory cannot be opened, and ImageBroken where the tree changes
    under it or leads to another file system.
    """

    def __init__(self, path: str | bytes, window: int = 64) -> None:
        self._window = max(2, window)
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        info = os.fstat(fd)
        self._device = info.st_dev
        # Invariant: the first and the last descriptor are open; at most the last `window` of the
        # others are, and the rest are -1.
        self._fds = [fd]
        self._inodes = [info.st_ino]
        self._names: list[bytes] = []

    @property
    def fd(self) -> int:
        """The directory it stands in; valid until the next step."""
        return self._fds[-1]

    @property
    def depth(self) -> int:
        """How many directories below the start it stands."""
        return len(self._names)

    def enter(self, name: bytes) -> None:
        """Goes down into a directory."""
        fd = os.open(name, _OPEN, dir_fd=self.fd)
        info = os.fstat(fd)
        if info.st_dev != self._device:
            os.close(fd)
            raise ImageBroken(f"{name!r} is another file system: it cannot be a part of a layer")
        self._fds.append(fd)
        self._inodes.append(info.st_ino)
        self._names.append(name)
        old = len(self._fds) - 1 - self._window
        if old > 0 and self._fds[old] != -1:
            os.close(self._fds[old])
            self._fds[old] = -1

    def leave(self) -> None:
        """Goes up one directory."""
        if self._fds[-2] == -1:
            fd = os.open("..", _OPEN, dir_fd=self.fd)
            info = os.fstat(fd)
            if (info.st_dev, info.st_ino) != (self._device, self._inodes[-2]):
                os.close(fd)
                raise ImageBroken("directories were moved while the tree was read")
            self._fds[-2] = fd
        os.close(self._fds.pop())
        self._inodes.pop()
        self._names.pop()

    def move(self, path: bytes) -> None:
        """Goes to the directory at `path` from the start, by the shortest way."""
        parts = path.split(b"/") if path else []
        common = 0
        for ours, theirs in zip(self._names, parts, strict=False):
            if ours != theirs:
                break
            common += 1
        while self.depth > common:
            self.leave()
        for name in parts[common:]:
            self.enter(name)

    def close(self) -> None:
        """Closes all descriptors; it may be called twice."""
        for fd in self._fds:
            if fd != -1:
                os.close(fd)
        self._fds = []

    def __enter__(self) -> Cursor:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
