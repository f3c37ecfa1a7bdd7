"""From changed chunks over a map to a new data blob and a new map, and those into the store."""

from __future__ import annotations

import datetime as dt
import errno
import hashlib
import os
import time
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple, Protocol

import msgspec

from skerry.images.disks.folding import to_fold
from skerry.images.disks.local import check_list
from skerry.images.format.chunks import CHUNK_BYTES, ChunkList, ChunkListBuilder, Codec
from skerry.images.format.diskmap import BlobRef, DiskMap, Place, make_map
from skerry.images.scratch import scratch_directory, storage_errors
from skerry.images.store import keys
from skerry.images.store.blobread import BlobReader, fetch_list
from skerry.images.store.store import LIST, SUFFIXES, LayerStore
from skerry.spec.layers import LayerManifest, LayerName

_NOWHERE: Final = 0xFFFF_FFFF
_OWN: Final = 0  # number of the new blob; those of the map below are one higher
_AT_ONCE: Final = 32  # chunks of earlier blobs read at once, at most: 8 MiB
_ZEROS: Final = bytes(CHUNK_BYTES)

Change = tuple[int, bytes | None]  # a chunk's number, and its content; None: zeros


class Below(Protocol):
    """What is under the changes."""

    def read(self, place: Place) -> bytes | memoryview:
        """Returns a checked chunk; raises LayerDamaged, StorageFailed."""

    def read_many(
        self, places: Sequence[tuple[int, Place]]
    ) -> Iterator[tuple[int, bytes | memoryview]]:
        """Gives checked chunks of the disk in that order."""

    def digest(self, place: Place) -> bytes:
        """Returns the sha256 of a chunk."""


class StoreBelow:
    """The data blobs of a map, read from the store; lists and readers are made at the first need."""

    def __init__(
        self,
        store: LayerStore,
        base: DiskMap,
        cached: Callable[[str, ChunkList, int], bytes | None] = lambda *_: None,
    ) -> None:
        """`cached` returns a chunk that is known on this node, for the blob's digest, or None."""
        self._store, self._base, self._cached = store, base, cached
        self._readers: dict[int, BlobReader] = {}

    def read(self, place: Place) -> bytes | memoryview:
        """Returns a checked chunk."""
        reader = self._reader(place.blob)
        known = self._cached(self._base.blobs[place.blob].digest, reader.chunks, place.chunk)
        return known if known is not None else reader.fetch(place.chunk)[0]

    def read_many(
        self, places: Sequence[tuple[int, Place]]
    ) -> Iterator[tuple[int, bytes | memoryview]]:
        """Gives chunks of the disk; those that lie together in a blob by one request."""
        at = 0
        while at < len(places):
            blob, first = places[at][1]
            reader, count = self._reader(blob), 1
            while at + count < len(places) and places[at + count][1] == (blob, first + count):
                count += 1
            digest = self._base.blobs[blob].digest
            known = [self._cached(digest, reader.chunks, first + one) for one in range(count)]
            contents = reader.fetch(first, count) if None in known else known
            for (chunk, _), content in zip(places[at : at + count], contents, strict=True):
                if content is not None:
                    yield chunk, content
            at += count

    def digest(self, place: Place) -> bytes:
        """Returns the sha256 of a chunk."""
        return self._reader(place.blob).chunks.digest(place.chunk)

    def _reader(self, blob: int) -> BlobReader:
        if blob not in self._readers:
            digest = self._base.blobs[blob].digest
            chunks = check_list(fetch_list(self._store.objects, keys.blob(digest, LIST), digest))
            key = keys.blob(digest, SUFFIXES[chunks.codec])
            self._readers[blob] = BlobReader(self._store.objects, key, chunks)
        return self._readers[blob]


class Made(NamedTuple):
    """A snapshot before it is stored; without `chunks` it has no data of its own."""

    map: DiskMap
    chunks: ChunkList | None
    data: str  # the data blob as it is to be stored


