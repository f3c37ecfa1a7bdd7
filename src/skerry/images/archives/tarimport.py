"""From an archive of unknown origin to a tree: every member is judged before it is used.

| found | done |
|---|---|
| absolute name, `..`, NUL, a part over 255 bytes, a path over 16 KiB | refused |
| a path through a symbolic link or file of the archive | refused |
| hard link to what is no earlier file of the archive | refused |
| sparse files, unknown member types | refused |
| more entries, bytes, or bytes of names, links and attributes than the limits | refused |
| the same name twice | the last wins; directories merge |
| devices | dropped, with a note |
| ids of 65,536 and above | become 0 and lose setuid and setgid, with a note |
| `.wh.NAME`, `.wh..wh..opq` (OCI) | become overlay whiteouts and opaque marks |
| attributes but `user.*` (not `user.overlay.*`), file capabilities, access lists | dropped, noted |

Refused means ImageBroken, whose message names the member.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from skerry.errors import ImageBroken
from skerry.images.archives.tarread import Member, Readable, TarReader
from skerry.images.scratch import Spool
from skerry.images.tree.entry import (
    LAYER_IDS,
    NAME_BYTES_MAX,
    OPAQUE,
    PATH_BYTES_MAX,
    Node,
    Tree,
    make_directory,
    make_whiteout,
    show,
)
from skerry.images.tree.notes import Notes
from skerry.images.tree.xattrs import clean_outside_xattrs
from skerry.spec.files import FileType

_Below = Callable[[bytes], Node | None]
_WHITEOUT = b".wh."
_OPAQUE_NAME = b".wh..wh..opq"


class ImportLimits(msgspec.Struct, frozen=True):
    """Bounds of one import. A million entries take about half a GB of memory, and their words."""

    entries_max: int = 1_000_000
    bytes_max: int = 256 << 30
    words_bytes_max: int = 512 << 20  # of all paths, links and attributes together


@dataclass(slots=True)
class Spent:
    """What was taken so far; given to several imports, the limits are for all of them."""

    entries: int = 0
    bytes: int = 0
    words_bytes: int = 0


def read_tar(
    source: Readable | TarReader,
    spool: Spool,
    notes: Notes,
    limits: ImportLimits,
    progress: Callable[[int, int], None] = lambda _files, _bytes: None,
    *,
    below: _Below = lambda _path: None,
    spent: Spent | None = None,
) -> Tree:
    """Returns the tree of an archive, with its contents in the spool.

    `below` says what layers that the archive lies on have at a path: a hard link may lead there.

    Raises ImageBroken as said above, StorageFailed if the scratch disk is full.
    """
    tree = Tree()
    reader = source if isinstance(source, TarReader) else TarReader(source)
    spent = spent or Spent()
    earlier = spent.entries
    for seen, member in enumerate(reader.members(), start=1):
        spent.bytes += member.size
        spent.words_bytes += _words_bytes(member)
        spent.entries = earlier + max(seen, tree.made)
        if spent.entries > limits.entries_max:
            raise ImageBroken(
                f"the archive holds more than {limits.entries_max} files", limit="entries"
            )
        if spent.bytes > limits.bytes_max:
            raise ImageBroken(
                f"the archive holds more than {limits.bytes_max} bytes", limit="bytes"
            )
        if spent.words_bytes > limits.words_bytes_max:
            raise ImageBroken(
                "the archive's names, links and attributes are too long together", limit="words"
            )
        _place(tree, member, reader, spool, notes, below=below)
        progress(spent.entries, spent.bytes)
    # "/" inside is the upper directory's own; what an archive says of it must not vary the layer.
    tree.root.mode, tree.root.uid, tree.root.gid = 0o755, 0, 0
    return tree


def _words_bytes(member: Member) -> int:
    """Returns what stays in memory of a member beside its node."""
    attributes = sum(len(key) + len(value) for key, value in member.xattrs.items())
    return len(member.name) + len(member.link) + attributes


def clean_path(name: bytes, what: str = "member") -> bytes:
    """Returns a member's path without `.` and empty parts; raises ImageBroken if it is unsafe."""
    if name.startswith(b"/"):
        raise ImageBroken(f"{what} {os.fsdecode(name[:200])!r}: the name is absolute")
    parts = [part for part in name.split(b"/") if part not in (b"", b".")]
    if b".." in parts:
        raise ImageBroken(f"{what} {show(name)}: the name holds '..'")
    if b"\0" in name or any(len(part) > NAME_BYTES_MAX for part in parts):
        raise ImageBroken(f"{what} {show(name)}: not a possible file name")
    path = b"/".join(parts)
    if len(path) > PATH_BYTES_MAX:
        raise ImageBroken(f"{what} {show(name)}: longer than {PATH_BYTES_MAX} bytes")
    return path


