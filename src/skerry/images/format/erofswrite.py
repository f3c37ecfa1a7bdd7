"""Writing a metadata blob: an EROFS image of a tree whose files' bytes lie on a data blob beside it.

mkfs.erofs would have to be given all the bytes to place them, and copies each twice more. What is
written here is little of EROFS (Documentation/filesystems/erofs.rst, fs/erofs/erofs_fs.h):

    1024  superblock, then the slot of the data blob, with its digest as the tag
    1280  inodes, each 64 bytes and its extended attributes; behind it
          of a file: the addresses of its pieces on the data blob
          of a directory or symbolic link: the end of its content, if both fit into a block
    then  blocks of directories (and symbolic links) that do not fit there

Inodes lie in the order of the paths. An inode's number is where it lies, in units of 32 bytes.
"""

from __future__ import annotations

import stat
import struct
from collections.abc import Iterator, Mapping
from typing import IO, Final, NamedTuple

from skerry.errors import ImageBroken
from skerry.images.format.chunks import ChunkList
from skerry.images.format.erofs import MAGIC
from skerry.images.format.placing import BLOCK_BITS, BLOCK_BYTES, HOLE, Extents
from skerry.images.scratch import storage_errors
from skerry.images.tree.entry import Entry, Node, Tree, show
from skerry.spec.files import FileType

SUPERBLOCK: Final = 1024
SLOT_BYTES: Final = 128
_SLOT: Final = (SUPERBLOCK + 128) // SLOT_BYTES
_INODES: Final = (_SLOT + 1) * SLOT_BYTES
_UNIT: Final = 32  # of inode numbers
_HEAD: Final = 64  # of an extended inode
_CHUNKED_FILES, _DEVICES, _MTIMES = 0x4, 0x8, 0x2
_PLAIN, _INLINE, _CHUNKED = 0, 2, 4
_INDEXES: Final = 0x20
_NOWHERE: Final = 0xFFFFFFFF
_XATTR_WORDS_MAX: Final = 0xFFFF
_PREFIXES: Final = (
    (b"user.", 1),
    (b"trusted.", 4),
    (b"security.", 6),
)
_WHOLE_NAMES: Final = {b"system.posix_acl_access": 2, b"system.posix_acl_default": 3}
_MODES: Final = {
    FileType.FILE: stat.S_IFREG,
    FileType.DIRECTORY: stat.S_IFDIR,
    FileType.SYMLINK: stat.S_IFLNK,
    FileType.CHARACTER: stat.S_IFCHR,
    FileType.FIFO: stat.S_IFIFO,
}
_KINDS: Final = {
    FileType.FILE: 1,
    FileType.DIRECTORY: 2,
    FileType.CHARACTER: 3,
    FileType.FIFO: 5,
    FileType.SYMLINK: 7,
}


def write_metadata(
    path: str, tree: Tree, extents: Mapping[int, Extents], chunks: ChunkList
) -> None:
    """Writes the image of a tree to a new file.

    `extents` are those of each file that has bytes, by the identity of its node; `chunks` is the
    list of their data blob. Equal trees with equal extents give equal bytes. Raises ImageBroken for
    what EROFS cannot hold, StorageFailed if the disk is full.
    """
    with storage_errors("making an image"), open(path, "xb", buffering=1 << 20) as file:
        _Writing(tree, extents).write(file, chunks)


class _Place(NamedTuple):
    """Where an inode lies, and its content."""

    number: int
    size: int  # of the content
    block: int  # of what of the content lies in blocks, among those
    inline: bool


