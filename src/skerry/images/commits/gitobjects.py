"""Reading a git object store that may be hostile: commits and trees, loose and packed, never blobs.

Formats: git's gitformat-pack, gitformat-index and gitrepository-layout. SHA-1 only. Whatever does not
look as it should is ImageBroken; sizes, depths and counts are bounded.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
import zlib
from collections import OrderedDict
from collections.abc import Iterator

from skerry.errors import ImageBroken
from skerry.images.commits.merged import Merged
from skerry.images.tree.entry import show

OBJECT_BYTES_MAX = 64 << 20  # of a commit or a tree
INFLATED_BYTES_MAX = 16 << 30  # of all that are read
DELTAS_MAX = 4096
OBJECTS_MAX = 20_000_000
_KEPT = 512  # objects that deltas may be against
_KINDS = {1: b"commit", 2: b"tree", 3: b"blob", 4: b"tag"}
_OFS, _REF = 6, 7
_HEX = frozenset(b"0123456789abcdef")


class Pack:
    """One pack with its index, both mapped."""

    def __init__(self, merged: Merged, objects: bytes, stem: bytes, layer: int) -> None:
        self.stem, self.layer = stem, layer
        self.path = objects + b"/pack/" + stem
        self._idx = _mapped(merged, self.path + b".idx")
        self._pack = _mapped(merged, self.path + b".pack")
        if (
            self._idx[:8] != b"\xfftOc\x00\x00\x00\x02"
            or len(self._idx) < 8 + 1024 + 40
            or self._pack[:4] != b"PACK"
        ):
            raise _broken(self.path, "is no pack of version 2")
        (self.count,) = struct.unpack_from(">I", self._idx, 8 + 255 * 4)
        self._ids = 8 + 1024
        if self.count > OBJECTS_MAX or len(self._idx) < self._ids + self.count * 28 + 40:
            raise _broken(self.path, "has an index that is cut off")

    def close(self) -> None:
        """Unmaps both."""
        self._idx.close()
        self._pack.close()

    def ids(self) -> Iterator[bytes]:
        """Gives the ids of all objects in it."""
        for at in range(self.count):
            yield self._idx[self._ids + at * 20 : self._ids + at * 20 + 20]

    def offset(self, name: bytes) -> int | None:
        """Returns where an object begins, None if it is not in it."""
        first = name[0]
        low = struct.unpack_from(">I", self._idx, 8 + (first - 1) * 4)[0] if first else 0
        (high,) = struct.unpack_from(">I", self._idx, 8 + first * 4)
        high = min(high, self.count)
        while low < high:
            middle = (low + high) // 2
            at = self._ids + middle * 20
            found = self._idx[at : at + 20]
            if found == name:
                return self._place(middle)
            low, high = (middle + 1, high) if found < name else (low, middle)
        return None

    def _place(self, number: int) -> int:
        offsets = self._ids + self.count * 24
        (place,) = struct.unpack_from(">I", self._idx, offsets + number * 4)
        if place >> 31:
            large = offsets + self.count * 4 + (place & 0x7FFFFFFF) * 8
            if large + 8 > len(self._idx):
                raise _broken(self.path, "has an index that leads nowhere")
            (place,) = struct.unpack_from(">Q", self._idx, large)
        if not 12 <= place < len(self._pack):
            raise _broken(self.path, "has an index that leads nowhere")
        return int(place)

    def header(self, place: int) -> tuple[int, int, int]:
        """Returns an entry's type, its inflated size, and where what follows begins."""
        kind, size, shift, at = 0, 0, 4, place
        byte = self._byte(at)
        kind, size = byte >> 4 & 7, byte & 15
        while byte & 0x80:
            at += 1
            byte = self._byte(at)
            size |= (byte & 0x7F) << shift
            shift += 7
            if shift > 64:
                raise _broken(self.path, "holds an impossible size")
        return kind, size, at + 1

    def base_offset(self, place: int, at: int) -> tuple[int, int]:
        """Returns the place of the base of an offset delta, and where its data begins."""
        byte = self._byte(at)
        distance = byte & 0x7F
        while byte & 0x80:
            at += 1
            byte = self._byte(at)
            distance = (distance + 1 << 7) | (byte & 0x7F)
            if distance > place:
                break
        if not 0 < distance <= place - 12:
            raise _broken(self.path, "holds a delta against nothing")
        return place - distance, at + 1

    def raw(self, at: int, length: int) -> bytes:
        """Returns bytes of the pack."""
        return self._pack[at : at + length]

    def inflate(self, at: int, size: int) -> bytes:
        """Returns the object or delta whose compressed bytes begin there."""
        if size > OBJECT_BYTES_MAX:
            raise _broken(self.path, "holds an object that is too large to be looked into")
        out = bytearray()
        inflater = zlib.decompressobj()
        try:
            while not inflater.eof and len(out) <= size and at < len(self._pack):
                out += inflater.decompress(self._pack[at : at + 65536], size + 1 - len(out))
                at += 65536 - len(inflater.unused_data)
                while inflater.unconsumed_tail and len(out) <= size:
                    out += inflater.decompress(inflater.unconsumed_tail, size + 1 - len(out))
        except zlib.error as error:
            raise _broken(self.path, f"cannot be inflated: {error}") from error
        if len(out) != size:
            raise _broken(self.path, "holds an object of another size than it says")
        return bytes(out)

    def _byte(self, at: int) -> int:
        if at >= len(self._pack):
            raise _broken(self.path, "is cut off")
        return self._pack[at]


