"""Bodies of the file routes (the table of routes stands in wire/http.py)."""

from __future__ import annotations

import os

import msgspec

from skerry.spec.files import Change, FileInfo, WatchEvent
from skerry.wire.http import ErrorBody

FILES_STREAM = "application/x-skerry-files"
FILE_EVENT_BYTES_MAX = 4 << 20
NAME_OPS = frozenset(
    {"stat", "exists", "list", "mkdir", "remove", "rename", "move", "copy", "chmod", "chown"}
    | {"symlink", "link", "truncate", "utime"}
)


class FileOp(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """One operation on names.

    What each needs beside `path`, and may have:

    stat, exists (follow) · list · mkdir (mode, parents) · remove (recursive) · rename to ·
    move to (parents, exclusive) · copy to (recursive, parents, exclusive) · chmod mode ·
    chown owner (recursive, follow) · symlink to: what the link at `path` says (parents, replace) ·
    link to: a further name of the file `path` (parents) · truncate size ·
    utime (atime, mtime in seconds; without both: now)

    `path_bytes` and `to_bytes` replace `path` and `to` where those are no UTF-8.
    """

    op: str
    path: str = ""
    to: str | None = None
    mode: int | None = None
    owner: str | None = None  # "USER", "USER:GROUP" or ":GROUP", names or numbers
    size: int | None = None
    atime: float | None = None
    mtime: float | None = None
    recursive: bool = False
    parents: bool = False
    exclusive: bool = False
    replace: bool = False
    follow: bool = False
    user: str | None = None
    path_bytes: bytes | None = None
    to_bytes: bytes | None = None

    def names(self) -> tuple[str, str | None]:
        """Returns `path` and `to`, with surrogate escapes where they are no UTF-8."""
        path = self.path if self.path_bytes is None else os.fsdecode(self.path_bytes)
        to = self.to if self.to_bytes is None else os.fsdecode(self.to_bytes)
        return path, to


def file_op(op: str, path: str, to: str | None = None, **fields: object) -> FileOp:
    """Returns the operation for names that may hold surrogate escapes."""
    made = msgspec.convert({"op": op, **fields}, FileOp)
    plain, raw = wire_name(path)
    to_plain, to_raw = (None, None) if to is None else wire_name(to)
    return msgspec.structs.replace(made, path=plain, path_bytes=raw, to=to_plain, to_bytes=to_raw)


def wire_name(name: str) -> tuple[str, bytes | None]:
    """Returns a name as text that can be sent, and its bytes if that text is not the name."""
    if name.isascii():
        return name, None
    raw = os.fsencode(name)
    text = raw.decode("utf-8", "replace")
    return text, None if text == name else raw


class FileEvent(msgspec.Struct, frozen=True, omit_defaults=True):
    """A part of a stream of files or of events; exactly one field is set."""

    entries: tuple[FileInfo, ...] | None = None
    watch: WatchEvent | None = None
    done: bool | None = None
    error: ErrorBody | None = None


def info_to_wire(info: FileInfo) -> FileInfo:
    """Returns the file with names that can be sent: U+FFFD for what is no UTF-8, and the bytes."""
    if info.name.isascii() and (info.target is None or info.target.isascii()):
        return info
    name, raw_name = wire_name(info.name)
    target, raw_target = (None, None) if info.target is None else wire_name(info.target)
    return msgspec.structs.replace(
        info, name=name, target=target, raw_name=raw_name, raw_target=raw_target
    )


def info_from_wire(info: FileInfo) -> FileInfo:
    """Returns the file with the names that it has."""
    if info.raw_name is None and info.raw_target is None:
        return info
    name = info.name if info.raw_name is None else os.fsdecode(info.raw_name)
    target = info.target if info.raw_target is None else os.fsdecode(info.raw_target)
    return msgspec.structs.replace(info, name=name, target=target, raw_name=None, raw_target=None)


def event_to_wire(event: WatchEvent) -> WatchEvent:
    """Returns the event with paths that can be sent."""
    path, raw_path = wire_name(event.path)
    source, raw_source = (None, None) if event.source is None else wire_name(event.source)
    return msgspec.structs.replace(
        event, path=path, source=source, raw_path=raw_path, raw_source=raw_source
    )


def event_from_wire(event: WatchEvent) -> WatchEvent:
    """Returns the event with the paths that it is about."""
    if event.raw_path is None and event.raw_source is None:
        return event
    path = event.path if event.raw_path is None else os.fsdecode(event.raw_path)
    source = event.source if event.raw_source is None else os.fsdecode(event.raw_source)
    return msgspec.structs.replace(event, path=path, source=source, raw_path=None, raw_source=None)


def change_to_wire(change: Change) -> Change:
    """Returns the change with U+FFFD in its names for what is no UTF-8."""
    if change.path.isascii() and (change.target is None or change.target.isascii()):
        return change
    target = None if change.target is None else wire_name(change.target)[0]
    return msgspec.structs.replace(change, path=wire_name(change.path)[0], target=target)
