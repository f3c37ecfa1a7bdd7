"""Reading a layer's image back into a tree, without mounting it.

Only what `skerry.images.format.erofs` writes uncompressed is known: plain, inline and chunked files, on
the image itself or on one data blob beside it. The image may be damaged: every place is checked
before it is used, directories are entered once, and bounds hold; whatever is odd is ImageBroken.
"""

from __future__ import annotations

import os
import stat
import struct
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol

from skerry.errors import ImageBroken
from skerry.images.archives.tarimport import ImportLimits
from skerry.images.scratch import Content, Spool, storage_errors
from skerry.images.sparse import CHUNK_BYTES, ZEROS
from skerry.images.tree.entry import NAME_BYTES_MAX, PATH_BYTES_MAX, Node, Tree, show
from skerry.spec.files import FileType

_MAGIC = 0xE0F5E1E2
_SUPERBLOCK = 1024
_CHUNKED_FILES, _DEVICES = 0x4, 0x8
_PLAIN, _INLINE, _CHUNKED = 0, 2, 4
_HOLE = 0xFFFFFFFF
_PREFIXES = {
    1: b"user.",
    2: b"system.posix_acl_access",
    3: b"system.posix_acl_default",
    4: b"trusted.",
    6: b"security.",
}
_TYPES = {
    stat.S_IFREG: FileType.FILE,
    stat.S_IFDIR: FileType.DIRECTORY,
    stat.S_IFLNK: FileType.SYMLINK,
    stat.S_IFIFO: FileType.FIFO,
    stat.S_IFCHR: FileType.CHARACTER,
}
_DIRECTORY_BYTES_MAX = 256 << 20
_PLACES_MAX = 1 << 62


class Source(Protocol):
    """Bytes at places."""

    def read(self, offset: int, length: int) -> bytes:
        """Returns what is there; less only at the end."""


class FileSource:
    """A local file, open until it is closed."""

    def __init__(self, path: str) -> None:
        with storage_errors(f"opening {path}"):
            self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def read(self, offset: int, length: int) -> bytes:
        """Returns what is there; raises StorageFailed if the disk fails."""
        with storage_errors("reading a layer"):
            return os.pread(self._fd, length, offset)

    def close(self) -> None:
        """Closes it."""
        os.close(self._fd)


class _Inode(NamedTuple):
    layout: int
    mode: int
    uid: int
    gid: int
    mtime_ns: int
    size: int
    union: int  # address of the data, device number, or form of the chunks
    xattrs: int  # where they begin
    end: int  # where they end


def read_image(image: Source, data: Source | None, spool: Spool, limits: ImportLimits) -> Tree:
    """Returns the tree of an image, with its contents in the spool.

    Raises ImageBroken for what is damaged, compressed or beyond the limits.
    """
    return _Reader(image, data, spool, limits).tree()


def files_at(
    metadata: bytes, spans: Sequence[tuple[int, int]], limits: ImportLimits, files_max: int
) -> list[str]:
    """Returns the files that have bytes in these ranges (offset, length) of the data blob.

    One name of each, and no more than `files_max`. Raises ImageBroken as `read_image` does.
    """
    finder = _Finder(metadata, spans, limits)
    finder.tree()
    return sorted(show(path) for path in finder.found)[:files_max]


class Contents(Protocol):
    """Where the contents of files go."""

    def add(self, chunks: Iterable[bytes]) -> Content:
        """Takes the bytes of one file."""


