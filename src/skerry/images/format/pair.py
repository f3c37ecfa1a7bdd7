"""Making the blobs of a layer: a small one with all metadata, and one with the files' bytes.

The metadata blob is an EROFS image with one extra device, the data blob. The tag of that device's
slot holds the 64 digits of the data blob's content digest (`skerry.images.format.chunks`). So the sha256
of the metadata blob, the layer's digest, stands for every byte:

    layer's digest -> metadata blob -> tag -> chunk list -> bytes

A layer is one blob, without a data blob, where apart is not worth it or not possible: files of at
most one chunk together, or of at most 32 MiB that blocks would more than double (one blob has short
files and ends of files beside their inodes); compression inside EROFS; a mkfs.erofs older than 1.8.

Files are placed in units of 64 KiB (equal units of a layer are stored once), the last one of a
file in blocks of 4 KiB. Measured on the Debian 12 base: docs/adr says why not 4 KiB.
"""

from __future__ import annotations

import hashlib
import os
import re
import struct
from typing import IO, Final, NamedTuple

from skerry.errors import LayerDamaged, StorageFailed
from skerry.images.format.chunks import CHUNK_BYTES, ChunkList, Codec, build_list
from skerry.images.format.erofs import MAGIC, Log, Tools, build_image
from skerry.images.scratch import Contents, storage_errors
from skerry.images.tree.entry import Tree

UNIT_BYTES: Final = 64 << 10
_SUPERBLOCK: Final = 1024
_CHECKSUM_FEATURE: Final = 1
_SLOT_BYTES: Final = 128
_TAG_BYTES: Final = 64
_BLOCK_BITS: Final = 12
_BLOCK_BYTES: Final = 1 << _BLOCK_BITS
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

    Equal trees and an equal mkfs.erofs give equal bytes; the codec changes only how the data blob
    is stored, no digest. Raises as `build_image` does.
    """
    path, data = os.path.join(directory, "metadata"), os.path.join(directory, "data")
    why = _why_one_blob(tree, tools, compression)
    if why is None:
        build_image(
            tree, spool, path, tools=tools, scratch=directory, data=(data, UNIT_BYTES), log=log
        )
        stored = f"{data}.zst" if codec is Codec.ZSTD else None
        chunks = build_list(data, stored)
        if stored is not None:
            os.unlink(data)
        _write_tag(path, chunks)
        return BuiltLayer(path, *_measure(path), stored or data, chunks)
    if why:
        log(f"note: the layer is one blob, which has to be fetched whole: {why}")
    build_image(tree, spool, path, tools=tools, scratch=directory, compression=compression, log=log)
    return BuiltLayer(path, *_measure(path))


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


def _why_one_blob(tree: Tree, tools: Tools, compression: str) -> str | None:
    """Returns None for two blobs, else a reason to tell, which may be empty."""
    if compression != "none":
        return f"{compression} inside it"
    if not tools.mkfs().reads_tar:
        return f"{tools.mkfs().path} is older than 1.8; 'make setup' builds a newer one"
    total = waste = 0
    for size in tree.content_sizes():
        total += size
        waste += -size % _BLOCK_BYTES
    small = total <= CHUNK_BYTES or (total <= _CROWDED_BYTES_MAX and waste > total)
    return "" if small else None


def _measure(path: str) -> tuple[str, int]:
    digest = hashlib.sha256()
    with storage_errors("reading back an image"), open(path, "rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
        return f"sha256:{digest.hexdigest()}", file.tell()


def _write_tag(path: str, chunks: ChunkList) -> None:
    with storage_errors("finishing an image"), open(path, "r+b") as file:
        device = _device(file, path)
        if (
            device is None
            or device.tag != bytes(_TAG_BYTES)
            or device.blocks << _BLOCK_BITS != chunks.size
        ):
            raise StorageFailed("mkfs.erofs left a metadata blob that does not fit its data blob")
        file.seek(device.tag_at)
        file.write(chunks.content_digest.removeprefix("sha256:").encode())


def _device(file: IO[bytes], path: str) -> _Device | None:
    """Returns the one extra device of a metadata blob, None if there is none."""
    head = file.read(_SUPERBLOCK + 128)
    if len(head) != _SUPERBLOCK + 128 or struct.unpack_from("<I", head, _SUPERBLOCK)[0] != MAGIC:
        raise LayerDamaged(f"{path} is no EROFS image")
    features, bits = struct.unpack_from("<IB", head, _SUPERBLOCK + 8)
    count, slot = struct.unpack_from("<HH", head, _SUPERBLOCK + 86)
    if count == 0:
        return None
    # A checksum would cover the tag, which is written after it was made.
    if count != 1 or bits != _BLOCK_BITS or features & _CHECKSUM_FEATURE:
        raise LayerDamaged(f"{path} is no metadata blob of a layer")
    at = slot * _SLOT_BYTES
    file.seek(at)
    raw = file.read(_SLOT_BYTES)
    if at < _SUPERBLOCK + 128 or len(raw) != _SLOT_BYTES:
        raise LayerDamaged(f"{path} names a data blob where there is nothing")
    return _Device(at, raw[:_TAG_BYTES], struct.unpack_from("<I", raw, _TAG_BYTES)[0])