class _Writing:
    def __init__(self, tree: Tree, extents: Mapping[int, Extents]) -> None:
        self._tree = tree
        self._extents = extents
        self._places: dict[int, _Place] = {}  # by the identity of the node
        self._names: dict[int, int] = {}  # how many names a node has that may have several
        self._parents: dict[bytes, int] = {}  # the numbers of directories
        self._end = _INODES
        self._blocks = 0
        for entry in tree.entries(None):
            self._lay(entry)
        self._first_block = -(-self._end >> BLOCK_BITS)

    def write(self, file: IO[bytes], chunks: ChunkList) -> None:
        blocks = self._first_block + self._blocks
        file.write(bytes(SUPERBLOCK) + self._superblock(blocks) + _slot(chunks, blocks))
        at, serial = _INODES, 0
        for entry in self._tree.entries(None):
            if entry.hard_link is not None:
                continue
            serial += 1
            place = self._places[id(entry.node)]
            content = self._content(entry, place)
            raw = self._inode(entry.node, place, serial, content)
            start = place.number * _UNIT
            file.write(bytes(start - at))
            file.write(raw)
            at = start + len(raw)
        file.write(bytes((self._first_block << BLOCK_BITS) - at))
        for entry in self._tree.entries(None):
            if entry.hard_link is None:
                self._write_blocks(file, entry)

    # --- where everything lies ---

    def _lay(self, entry: Entry) -> None:
        node = entry.node
        if node.shared:
            self._names[id(node)] = self._names.get(id(node), 0) + 1
        if entry.hard_link is not None:
            return
        head = _HEAD + len(_xattrs(node, entry.path))
        size, tail = 0, 0
        if node.children is not None:
            size = _directory_size(_names(node))
            tail = size % BLOCK_BYTES
        elif node.type is FileType.SYMLINK:
            size = tail = len(node.target)
        elif node.content is not None:
            size = node.content.size
        inline = tail > 0 and head + tail <= BLOCK_BYTES
        if inline:
            if self._end % BLOCK_BYTES + head + tail > BLOCK_BYTES:
                self._end += -self._end % BLOCK_BYTES  # the kernel wants both in one block
            head += tail
        elif id(node) in self._extents and size:
            head += -head % 8 + 8 * len(self._extents[id(node)].blocks)
        self._places[id(node)] = _Place(self._end // _UNIT, size, self._blocks, inline)
        if node.children is not None:
            self._parents[entry.path] = self._end // _UNIT
        if node.children is not None or node.type is FileType.SYMLINK:
            self._blocks += size // BLOCK_BYTES if inline else -(-size // BLOCK_BYTES)
        self._end += head
        self._end += -self._end % _UNIT

    # --- parts of the image ---

    def _superblock(self, blocks: int) -> bytes:
        root = self._places[id(self._tree.root)].number
        head = struct.pack(
            "<IIIBBHQQIIII",
            MAGIC,
            0,
            _MTIMES,
            BLOCK_BITS,
            0,
            root,
            len(self._places),
            0,
            0,
            blocks,
            0,
            0,
        )
        features = struct.pack("<IHHH", _CHUNKED_FILES | _DEVICES, 0, 1, _SLOT)
        whole = head + self._tree.identity().bytes + bytes(16) + features
        return whole.ljust(128, b"\0")

    def _inode(self, node: Node, place: _Place, serial: int, content: bytes) -> bytes:
        xattrs = _xattrs(node, b"")
        layout, union, behind = _PLAIN, 0, b""
        if node.type is FileType.FILE:
            union = _NOWHERE
            if place.size:
                layout, union, behind = _chunked(self._extents[id(node)])
                behind = bytes(-len(xattrs) % 8) + behind
        elif content:
            union = self._first_block + place.block
            if place.inline:
                layout = _INLINE
                behind = content[place.size // BLOCK_BYTES * BLOCK_BYTES :]
        links = self._names.get(id(node), 1)
        if node.children is not None:
            links = 2 + sum(child.children is not None for child in node.children.values())
        seconds, nanoseconds = divmod(node.mtime_ns, 10**9)
        head = struct.pack(
            "<HHHHQIIIIqII16x",
            layout << 1 | 1,
            (len(xattrs) - 12) // 4 + 1 if xattrs else 0,
            _MODES[node.type] | node.mode,
            0,
            place.size,
            union,
            serial,
            node.uid,
            node.gid,
            seconds,
            nanoseconds,
            links,
        )
        return head + xattrs + behind

    def _content(self, entry: Entry, place: _Place) -> bytes:
        """Returns what a directory or symbolic link holds."""
        node = entry.node
        if node.children is None:
            return node.target if node.type is FileType.SYMLINK else b""
        above = self._parents[entry.path.rpartition(b"/")[0]]
        return _directory(self._entries(node, place.number, above))

    def _entries(self, node: Node, own: int, above: int) -> Iterator[tuple[bytes, int, int]]:
        directory = _KINDS[FileType.DIRECTORY]
        for name in _names(node):
            if name in (b".", b".."):
                yield name, own if name == b"." else above, directory
            else:
                child = (node.children or {})[name]
                yield name, self._places[id(child)].number, _KINDS[child.type]

    def _write_blocks(self, file: IO[bytes], entry: Entry) -> None:
        place = self._places[id(entry.node)]
        if place.inline and place.size < BLOCK_BYTES:
            return
        content = self._content(entry, place)
        whole = place.size // BLOCK_BYTES * BLOCK_BYTES if place.inline else len(content)
        file.write(content[:whole])
        file.write(bytes(-whole % BLOCK_BYTES))


def _slot(chunks: ChunkList, blocks: int) -> bytes:
    tag = chunks.content_digest.removeprefix("sha256:").encode()
    return tag + struct.pack("<II", chunks.size >> BLOCK_BITS, blocks) + bytes(SLOT_BYTES - 72)


def _chunked(extents: Extents) -> tuple[int, int, bytes]:
    form = _INDEXES | extents.bits - BLOCK_BITS
    indexes = b"".join(struct.pack("<HHI", 0, block != HOLE, block) for block in extents.blocks)
    return _CHUNKED, form, indexes


def _xattrs(node: Node, path: bytes) -> bytes:
    """Returns the extended attributes as they stand behind an inode."""
    if not node.xattrs:
        return b""
    parts = [bytes(12)]
    for key, value in sorted(node.xattrs.items()):
        index, name = _split(key, path)
        if len(name) > 255 or len(value) > 0xFFFF:
            raise ImageBroken(f"{show(path)}: an extended attribute that is too long")
        entry = struct.pack("<BBH", len(name), index, len(value)) + name + value
        parts.append(entry + bytes(-len(entry) % 4))
    raw = b"".join(parts)
    if len(raw) // 4 - 2 > _XATTR_WORDS_MAX:
        raise ImageBroken(f"{show(path)}: extended attributes that are too long")
    return raw


def _split(key: bytes, path: bytes) -> tuple[int, bytes]:
    if key in _WHOLE_NAMES:
        return _WHOLE_NAMES[key], b""
    for prefix, index in _PREFIXES:
        if key.startswith(prefix):
            return index, key[len(prefix) :]
    raise ImageBroken(f"{show(path)}: an extended attribute of an unknown kind")


def _names(node: Node) -> list[bytes]:
    return sorted((b".", b"..", *(node.children or {})))


def _directory_size(names: list[bytes]) -> int:
    size = 0
    for name in names:
        need = 12 + len(name)
        if size % BLOCK_BYTES + need > BLOCK_BYTES:
            size += -size % BLOCK_BYTES
        size += need
    return size


def _directory(entries: Iterator[tuple[bytes, int, int]]) -> bytes:
    """Returns a directory's content: blocks of entries, each followed by the names of that block."""
    blocks: list[bytes] = []
    block: list[tuple[bytes, int, int]] = []
    used = 0
    for entry in entries:
        need = 12 + len(entry[0])
        if used + need > BLOCK_BYTES:
            blocks.append(_directory_block(block).ljust(BLOCK_BYTES, b"\0"))
            block, used = [], 0
        block.append(entry)
        used += need
    return b"".join((*blocks, _directory_block(block)))


def _directory_block(entries: list[tuple[bytes, int, int]]) -> bytes:
    at = 12 * len(entries)
    head = []
    for name, number, kind in entries:
        head.append(struct.pack("<QHBx", number, at, kind))
        at += len(name)
    return b"".join(head) + b"".join(name for name, _, _ in entries)
