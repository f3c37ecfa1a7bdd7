"""Merging consecutive commits into one layer that means on any lowers what they meant, apart.

    python -m skerry.images.commits.flattening         (a MergeJob on standard input, as JSON)

It reads the store by itself, each byte checked, and speaks as `commits.packing` does. Which commits
of a chain are merged is decided by size, so that a chain that grows for ever costs little: the
newest ones, and what lies below them while that is no larger than they are together. Of a thousand
equal commits, at most four left, each byte is so copied 16 times, and not 125.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from skerry.errors import ImageBroken
from skerry.images.archives.tarimport import ImportLimits
from skerry.images.commits.packing import Packed, serve
from skerry.images.format.chunks import Codec
from skerry.images.format.erofs import Log, Tools
from skerry.images.format.pair import build_layer
from skerry.images.objects.directory import DirectoryObjects
from skerry.images.objects.s3_options import S3Options, is_s3
from skerry.images.scratch import Spool
from skerry.images.store.opened import read_layer
from skerry.images.store.restoring import commits_on_top
from skerry.images.store.store import LayerStore
from skerry.images.tree.merge import Collapse
from skerry.spec.layers import LayerManifest

_ALL: Final = 1 << 62


class MergeJob(msgspec.Struct, frozen=True, kw_only=True):
    """What is merged, lowest first, and where it is read from."""

    layers: tuple[LayerManifest, ...]
    store: str
    s3: S3Options | None
    scratch: str  # where the blobs are left
    limits: ImportLimits = ImportLimits()
    compression: str = "none"
    codec: Codec = Codec.NONE
    cache_dir: str = ""
    mkfs: str | None = None


def begin_of_merge(layers: Sequence[LayerManifest], most: int) -> int | None:
    """Returns where to begin merging so that at most `most` commits are left; None: they are few."""
    count = commits_on_top(layers)
    if count <= most:
        return None
    begin = len(layers) - (count - most) - 1
    size = sum(map(_size, layers[begin:]))
    while begin > len(layers) - count and _size(layers[begin - 1]) <= size:
        begin -= 1
        size += _size(layers[begin])
    return begin


def _size(layer: LayerManifest) -> int:
    return layer.size_bytes + layer.data_bytes


def merge_layers(job: MergeJob, tools: Tools, log: Log, store: LayerStore | None = None) -> Packed:
    """Makes the blobs of the merged layer.

    Raises LayerDamaged and StorageFailed for what the store does not give, ImageBroken at a limit.
    """
    store = store or _open(job)
    spool = Spool(job.scratch)
    try:
        merged = Collapse(_ALL)
        for layer in job.layers:
            for part in layer.layers():
                merged.add(read_layer(store, part, job.scratch, spool, job.limits))
                if merged.files() > job.limits.entries_max:
                    raise ImageBroken("the commits hold too many files together", limit="entries")
            log(f"read {layer.name}: {layer.files} files")
        (tree,) = merged.trees
        built = build_layer(
            tree,
            spool,
            job.scratch,
            tools=tools,
            compression=job.compression,
            codec=job.codec,
            log=log,
        )
        return Packed.of(built, tree.count())
    finally:
        spool.close()


def _open(job: MergeJob) -> LayerStore:
    if not is_s3(job.store):
        return LayerStore(DirectoryObjects(job.store))
    from skerry.images.objects.s3 import S3Objects  # large, and of no use otherwise

    return LayerStore(S3Objects(job.store, job.s3))


if __name__ == "__main__":
    serve(MergeJob, lambda job, log: merge_layers(job, Tools(job.cache_dir, job.mkfs), log))
