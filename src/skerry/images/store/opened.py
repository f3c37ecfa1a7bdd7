"""Layers of a store opened for reading their trees back, every byte checked against its digest."""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from collections import OrderedDict
from collections.abc import Iterator
from typing import IO

from skerry.errors import LayerDamaged
from skerry.images.archives.tarimport import ImportLimits
from skerry.images.format.erofsread import FileSource, read_image
from skerry.images.scratch import Spool, storage_errors
from skerry.images.store import keys
from skerry.images.store.blobread import BlobReader, fetch_list, until_right
from skerry.images.store.store import LIST, SUFFIXES, LayerStore
from skerry.images.tree.entry import BELOW, Tree
from skerry.spec.layers import LayerManifest

_AHEAD = 8  # chunks fetched at once: files lie in the order of their paths, as they are read
_KEPT = 64  # 16 MiB


def read_layer(
    store: LayerStore, layer: LayerManifest, scratch: str, spool: Spool, limits: ImportLimits
) -> Tree:
    """Returns the tree of one layer of a manifest, with its contents in the spool.

    Raises LayerDamaged if the store's bytes are not what the digests say, ImageBroken for what
    cannot be read back, StorageFailed if the store or the scratch disk fails.
    """
    with contextlib.ExitStack() as stack:
        image = stack.enter_context(_metadata(store, layer, scratch))
        data = None if layer.data_digest is None else _Data(store, layer)
        tree = read_image(image, data, spool, limits)
    tree.root.xattrs.pop(BELOW, None)
    return tree


@contextlib.contextmanager
def _metadata(store: LayerStore, layer: LayerManifest, scratch: str) -> Iterator[FileSource]:
    with storage_errors("copying a layer to the scratch directory"):
        fd, path = tempfile.mkstemp(dir=scratch)
    try:
        with open(fd, "wb") as file:
            until_right(store.objects.where, lambda: _copy(store, layer, file))
        source = FileSource(path)
    finally:
        os.unlink(path)
    try:
        yield source
    finally:
        source.close()


def _copy(store: LayerStore, layer: LayerManifest, file: IO[bytes]) -> None:
    digest = hashlib.sha256()
    with storage_errors("copying a layer to the scratch directory"):
        file.seek(0)
        file.truncate()
        for piece in store.pieces(layer.digest):
            digest.update(piece)
            file.write(piece)
    if f"sha256:{digest.hexdigest()}" != layer.digest:
        raise LayerDamaged(
            f"{layer.name}: the store's {layer.digest} has another digest: make the layer again",
            digest=layer.digest,
        )


class _Data:
    """The content of a data blob; what was read last is at hand, since small files share chunks."""

    def __init__(self, store: LayerStore, layer: LayerManifest) -> None:
        digest = str(layer.data_digest)
        self._chunks = fetch_list(store.objects, keys.blob(digest, LIST), digest)
        key = keys.blob(digest, SUFFIXES[self._chunks.codec])
        self._reader = BlobReader(store.objects, key, self._chunks)
        self._kept: OrderedDict[int, bytes | memoryview] = OrderedDict()

    def read(self, offset: int, length: int) -> bytes:
        """Returns a range of the content, every chunk of it checked."""
        chunks = self._chunks.touched(offset, length)
        if not chunks:
            return b""
        begin = offset - self._chunks.span(chunks.start).offset
        content = b"".join(map(self._chunk, chunks))
        return content[begin : begin + length]

    def _chunk(self, number: int) -> bytes | memoryview:
        if number not in self._kept:
            count = min(_AHEAD, self._chunks.count - number)
            for at, content in enumerate(self._reader.fetch(number, count), number):
                self._kept[at] = content
            while len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
        return self._kept[number]
