"""A node's own copies of maps and chunk lists: checked when they come, and whenever they are read."""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from collections.abc import Collection

from skerry.errors import ImageBroken, LayerDamaged, StorageFailed
from skerry.images.disks.state import sync_directory
from skerry.images.format.chunks import CHUNK_BYTES, ChunkList, decode_list
from skerry.images.format.diskmap import MAP_BYTES_MAX, DiskMap, decode_map
from skerry.images.scratch import storage_errors
from skerry.images.store import keys
from skerry.images.store.blobread import LIST_BYTES_MAX, fetch_list, until_right
from skerry.images.store.store import LIST, LayerStore

_YOUNG_S = 3600.0
DIRECTORIES = ("lists", "maps", "chunks", "open", "jobs", "mount")


def map_path(root: str, digest: str) -> str:
    """Returns where the map of a disk lies."""
    return os.path.join(root, "maps", keys.hex_of(digest))


def list_path(root: str, digest: str) -> str:
    """Returns where the chunk list of a data blob lies."""
    return os.path.join(root, "lists", f"{keys.hex_of(digest)}.chunks")


def read_map(root: str, digest: str) -> DiskMap:
    """Returns a map that is here; raises LayerDamaged, StorageFailed."""
    return decode_map(_read(map_path(root, digest), MAP_BYTES_MAX), digest)


def read_list(root: str, digest: str) -> ChunkList:
    """Returns a chunk list that is here; raises LayerDamaged, StorageFailed."""
    return check_list(decode_list(_read(list_path(root, digest), LIST_BYTES_MAX), digest))


def check_list(chunks: ChunkList) -> ChunkList:
    """Returns the list if it is one of a disk's data blobs; raises LayerDamaged."""
    if chunks.chunk_bytes != CHUNK_BYTES or chunks.size % CHUNK_BYTES:
        text = f"the data blob {chunks.content_digest} is none of a disk"
        raise LayerDamaged(text, digest=chunks.content_digest)
    return chunks


def fetch_map(store: LayerStore, digest: str) -> DiskMap:
    """Returns the map of a disk from the store; raises LayerDamaged, StorageFailed."""

    def fetch() -> DiskMap:
        try:
            data = store.objects.get(keys.blob(digest), MAP_BYTES_MAX)
        except ImageBroken as error:
            raise LayerDamaged(error.message, digest=digest) from error
        if data is None:
            raise LayerDamaged(
                f"the map {digest} is gone from {store.objects.where}", digest=digest
            )
        return decode_map(data, digest)

    return until_right(store.objects.where, fetch)


def bring(store: LayerStore, root: str, digest: str) -> DiskMap:
    """Puts here what opening a disk needs, unless it is here; returns its map.

    Takes one request for the map and one for each data blob. Raises LayerDamaged, StorageFailed.
    """
    try:
        disk = read_map(root, digest)
    except (StorageFailed, LayerDamaged):
        disk = fetch_map(store, digest)
        put(map_path(root, digest), disk.encode())
    for blob in disk.blobs:
        try:
            chunks = read_list(root, blob.digest)
        except (StorageFailed, LayerDamaged):
            chunks = fetch_list(store.objects, keys.blob(blob.digest, LIST), blob.digest)
            put(list_path(root, blob.digest), check_list(chunks).encode())
        if chunks.size != blob.size:
            text = f"the map {digest} and its data blob {blob.digest} are of different sizes"
            raise LayerDamaged(text, digest=digest)
    return disk


def tidy(root: str, digests: Collection[str]) -> None:
    """Removes maps and lists that none of these disks needs, unless they are young.

    What is young may be a snapshot's whose disk does not know of it yet. A map that cannot be read
    lets all lists stay.
    """
    with contextlib.suppress(StorageFailed, LayerDamaged):
        maps = {digest: read_map(root, digest) for digest in digests}
        needed = {map_path(root, digest) for digest in maps}
        needed |= {list_path(root, blob.digest) for one in maps.values() for blob in one.blobs}
        for directory in ("lists", "maps"):
            for entry in os.scandir(os.path.join(root, directory)):
                if entry.path not in needed and time.time() - entry.stat().st_mtime > _YOUNG_S:
                    os.unlink(entry.path)


def put(path: str, data: bytes) -> None:
    """Puts a file in place as a whole; raises StorageFailed."""
    beside = f"{path}.{secrets.token_hex(4)}.new"
    with storage_errors(f"writing {path}"):
        with open(beside, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.rename(beside, path)
        sync_directory(os.path.dirname(path))


def _read(path: str, bytes_max: int) -> bytes:
    with storage_errors(f"reading {path}"), open(path, "rb") as file:
        data = file.read(bytes_max + 1)
    if len(data) > bytes_max:
        raise LayerDamaged(f"{path} is too long")
    return data
