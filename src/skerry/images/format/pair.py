"""Making the blobs of a layer: a small one with all metadata, and one with the files' bytes.

The metadata blob is an EROFS image with one extra device, the data blob. The tag of that device's
slot holds the 64 digits of the data blob's content digest (`skerry.images.format.chunks`). So the sha256
of the metadata blob, the layer's digest, stands for every byte:

    layer's digest -> metadata blob -> tag -> chunk list -> bytes

A layer is one blob, without a data blob, where apart is not worth it or not possible: files of at
most one chunk together, or of at most 32 MiB that blocks would more than double (one blob has short
files and ends of files beside their inodes); compression inside EROFS. Those mkfs.erofs makes.

A pair is made here, each byte read once (`placing`, then `erofswrite`): mkfs.erofs copied each twice.
Files are placed in units of 64 KiB (equal units of a layer are stored once), the last one of a
file in blocks of 4 KiB. Measured on the Debian 12 base: docs/adr says why not 4 KiB.
"""

from __future__ import annotations

import hashlib
import os
import re
import struct
import time
from typing import IO, Final, NamedTuple

from skerry.errors import LayerDamaged
from skerry.images.format.chunks import CHUNK_BYTES, ChunkList, Codec
from skerry.images.format.erofs import MAGIC, Log, Tools, build_image
from skerry.images.format.erofswrite import SLOT_BYTES, SUPERBLOCK, write_metadata
from skerry.images.format.placing import BLOCK_BITS, BLOCK_BYTES, DataWriter, Extents
from skerry.images.scratch import Contents, storage_errors
from skerry.images.tree.entry import Tree

_CHECKSUM_FEATURE: Final = 1
_TAG_BYTES: Final = 64
_PROGRESS_S: Final = 5.0
_CROWDED_BYTES_MAX: Final = 32 << 20
_TAG: Final = re.compile(rb"[0-9a-f]{64}")


class BuiltLayer(NamedTuple):
    """The blobs of a layer as files in the directory where they were made; not synced."""

    path: str
    digest: str
    size_bytes: int
    data: str | None = None  # the data blob as it is stored
    chunks: ChunkList | None = None


class _Device(NamedTuple):
    """Where a metadata blob names its data blob."""

    tag_at: int
    tag: bytes
    blocks: int


def build_layer(
    tree: Tree,
    spool: Contents,
    directory: str,
    *,
    tools: Tools,
    compression: str = "none",
    codec: Codec = Codec.NONE,
    log: Log = lambda _line: None,
) -> BuiltLayer:
    """Makes the blobs of a tree in `directory`.

    Equal trees give equal bytes (one blob: with an equal mkfs.erofs); the codec changes only how
    the data blob is stored, no digest. Raises as `build_image` does.
    """
    path = os.path.join(directory, "metadata")
    why = _why_one_blob(tree, compression)
    if why is None:
        stored = os.path.join(directory, "data.zst" if codec is Codec.ZSTD else "data")
        chunks = write_pair(tree, spool, path, stored, codec=codec, log=log)
        return BuiltLayer(path, *_measure(path), stored, chunks)
    if why:
        log(f"note: the layer is one blob, which has to be fetched whole: {why}")
    build_image(tree, spool, path, tools=tools, scratch=directory, compression=compression, log=log)
    return BuiltLayer(path, *_measure(path))


def write_pair(
    tree: Tree,
    spool: Contents,
    path: str,
    stored: str,
    *,
    codec: Codec = Codec.NONE,
    log: Log = lambda _line: None,
) -> ChunkList:
    """Writes both blobs of a tree to new files; returns the chunk list of the data blob.

    Raises ImageBroken for what EROFS cannot hold or a file that changes, StorageFailed if the disk
    is full.
    """
    extents: dict[int, Extents] = {}
    told = time.monotonic()
    with DataWriter(stored, codec) as data:
        for entry in tree.entries(spool):
            if entry.data is None or entry.size == 0:
                continue
            extents[id(entry.node)] = data.add(entry.size, entry.data(), entry.path)
            if time.monotonic() - told >= _PROGRESS_S:
                told = time.monotonic()
                log(f"packing: {data.size >> 20} MiB")
        chunks = data.finish()
    write_metadata(path, tree, extents, chunks)
    return chunks


def data_digest_of(path: str) -> str | None:
    """Returns the content digest of the data blob that a metadata blob names; None: it has none.

    Raises LayerDamaged if the file is no metadata blob of ours, StorageFailed if it cannot be read.
    """
    with storage_errors(f"reading {path}"), open(path, "rb") as file:
        return data_digest_in(file, path)


def data_digest_in(file: IO[bytes], name: str) -> str | None:
    """Returns the same of an open metadata blob; `name` is for the message."""
    device = _device(file, name)
    if device is None:
        return None
    if _TAG.fullmatch(device.tag) is None:
        raise LayerDamaged(f"{name} does not say which data blob belongs to it")
    return f"sha256:{device.tag.decode()}"


def _why_one_blob(tree: Tree, compression: str) -> str | None:
    """Returns None for two blobs, else a reason to tell, which may be empty."""
    if compression != "none":
        return f"{compression} inside it"
    total = waste = 0
    for size in tree.content_sizes():
        total += size
        waste += -size % BLOCK_BYTES
    small = total <= CHUNK_BYTES or (total <= _CROWDED_BYTES_MAX and waste > total)
    return "" if small else None


def _measure(path: str) -> tuple[str, int]:
    digest = hashlib.sha256()
    with storage_errors("reading back an image"), open(path, "rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
        return f"sha256:{digest.hexdigest()}", file.tell()


def _device(file: IO[bytes], path: str) -> _Device | None:
    """Returns the one extra device of a metadata blob, None if there is none."""
    head = file.read(SUPERBLOCK + 128)
    if len(head) != SUPERBLOCK + 128 or struct.unpack_from("<I", head, SUPERBLOCK)[0] != MAGIC:
        raise LayerDamaged(f"{path} is no EROFS image")
    features, bits = struct.unpack_from("<IB", head, SUPERBLOCK + 8)
    count, slot = struct.unpack_from("<HH", head, SUPERBLOCK + 86)
    if count == 0:
        return None
    # A checksum would cover the tag, which is written after it was made.
    if count != 1 or bits != BLOCK_BITS or features & _CHECKSUM_FEATURE:
        raise LayerDamaged(f"{path} is no metadata blob of a layer")
    at = slot * SLOT_BYTES
    file.seek(at)
    raw = file.read(SLOT_BYTES)
    if at < SUPERBLOCK + 128 or len(raw) != SLOT_BYTES:
        raise LayerDamaged(f"{path} names a data blob where there is nothing")
    return _Device(at, raw[:_TAG_BYTES], struct.unpack_from("<I", raw, _TAG_BYTES)[0])