def make(
    base: DiskMap, below: Below, changes: Iterable[Change], directory: str, blobs_max: int
) -> Made:
    """Writes what changed to `directory/data` and returns the map of the result.

    `changes` come in order. What turns out to be zeros or what it was takes no room. Chunks are
    compressed one by one: every byte passes through a cache that checks it. Raises LayerDamaged,
    StorageFailed.
    """
    blob_of, at_of = array("I", [_NOWHERE]) * base.count, array("I", [0]) * base.count
    for chunk, place in base.places():
        blob_of[chunk], at_of[chunk] = place.blob + 1, place.chunk
    overwritten = [0] * len(base.blobs)
    path = os.path.join(directory, "data")
    with storage_errors(f"writing {path}"), open(path, "xb") as file:
        builder = ChunkListBuilder(file)
        count = 0

        def place_own(chunk: int, content: bytes | memoryview) -> None:
            nonlocal count
            builder.add(content)
            blob_of[chunk], at_of[chunk] = _OWN, count
            count += 1

        for chunk, content in changes:
            old = base.find(chunk)
            if content is None or content == _ZEROS:
                blob_of[chunk] = _NOWHERE
            elif old is not None and hashlib.sha256(content).digest() == below.digest(old):
                continue
            else:
                place_own(chunk, content)
            if old is not None:
                overwritten[old.blob] += 1
        folded = to_fold(base, overwritten, blobs_max)
        taken_over = [
            (chunk, Place(blob_of[chunk] - 1, at_of[chunk]))
            for chunk in (range(base.count) if folded else ())
            if blob_of[chunk] not in {_NOWHERE, _OWN} and blob_of[chunk] - 1 in folded
        ]
        for start in range(0, len(taken_over), _AT_ONCE):
            for chunk, kept in below.read_many(taken_over[start : start + _AT_ONCE]):
                place_own(chunk, kept)
        chunks = builder.finish()
    if not count:
        own: BlobRef = BlobRef("", 0)
    else:
        own = BlobRef(chunks.content_digest, chunks.size)
    places = (
        (chunk, Place(blob_of[chunk], at_of[chunk]))
        for chunk in range(base.count)
        if blob_of[chunk] != _NOWHERE
    )
    parent = base.digest if base.runs or base.parent else None
    made = make_map(base.size, (own, *base.blobs), places, parent)
    return Made(made, chunks if count else None, path)


def publish(
    store: LayerStore,
    name: LayerName,
    made: Made,
    base: LayerManifest | None,
    *,
    creator: str,
    pin: str | None = None,
    clock: Callable[[], float] = time.time,
) -> LayerManifest:
    """Returns the manifest of a snapshot that is stored, has its name, and is pinned if asked.

    The map is named by the manifest, and what the map names by its parts, so that a collection keeps
    it. Raises StorageFailed; then the name stands for what it stood for before.
    """
    encoded = made.map.encode()
    manifest = LayerManifest(
        name=str(name),
        digest=made.map.digest,
        size_bytes=len(encoded),
        created=dt.datetime.fromtimestamp(clock(), dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        creator=creator,
        version=2,
        parents=(base.digest,) if base is not None else (),
        parts=tuple(_parts(made, base)),
        disk_bytes=made.map.size,
    )
    if made.chunks is not None:
        manifest = msgspec.structs.replace(
            manifest,
            data_digest=made.chunks.content_digest,
            data_bytes=made.chunks.size,
            data_codec=Codec.ZSTD.value,
            stored_bytes=made.chunks.stored_bytes,
        )
    path = f"{made.data}.map"
    with storage_errors(f"writing {path}"), open(path, "xb") as file:
        file.write(encoded)
    with store.adding(*manifest.blobs()):
        if made.chunks is not None:
            store.put_data(made.data, made.chunks)
        store.put(path, manifest.digest)
        store.publish(manifest)
        if pin is not None:
            store.pin(manifest, pin)
    return manifest


def _parts(made: Made, base: LayerManifest | None) -> Iterator[LayerManifest]:
    """Gives the snapshots below whose data is still needed, oldest first, each without its own parts."""
    own = made.chunks.content_digest if made.chunks is not None else None
    needed = {blob.digest for blob in made.map.blobs} - {own}
    for one in base.layers() if base is not None else ():
        if one.data_digest in needed:
            needed.discard(one.data_digest)
            yield msgspec.structs.replace(one, parts=())


def file_changes(path: str) -> Iterator[Change]:
    """Gives the chunks of a raw image that are no holes; the last one is filled up with zeros."""
    with storage_errors(f"reading {path}"), open(path, "rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        chunk = 0
        while chunk * CHUNK_BYTES < size:
            try:
                data = os.lseek(file.fileno(), chunk * CHUNK_BYTES, os.SEEK_DATA)
            except OSError as error:
                if error.errno == errno.ENXIO:  # only a hole is left
                    return
                raise
            chunk = data // CHUNK_BYTES
            content = os.pread(file.fileno(), CHUNK_BYTES, chunk * CHUNK_BYTES)
            yield chunk, content.ljust(CHUNK_BYTES, b"\0")
            chunk += 1


def make_and_publish(
    store: LayerStore,
    name: LayerName,
    base: tuple[LayerManifest | None, DiskMap],
    changes: Iterable[Change],
    *,
    scratch: str,
    creator: str,
    blobs_max: int,
) -> LayerManifest:
    """Does all of it, in a scratch directory that is gone afterwards."""
    manifest, disk = base
    with scratch_directory(scratch) as directory:
        made = make(disk, StoreBelow(store, disk), changes, directory, blobs_max)
        return publish(store, name, made, manifest, creator=creator)
