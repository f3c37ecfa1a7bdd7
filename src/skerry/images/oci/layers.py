"""From the layers of an image to trees: every byte checked against its digest, few trees at the end.

What a layer may hold is `skerry.images.archives.tarimport`'s to say. Unpacking is bounded by what was
packed: an image that grows without measure is refused before it fills the disk.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

from skerry.errors import ImageBroken
from skerry.images.archives.tarimport import ImportLimits, Spent, read_tar
from skerry.images.archives.tarread import Readable, TarReader, decompressed
from skerry.images.oci.bundle import Bundle
from skerry.images.oci.choose import Image, LayerBlob
from skerry.images.oci.model import BlobDamaged
from skerry.images.scratch import Spool
from skerry.images.sparse import CHUNK_BYTES
from skerry.images.tree.entry import Tree
from skerry.images.tree.merge import Collapse
from skerry.images.tree.notes import Notes

Log = Callable[[str], None]

_GROWTH_FREE = 2 << 30  # bytes that an image may unpack to whatever its size
_GROWTH_MAX = 100  # beyond that, how many bytes for each packed one


@dataclass(slots=True)
class _Growth:
    """What all layers of an image took in and gave out."""

    packed: int = 0
    unpacked: int = 0

    def check(self) -> None:
        if self.unpacked > _GROWTH_FREE + _GROWTH_MAX * self.packed:
            raise ImageBroken(
                f"the image unpacks to more than {_GROWTH_MAX} times its size", limit="growth"
            )


class _Counted:
    """A stream of which digest and length are known at its end."""

    def __init__(self, source: Readable, told: Callable[[int], None]) -> None:
        self._source = source
        self._told = told
        self._hash = hashlib.sha256()
        self.size = 0

    def read(self, size: int = -1, /) -> bytes:
        data = self._source.read(size)
        self._hash.update(data)
        self.size += len(data)
        self._told(len(data))
        return data

    def digest(self) -> str:
        return f"sha256:{self._hash.hexdigest()}"

    def drain(self) -> None:
        while self.read(CHUNK_BYTES):
            pass


class LayerReader:
    """Reads the layers of one image, lowest first; the limits hold for all of them together."""

    def __init__(self, bundle: Bundle, spool: Spool, notes: Notes, limits: ImportLimits) -> None:
        self._bundle = bundle
        self._spool = spool
        self._notes = notes
        self._limits = limits
        self._spent = Spent()
        self._growth = _Growth()

    def read(self, image: Image, into: Collapse, log: Log) -> None:
        """Adds the image's layers to `into`.

        Raises BlobDamaged for a digest that does not fit, ImageBroken for anything else.
        """
        count = len(image.layers)
        for number, layer in enumerate(image.layers, start=1):
            size = "" if layer.size is None else f", {layer.size >> 20} MiB"
            log(f"layer {number} of {count}: {(layer.digest or layer.diff_id)[:19]}{size}")
            into.add(self._layer(layer, into))

    def _layer(self, layer: LayerBlob, below: Collapse) -> Tree:
        opened = self._bundle.open(layer.name)
        if opened is None:
            said = f"the image is incomplete: {layer.name[:200]!r} is missing"
            raise BlobDamaged(said, digest=layer.digest or layer.diff_id)
        with opened as file:
            packed = _Counted(file, self._packed)
            try:
                tree, unpacked = self._tree(packed, below)
            except BlobDamaged:
                raise
            except ImageBroken:
                if layer.digest is not None:
                    packed.drain()
                    _check(packed, layer.digest, layer.size)  # then that is the reason
                raise
            if layer.digest is not None:
                packed.drain()
                _check(packed, layer.digest, layer.size)
        if unpacked.digest() != layer.diff_id:
            raise BlobDamaged(
                f"a layer of the image is damaged: unpacked it is {unpacked.digest()}, "
                f"not {layer.diff_id}",
                digest=layer.digest or layer.diff_id,
            )
        return tree

    def _tree(self, packed: _Counted, below: Collapse) -> tuple[Tree, _Counted]:
        unpacked = _Counted(decompressed(packed), self._unpacked)
        tree = read_tar(
            TarReader(unpacked, whole=True),
            self._spool,
            self._notes,
            self._limits,
            below=below.find,
            spent=self._spent,
        )
        unpacked.drain()
        return tree, unpacked

    def _packed(self, size: int) -> None:
        self._growth.packed += size

    def _unpacked(self, size: int) -> None:
        self._growth.unpacked += size
        self._growth.check()


def _check(packed: _Counted, digest: str, size: int | None) -> None:
    if packed.digest() != digest or packed.size != size:
        raise BlobDamaged(
            f"{digest} of the image is damaged: it has another digest or size", digest=digest
        )


def is_whole(bundle: Bundle, layer: LayerBlob) -> bool:
    """Says whether a layer's file is what its digest says."""
    opened = bundle.open(layer.name)
    if opened is None:
        return False
    with opened as file:
        counted = _Counted(file, lambda _size: None)
        counted.drain()
    return (counted.digest(), counted.size) == (layer.digest, layer.size)
