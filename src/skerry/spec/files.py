"""What a file inside a sandbox is, and what changed in one since it was made."""

from __future__ import annotations

from enum import StrEnum

import msgspec


class FileType(StrEnum):
    """Kinds of file, by the letter that the guest agent uses."""

    FILE = "f"
    DIRECTORY = "d"
    SYMLINK = "l"
    FIFO = "p"
    SOCKET = "s"
    CHARACTER = "c"
    BLOCK = "b"


class FileInfo(msgspec.Struct, frozen=True, omit_defaults=True):
    """One file. Names that are no UTF-8 carry surrogate escapes (PEP 383)."""

    name: str
    type: FileType
    mode: int
    uid: int
    gid: int
    size: int
    mtime: float
    target: str | None = None
    allocated: int | None = None  # bytes on disk: less than `size` in a file with holes
    unreadable: bool = False  # a directory that a walk could not go into
    raw_name: bytes | None = None  # on the wire, of a name that is no UTF-8
    raw_target: bytes | None = None


class TreeUsage(msgspec.Struct, frozen=True, kw_only=True):
    """What a tree takes up. A file of several names counts once if all of them are in the tree."""

    size: int  # bytes of content, as stat tells them
    allocated: int  # bytes on disk
    files: int
    directories: int  # the top one included
    unreadable: int = 0  # directories that could not be looked into: the sums lack them


class WatchKind(StrEnum):
    """What happened to a watched path."""

    READY = "ready"  # the first event: from now on nothing is missed
    CREATED = "created"
    MODIFIED = "modified"
    MOVED = "moved"
    REMOVED = "removed"
    ATTRIBUTES = "attributes"  # mode, owner, times, links
    OVERFLOW = "overflow"  # events were lost: look at the tree again


class WatchEvent(msgspec.Struct, frozen=True, omit_defaults=True):
    """One thing that happened. `path` begins with the path that is watched."""

    kind: WatchKind
    path: str
    directory: bool = False
    source: str | None = None  # of a move: the path before
    raw_path: bytes | None = None  # on the wire, of a path that is no UTF-8
    raw_source: bytes | None = None


class ChangeKind(StrEnum):
    """How a path differs from the layers below."""

    ADDED = "added"
    MODIFIED = "modified"
    DELETED = "deleted"


class Change(msgspec.Struct, frozen=True, omit_defaults=True):
    """One path that differs from the sandbox's layers; ids are those seen inside."""

    path: str  # absolute inside the sandbox
    kind: ChangeKind
    type: FileType = FileType.FILE
    mode: int = 0
    uid: int = 0
    gid: int = 0
    size: int = 0
    digest: str | None = None  # of a regular file's content: `skerry.spec.digests`
    target: str | None = None  # of a symbolic link
