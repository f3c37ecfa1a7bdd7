"""Packing a snapshot of an open disk into the store; in a process apart, at low priority.

    python -m skerry.images.disks.packing JOB      (a ServiceConfig on standard input, as JSON)

JOB is the path of a `PackJob`; what came of it is written beside it. The overlays it names do not
change any more. The process ends with its standard input.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator

import msgspec

from skerry.errors import SkerryError
from skerry.images.commits.packing import give_way
from skerry.images.disks import state
from skerry.images.disks.config import ServiceConfig, open_store
from skerry.images.disks.local import list_path, map_path, put, read_map
from skerry.images.disks.overlay import BLOCK_BYTES, Overlay
from skerry.images.disks.snapshot import Change, Made, StoreBelow, make, publish
from skerry.images.disks.state import DiskState, PackJob, PackResult
from skerry.images.disks.volume import View, pieces
from skerry.images.format.chunks import CHUNK_BYTES, ChunkList
from skerry.images.format.diskmap import Place
from skerry.images.scratch import scratch_directory
from skerry.images.store.keys import hex_of
from skerry.images.store.store import LayerStore
from skerry.spec.layers import LayerManifest, disk_name

_TAKEN_S, _POLL_S = 60.0, 0.1
_CHUNK_BLOCKS = CHUNK_BYTES // BLOCK_BYTES


class Changes:
    """The chunks that some overlays have, in whole or in part, over a map."""

    def __init__(self, view: View, below: StoreBelow) -> None:
        self._view, self._below = view, below

    def __iter__(self) -> Iterator[Change]:
        following = [0] * len(self._view.overlays)  # the next marked block of each, as far as known
        block, end = 0, self._view.map.count * _CHUNK_BLOCKS
        while True:
            for at, overlay in enumerate(self._view.overlays):
                if following[at] < block or not block:
                    found = overlay.marks.find(1, block)
                    following[at] = end if found < 0 else found
            first = min(following)
            if first >= end:
                return
            chunk = first // _CHUNK_BLOCKS
            yield chunk, self._content(chunk)
            block = (chunk + 1) * _CHUNK_BLOCKS

    def _content(self, chunk: int) -> bytes | None:
        start = chunk * CHUNK_BYTES
        newest = self._view.overlays[0]
        first = chunk * _CHUNK_BLOCKS
        if newest.is_marked(first, first + _CHUNK_BLOCKS) and (
            newest.next_data(start) >= start + CHUNK_BYTES
        ):
            return None  # trimmed
        parts: list[bytes | memoryview] = []
        for piece in pieces(self._view, start, CHUNK_BYTES):
            if piece.overlay is not None:
                parts.append(os.pread(piece.overlay.handle, piece.length, piece.offset))
            elif piece.blob < 0:
                parts.append(bytes(piece.length))
            else:
                content = self._below.read(Place(piece.blob, piece.at // CHUNK_BYTES))
                at = piece.at % CHUNK_BYTES
                parts.append(content[at : at + piece.length])
        return b"".join(parts)


def pack(job: PackJob, config: ServiceConfig, store: LayerStore) -> LayerManifest:
    """Returns the snapshot, which is in the store, pinned for the open disk, and known on this node.

    Raises LayerDamaged, StorageFailed.
    """
    root = config.root
    base = read_map(root, job.base.digest)
    directory = os.path.join(root, "open", state.check_id(job.disk))
    overlays = [Overlay(directory, number, base.size) for number in reversed(job.overlays)]
    below = StoreBelow(store, base, _Cache(root).get)
    pin = config.pin_of(job.disk)
    with scratch_directory(os.path.join(root, "scratch")) as scratch:
        changes = Changes(View(base, tuple(overlays)), below)
        made = make(base, below, changes, scratch, config.blobs_max)
        if made.map.runs == base.runs and made.map.blobs == base.blobs:
            made = Made(base, None, made.data)  # nothing changed: it is the same snapshot
            manifest = msgspec.structs.replace(job.base, name=str(disk_name(job.name)))
            with store.adding(*manifest.blobs()):
                store.publish(manifest)
        else:
            name = disk_name(job.name)
            manifest = publish(store, name, made, job.base, creator="snapshot", pin=pin)
    put(map_path(root, manifest.digest), made.map.encode())
    if made.chunks is not None:
        put(list_path(root, made.chunks.content_digest), made.chunks.encode())
    return manifest


def unpin_others(store: LayerStore, config: ServiceConfig, disk: str) -> None:
    """Lets go of all that is pinned for an open disk, but what it is based on now."""
    pin = config.pin_of(disk)
    pinned = [one.digest for one in store.pins() if one.why == pin]
    try:
        path = os.path.join(config.root, "open", disk, "disk.json")
        needed = state.load(path, DiskState).manifest.digest
    except FileNotFoundError:
        needed = None  # it was closed meanwhile
    for digest in pinned:
        if digest != needed:
            store.unpin(digest, pin)


class _Cache:
    """Chunks of the node's cache, each checked before it is believed: another process owns them."""

    def __init__(self, root: str) -> None:
        self._directory = os.path.join(root, "chunks")
        self._handles: dict[str, int] = {}

    def get(self, digest: str, chunks: ChunkList, chunk: int) -> bytes | None:
        """Returns a chunk if it is there."""
        if digest not in self._handles:
            try:
                path = os.path.join(self._directory, hex_of(digest))
                self._handles[digest] = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            except OSError:
                return None
        span = chunks.span(chunk)
        content = os.pread(self._handles[digest], span.length, span.offset)
        return content if chunks.holds(chunk, content) else None


def main() -> None:
    """Packs what the job says, and writes down what came of it."""
    give_way()
    path = sys.argv[1]
    config = msgspec.json.decode(sys.stdin.buffer.readline(), type=ServiceConfig)
    threading.Thread(target=_end_with_input, daemon=True).start()
    try:
        store = open_store(config.store, config.s3)
        try:
            _work(path, config, store)
        finally:
            store.leases.drop()
    except SkerryError as error:
        _tell(path, PackResult(error=(error.code, error.message)))
    except OSError as error:
        _tell(path, PackResult(error=("storage_failed", f"packing a snapshot: {error}")))


def _work(path: str, config: ServiceConfig, store: LayerStore) -> None:
    job = state.load(path, PackJob)
    manifest = pack(job, config, store)
    _tell(path, PackResult(manifest=manifest))
    # The service takes the job away when the disk is based on the snapshot.
    until = time.monotonic() + _TAKEN_S
    while os.path.exists(path) and time.monotonic() < until:
        time.sleep(_POLL_S)
    if not os.path.exists(path):
        unpin_others(store, config, job.disk)


def _tell(path: str, result: PackResult) -> None:
    if os.path.exists(path):
        state.save(f"{path}.done", result)


def _end_with_input() -> None:
    while os.read(0, 1 << 16):
        pass
    os._exit(1)


if __name__ == "__main__":
    main()
