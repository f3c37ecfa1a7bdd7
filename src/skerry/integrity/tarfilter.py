"""Rewrites a tar so that only what an audit kept comes out, in a form that is safe to unpack.

Pure and streaming: bytes in, bytes out, in constant memory. The headers are read for type, name,
size and link target only, and written anew: owners, times, device numbers, set-id bits, extended
attributes and everything else that an archive can say is lost on purpose. A kept regular file must
have the type, size and sha256 that the audit saw, or the whole submission is refused: what was
judged is what is graded.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable

from skerry.errors import SandboxFailed
from skerry.spec.digests import Digest, PlainDigest, digest_like
from skerry.spec.files import Change, FileType

BLOCK = 512
HEADER_BYTES_MAX = 1 << 20  # of one pax or GNU long-name record
_END = bytes(2 * BLOCK)


class TarFilter:
    """Feed it a tar piece by piece; `finish` ends the result.

    `root` is the directory that member names are relative to, on both sides. `keep` holds absolute
    paths. `missing` after `finish` names kept files that the archive did not bring.
    """

    def __init__(self, keep: Iterable[Change], root: str, *, bytes_max: int) -> None:
        self._keep = {change.path: change for change in keep}
        self._root = root.rstrip("/")
        self._left_max = bytes_max
        self._buffer = bytearray()
        self._name: bytes | None = None  # from a pax or GNU record, for the next member
        self._link: bytes | None = None
        self._size: int | None = None
        self._record: bytes = b""  # kind of the record being collected
        self._left = 0  # bytes of the current member's content still to come
        self._padding = 0
        self._current: Change | None = None
        self._digest: Digest = PlainDigest()
        self._ended = False
        self._seen: set[str] = set()

    @property
    def missing(self) -> tuple[str, ...]:
        """Kept paths that have not come."""
        return tuple(path for path in self._keep if path not in self._seen)

    def feed(self, data: bytes) -> bytes:
        """Returns what of the result these bytes make; raises SandboxFailed for a damaged archive."""
        self._buffer += data
        out = bytearray()
        while not self._ended and self._step(out):
            pass
        if self._ended:
            self._buffer.clear()
        return bytes(out)

    def finish(self) -> bytes:
        """Returns the end of the result; raises SandboxFailed if the archive broke off."""
        if self._left or self._padding or (self._buffer and not self._ended):
            raise SandboxFailed("the submission's archive broke off")
        return _END

    def _step(self, out: bytearray) -> bool:
        if self._record:
            return self._take_record()
        if self._left:
            return self._pass_content(out)
        if self._padding:
            if len(self._buffer) < self._padding:
                return False
            del self._buffer[: self._padding]
            self._padding = 0
            return True
        if len(self._buffer) < BLOCK:
            return False
        block = bytes(self._buffer[:BLOCK])
        del self._buffer[:BLOCK]
        self._header(block, out)
        return True

    def _header(self, block: bytes, out: bytearray) -> None:
        if not any(block):
            self._ended = True
            return
        if _number(block[148:156]) != sum(block[:148]) + sum(block[156:]) + 8 * 32:
            raise SandboxFailed("the submission's archive is damaged")
        kind = block[156:157]
        size = _number(block[124:136])
        if kind in {b"x", b"g", b"L", b"K"}:
            if size > HEADER_BYTES_MAX:
                raise SandboxFailed("a name in the submission's archive is too long")
            self._record = kind
            self._left = size
            self._padding = -size % BLOCK
            return
        name = self._name if self._name is not None else _joined_name(block)
        link = self._link if self._link is not None else block[157:257].rstrip(b"\x00")
        if self._size is not None:
            size = self._size
        self._name = self._link = self._size = None
        self._member(kind, name, link, size, out)

    def _take_record(self) -> bool:
        if len(self._buffer) < self._left + self._padding:
            return False
        body = bytes(self._buffer[: self._left])
        del self._buffer[: self._left + self._padding]
        kind, self._record = self._record, b""
        self._left = self._padding = 0
        if kind == b"L":
            self._name = body.rstrip(b"\x00")
        elif kind == b"K":
            self._link = body.rstrip(b"\x00")
        elif kind == b"x":
            for key, value in _pax_records(body):
                if key == b"path":
                    self._name = value
                elif key == b"linkpath":
                    self._link = value
                elif key == b"size":
                    self._size = _decimal(value)
        return True

    def _member(self, kind: bytes, name: bytes, link: bytes, size: int, out: bytearray) -> None:
        path = self._absolute(name)
        if kind == b"1" and path in self._keep:
            self._hard_link(path, self._absolute(link), out)
            return
        holds = kind in {b"0", b"\x00", b"7"}
        self._left = size if holds else 0
        self._padding = -size % BLOCK if holds else 0
        self._current = None
        change = self._keep.get(path)
        if change is None or path in self._seen:
            return
        if _type_of(kind) is not change.type:
            raise SandboxFailed(f"{path} became something else while it was graded")
        self._seen.add(path)
        relative = self._relative(path)
        if change.type is FileType.DIRECTORY:
            out += header(relative + "/", b"5", 0o755 | (change.mode & 0o777), 0)
        elif change.type is FileType.SYMLINK:
            target = link.decode("utf-8", "surrogateescape")
            if change.target is not None and target != change.target:
                raise SandboxFailed(f"{path} changed while it was graded")
            out += header(relative, b"2", 0o777, 0, target)
        else:
            self._spend(size)
            out += header(relative, b"0", 0o644 | (change.mode & 0o777), size)
            self._current = change
            self._digest = digest_like(change.digest, size)
            if size == 0:
                self._end_content()

    def _hard_link(self, path: str, target: str, out: bytearray) -> None:
        # Only to a file that is graded itself and has come already: nothing else is ever linked.
        first, change = self._keep.get(target), self._keep[path]
        if first is None or target not in self._seen or first.type is not FileType.FILE:
            raise SandboxFailed(f"{path} is a second name of a file that is not graded")
        if change.digest != first.digest or change.type is not FileType.FILE:
            raise SandboxFailed(f"{path} changed while it was graded")
        self._seen.add(path)
        out += header(self._relative(path), b"1", 0o644, 0, self._relative(target))

    def _relative(self, path: str) -> str:
        return path[len(self._root) + 1 :]

    def _spend(self, size: int) -> None:
        self._left_max -= size
        if self._left_max < 0:
            raise SandboxFailed("the submission is too large to be graded")

    def _pass_content(self, out: bytearray) -> bool:
        if not self._buffer:
            return False
        piece = bytes(self._buffer[: self._left])
        del self._buffer[: len(piece)]
        self._left -= len(piece)
        if self._current is not None:
            out += piece
            self._digest.update(piece)
            if not self._left:
                out += bytes(self._padding)
                self._end_content()
        return True

    def _end_content(self) -> None:
        change, self._current = self._current, None
        known = change.digest if change is not None else None
        if change is not None and known is not None and known != self._digest.text():
            raise SandboxFailed(f"{change.path} changed while it was graded")

    def _absolute(self, name: bytes) -> str:
        text = name.decode("utf-8", "surrogateescape").rstrip("/")
        parts = [part for part in text.split("/") if part not in {"", "."}]
        if ".." in parts:
            return ""
        joined = "/" + "/".join(parts)
        inside = self._root + "/"
        # Members are named from the root of the sandbox, or from `root`: both are understood.
        if joined.startswith(inside) and joined in self._keep:
            return joined
        return posixpath.join(self._root, *parts) if parts else self._root


def header(name: str, kind: bytes, mode: int, size: int, link: str = "") -> bytes:
    """Returns a member's header, with a pax record where names do not fit: owner root, time 0."""
    raw, target = (text.encode("utf-8", "surrogateescape") for text in (name, link))
    records = b""
    if len(raw) > 100 or not raw.isascii():
        records += _pax(b"path", raw)
    if len(target) > 100 or not target.isascii():
        records += _pax(b"linkpath", target)
    if size >= 8**11:
        records += _pax(b"size", b"%d" % size)
    out = b""
    if records:
        out = _block(b"././@PaxHeader", b"x", 0o644, len(records), b"")
        out += records + bytes(-len(records) % BLOCK)
    return out + _block(raw[:100], kind, mode, size, target[:100])


