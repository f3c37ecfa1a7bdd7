"""Single files of an upper over its lowers, found by path as overlayfs shows them; no link followed."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from skerry.errors import ImageBroken
from skerry.images.tree.entry import show
from skerry.images.tree.files import is_whiteout, lstat, open_regular
from skerry.images.tree.upper import is_opaque

_OPEN = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
NAMES_MAX = 1_000_000


class Place(NamedTuple):
    """A name in one layer; 0 is the topmost."""

    layer: int
    stat: os.stat_result


class Merged:
    """Layers as one tree, topmost first. Without `whiteouts` those of the topmost count for nothing."""

    def __init__(self, layers: Sequence[str], *, whiteouts: bool = True) -> None:
        self._roots = [
            os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC) for path in layers
        ]
        self._whiteouts = whiteouts

    def close(self) -> None:
        """Lets go of the layers."""
        for root in self._roots:
            os.close(root)

    def _hides(self, layer: int, info: os.stat_result) -> bool:
        return is_whiteout(info) and (layer > 0 or self._whiteouts)

    @contextlib.contextmanager
    def _directories(self, path: bytes) -> Iterator[list[tuple[int, int]]]:
        """Gives (layer, descriptor) of each layer's directory there, down to what hides the rest."""
        found: list[tuple[int, int]] = []
        try:
            for layer, root in enumerate(self._roots):
                if self._enter(layer, root, path, found):
                    break
            yield found
        finally:
            for _, fd in found:
                os.close(fd)

    def _enter(self, layer: int, root: int, path: bytes, found: list[tuple[int, int]]) -> bool:
        """Adds this layer's directory, if there is one; returns whether it hides those below."""
        fd, last = os.dup(root), False
        for name in path.split(b"/") if path else ():
            info = lstat(fd, name)
            if info is None or not stat.S_ISDIR(info.st_mode):
                os.close(fd)
                ignored = info is not None and is_whiteout(info) and not self._hides(layer, info)
                return last or (info is not None and not ignored)
            try:
                deeper = os.open(name, _OPEN, dir_fd=fd)
            finally:
                os.close(fd)
            fd = deeper
            last = last or is_opaque(fd)
        found.append((layer, fd))
        return last

    def names(self, path: bytes) -> dict[bytes, Place]:
        """Returns what is in a directory, by name; empty if there is none."""
        shown: dict[bytes, Place] = {}
        hidden: set[bytes] = set()
        with self._directories(path) as directories:
            for layer, fd in directories:
                for text in os.listdir(fd):
                    name = os.fsencode(text)
                    info = lstat(fd, name)
                    if info is None or name in shown or name in hidden:
                        continue
                    if is_whiteout(info):
                        if self._hides(layer, info):
                            hidden.add(name)
                        continue
                    shown[name] = Place(layer, info)
                    if len(shown) > NAMES_MAX:
                        raise ImageBroken(f"{show(path)}: too many files", limit="entries")
        return shown

    @contextlib.contextmanager
    def _shown(self, path: bytes) -> Iterator[tuple[int, Place] | None]:
        """Gives the directory that a file is in and its place, None if it is not there."""
        parent, _, name = path.rpartition(b"/")
        with self._directories(parent) as directories:
            for layer, fd in directories:
                info = lstat(fd, name)
                if info is None or (is_whiteout(info) and not self._hides(layer, info)):
                    continue
                yield None if is_whiteout(info) else (fd, Place(layer, info))
                return
            yield None

    def find(self, path: bytes) -> Place | None:
        """Returns where a file is, None if it is not there."""
        with self._shown(path) as shown:
            return shown[1] if shown is not None else None

    def open(self, path: bytes) -> int | None:
        """Returns a descriptor of a regular file, to be closed; None if there is no such file."""
        with self._shown(path) as shown:
            if shown is None or not stat.S_ISREG(shown[1].stat.st_mode):
                return None
            fd, place = shown
            return open_regular(fd, path.rpartition(b"/")[2], place.stat, path)

    def read(self, path: bytes, bytes_max: int) -> bytes | None:
        """Returns a file's content, None if there is no such file; ImageBroken if it is longer."""
        fd = self.open(path)
        if fd is None:
            return None
        try:
            data = os.pread(fd, bytes_max + 1, 0)
        finally:
            os.close(fd)
        if len(data) > bytes_max:
            raise ImageBroken(f"{show(path)} is longer than {bytes_max} bytes", limit="bytes")
        return data
