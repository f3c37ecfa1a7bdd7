"""What a sandbox changed: its upper directory against the layers below.

A path counts as modified when its type, content, mode, owners, extended attributes, link target or
device differ; times alone do not (copying a file up without writing to it changes nothing, and an
audit should not see it). Deleting a directory gives one change, its own path. What an opaque
directory hides is deleted. FIFOs, sockets and devices are listed and never opened.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from functools import partial

from skerry.errors import ImageBroken
from skerry.images.tree.entry import LAYER_IDS, Entry, Node, show
from skerry.images.tree.files import file_type, inside_xattrs, read_content, read_digest, read_link
from skerry.images.tree.upper import Found, Seen, UpperLimits, UpperView, walk_upper
from skerry.spec.files import Change, ChangeKind, FileType

NOBODY = 65_534  # what ids outside the sandbox's range look like inside


def inside_id(host_id: int, uid_base: int) -> int:
    """Returns the id that is seen inside for one on the host."""
    return host_id - uid_base if uid_base <= host_id < uid_base + LAYER_IDS else NOBODY


def changes(view: UpperView, limits: UpperLimits) -> Iterator[Change]:
    """Gives every change, in the order of the walk; raises ImageBroken at a limit."""
    for _, change in _compare(view, limits, b""):
        yield change


def tar_entries(view: UpperView, limits: UpperLimits, under: str) -> Iterator[Entry]:
    """Gives the added and modified paths at and below `under`, as entries for an archive.

    Each must be used before the next is asked for. Sockets are given too; a tar has no form for
    them. Files with several names are given once and then as hard links.
    """
    top = os.fsencode(under).strip(b"/")
    first: dict[tuple[int, int], bytes] = {}
    written = _Budget(limits)  # an archive has no holes
    for seen, change in _compare(view, limits, top):
        if change.kind is ChangeKind.DELETED or seen.stat is None:
            continue
        if change.type in (FileType.CHARACTER, FileType.BLOCK):
            continue
        info = seen.stat
        node = Node(change.type, change.mode, change.uid, change.gid, max(0, info.st_mtime_ns))
        entry = Entry(seen.path, node)
        identity = (info.st_dev, info.st_ino)
        if change.type is FileType.SYMLINK:
            node.target = os.fsencode(change.target or "")
        elif change.type is FileType.DIRECTORY:
            node.xattrs = inside_xattrs(seen.parent, seen.name, info, view.uid_base, seen.path)
        elif info.st_nlink > 1 and identity in first:
            entry.hard_link = first[identity]
        elif change.type is FileType.FILE:
            first[identity] = seen.path
            node.xattrs = inside_xattrs(seen.parent, seen.name, info, view.uid_base, seen.path)
            written.take(info.st_size, seen.path)
            entry.size = info.st_size
            entry.data = partial(read_content, seen.parent, seen.name, info, seen.path)
        yield entry


class _Budget:
    """Bytes that may still be read, or written."""

    def __init__(self, limits: UpperLimits) -> None:
        self._left = limits.bytes_max

    def take(self, size: int, path: bytes) -> None:
        self._left -= size
        if self._left < 0:
            raise ImageBroken(f"{show(path)}: too many bytes in changed files", limit="bytes")


def _compare(view: UpperView, limits: UpperLimits, top: bytes) -> Iterator[tuple[Seen, Change]]:
    budget = _Budget(limits)
    digests: dict[tuple[int, int], str] = {}
    for seen in walk_upper(view, limits):
        if not _is_related(seen.path, top):
            seen.prune = True
            continue
        if not _is_below(seen.path, top):
            continue
        change = _change(seen, view.uid_base, budget, digests)
        if change is not None:
            yield seen, change


def _is_below(path: bytes, top: bytes) -> bool:
    return not top or path == top or path.startswith(top + b"/")


def _is_related(path: bytes, top: bytes) -> bool:
    """Says whether the path is below `top` or on the way to it."""
    return _is_below(path, top) or not path or top.startswith(path + b"/")


def _change(
    seen: Seen, uid_base: int, budget: _Budget, digests: dict[tuple[int, int], str]
) -> Change | None:
    lower, info = seen.lower, seen.stat
    path = "/" + seen.path.decode("utf-8", "surrogateescape")
    if info is None or seen.whiteout:
        if lower is None:
            return None
        gone = lower.stat
        kind = file_type(gone)
        mode = stat.S_IMODE(gone.st_mode)
        return Change(path, ChangeKind.DELETED, kind, mode, gone.st_uid, gone.st_gid)
    kind = file_type(info)
    size, digest, target = 0, None, None
    if kind is FileType.FILE:
        size, digest = _digest(seen, info, budget, digests)
    elif kind is FileType.SYMLINK:
        target = read_link(seen.parent, seen.name, seen.path).decode("utf-8", "surrogateescape")
        size = info.st_size
    content = digest or target
    if lower is not None and _is_same(seen, info, lower, content, uid_base=uid_base, budget=budget):
        return None
    return Change(
        path,
        ChangeKind.ADDED if lower is None else ChangeKind.MODIFIED,
        kind,
        stat.S_IMODE(info.st_mode),
        inside_id(info.st_uid, uid_base),
        inside_id(info.st_gid, uid_base),
        size,
        digest,
        target,
    )


def _is_same(
    seen: Seen,
    info: os.stat_result,
    lower: Found,
    content: str | None,
    *,
    uid_base: int,
    budget: _Budget,
) -> bool:
    """Says whether nothing differs; `content` is the new file's digest or the new link's target."""
    old = lower.stat
    if info.st_mode != old.st_mode or info.st_rdev != old.st_rdev:
        return False
    owners = (inside_id(info.st_uid, uid_base), inside_id(info.st_gid, uid_base))
    if owners != (old.st_uid, old.st_gid):
        return False
    kind = file_type(info)
    if kind is FileType.SYMLINK:
        there = read_link(lower.parent, seen.name, seen.path)
        return there.decode("utf-8", "surrogateescape") == content
    if kind not in (FileType.FILE, FileType.DIRECTORY):
        return True
    if kind is FileType.FILE and info.st_size != old.st_size:
        return False
    new = inside_xattrs(seen.parent, seen.name, info, uid_base, seen.path)
    if new != inside_xattrs(lower.parent, seen.name, old, 0, seen.path):
        return False
    if kind is FileType.DIRECTORY:
        return True
    spend = partial(budget.take, path=seen.path)
    found = read_digest(lower.parent, seen.name, old, seen.path, spend, like=content)
    return found == content


def _digest(
    seen: Seen, info: os.stat_result, budget: _Budget, known: dict[tuple[int, int], str]
) -> tuple[int, str]:
    identity = (info.st_dev, info.st_ino)
    if info.st_nlink > 1 and identity in known:
        return info.st_size, known[identity]
    spend = partial(budget.take, path=seen.path)
    digest = read_digest(seen.parent, seen.name, info, seen.path, spend)
    if info.st_nlink > 1:
        known[identity] = digest
    return info.st_size, digest
