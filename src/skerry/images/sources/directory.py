"""From a host directory to a tree. It may be written to meanwhile: it is read as a hostile one."""

from __future__ import annotations

import os
import stat
from typing import NamedTuple

from skerry.errors import InvalidRequest
from skerry.images.archives.tarimport import ImportLimits, clean_path, outside_owners
from skerry.images.scratch import Content, Spool
from skerry.images.tree.copier import Copier
from skerry.images.tree.entry import Tree
from skerry.images.tree.files import read_content
from skerry.images.tree.notes import Notes
from skerry.images.tree.upper import Seen, UpperLimits, walk_upper


class _Alone(NamedTuple):
    """A directory seen as an upper over nothing."""

    path: str
    uid_base: int = 0
    lowers: tuple[str, ...] = ()


def read_directory(
    path: str, prefix: str, spool: Spool, notes: Notes, limits: ImportLimits
) -> Tree:
    """Returns the tree of a directory that shall appear at `prefix` inside.

    Parents of the prefix are root's, 0755. Raises InvalidRequest if `path` is no directory or
    `prefix` not absolute, ImageBroken at a limit, at a mount point below, or if files change.
    """
    if not prefix.startswith("/"):
        raise InvalidRequest(f"prefix: {prefix!r} is not absolute")
    if not os.path.isdir(path):
        raise InvalidRequest(f"{path} is no directory")
    top = clean_path(os.fsencode(prefix).strip(b"/"), "prefix")

    def owners(info: os.stat_result, at: bytes) -> tuple[int, int, int]:
        mode = stat.S_IMODE(info.st_mode)
        return outside_owners(info.st_uid, info.st_gid, mode, notes, at)

    bounds = UpperLimits(entries_max=limits.entries_max, bytes_max=limits.bytes_max)

    def keep(seen: Seen, info: os.stat_result) -> Content:
        return spool.add(read_content(seen.parent, seen.name, info, seen.path))

    copier = Copier(0, owners, keep, notes, bounds)
    for seen in walk_upper(_Alone(path), bounds):
        seen.opaque = False  # overlay marks have no meaning outside an overlay
        target = b"/".join(part for part in (top, seen.path) if part)
        if seen.stat is not None and target:
            copier.place(target, seen, seen.stat)
    return copier.tree
