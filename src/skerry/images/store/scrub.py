"""Scrub: all bytes of a layer are read again from the store and compared with their digests.

This finds what a trusted mount does not see: bits that flipped on the store's disk since the layer was
published. On a store of files the blobs' pages are dropped first, so that the disk is asked and not
the memory that wrote it.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import msgspec

from skerry.errors import ImageBroken, LayerDamaged, NotFound
from skerry.images.archives.tarimport import ImportLimits
from skerry.images.format.chunks import ChunkList, Span
from skerry.images.format.diskmap import decode_map
from skerry.images.format.erofsread import files_at
from skerry.images.format.pair import data_digest_in
from skerry.images.store import keys
from skerry.images.store.blobread import fetch_list
from skerry.images.store.relist import relist
from skerry.images.store.store import LIST, SUFFIXES, LayerStore
from skerry.spec.layers import Damage, LayerCheck, LayerManifest

BATCH_CHUNKS = 16
CHUNKS_TOLD_MAX = 1000
FILES_TOLD_MAX = 100
_METADATA_KEPT_MAX = 64 << 20


@dataclass
class Progress:
    """How far the scrub of one layer has come: what is here needs not be read again."""

    next_chunk: int = 0  # of the data blob
    damaged: int = 0  # chunks so far
    bad: list[int] = field(default_factory=list)  # the first of them


class Scrub:
    """Checks layers of one store; blobs that several of them share are read once.

    `pace` is called with how many bytes were just read; what it raises ends the check.
    """

    def __init__(self, store: LayerStore, pace: Callable[[int], None] = lambda _read: None) -> None:
        self._store = store
        self._pace = pace
        self._found: dict[str, LayerCheck] = {}
        self._bytes = 0

    def check(self, manifest: LayerManifest) -> LayerCheck:
        """Returns what is damaged of a layer and its parts.

        What comes damaged is read a second time before it counts: the way from the store may have
        done it. A chunk list that is damaged or gone is made again where the data is right. Raises
        StorageFailed if the store cannot be reached.
        """
        before = self._bytes
        found = [self.layer(layer) for layer in manifest.layers()]
        return LayerCheck(
            manifest.name,
            manifest.digest,
            self._bytes - before,
            tuple(damage for one in found for damage in one.damage),
            mended=tuple(damage for one in found for damage in one.mended),
        )

    def layer(self, layer: LayerManifest, progress: Progress | None = None) -> LayerCheck:
        """Returns the same of a layer alone; goes on where `progress` says, and keeps it."""
        if layer.digest not in self._found:
            before, mended = self._bytes, list[Damage]()
            damage = tuple(self._blobs(layer, progress or Progress(), mended))
            read = self._bytes - before
            self._found[layer.digest] = LayerCheck(
                layer.name, layer.digest, read, damage, mended=tuple(mended)
            )
        return self._found[layer.digest]

    def _blobs(
        self, layer: LayerManifest, progress: Progress, mended: list[Damage]
    ) -> Iterator[Damage]:
        metadata, named = None, layer.data_digest
        try:
            metadata = self._metadata(layer)
            named = _named(metadata, layer)
        except (LayerDamaged, NotFound) as error:
            yield Damage(layer.digest, "metadata", error.message)
        if named != layer.data_digest:
            # The metadata is what the layer's digest names, so the manifest is wrong.
            text = f"it names the data blob {layer.data_digest}, the layer's metadata {named}"
            yield Damage(layer.digest, "manifest", text)
        if named is None:
            return
        try:
            chunks = self._chunks(named)
        except LayerDamaged as error:
            try:
                chunks = relist(self._store, named, self._count)
            except LayerDamaged as worse:
                yield Damage(named, "chunk list", f"{error.message}; {worse.message}")
                return
            mended.append(Damage(named, "chunk list", error.message))
            if (again := self._size(chunks)) is not None:
                yield again
            return  # the data was read for it
        damage = self._data(chunks, progress)
        if damage is None:
            return
        spans = [chunks.span(chunk) for chunk in damage.chunks]
        files = _files(metadata, spans) if spans else ()
        yield msgspec.structs.replace(damage, files=files)

    def _count(self, read: int) -> None:
        self._bytes += read
        self._pace(read)

    def _metadata(self, layer: LayerManifest) -> bytes:
        """Returns the bytes, the first part of very many, if all are right."""
        self._forget(layer.digest, "")
        for tries in range(2):
            digest, kept = hashlib.sha256(), bytearray()
            for piece in self._store.pieces(layer.digest):
                self._count(len(piece))
                digest.update(piece)
                if len(kept) < _METADATA_KEPT_MAX:
                    kept += piece
            found = f"sha256:{digest.hexdigest()}"
            if found == layer.digest:
                return bytes(kept)
            if tries:
                break
        raise LayerDamaged(f"the store holds other bytes: {found}")

    def _chunks(self, digest: str) -> ChunkList:
        if not self._store.has(digest, LIST):
            raise LayerDamaged("it is gone from the store")
        self._forget(digest, LIST)
        return fetch_list(self._store.objects, keys.blob(digest, LIST), digest)

    def _data(self, chunks: ChunkList, progress: Progress) -> Damage | None:
        digest, suffix = chunks.content_digest, SUFFIXES[chunks.codec]
        self._forget(digest, suffix)
        if self._store.objects.stat(keys.blob(digest, suffix)) is None:
            return Damage(digest, "data", "it is gone from the store")
        self._look_at(chunks, progress)
        if progress.damaged:
            text = f"{progress.damaged} of {chunks.count} chunks are damaged"
            return Damage(digest, "data", text, tuple(progress.bad))
        return self._size(chunks)

    def _size(self, chunks: ChunkList) -> Damage | None:
        digest = chunks.content_digest
        found = self._store.objects.stat(keys.blob(digest, SUFFIXES[chunks.codec]))
        if found is None:
            return Damage(digest, "data", "it is gone from the store")
        if found.size != chunks.stored_bytes:
            text = f"it has {found.size} bytes, not {chunks.stored_bytes}"
            return Damage(digest, "data", text)
        return None

    def _look_at(self, chunks: ChunkList, progress: Progress) -> None:
        while progress.next_chunk < chunks.count:
            first = progress.next_chunk
            batch = range(first, min(first + BATCH_CHUNKS, chunks.count))
            start = chunks.stored_span(first).offset
            last = chunks.stored_span(batch[-1])
            span = Span(start, last.offset + last.length - start)
            data = memoryview(self._read(chunks, span))
            read = len(data)
            for chunk in batch:
                offset, length = chunks.stored_span(chunk)
                if not _good(chunks, chunk, data[offset - start : offset - start + length]):
                    again = self._read(chunks, chunks.stored_span(chunk))
                    read += len(again)
                    if not _good(chunks, chunk, again):
                        progress.damaged += 1
                        if len(progress.bad) < CHUNKS_TOLD_MAX:
                            progress.bad.append(chunk)
            progress.next_chunk = batch.stop
            self._count(read)
        self._forget(chunks.content_digest, SUFFIXES[chunks.codec])

    def _read(self, chunks: ChunkList, span: Span) -> bytes:
        try:
            return self._store.read_data(chunks.content_digest, chunks.codec, *span)
        except NotFound:
            return b""  # it went meanwhile

    def _forget(self, digest: str, part: str) -> None:
        """Lets the next read ask the disk; who mounts the blob directly loses nothing by it."""
        path = self._store.objects.local_path(keys.blob(digest, part))
        if path is not None:
            with contextlib.suppress(OSError), open(path, "rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _named(metadata: bytes, layer: LayerManifest) -> str | None:
    """Returns which data blob the metadata says is the layer's; raises LayerDamaged."""
    if not layer.disk_bytes:
        return data_digest_in(io.BytesIO(metadata), layer.digest)
    disk = decode_map(metadata, layer.digest)
    own = {blob.digest for blob in disk.blobs} & {layer.data_digest}
    return next(iter(own), None)  # without data of its own it has that of its parts


def _good(chunks: ChunkList, chunk: int, stored: bytes | memoryview) -> bool:
    try:
        chunks.open_chunk(chunk, stored)
    except LayerDamaged:
        return False
    return True


def _files(metadata: bytes | None, spans: Sequence[Span]) -> tuple[str, ...]:
    """Returns the files that have any of these ranges of the data blob; () where none can be told."""
    if metadata is None:
        return ()
    with contextlib.suppress(ImageBroken):
        return tuple(files_at(metadata, spans, ImportLimits(), FILES_TOLD_MAX))
    return ()
