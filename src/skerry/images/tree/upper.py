"""Walking what a sandbox wrote, beside the layers that it wrote over.

An upper directory is hostile: its owner chose every name, size, depth and link in it. The walk
steps by descriptors, follows nothing, opens no file, keeps no more than a few hundred descriptors
at any depth, and ends with ImageBroken (field `limit`) at a bound instead of leaving things out.
The lowers are seen as overlayfs sees them: merged, with their own whiteouts and opaque marks.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec

from skerry.errors import Bug, ImageBroken
from skerry.images.tree.cursor import Cursor
from skerry.images.tree.entry import OPAQUE, PATH_BYTES_MAX, show
from skerry.images.tree.files import is_whiteout, lstat, names_in

_DESCRIPTORS = 256
# With these, what is in the upper would not be what the sandbox saw (decision 7 excludes them).
_FOREIGN_MARKS = (b"trusted.overlay.redirect", b"trusted.overlay.metacopy")


class UpperView(Protocol):
    """What the walk needs of `skerry.backends.api.Upper` (mechanisms do not import each other)."""

    @property
    def path(self) -> str:
        """An overlay upper directory."""

    @property
    def uid_base(self) -> int:
        """The host id of 0 inside."""

    @property
    def lowers(self) -> tuple[str, ...]:
        """Mounted layers below, topmost first."""


class UpperLimits(msgspec.Struct, frozen=True):
    """Bounds of one walk: files, bytes of content read, bytes of all paths and links together.

    As much as for paths may be taken by attributes, where those are kept.
    """

    entries_max: int = 1_000_000
    bytes_max: int = 64 << 30
    path_bytes_max: int = 256 << 20


@dataclass(slots=True)
class Found:
    """A file in the lowers; `parent` is its directory, valid until the walk's next step."""

    stat: os.stat_result
    parent: int


@dataclass(slots=True)
class Seen:
    """One path that the upper has, or that an opaque directory in it hides (`stat` is None).

    `parent` is the directory's descriptor, valid until the walk's next step.
    """

    path: bytes
    name: bytes
    parent: int
    stat: os.stat_result | None
    lower: Found | None
    whiteout: bool = False
    opaque: bool = False  # a directory marked so
    hides_below: bool = False  # nothing of the lowers shows in its directory
    prune: bool = False  # set by the caller: do not go into this directory


class Lowers:
    """A position in the merged lowers; it goes where the walk of the upper goes."""

    def __init__(self, paths: Sequence[str]) -> None:
        window = _DESCRIPTORS // (len(paths) + 1)
        self._cursors = [Cursor(path, window) for path in paths]
        # Invariant: [-1] holds the layers, topmost first, that have the present directory.
        self._active = [tuple(range(len(paths)))]

    def root(self) -> Found | None:
        """Returns the topmost layer's root."""
        if not self._cursors:
            return None
        fd = self._cursors[0].fd
        return Found(os.fstat(fd), fd)

    def find(self, name: bytes) -> Found | None:
        """Returns what the merged lowers show under a name in the present directory."""
        for layer in self._active[-1]:
            fd = self._cursors[layer].fd
            info = lstat(fd, name)
            if info is not None:
                return None if is_whiteout(info) else Found(info, fd)
        return None

    def names(self, left: int, path: bytes) -> set[bytes]:
        """Returns the names that the merged lowers show in the present directory."""
        names: set[bytes] = set()
        for layer in self._active[-1]:
            names.update(names_in(self._cursors[layer].fd, left, path))
        return {name for name in names if self.find(name) is not None}

    def enter(self, name: bytes) -> None:
        """Goes down; where the lowers show no directory, nothing is found below."""
        active = []
        for layer in self._active[-1]:
            cursor = self._cursors[layer]
            info = lstat(cursor.fd, name)
            if info is None:
                continue
            if not stat.S_ISDIR(info.st_mode):
                break
            cursor.enter(name)
            active.append(layer)
            if is_opaque(cursor.fd):
                break
        self._active.append(tuple(active))

    def leave(self) -> None:
        """Goes up."""
        for layer in self._active.pop():
            self._cursors[layer].leave()

    def close(self) -> None:
        """Closes everything."""
        for cursor in self._cursors:
            cursor.close()