class ObjectStore:
    """The objects of one repository, of all layers together."""

    def __init__(self, merged: Merged, objects: bytes) -> None:
        self._merged, self._objects = merged, objects
        self._left = INFLATED_BYTES_MAX
        self._kept: OrderedDict[tuple[bytes, int], tuple[int, bytes]] = OrderedDict()
        self.loose: dict[bytes, int] = {}  # id -> layer
        self.packs: list[Pack] = []
        try:
            self._look()
        except BaseException:
            self.close()
            raise

    def _look(self) -> None:
        names = self._merged.names(self._objects)
        for first in names:
            if len(first) != 2 or not _HEX.issuperset(first):
                continue
            for rest, place in self._merged.names(self._objects + b"/" + first).items():
                if len(rest) == 38 and _HEX.issuperset(rest):
                    self.loose[bytes.fromhex((first + rest).decode())] = place.layer
        packs = self._merged.names(self._objects + b"/pack")
        for name, place in sorted(packs.items()):
            stem, dot, kind = name.rpartition(b".")
            if dot and kind == b"pack" and stem + b".idx" in packs:
                self.packs.append(Pack(self._merged, self._objects, stem, place.layer))

    def close(self) -> None:
        """Lets go of the packs."""
        for pack in self.packs:
            pack.close()

    def has(self, name: bytes) -> bool:
        """Says whether an object is there."""
        return name in self.loose or any(pack.offset(name) is not None for pack in self.packs)

    def read(self, name: bytes) -> tuple[bytes, bytes] | None:
        """Returns the kind and the content of an object, None if it is not there."""
        if name in self.loose:
            return self._read_loose(name)
        for pack in self.packs:
            place = pack.offset(name)
            if place is not None:
                kind, content = self._read_packed(pack, place)
                return _KINDS[kind], content
        return None

    def _count(self, size: int) -> None:
        self._left -= size
        if self._left < 0:
            raise _broken(self._objects, "is too large to be looked into")

    def _read_loose(self, name: bytes) -> tuple[bytes, bytes]:
        text = name.hex().encode()
        path = self._objects + b"/" + text[:2] + b"/" + text[2:]
        data = self._merged.read(path, OBJECT_BYTES_MAX) or b""
        inflater = zlib.decompressobj()
        try:
            out = inflater.decompress(data, OBJECT_BYTES_MAX)
        except zlib.error as error:
            raise _broken(path, f"cannot be inflated: {error}") from error
        head, nul, content = out.partition(b"\x00")
        kind, _, size = head.partition(b" ")
        if not nul or not size.isdigit() or int(size) != len(content):
            raise _broken(path, "is no object of git, or too large to be looked into")
        self._count(len(content))
        return kind, content

    def _read_packed(self, pack: Pack, place: int) -> tuple[int, bytes]:
        """Reads an entry and the chain of deltas that it is made of, without recursion."""
        deltas: list[tuple[int, bytes]] = []
        while True:
            known = self._kept.get((pack.stem, place))
            if known is not None:
                self._kept.move_to_end((pack.stem, place))
                kind, content = known
                break
            kind, size, at = pack.header(place)
            if kind in _KINDS:
                content = pack.inflate(at, size)
                self._keep(pack, place, kind, content)
                break
            if kind not in (_OFS, _REF) or len(deltas) >= DELTAS_MAX:
                raise _broken(pack.path, "holds an entry of an unknown kind, or endless deltas")
            if kind == _OFS:
                base, at = pack.base_offset(place, at)
            else:
                found = pack.offset(pack.raw(at, 20))
                if found is None:
                    raise _broken(pack.path, "holds a delta against an object of another pack")
                base, at = found, at + 20
            deltas.append((place, pack.inflate(at, size)))
            place = base
        for where, delta in reversed(deltas):
            content = _apply(content, delta, pack.path)
            self._keep(pack, where, kind, content)
        return kind, content

    def _keep(self, pack: Pack, place: int, kind: int, content: bytes) -> None:
        self._count(len(content))
        if len(content) <= 1 << 20:
            self._kept[(pack.stem, place)] = (kind, content)
            if len(self._kept) > _KEPT:
                self._kept.popitem(last=False)


def _apply(base: bytes, delta: bytes, path: bytes) -> bytes:
    """Returns what a delta makes of its base (gitformat-pack, "Deltified representation")."""
    try:
        at, source = _varint(delta, 0)
        at, target = _varint(delta, at)
        if source != len(base) or target > OBJECT_BYTES_MAX:
            raise _broken(path, "holds a delta that does not fit its base")
        out = bytearray()
        while at < len(delta) and len(out) <= target:
            op = delta[at]
            at += 1
            if not op & 0x80:
                if not op or at + op > len(delta):
                    raise _broken(path, "holds a delta that makes no sense")
                out += delta[at : at + op]
                at += op
                continue
            offset = size = 0
            for bit in range(4):
                if op >> bit & 1:
                    offset |= delta[at] << 8 * bit
                    at += 1
            for bit in range(3):
                if op >> 4 + bit & 1:
                    size |= delta[at] << 8 * bit
                    at += 1
            out += base[offset : offset + (size or 0x10000)]
    except IndexError as error:
        raise _broken(path, "holds a delta that is cut off") from error
    if len(out) != target:
        raise _broken(path, "holds a delta that makes something else than it says")
    return bytes(out)


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if not byte & 0x80 or shift > 64:
            return at, value


def _mapped(merged: Merged, path: bytes) -> mmap.mmap:
    fd = merged.open(path)
    if fd is None:
        raise _broken(path, "is not there, or no regular file")
    with contextlib.ExitStack() as stack:
        stack.callback(os.close, fd)
        if os.fstat(fd).st_size < 32:
            raise _broken(path, "is cut off")
        return mmap.mmap(fd, 0, prot=mmap.PROT_READ)


def _broken(path: bytes, what: str) -> ImageBroken:
    return ImageBroken(f"scrub_git: {show(path)} {what}")
