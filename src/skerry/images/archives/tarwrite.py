"""Writing archives: POSIX pax tar, byte-exact names, nanoseconds, extended attributes.

The standard library's tarfile keeps times as floating-point numbers and names as text; a layer
must come out bit for bit the same each time, whatever bytes its names hold.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from skerry.errors import ImageBroken
from skerry.images.tree.entry import Entry, show
from skerry.spec.files import FileType

_TYPES = {
    FileType.FILE: b"0",
    FileType.SYMLINK: b"2",
    FileType.CHARACTER: b"3",
    FileType.DIRECTORY: b"5",
    FileType.FIFO: b"6",
}
_OCTAL_11_MAX = 8**11 - 1
_OCTAL_7_MAX = 8**7 - 1


def write_tar(entries: Iterable[Entry]) -> Iterator[bytes]:
    """Gives the archive piece by piece. Sockets have no form in a tar and are left out.

    Raises ImageBroken if a file has another length than its entry says.
    """
    for entry in entries:
        if entry.node.type is FileType.SOCKET:
            continue
        yield _header(entry)
        if entry.data is None or entry.hard_link is not None:
            continue
        left = entry.size
        for chunk in entry.data():
            left -= len(chunk)
            if left < 0:
                break
            yield chunk
        if left != 0:
            raise ImageBroken(f"{show(entry.path)} changed while it was read")
        if entry.size % 512:
            yield bytes(512 - entry.size % 512)
    yield bytes(1024)


def _header(entry: Entry) -> bytes:
    node = entry.node
    name = b"./" if not entry.path else entry.path
    if node.type is FileType.DIRECTORY and entry.path:
        name += b"/"
    link = entry.hard_link if entry.hard_link is not None else node.target
    seconds, nanoseconds = divmod(node.mtime_ns, 10**9)
    records: dict[bytes, bytes] = {}
    if len(name) > 100 or not name.isascii():
        records[b"path"] = name
    if len(link) > 100 or not link.isascii():
        records[b"linkpath"] = link
    if nanoseconds or not 0 <= seconds <= _OCTAL_11_MAX:
        # Nine digits: mkfs.erofs takes what stands behind the point as a number of nanoseconds.
        records[b"mtime"] = b"%d.%09d" % (seconds, nanoseconds)
    if entry.size > _OCTAL_11_MAX:
        records[b"size"] = b"%d" % entry.size
    if node.uid > _OCTAL_7_MAX:
        records[b"uid"] = b"%d" % node.uid
    if node.gid > _OCTAL_7_MAX:
        records[b"gid"] = b"%d" % node.gid
    if entry.hard_link is None:
        records |= {b"SCHILY.xattr." + key: value for key, value in sorted(node.xattrs.items())}
    kind = b"1" if entry.hard_link is not None else _TYPES[node.type]
    size = entry.size if entry.data is not None and entry.hard_link is None else 0
    owner = {"uid": node.uid, "gid": node.gid}
    block = _block(name, kind, size, mode=node.mode, mtime=seconds, link=link, **owner)
    return _pax(records) + block


def _pax(records: dict[bytes, bytes]) -> bytes:
    if not records:
        return b""
    if not all(_is_utf8(records.get(key, b"")) for key in (b"path", b"linkpath")):
        records = {b"hdrcharset": b"BINARY"} | records
    body = b"".join(_record(key, value) for key, value in records.items())
    padding = bytes(-len(body) % 512)
    return _block(b"././@PaxHeader", b"x", len(body)) + body + padding


def _is_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


def _record(key: bytes, value: bytes) -> bytes:
    rest = b" " + key + b"=" + value + b"\n"
    length = len(rest) + 1
    while len(rest) + len(str(length)) != length:
        length = len(rest) + len(str(length))
    return str(length).encode() + rest


def _block(
    name: bytes,
    kind: bytes,
    size: int,
    *,
    mode: int = 0,
    uid: int = 0,
    gid: int = 0,
    mtime: int = 0,
    link: bytes = b"",
) -> bytes:
    def octal(value: int, digits: int) -> bytes:
        return b"%0*o\0" % (digits, value if 0 <= value < 8**digits else 0)

    head = name[:100].ljust(100, b"\0")
    head += octal(mode & 0o7777, 7) + octal(uid, 7) + octal(gid, 7)
    head += octal(size, 11) + octal(mtime, 11)
    device = octal(0, 7) * 2 if kind == b"3" else bytes(16)
    tail = kind + link[:100].ljust(100, b"\0") + b"ustar\x0000" + bytes(64) + device
    tail = tail.ljust(356, b"\0")
    checksum = sum(head) + sum(tail) + 8 * 32
    return head + b"%06o\0 " % checksum + tail