def is_opaque(fd: int) -> bool:
    """Says whether a directory hides what the layers below have in it."""
    try:
        return os.getxattr(fd, OPAQUE) == b"y"
    except OSError:
        return False


def walk_upper(view: UpperView, limits: UpperLimits) -> Iterator[Seen]:
    """Gives every path of the upper, parents first, names in order; the root comes first.

    Below an opaque directory the names that it hides are given too, with `stat` None. Raises
    ImageBroken at a limit or when the tree changes, OSError if it cannot be read.
    """
    upper = Cursor(view.path, _DESCRIPTORS // (len(view.lowers) + 1))
    lowers = Lowers(view.lowers)
    try:
        yield from _walk(upper, lowers, limits)
    finally:
        upper.close()
        lowers.close()


@dataclass(slots=True)
class _Level:
    path: bytes
    hides_below: bool
    names: Iterator[tuple[bytes, bool]]  # with whether the upper has it


def _walk(upper: Cursor, lowers: Lowers, limits: UpperLimits) -> Iterator[Seen]:
    left, path_bytes = limits.entries_max, 0
    root = Seen(b"", b".", upper.fd, os.fstat(upper.fd), lowers.root(), opaque=is_opaque(upper.fd))
    yield root
    names = _list(upper.fd, lowers, left, b"", hides_below=root.opaque)
    left -= len(names)
    levels = [_Level(b"", root.opaque, iter(names))]
    while levels:
        level = levels[-1]
        name, present = next(level.names, (b"", False))
        if not name:
            levels.pop()
            if levels:
                upper.leave()
                lowers.leave()
            continue
        path = level.path + b"/" + name if level.path else name
        path_bytes += len(path)
        if len(path) > PATH_BYTES_MAX or path_bytes > limits.path_bytes_max:
            raise ImageBroken(f"{show(path)}: too deep, or paths too long", limit="paths")
        seen = _look(upper.fd, lowers, path, name, present=present)
        if seen.stat is not None and stat.S_ISLNK(seen.stat.st_mode):
            path_bytes += seen.stat.st_size  # the next step judges it
        seen.hides_below = level.hides_below
        if seen.stat is None or seen.whiteout or not stat.S_ISDIR(seen.stat.st_mode):
            yield seen
            continue
        # The mark is read from the directory itself, so it is entered before it is told of;
        # what is told are its parents, which stay open (a cursor's window is two at least).
        _enter(upper, name, seen)
        seen.opaque = is_opaque(upper.fd)
        _refuse_foreign_marks(upper.fd, path)
        yield seen
        if seen.prune:
            upper.leave()
            continue
        lowers.enter(name)
        hides_below = level.hides_below or seen.opaque
        names = _list(upper.fd, lowers, left, path, hides_below=hides_below)
        left -= len(names)
        levels.append(_Level(path, hides_below, iter(names)))


def _look(upper: int, lowers: Lowers, path: bytes, name: bytes, *, present: bool) -> Seen:
    info = lstat(upper, name) if present else None
    if present and info is None:
        raise ImageBroken(f"{show(path)} vanished while the tree was read")
    seen = Seen(path, name, upper, info, lowers.find(name))
    seen.whiteout = info is not None and is_whiteout(info)
    return seen


def _enter(upper: Cursor, name: bytes, seen: Seen) -> None:
    try:
        upper.enter(name)
    except OSError as error:
        if error.errno not in (errno.ENOTDIR, errno.ENOENT, errno.ELOOP):
            raise
        raise ImageBroken(f"{show(seen.path)} changed while the tree was read") from error


def _list(
    upper: int, lowers: Lowers, left: int, path: bytes, *, hides_below: bool
) -> list[tuple[bytes, bool]]:
    names = [(name, True) for name in names_in(upper, left, path)]
    if hides_below:
        present = {name for name, _ in names}
        hidden = lowers.names(left - len(names), path) - present
        names = sorted([*names, *((name, False) for name in hidden)])
    return names


def _refuse_foreign_marks(fd: int, path: bytes) -> None:
    for mark in _FOREIGN_MARKS:
        try:
            os.getxattr(fd, mark)
        except OSError:
            continue
        raise Bug(f"{show(path)}: the overlay was mounted with {os.fsdecode(mark)} in use")