def outside_owners(
    uid: int, gid: int, mode: int, notes: Notes, path: bytes
) -> tuple[int, int, int]:
    """Returns uid, gid and mode of a file from outside as a layer may hold them."""
    if uid < LAYER_IDS and gid < LAYER_IDS:
        return uid, gid, mode
    notes.add(f"owners of {LAYER_IDS} and above became 0, without setuid and setgid", path)
    return uid if uid < LAYER_IDS else 0, gid if gid < LAYER_IDS else 0, mode & 0o1777


def _place(
    tree: Tree, member: Member, reader: TarReader, spool: Spool, notes: Notes, *, below: _Below
) -> None:
    path = clean_path(member.name)
    base = path.rpartition(b"/")[2]
    if base.startswith(_WHITEOUT):
        _place_whiteout(tree, path, notes)
        return
    if member.kind == b"1":
        _place_hard_link(tree, path, member, below)
        return
    node = _node(member, notes, path)
    if node is None:
        return
    if node.type is FileType.FILE:
        node.content = spool.add(reader.data())
    tree.put(path, node)


def _node(member: Member, notes: Notes, path: bytes) -> Node | None:
    kind = member.kind
    if kind in b"34":
        notes.add("device nodes dropped", path)
        return None
    if kind in b"VDM":  # a volume's name and other records of GNU tar
        return None
    node = Node(FileType.FILE, member.mode, mtime_ns=member.mtime_ns)
    if kind == b"5":
        node = make_directory(member.mode)
        node.mtime_ns = member.mtime_ns
    elif kind == b"2":
        node.type, node.mode, node.target = FileType.SYMLINK, 0o777, member.link
        if not member.link or b"\0" in member.link or len(member.link) >= 4096:
            raise ImageBroken(f"member {show(path)}: not a possible symbolic link")
    elif kind == b"6":
        node.type = FileType.FIFO
    elif kind == b"S":
        raise ImageBroken(f"member {show(path)}: sparse; make the archive without --sparse")
    elif kind != b"0":
        raise ImageBroken(f"member {show(path)}: unknown type {kind!r}")
    node.uid, node.gid, node.mode = outside_owners(member.uid, member.gid, node.mode, notes, path)
    if node.type in (FileType.FILE, FileType.DIRECTORY):
        node.xattrs = clean_outside_xattrs(member.xattrs, notes, path)
    return node


def _place_whiteout(tree: Tree, path: bytes, notes: Notes) -> None:
    parent, _, name = path.rpartition(b"/")
    if name == _OPAQUE_NAME:
        tree.directory(parent).xattrs[OPAQUE] = b"y"
        return
    hidden = name.removeprefix(_WHITEOUT)
    if not hidden or hidden in (b".", b"..") or hidden.startswith(_WHITEOUT):
        notes.add("records of union file systems dropped", path)
        return
    target = parent + b"/" + hidden if parent else hidden
    # Within one layer the file counts, wherever its whiteout stands (OCI image specification).
    there = tree.find(target)
    if there is None:
        tree.put(target, make_whiteout())
    elif there.children is not None:
        there.xattrs[OPAQUE] = b"y"


def _place_hard_link(tree: Tree, path: bytes, member: Member, below: _Below) -> None:
    name = clean_path(member.link, f"hard link {show(path)} to")
    target = tree.find(name)
    if target is None and (target := below(name)) is not None and target.children is None:
        tree.put(name, target)  # both names are this layer's then, as after overlayfs's copying up
    if target is None or target.children is not None or target.type is FileType.CHARACTER:
        raise ImageBroken(
            f"hard link {show(path)} to {show(member.link)}: no earlier file of the archive"
        )
    target.shared = True
    tree.put(path, target)
