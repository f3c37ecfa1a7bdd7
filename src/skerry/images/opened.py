"""Layers of a store opened for reading their trees back, every byte checked against its digest."""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Iterator

from skerry.errors import LayerDamaged
from skerry.images.chunks import Codec, decode_list
from skerry.images.entry import BELOW, Tree
from skerry.images.erofsread import FileSource, read_image
from skerry.images.scratch import Spool, storage_errors
from skerry.images.store import LayerStore
from skerry.images.tarimport import ImportLimits
from skerry.spec.layers import LayerManifest


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
    digest = hashlib.sha256()
    with storage_errors("copying a layer to the scratch directory"):
        fd, path = tempfile.mkstemp(dir=scratch)
        with open(fd, "wb") as file:
            for piece in store.pieces(layer.digest):
                digest.update(piece)
                file.write(piece)
    try:
        if f"sha256:{digest.hexdigest()}" != layer.digest:
            raise LayerDamaged(
                f"{layer.name}: the store's {layer.digest} has another digest: make the layer again",
                digest=layer.digest,
            )
        source = FileSource(path)
    finally:
        os.unlink(path)
    try:
        yield source
    finally:
        source.close()


class _Data:
    """The content of a data blob, whatever form it is stored in."""

    def __init__(self, store: LayerStore, layer: LayerManifest) -> None:
        self._store = store
        self._digest = str(layer.data_digest)
        self._codec = Codec(layer.data_codec)
        self._chunks = decode_list(b"".join(store.chunk_list(self._digest)), self._digest)

    def read(self, offset: int, length: int) -> bytes:
        """Returns a range, each chunk of it checked."""
        chunks = self._chunks.touched(offset, length)
        if not chunks:
            return b""
        content = b"".join(map(self._chunk, chunks))
        begin = offset - self._chunks.span(chunks.start).offset
        return content[begin : begin + length]

    def _chunk(self, chunk: int) -> bytes | memoryview:
        at, size = self._chunks.stored_span(chunk)
        stored = self._store.read_data(self._digest, self._codec, at, size)
        return self._chunks.open_chunk(chunk, stored)
