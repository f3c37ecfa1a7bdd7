"""Reading single files of a tree that may be hostile: no link followed, no device opened."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from typing import Final

from skerry.errors import ImageBroken
from skerry.images.sparse import EndsEarly, holes_beyond, read_around_holes, read_extents
from skerry.images.tree.entry import LAYER_IDS, show
from skerry.images.tree.xattrs import read_xattrs
from skerry.spec.digests import SPARSE, PlainDigest, SparseDigest
from skerry.spec.files import FileType

HOLES_BYTES: Final = 16 << 20  # that a digest of all bytes goes through; beyond it is a sparse one
_BY_FORMAT = {
    stat.S_IFREG: FileType.FILE,
    stat.S_IFDIR: FileType.DIRECTORY,
    stat.S_IFLNK: FileType.SYMLINK,
    stat.S_IFIFO: FileType.FIFO,
    stat.S_IFSOCK: FileType.SOCKET,
    stat.S_IFCHR: FileType.CHARACTER,
    stat.S_IFBLK: FileType.BLOCK,
}


def file_type(info: os.stat_result) -> FileType:
    """Returns what a file is."""
    return _BY_FORMAT[stat.S_IFMT(info.st_mode)]


def is_whiteout(info: os.stat_result) -> bool:
    """Says whether overlayfs takes the file for a whiteout: a 0:0 character device."""
    return stat.S_ISCHR(info.st_mode) and info.st_rdev == 0


def lstat(parent: int, name: bytes) -> os.stat_result | None:
    """Returns the attributes of a name in an open directory, None if it is not there."""
    try:
        return os.stat(name, dir_fd=parent, follow_symlinks=False)
    except FileNotFoundError:
        return None


def names_in(fd: int, left: int, path: bytes) -> list[bytes]:
    """Returns the names in an open directory, sorted; ImageBroken if there are more than `left`."""
    names: list[bytes] = []
    with os.scandir(fd) as found:
        for one in found:
            if len(names) >= left:
                raise ImageBroken(f"{show(path)}: too many files", limit="entries")
            names.append(os.fsencode(one.name))
    names.sort()
    return names


def open_regular(parent: int, name: bytes, expected: os.stat_result, path: bytes) -> int:
    """Opens the regular file that `expected` describes, for reading.

    What stands there now is looked at before it is opened, so a FIFO or device that took its
    place is never opened: ImageBroken.
    """
    try:
        handle = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    except FileNotFoundError as error:
        raise ImageBroken(f"{show(path)} changed while it was read") from error
    try:
        info = os.fstat(handle)
        same = (info.st_dev, info.st_ino) == (expected.st_dev, expected.st_ino)
        if not same or not stat.S_ISREG(info.st_mode):
            raise ImageBroken(f"{show(path)} changed while it was read")
        return os.open(f"/proc/self/fd/{handle}", os.O_RDONLY | os.O_CLOEXEC | os.O_NOCTTY)
    finally:
        os.close(handle)


def read_content(
    parent: int, name: bytes, expected: os.stat_result, path: bytes, *, once: bool = False
) -> Iterator[bytes]:
    """Gives the bytes of a regular file: as many as `expected` says, or ImageBroken.

    Holes are not read, and given as `skerry.images.sparse` says. A file that grows meanwhile is
    read no further; `parent` must stay open. With `once` it is
    nobody else's to read: its pages do not stay in memory in place of others.
    """
    fd = open_regular(parent, name, expected, path)
    try:
        yield from read_around_holes(fd, 0, expected.st_size)
    except EndsEarly:
        raise ImageBroken(f"{show(path)} changed while it was read") from None
    finally:
        if once:
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


def read_digest(
    parent: int,
    name: bytes,
    expected: os.stat_result,
    path: bytes,
    spend: Callable[[int], None],
    *,
    like: str | None = None,
) -> str:
    """Returns the digest of a regular file (`skerry.spec.digests`): of the kind of `like`, or its own.

    `spend` is told how much is read, and may raise. ImageBroken as `read_content`.
    """
    fd = open_regular(parent, name, expected, path)
    try:
        size = expected.st_size
        if not _is_sparse(fd, size, like):
            spend(size)
            plain = PlainDigest()
            for piece in read_around_holes(fd, 0, size):
                plain.update(piece)
            return plain.text()
        sparse = SparseDigest(size)
        for offset, piece in read_extents(fd, size):
            spend(len(piece))
            sparse.put(offset, piece)
        return sparse.text()
    except EndsEarly:
        raise ImageBroken(f"{show(path)} changed while it was read") from None
    finally:
        os.close(fd)


def _is_sparse(fd: int, size: int, like: str | None) -> bool:
    if like is not None:
        return like.startswith(SPARSE)
    return holes_beyond(fd, size, HOLES_BYTES)


def inside_xattrs(
    parent: int, name: bytes, info: os.stat_result, uid_base: int, path: bytes
) -> dict[bytes, bytes]:
    """Returns the extended attributes of a regular file or directory, as seen inside."""
    if stat.S_ISDIR(info.st_mode):
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(name, flags, dir_fd=parent)
    else:
        fd = open_regular(parent, name, info, path)
    try:
        return read_xattrs(fd, uid_base, LAYER_IDS, path)
    finally:
        os.close(fd)


def read_link(parent: int, name: bytes, path: bytes) -> bytes:
    """Returns a symbolic link's target; ImageBroken if it is no link any more."""
    try:
        return os.readlink(name, dir_fd=parent)
    except OSError as error:
        raise ImageBroken(f"{show(path)} changed while it was read") from error
