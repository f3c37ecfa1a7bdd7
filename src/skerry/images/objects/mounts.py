"""Which file system a path lies on, and whether only this host writes to it."""

from __future__ import annotations

import os
import re
from typing import NamedTuple

_LOCAL = {
    *("ext2", "ext3", "ext4", "xfs", "btrfs", "bcachefs", "f2fs", "zfs", "jfs", "reiserfs"),
    *("tmpfs", "ramfs", "overlay", "fuseblk", "vfat", "exfat"),
}
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


def _plain(text: str) -> str:
    return _ESCAPE.sub(lambda match: chr(int(match[1], 8)), text)
