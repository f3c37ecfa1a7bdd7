"""Reading archives that may be hostile: ustar, pax and GNU tar as a stream, in bounded memory.

The standard library's tarfile is not used: it reads a pax header of any claimed size into memory,
takes an archive that was cut at a member's end for a whole one, and follows what it cannot read
with guesses. Here everything odd is an ImageBroken that names the member. gzip, bzip2, xz and zstd
are unpacked on the way; what a member's name means is for the importer to judge.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import IO, Protocol, cast

import zstandard

from skerry.errors import ImageBroken

_NO_TAR = "this is no tar archive, or it is damaged (a header's checksum is wrong)"
_NO_TAR_HINT = "give a tar (plain, gzip, bzip2, xz, zstd)"
_HEADER_BYTES_MAX = 1 << 20  # of one pax header or GNU long name
_HEADERS_BYTES_MAX = 1 << 30  # of all of an archive: reading them costs far more than unpacking
_HEADERS_MAX = 8  # of one member; there are five kinds
_AFTER_BYTES_MAX = 1 << 30  # after the end mark
_XZ_MEMORY_MAX = 256 << 20
_ZSTD_WINDOW_MAX = 128 << 20  # what zstd itself takes without being asked
_CHUNK = 1 << 18


class Readable(Protocol):
    """A stream of bytes; empty means its end."""

    def read(self, size: int = -1, /) -> bytes:
        """Returns at most `size` bytes."""


@dataclass(slots=True)
class Member:
    """One header, with what pax and GNU extensions said; `kind` is the type flag."""

    name: bytes
    kind: bytes
    mode: int
    uid: int
    gid: int
    size: int
    mtime_ns: int
    link: bytes
    device: tuple[int, int]
    xattrs: dict[bytes, bytes] = field(default_factory=dict)


class TarReader:
    """Gives the members of an archive in order; `data` reads the current one's content.

    With `whole` the source is a plain tar of which something else proves that it was not cut off:
    then it may end without its end mark, as many layers of images do.
    """

    def __init__(self, source: Readable, *, whole: bool = False) -> None:
        self._source = _Exact(source if whole else decompressed(source))
        self._whole = whole
        self._header_bytes = 0
        self._left = 0  # of the current member's content
        self._padding = 0

    def members(self) -> Iterator[Member]:
        """Gives each member; content that was not read is skipped.

        Raises ImageBroken if the archive is damaged, or ends without its end mark.
        """
        pax: dict[bytes, bytes] = {}
        long_name = long_link = None
        headers = 0
        while True:
            for _ in self.data():
                pass
            self._source.exactly(self._padding)
            self._padding = 0
            block = self._source.exactly(512, ends=self._whole)
            if not any(block):
                self._source.drain()
                return
            member = _parse(block)
            if member.kind in b"xXgLK":
                headers += 1
                if headers > _HEADERS_MAX:
                    raise ImageBroken("the archive holds headers of no member", limit="header")
                body = self._extension(member)
                if member.kind in b"xX":
                    pax = _parse_pax(body)
                elif member.kind == b"L":
                    long_name = body.rstrip(b"\0")
                elif member.kind == b"K":
                    long_link = body.rstrip(b"\0")
                continue
            member.name = long_name if long_name is not None else member.name
            member.link = long_link if long_link is not None else member.link
            _apply_pax(member, pax)
            pax, long_name, long_link, headers = {}, None, None, 0
            # Links, devices and directories have no content, whatever their size field says.
            if member.kind in b"123456":
                member.size = 0
            self._left, self._padding = member.size, -member.size % 512
            yield member

    def data(self) -> Iterator[bytes]:
        """Gives the rest of the current member's content."""
        while self._left:
            chunk = self._source.some(min(_CHUNK, self._left))
            self._left -= len(chunk)
            yield chunk

    def _extension(self, member: Member) -> bytes:
        if member.size > _HEADER_BYTES_MAX:
            raise ImageBroken(f"a header of {member.size} bytes in the archive", limit="header")
        self._header_bytes += member.size
        if self._header_bytes > _HEADERS_BYTES_MAX:
            raise ImageBroken("the archive's headers are too long together", limit="header")
        body = self._source.exactly(member.size)
        self._source.exactly(-member.size % 512)
        return body