def _block(name: bytes, kind: bytes, mode: int, size: int, link: bytes) -> bytes:
    head = name.ljust(100, b"\x00") + b"%07o\x00" % (mode & 0o777) + b"0000000\x00" * 2
    head += b"%011o\x00" % (size % 8**11) + b"00000000000\x00"
    tail = (kind + link.ljust(100, b"\x00") + b"ustar\x0000").ljust(356, b"\x00")
    return head + b"%06o\x00 " % (sum(head) + sum(tail) + 8 * 32) + tail


def _pax(key: bytes, value: bytes) -> bytes:
    rest = b" " + key + b"=" + value + b"\n"
    length = len(rest) + 1
    while len(rest) + len(str(length)) != length:
        length = len(rest) + len(str(length))
    return str(length).encode() + rest


def _pax_records(body: bytes) -> list[tuple[bytes, bytes]]:
    records = []
    while body:
        length_text, _, _ = body.partition(b" ")
        length = _decimal(length_text)
        if not len(length_text) < length <= len(body):
            raise SandboxFailed("the submission's archive is damaged")
        key, _, value = body[len(length_text) + 1 : length - 1].partition(b"=")
        records.append((key, value))
        body = body[length:]
    return records


def _decimal(text: bytes) -> int:
    if not text.isdigit() or len(text) > 18:
        raise SandboxFailed("the submission's archive is damaged")
    return int(text)


def _number(field: bytes) -> int:
    if field[0] & 0x80:
        return int.from_bytes(bytes([field[0] & 0x7F]) + field[1:], "big")
    text = field.strip(b"\x00 ")
    if not text:
        return 0
    if any(byte not in b"01234567" for byte in text):
        raise SandboxFailed("the submission's archive is damaged")
    return int(text, 8)


def _joined_name(block: bytes) -> bytes:
    name = block[:100].partition(b"\x00")[0]
    prefix = block[345:500].partition(b"\x00")[0] if block[257:262] == b"ustar" else b""
    return prefix + b"/" + name if prefix else name


def _type_of(kind: bytes) -> FileType | None:
    if kind in {b"0", b"\x00", b"7"}:
        return FileType.FILE
    return {b"5": FileType.DIRECTORY, b"2": FileType.SYMLINK}.get(kind)
