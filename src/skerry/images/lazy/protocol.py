"""The part of the kernel's FUSE protocol that a read-only file system of a few files needs.

Layouts are those of linux/fuse.h, version 7.45; the kernel is trusted, so nothing is checked twice.
An older kernel (7.31 at least) ignores what it does not know.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Final, NamedTuple

ROOT: Final = 1
HEADER: Final = struct.Struct("<IIQQIIIHH")  # len, opcode, unique, nodeid, uid, gid, pid, extlen, 0
OUT: Final = struct.Struct("<IiQ")  # len, error, unique
REQUEST_BYTES_MAX: Final = 16 << 10  # the longest that we are sent; the kernel wants 8 KiB at least
READ_BYTES_MAX: Final = 1 << 20
FOREVER_S: Final = 10 * 365 * 86_400  # blobs never change; a name is asked for once a mount
NOTIFY_RESEND: Final = 7

_MAJOR, _MINOR = 7, 45
_INIT_IN: Final = struct.Struct("<5I")
_INIT_OUT: Final = struct.Struct("<4I2H2I2H2IH22x")
_ATTR: Final = struct.Struct("<6Q10I")
_ENTRY: Final = struct.Struct("<4Q2I")
_ATTR_HEAD: Final = struct.Struct("<Q2I")
_READ: Final = struct.Struct("<QQI")
_OPEN: Final = struct.Struct("<QiI")
_STATFS: Final = struct.Struct("<5Q4I24x")

_PAGE: Final = 4096
_FILE: Final = 0o100444
_DIRECTORY: Final = 0o40555
_KEEP_CACHE: Final = 1 << 1
# ASYNC_READ, ASYNC_DIO, PARALLEL_DIROPS, MAX_PAGES, INIT_EXT
_FLAGS: Final = 1 << 0 | 1 << 15 | 1 << 18 | 1 << 22 | 1 << 30
_HAS_RESEND: Final = 1 << 39
_REQUEST_TIMEOUT: Final = 1 << 42
# All reads are taken at once and wait here, where each has its own bound.
_BACKGROUND_MAX: Final = 1024


class Op(IntEnum):
    """What the kernel may ask."""

    LOOKUP = 1
    FORGET = 2
    GETATTR = 3
    OPEN = 14
    READ = 15
    STATFS = 17
    RELEASE = 18
    FLUSH = 25
    INIT = 26
    INTERRUPT = 36
    DESTROY = 38
    BATCH_FORGET = 42


class Read(NamedTuple):
    """A READ: which bytes of the file."""

    offset: int
    length: int


class Request(NamedTuple):
    """One request; `body` is valid until the next one is read into the same buffer."""

    op: int
    unique: int
    node: int
    body: memoryview


def parse(buffer: memoryview, length: int) -> Request:
    """Returns the request in the first `length` bytes."""
    _, op, unique, node, *_ = HEADER.unpack_from(buffer)
    return Request(op, unique, node, buffer[HEADER.size : length])


def head(unique: int, length: int = 0, error: int = 0) -> bytes:
    """Returns what an answer begins with; `error` is a positive errno."""
    return OUT.pack(OUT.size + length, -error, unique)


def resend() -> bytes:
    """Returns the notification after which the kernel hands out again what another process took."""
    return OUT.pack(OUT.size, NOTIFY_RESEND, 0)


def read_in(body: memoryview) -> Read:
    """Returns what a READ asks for."""
    _, offset, length = _READ.unpack_from(body)
    return Read(offset, length)


def init_out(
    body: memoryview, request_timeout_s: int, write_bytes_max: int = 0, flags: int = 0
) -> bytes:
    """Returns the answer to INIT, of what both sides know; b"" if the kernel is too old.

    `flags` are wanted beside those of a read-only file system.
    """
    major, minor, readahead, low, high = _INIT_IN.unpack_from(body)
    if major != _MAJOR or minor < 31:
        return b""
    theirs = low | high << 32
    ours = theirs & (_FLAGS | flags | _HAS_RESEND | (_REQUEST_TIMEOUT if request_timeout_s else 0))
    return _INIT_OUT.pack(
        _MAJOR,
        _MINOR,
        readahead,
        ours & 0xFFFF_FFFF,
        _BACKGROUND_MAX,
        _BACKGROUND_MAX,
        max(_PAGE, write_bytes_max),  # it sizes the buffer of requests
        1,
        READ_BYTES_MAX // _PAGE,
        0,
        ours >> 32,
        0,
        request_timeout_s,
    )


def _attr(node: int, size: int, mode: int) -> bytes:
    blocks = -(-size // 512)
    return _ATTR.pack(node, size, blocks, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, _PAGE, 0)


def entry_out(node: int, size: int, mode: int = _FILE, known_s: int = FOREVER_S) -> bytes:
    """Returns the answer to LOOKUP of a file; its name need not be asked for again for so long."""
    return _ENTRY.pack(node, 0, known_s, FOREVER_S, 0, 0) + _attr(node, size, mode)


def attr_out(node: int, size: int, mode: int = _FILE) -> bytes:
    """Returns the answer to GETATTR."""
    mode = _DIRECTORY if node == ROOT else mode
    return _ATTR_HEAD.pack(FOREVER_S, 0, 0) + _attr(node, size, mode)


def open_out(*, keep: bool = True) -> bytes:
    """Returns the answer to OPEN: what is cached stays, for the bytes of a blob are its name."""
    return _OPEN.pack(0, _KEEP_CACHE if keep else 0, 0)


def statfs_out() -> bytes:
    """Returns the answer to STATFS: nothing is free here."""
    return _STATFS.pack(0, 0, 0, 0, 0, _PAGE, 255, _PAGE, 0)


def interrupt_in(body: memoryview) -> int:
    """Returns which request is to be broken off."""
    return int.from_bytes(body[:8], "little")


def batch_forget_in(body: memoryview) -> list[int]:
    """Returns the nodes that the kernel forgets."""
    count = int.from_bytes(body[:4], "little")
    found = [int.from_bytes(body[8 + 16 * at : 16 + 16 * at], "little") for at in range(count)]
    return [node for node in found if node]
