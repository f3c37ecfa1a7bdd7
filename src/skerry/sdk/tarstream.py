"""Members of a tar that a sandbox sent, as a stream: ustar, pax and GNU long names, nothing guessed.

Not the standard library's: that believes sizes of headers, cannot skip holes, and copies each byte of a
large file several times. Whatever is damaged, cut off or unknown raises SandboxFailed.
"""

from __future__ import annotations

import os
import tarfile
from collections.abc import Iterator
from typing import Protocol

import msgspec

from skerry.errors import SandboxFailed

BLOCK = 512
HEADER_BYTES_MAX = 1 << 20  # of one pax header or long name
CHUNK = 1 << 20


class Readable(Protocol):
    """A stream of bytes; empty means its end."""

    def read(self, size: int, /) -> bytes:
        """Returns at most `size` bytes."""


class Member(msgspec.Struct, kw_only=True):
    """One header; `kind` is the type flag. `real_size` is set if what follows is a map and pieces."""

    name: str
    kind: bytes
    mode: int
    size: int
    mtime_ns: int
    link: str
    real_size: int | None = None
    comment: str = ""


def damaged(how: str) -> SandboxFailed:
    """Returns the error for an archive that is not in order."""
    return SandboxFailed(f"the sandbox sent a tree that is damaged: {how}")


class TarStream:
    """Reads members one by one; what of a member's content was not read is passed over."""

    def __init__(self, source: Readable) -> None:
        self._source = source
        self._left = 0  # of the content of the member at hand
        self._padding = 0

    def exactly(self, size: int) -> bytes:
        """Returns that many bytes; SandboxFailed if the stream ends before."""
        data = self._source.read(size)
        if len(data) == size:
            return data
        parts, have = [data], len(data)
        while have < size:
            data = self._source.read(size - have)
            if not data:
                raise damaged("it is cut off")
            parts.append(data)
            have += len(data)
        return b"".join(parts)

    def content(self, size: int) -> bytes:
        """Returns that many bytes of the member's content."""
        if size > self._left:
            raise damaged("a member is shorter than it says")
        self._left -= size
        return self.exactly(size)

    def chunks(self) -> Iterator[bytes]:
        """Yields the rest of the member's content."""
        while self._left:
            data = self._source.read(min(CHUNK, self._left))
            if not data:
                raise damaged("it is cut off")
            self._left -= len(data)
            yield data

    def __iter__(self) -> Iterator[Member]:
        records: dict[bytes, bytes] = {}
        while True:
            for _ in self.chunks():
                pass
            self.exactly(self._padding)
            self._padding = 0
            block = self.exactly(BLOCK)
            if not any(block):
                return
            member = _header(block)
            if member.kind in b"xgLK":
                self._take(member, records)
                continue
            _apply(member, records)
            records = {}
            if member.kind not in b"0" or member.size < 0:
                if member.size < 0:
                    raise damaged("a size below nothing")
                member.size = 0
            self._left, self._padding = member.size, -member.size % BLOCK
            yield member

    def _take(self, member: Member, records: dict[bytes, bytes]) -> None:
        if not 0 <= member.size <= HEADER_BYTES_MAX:
            raise damaged(f"a header of {member.size} bytes")
        body = self.exactly(member.size)
        self.exactly(-member.size % BLOCK)
        if member.kind == b"x":
            records.update(_pax(body))
        elif member.kind == b"L":
            records[b"path"] = body.split(b"\0", 1)[0]
        elif member.kind == b"K":
            records[b"linkpath"] = body.split(b"\0", 1)[0]


def _header(block: bytes) -> Member:
    try:
        info = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
    except tarfile.HeaderError as error:
        raise damaged(str(error)) from error
    kind = b"0" if info.type in (b"\0", b"7") else info.type
    return Member(
        name=info.name,
        kind=kind,
        mode=info.mode,
        size=info.size,
        mtime_ns=int(info.mtime) * 1_000_000_000,
        link=info.linkname,
    )


def _pax(body: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yields key and value of records: length, blank, key=value, newline."""
    at = 0
    while at < len(body) and body[at]:
        blank = body.find(b" ", at, at + 9)
        digits = body[at:blank] if blank > at else b""
        end = at + int(digits) if digits.isdigit() else 0
        key, equals, value = body[blank + 1 : end - 1].partition(b"=")
        if end <= blank or end > len(body) or body[end - 1 : end] != b"\n" or not equals:
            raise damaged("a record that is none")
        yield key, value
        at = end


def _nanoseconds(text: bytes) -> int:
    whole, _, part = text.lstrip(b"-").partition(b".")
    found = int(whole) * 1_000_000_000 + int(part[:9].ljust(9, b"0"))
    return -found if text.startswith(b"-") else found


def _apply(member: Member, records: dict[bytes, bytes]) -> None:
    if not records:
        return
    path = records.get(b"GNU.sparse.name", records.get(b"path"))
    if path is not None:
        member.name = os.fsdecode(path)
    if b"linkpath" in records:
        member.link = os.fsdecode(records[b"linkpath"])
    if b"comment" in records:
        member.comment = records[b"comment"].decode("utf-8", "replace")
    try:
        if b"size" in records:
            member.size = int(records[b"size"])
        if b"mtime" in records:
            member.mtime_ns = _nanoseconds(records[b"mtime"])
        if any(key.startswith(b"GNU.sparse.") for key in records):
            version = records.get(b"GNU.sparse.major"), records.get(b"GNU.sparse.minor")
            if version != (b"1", b"0"):
                raise damaged("holes in a format that nobody writes any more")
            member.real_size = int(records[b"GNU.sparse.realsize"])
    except (ValueError, KeyError) as error:
        raise damaged(f"a record that is no number: {error}") from error