class _Reader:
    def __init__(
        self, image: Source, data: Source | None, spool: Contents, limits: ImportLimits
    ) -> None:
        self._image = image
        self._data = data
        self._spool = spool
        self._limits = limits
        self._bytes = 0
        self._words = 0  # bytes of paths, links and attributes
        head = image.read(_SUPERBLOCK, 128)
        if len(head) < 128 or struct.unpack_from("<I", head)[0] != _MAGIC:
            raise ImageBroken("this is no EROFS image")
        bits, self._root = head[12], struct.unpack_from("<H", head, 14)[0]
        self._build_ns = sum(
            part * scale
            for part, scale in zip(struct.unpack_from("<QI", head, 24), (10**9, 1), strict=True)
        )
        meta, shared = struct.unpack_from("<II", head, 40)
        features, _, devices = struct.unpack_from("<IHH", head, 80)
        if features & ~(_CHUNKED_FILES | _DEVICES) or not 9 <= bits <= 16 or head[90] or head[91]:
            raise ImageBroken("the image is compressed, or of a form that cannot be read back")
        if devices > 1 or (devices and data is None):
            raise ImageBroken("the image needs a data blob that is not there")
        self._block = 1 << bits
        self._bits = bits
        self._meta = meta << bits
        self._shared = shared << bits
        self._nodes: dict[int, Node] = {}

    def tree(self) -> Tree:
        tree = Tree()
        tree.root = self._node(self._root, b"")
        if tree.root.children is None:
            raise ImageBroken("the image's root is no directory")
        entered = {self._root}
        directories = [(b"", self._root, tree.root.children)]
        while directories:
            above, number, children = directories.pop()
            for name, child_number in self._names(number, above):
                path = above + b"/" + name if above else name
                self._words += len(path)
                if len(path) > PATH_BYTES_MAX or self._words > self._limits.words_bytes_max:
                    raise ImageBroken(f"{show(path)}: paths, links too long", limit="words")
                child = children[name] = self._named(child_number, path)
                if child.children is not None:
                    if child_number in entered:
                        raise ImageBroken(f"{show(path)}: a directory with two names")
                    entered.add(child_number)
                    directories.append((path, child_number, child.children))
                tree.made += 1
                if tree.made > self._limits.entries_max:
                    raise ImageBroken("the layer holds too many files", limit="entries")
        return tree

    def _named(self, number: int, path: bytes) -> Node:
        """Returns the node of a number: the same one for each of its names."""
        node = self._nodes.get(number)
        if node is None:
            node = self._nodes[number] = self._node(number, path)
        elif node.type is not FileType.CHARACTER:
            node.shared = True
        return node

    def _node(self, number: int, path: bytes) -> Node:
        inode = self._inode(number, path)
        kind = _TYPES.get(stat.S_IFMT(inode.mode))
        if kind is None or (kind is FileType.CHARACTER and inode.union):
            raise ImageBroken(f"{show(path)}: of a type that no layer holds")
        node = Node(kind, stat.S_IMODE(inode.mode), inode.uid, inode.gid, inode.mtime_ns)
        node.xattrs = self._xattrs(inode, path)
        self._words += sum(map(len, (*node.xattrs, *node.xattrs.values())))
        if kind is FileType.DIRECTORY:
            node.children = {}
        elif kind is FileType.SYMLINK:
            if not 0 < inode.size < 4096:
                raise ImageBroken(f"{show(path)}: not a possible symbolic link")
            node.target = b"".join(self._content(inode, path))
            self._words += inode.size
        elif kind is FileType.FILE:
            self._bytes += inode.size
            if self._bytes > self._limits.bytes_max:
                raise ImageBroken("the layer holds too many bytes", limit="bytes")
            node.content = self._spool.add(self._content(inode, path))
        return node

    def _inode(self, number: int, path: bytes) -> _Inode:
        at = self._meta + number * 32
        raw = self._exactly(self._image, at, 32, path)
        form, icount, mode = struct.unpack_from("<HHH", raw)
        if form & 1:
            raw += self._exactly(self._image, at + 32, 32, path)
            size, union, _, uid, gid, seconds, nanoseconds = struct.unpack_from("<QIIIIQI", raw, 8)
            mtime = seconds * 10**9 + nanoseconds
        else:
            size, _, union, _, uid, gid = struct.unpack_from("<IIIIHH", raw, 8)
            mtime = self._build_ns
        xattrs = at + len(raw)
        end = xattrs + (12 + 4 * (icount - 1) if icount else 0)
        return _Inode(form >> 1 & 7, mode, uid, gid, mtime, size, union, xattrs, end)

    # --- attributes ---

    def _xattrs(self, inode: _Inode, path: bytes) -> dict[bytes, bytes]:
        length = inode.end - inode.xattrs
        if not length:
            return {}
        raw = self._exactly(self._image, inode.xattrs, length, path)
        found: dict[bytes, bytes] = {}
        at = 12 + 4 * raw[4]
        if at > length:
            raise ImageBroken(f"{show(path)}: damaged extended attributes")
        for (number,) in struct.iter_unpack("<I", raw[12:at]):
            place = self._shared + number * 4
            head = self._exactly(self._image, place, 4, path)
            entry = head[0] + struct.unpack_from("<H", head, 2)[0]
            self._xattr(head + self._exactly(self._image, place + 4, entry, path), 0, found, path)
        while at + 4 <= length and raw[at : at + 4] != bytes(4):
            at = self._xattr(raw, at, found, path)
        return found

    def _xattr(self, raw: bytes, at: int, found: dict[bytes, bytes], path: bytes) -> int:
        """Takes one entry; returns where the next one is."""
        head: tuple[int, int, int] = struct.unpack_from("<BBH", raw, at)
        name_bytes, index, value_bytes = head
        value = at + 4 + name_bytes
        if index not in _PREFIXES or value + value_bytes > len(raw):
            raise ImageBroken(f"{show(path)}: damaged extended attributes")
        name = _PREFIXES[index] + raw[at + 4 : value]
        found[name] = raw[value : value + value_bytes]
        return value + value_bytes + -(value + value_bytes) % 4

    # --- content ---

    def _names(self, number: int, path: bytes) -> Iterator[tuple[bytes, int]]:
        inode = self._inode(number, path)
        if inode.size > _DIRECTORY_BYTES_MAX:
            raise ImageBroken(f"{show(path)}: a directory of {inode.size} bytes")
        content = b"".join(self._content(inode, path))
        for start in range(0, len(content), self._block):
            block = content[start : start + self._block]
            first = struct.unpack_from("<H", block, 8)[0] if len(block) >= 12 else 0
            if first < 12 or first % 12 or first > len(block):
                raise ImageBroken(f"{show(path)}: a damaged directory")
            entries = list(struct.iter_unpack("<QHBB", block[:first]))
            ends = [entry[1] for entry in entries[1:]] + [len(block)]
            for (child, begin, _, _), end in zip(entries, ends, strict=True):
                name = block[begin:end].partition(b"\0")[0]
                if name in (b".", b".."):
                    continue
                if not name or len(name) > NAME_BYTES_MAX or b"/" in name or begin > end:
                    raise ImageBroken(f"{show(path)}: a damaged directory")
                yield name, child

    def _content(self, inode: _Inode, path: bytes) -> Iterator[bytes]:
        if inode.layout == _PLAIN:
            yield from self._stretch(self._image, inode.union << self._bits, inode.size, path)
        elif inode.layout == _INLINE:
            tail = inode.size % self._block
            whole = inode.size - tail
            yield from self._stretch(self._image, inode.union << self._bits, whole, path)
            yield from self._stretch(self._image, inode.end, tail, path)
        elif inode.layout == _CHUNKED:
            yield from self._chunks(inode, path)
        else:
            raise ImageBroken(f"{show(path)}: compressed, it cannot be read back")

    def _chunks(self, inode: _Inode, path: bytes) -> Iterator[bytes]:
        indexed = bool(inode.union & 0x20)
        size = 1 << self._bits + (inode.union & 0x1F)
        unit = 8 if indexed else 4
        at = inode.end + -inode.end % unit
        left = inode.size
        while left:
            raw = self._exactly(self._image, at, unit, path)
            device, address = (
                struct.unpack("<HI", raw[2:]) if indexed else (0, *struct.unpack("<I", raw))
            )
            length = min(size, left)
            if address == _HOLE:
                yield from _zeros(length)
            else:
                source = self._device(device, path)
                yield from self._stretch(source, address << self._bits, length, path)
            at += unit
            left -= length

    def _device(self, number: int, path: bytes) -> Source:
        source = {0: self._image, 1: self._data}.get(number)
        if source is None:
            raise ImageBroken(f"{show(path)}: it lies on a data blob that is not there")
        return source

    def _stretch(self, source: Source, at: int, length: int, path: bytes) -> Iterator[bytes]:
        while length:
            piece = self._exactly(source, at, min(length, CHUNK_BYTES), path)
            yield piece
            at += len(piece)
            length -= len(piece)

    def _exactly(self, source: Source, at: int, length: int, path: bytes) -> bytes:
        raw = source.read(at, length) if at < _PLACES_MAX else b""
        if len(raw) != length:
            raise ImageBroken(f"{show(path)}: the image ends too early")
        return raw


