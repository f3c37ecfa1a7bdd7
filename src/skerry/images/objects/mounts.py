"""Which file system a path lies on, and whether only this host writes to it."""

from __future__ import annotations

import ctypes
import errno
import os
import re
import struct
from typing import NamedTuple

_LOCAL = {
    *("ext2", "ext3", "ext4", "xfs", "btrfs", "bcachefs", "f2fs", "zfs", "jfs", "reiserfs"),
    *("tmpfs", "ramfs", "overlay", "fuseblk", "vfat", "exfat"),
}
_AT_EMPTY_PATH, _AT_STATX_FORCE_SYNC = 0x1000, 0x2000
_STATX_NLINK, _STATX_BYTES = 4, 256
_ESCAPE = re.compile(r"\\([0-7]{3})")


class FileSystem(NamedTuple):
    """A mounted file system, as the kernel names it."""

    kind: str  # "ext4", "nfs4", "fuse.juicefs", ...; "unknown" if the kernel does not say
    source: str
    mounted_at: str


def file_system(path: str, table: str = "/proc/self/mountinfo") -> FileSystem:
    """Returns what a path lies on, or would lie on if it is not there yet."""
    wanted = os.path.realpath(path)
    found = FileSystem("unknown", "", "/")
    try:
        with open(table, encoding="utf-8", errors="surrogateescape") as file:
            lines = file.read().splitlines()
    except OSError:
        return found
    for line in lines:
        left, _, right = line.partition(" - ")
        fields, named = left.split(), right.split()
        if len(fields) < 5 or len(named) < 2:
            continue
        point = _plain(fields[4])
        inside = wanted == point or wanted.startswith(point.rstrip("/") + "/")
        # Of mounts one over the other the last is what a path leads to.
        if inside and len(point) >= len(found.mounted_at):
            found = FileSystem(named[0], _plain(named[1]), point)
    return found


def is_local(kind: str) -> bool:
    """Says whether no other host can change a file system of that kind; unknown kinds are shared."""
    return kind in _LOCAL


def is_named(fd: int) -> bool:
    """Says whether an open file still has a name, by the server and not by a cache of ours.

    3FS opens a file for reading without asking, and reads zeros of one that is gone.
    """
    found = ctypes.create_string_buffer(_STATX_BYTES)
    libc = ctypes.CDLL(None, use_errno=True)
    flags = _AT_EMPTY_PATH | _AT_STATX_FORCE_SYNC
    if libc.statx(fd, b"", flags, _STATX_NLINK, found):
        number = ctypes.get_errno()
        if number in {errno.ENOENT, errno.ESTALE}:
            return False
        raise OSError(number, os.strerror(number))
    (links,) = struct.unpack_from("=I", found, 16)
    return bool(links > 0)


def _plain(text: str) -> str:
    return _ESCAPE.sub(lambda match: chr(int(match[1], 8)), text)
