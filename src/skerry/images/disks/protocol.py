"""What a writable file system asks beyond a read-only one (`skerry.images.lazy.protocol`)."""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Final, NamedTuple

from skerry.images.lazy import protocol

WRITE_BYTES_MAX: Final = 1 << 20
REQUEST_BYTES_MAX: Final = WRITE_BYTES_MAX + (8 << 10)
FILE_MODE: Final = 0o100600
NAME_S: Final = 1  # a disk may be closed, and another one be opened by its name
_BIG_WRITES: Final = 1 << 5
_WRITE: Final = struct.Struct("<QQIIQII")
_FALLOCATE: Final = struct.Struct("<QQQII")
_WRITTEN: Final = struct.Struct("<II")
_SETATTR_SIZE: Final = 1 << 3
_PUNCH, _ZERO = 2, 16
_DIRENT: Final = struct.Struct("<QQII")


class Op(IntEnum):
    """What the kernel may ask of who can write."""

    SETATTR = 4
    WRITE = 16
    FSYNC = 20
    OPENDIR = 27
    READDIR = 28
    RELEASEDIR = 29
    FALLOCATE = 43


class Write(NamedTuple):
    """A WRITE."""

    offset: int
    data: memoryview


class Zero(NamedTuple):
    """A FALLOCATE that makes zeros."""

    offset: int
    length: int


def write_in(body: memoryview) -> Write:
    """Returns what is to be written; valid as long as the request."""
    _, offset, length, *_ = _WRITE.unpack_from(body)
    return Write(offset, body[_WRITE.size : _WRITE.size + length])


def written_out(length: int) -> bytes:
    """Returns the answer to WRITE."""
    return _WRITTEN.pack(length, 0)


def fallocate_in(body: memoryview) -> Zero | None:
    """Returns which range is to become zeros; None for any other wish."""
    _, offset, length, mode, _ = _FALLOCATE.unpack_from(body)
    return Zero(offset, length) if mode & (_PUNCH | _ZERO) else None


def changes_size(body: memoryview) -> bool:
    """Says whether a SETATTR is to cut or lengthen the file."""
    return bool(int.from_bytes(body[:4], "little") & _SETATTR_SIZE)


def init_out(body: memoryview, request_timeout_s: int) -> bytes:
    """Returns the answer to INIT: no write is held back in the kernel."""
    return protocol.init_out(body, request_timeout_s, WRITE_BYTES_MAX, _BIG_WRITES)


def directory_out(names: list[tuple[int, str]], offset: int, length: int) -> bytes:
    """Returns a part of the answer to READDIR: files by number and name."""
    out = bytearray()
    for at, (node, name) in enumerate(names[offset:], offset + 1):
        raw = name.encode()
        entry = _DIRENT.pack(node, at, len(raw), 8) + raw
        entry += bytes(-len(entry) % 8)
        if len(out) + len(entry) > length:
            break
        out += entry
    return bytes(out)