class _MemorySource:
    def __init__(self, content: bytes) -> None:
        self._content = content

    def read(self, offset: int, length: int) -> bytes:
        return self._content[offset : offset + length]


class _Nothing:
    """Throws contents away."""

    def add(self, chunks: Iterable[bytes]) -> Content:
        for _ in chunks:
            pass
        return Content(0, 0, b"")


class _Finder(_Reader):
    """Reads no data, but notes which files have some in given ranges."""

    def __init__(
        self, metadata: bytes, spans: Sequence[tuple[int, int]], limits: ImportLimits
    ) -> None:
        data = _MemorySource(b"")
        super().__init__(_MemorySource(metadata), data, _Nothing(), limits)
        self.found: set[bytes] = set()
        self._starts = sorted(offset for offset, _ in spans)
        self._ends = sorted(offset + length for offset, length in spans)

    def _stretch(self, source: Source, at: int, length: int, path: bytes) -> Iterator[bytes]:
        if source is not self._data:
            yield from super()._stretch(source, at, length, path)
        # Ranges do not overlap: one that begins before this end and has not ended before this start.
        elif bisect_left(self._starts, at + length) > bisect_right(self._ends, at):
            self.found.add(path)


def _zeros(length: int) -> Iterator[bytes]:
    while length:
        piece = ZEROS[:length]  # of the full length that is the object itself
        yield piece
        length -= len(piece)
