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
    digest: str | None = None  # sha256 of a regular file's content
    target: str | None = None  # of a symbolic link