# bz2 raises OSError without a number.
_DAMAGED = (zlib.error, EOFError, lzma.LZMAError, zstandard.ZstdError, OSError)


class _Exact:
    """Reads exactly what is asked for, or raises ImageBroken."""

    def __init__(self, source: Readable) -> None:
        self._source = source

    def some(self, size: int) -> bytes:
        try:
            chunk = self._source.read(size)
        except _DAMAGED as error:
            raise _damaged(error) from error
        if not chunk:
            raise ImageBroken("the archive ends too early: it was cut off")
        return chunk

    def exactly(self, size: int, *, ends: bool = False) -> bytes:
        """Returns so many bytes; with `ends` none if the source ends just here."""
        parts = []
        if ends and size:
            try:
                parts.append(self._source.read(size))
            except _DAMAGED as error:
                raise _damaged(error) from error
            if not parts[0]:
                return b""
            size -= len(parts[0])
        while size:
            parts.append(self.some(size))
            size -= len(parts[-1])
        return b"".join(parts)

    def drain(self) -> None:
        """Reads what follows the end mark, so that a sender is not cut off; checks only how much."""
        left = _AFTER_BYTES_MAX
        try:
            while chunk := self._source.read(_CHUNK):
                left -= len(chunk)
                if left < 0:
                    raise ImageBroken("the archive goes on and on after its end", limit="bytes")
        except _DAMAGED as error:
            raise _damaged(error) from error


def _damaged(error: Exception) -> Exception:
    if isinstance(error, OSError) and error.errno is not None:
        return error  # not the decompressor's word, but the disk's
    return ImageBroken(f"the archive's compression is damaged: {error}")


class _Peeked:
    """A stream whose first bytes were already looked at."""

    def __init__(self, head: bytes, source: Readable) -> None:
        self._head = head
        self._source = source

    def read(self, size: int = -1, /) -> bytes:
        if not self._head:
            return self._source.read(size)
        if size < 0:
            size = len(self._head)
        head, self._head = self._head[:size], self._head[size:]
        return head


class _Xz:
    """Unpacks xz with a bound on memory."""

    def __init__(self, source: Readable) -> None:
        self._source = source
        self._rest = b""
        self._unpack = lzma.LZMADecompressor(memlimit=_XZ_MEMORY_MAX)

    def read(self, size: int = -1, /) -> bytes:
        while True:
            if self._unpack.eof:
                self._rest = (self._unpack.unused_data or self._source.read(_CHUNK)).lstrip(b"\0")
                if not self._rest:
                    return b""
                self._unpack = lzma.LZMADecompressor(memlimit=_XZ_MEMORY_MAX)
            elif self._unpack.needs_input and not self._rest:
                self._rest = self._source.read(_CHUNK)
                if not self._rest:
                    raise EOFError("it ends too early")
            data = self._unpack.decompress(self._rest, size)
            self._rest = b""
            if data:
                return data


def decompressed(source: Readable) -> Readable:
    """Returns the stream unpacked, by what its first bytes say; raises ImageBroken if it is empty."""
    head = b""
    while len(head) < 6:
        chunk = source.read(6 - len(head))
        if not chunk:
            raise ImageBroken("the archive is empty" if not head else "this is no tar archive")
        head += chunk
    peeked = _Peeked(head, source)
    if head.startswith(b"\x1f\x8b"):
        return cast("Readable", gzip.GzipFile(fileobj=cast("IO[bytes]", peeked)))  # it only reads
    if head.startswith(b"BZh"):
        return cast("Readable", bz2.BZ2File(cast("IO[bytes]", peeked)))
    if head == b"\xfd7zXZ\0":
        return _Xz(peeked)
    if head.startswith(b"\x28\xb5\x2f\xfd"):
        unpack = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW_MAX)
        return cast(
            "Readable", unpack.stream_reader(cast("IO[bytes]", peeked), read_across_frames=True)
        )
    return peeked


def _number(raw: bytes, what: str) -> int:
    if raw[0] in (0x80, 0xFF):  # GNU: base 256
        value = int.from_bytes(raw[1:], "big")
        return value if raw[0] == 0x80 else value - (1 << 8 * (len(raw) - 1))
    text = raw.split(b"\0")[0].strip()
    try:
        return int(text or b"0", 8)
    except ValueError:
        raise ImageBroken(f"{what} in a header of the archive is no number") from None


def _parse(block: bytes) -> Member:
    try:
        stored = _number(block[148:156], "the checksum")
    except ImageBroken:
        raise ImageBroken(_NO_TAR, hint=_NO_TAR_HINT) from None
    plain = block[:148] + b" " * 8 + block[156:]
    signed = sum(byte - 256 if byte > 127 else byte for byte in plain)
    if stored not in (sum(plain), signed):
        raise ImageBroken(_NO_TAR, hint=_NO_TAR_HINT)
    name = block[:100].split(b"\0")[0]
    kind = block[156:157]
    prefix = block[345:500].split(b"\0")[0]
    if prefix and block[257:263] == b"ustar\0":
        name = prefix + b"/" + name
    if kind in b"\0" + b"7":
        kind = b"5" if kind == b"\0" and name.endswith(b"/") else b"0"
    device = (0, 0)
    if kind in b"34":
        device = (_number(block[329:337], "a device"), _number(block[337:345], "a device"))
    return Member(
        name=name,
        kind=kind,
        mode=_number(block[100:108], "a mode") & 0o7777,
        uid=_bounded(_number(block[108:116], "an owner"), "owner"),
        gid=_bounded(_number(block[116:124], "a group"), "group"),
        size=_bounded(_number(block[124:136], "a size"), "size"),
        mtime_ns=max(0, _number(block[136:148], "a time")) * 10**9,
        link=block[157:257].split(b"\0")[0],
        device=device,
    )


def _bounded(value: int, what: str) -> int:
    if not 0 <= value < 1 << 62:
        raise ImageBroken(f"the archive holds a file with {what} {value}")
    return value


def _parse_pax(body: bytes) -> dict[bytes, bytes]:
    records: dict[bytes, bytes] = {}
    at = 0
    while at < len(body) and body[at]:
        space = body.find(b" ", at, at + 12)
        digits = body[at:space] if space > 0 else b""
        if not digits.isdigit():
            raise ImageBroken("a pax header of the archive is damaged")
        end = at + int(digits)
        key, equals, value = body[space + 1 : end - 1].partition(b"=")
        if end > len(body) or end <= space + 1 or body[end - 1 : end] != b"\n" or not equals:
            raise ImageBroken("a pax header of the archive is damaged")
        records[key] = value
        at = end
    return records


def _apply_pax(member: Member, records: dict[bytes, bytes]) -> None:
    for key, value in records.items():
        if key == b"path":
            member.name = value
        elif key == b"linkpath":
            member.link = value
        elif key in (b"size", b"uid", b"gid"):
            if not value.isdigit() or len(value) > 20:
                raise ImageBroken(f"{key.decode()} in a pax header is no number")
            number = _bounded(int(value), key.decode())
            setattr(member, key.decode(), number)
        elif key == b"mtime":
            member.mtime_ns = _pax_time(value)
        elif key.startswith(b"SCHILY.xattr."):
            member.xattrs[key.removeprefix(b"SCHILY.xattr.")] = value
        elif key.startswith(b"GNU.sparse."):
            raise ImageBroken("the archive holds sparse files: make it without --sparse")


def _pax_time(value: bytes) -> int:
    whole, _, fraction = value.partition(b".")
    negative = whole.startswith(b"-")
    digits = whole.removeprefix(b"-")
    if not digits.isdigit() or len(digits) > 12 or (fraction and not fraction.isdigit()):
        raise ImageBroken("a time in a pax header is no number")
    return 0 if negative else int(digits) * 10**9 + int(fraction[:9].ljust(9, b"0"))
