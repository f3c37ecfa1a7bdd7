"""The data blobs below open disks: what is in the chunk cache, and what has to be fetched."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from skerry.images.disks.local import read_list
from skerry.images.disks.volume import Piece
from skerry.images.format.chunks import CHUNK_BYTES
from skerry.images.format.diskmap import DiskMap
from skerry.images.lazy.cache import CachedBlob, ChunkCache
from skerry.images.lazy.fetch import FetchConfig, Fetcher
from skerry.images.lazy.habits import Habits
from skerry.images.lazy.waiting import Waiter
from skerry.images.store.keys import hex_of

log = logging.getLogger("skerry.disks")

Missing = dict[CachedBlob, list[int]]
Held = dict[tuple[str, int], bytes]  # chunks that the cache had no room for, by blob and number


@dataclass(slots=True)
class Taken:
    """Chunks that stay in the cache for a while; or what is missing, and then none stays."""

    missing: Missing = field(default_factory=dict)
    held: bool = False  # some are not in the cache
    pinned: list[tuple[CachedBlob, range]] = field(default_factory=list)


class Blobs:
    """For many threads. `root` has their chunk lists."""

    def __init__(
        self,
        root: str,
        cache: ChunkCache,
        config: FetchConfig,
        fetcher_of: Callable[[Callable[[Waiter, int], None]], Fetcher],
    ) -> None:
        self._root, self._cache, self._config, self._fetcher_of = root, cache, config, fetcher_of
        self._lock = threading.Lock()
        self._open: dict[str, tuple[CachedBlob, Habits]] = {}
        self._fetcher: Fetcher | None = None

    def start(self, finish: Callable[[Waiter, int], None]) -> None:
        """Fetches from now on; `finish` is told of each waiter, once."""
        self._fetcher = self._fetcher_of(finish)
        self._fetcher.start()

    def close(self) -> None:
        """Whoever waits is told EIO."""
        if self._fetcher is not None:
            self._fetcher.close()

    def use(self, disk: DiskMap) -> None:
        """Makes the blobs of a map ready; raises StorageFailed, LayerDamaged."""
        for blob in disk.blobs:
            name = hex_of(blob.digest)
            with self._lock:
                if name in self._open:
                    continue
                cached = self._cache.open(name, read_list(self._root, blob.digest))
                habits = Habits(
                    cached.chunks.count,
                    first=max(1, self._config.range_bytes // CHUNK_BYTES),
                    longest=self._config.ahead_bytes // CHUNK_BYTES,
                    record_s=0.0,
                )
                self._open[name] = (cached, habits)

    def keep(self, disks: Iterable[DiskMap]) -> None:
        """Lets go of the blobs that none of these maps names; what is cached of them stays."""
        needed = {hex_of(blob.digest) for disk in disks for blob in disk.blobs}
        with self._lock:
            for name in set(self._open) - needed:
                del self._open[name]
                self._cache.close(name)

    def fill(self, name: str, chunk: int, content: bytes) -> None:
        """Keeps a chunk that is here anyway; nothing happens if it is not the blob's."""
        cached = self._open[name][0]
        if cached.chunks.holds(chunk, content):
            self._cache.fill(cached, chunk, content)

    # --- reading ---

    @contextlib.contextmanager
    def taking(
        self, disk: DiskMap, pieces: Iterable[Piece], held: Held, *, ahead: bool = True
    ) -> Iterator[Taken]:
        """Gives what of some pieces is in the cache; within the block it stays there.

        With `ahead` what a reader may want next is fetched.
        """
        taken = Taken()
        try:
            for piece in pieces:
                if piece.blob >= 0:
                    self._take(disk, piece, held, taken)
                    if ahead:
                        self._look_ahead(disk, piece)
            yield taken
        finally:
            for cached, wanted in taken.pinned:
                self._cache.release(cached, wanted)

    def _take(self, disk: DiskMap, piece: Piece, held: Held, taken: Taken) -> None:
        cached, _ = self._blob(disk, piece)
        wanted = cached.chunks.touched(piece.at, piece.length)
        alone = [chunk for chunk in wanted if (cached.name, chunk) in held]
        for part in _without(wanted, alone):
            missing = self._cache.take(cached, part)
            if missing:
                taken.missing.setdefault(cached, []).extend(missing)
            else:
                taken.pinned.append((cached, part))
        taken.held = taken.held or bool(alone)

    def _look_ahead(self, disk: DiskMap, piece: Piece) -> None:
        cached, habits = self._blob(disk, piece)
        ahead = habits.seen(cached.chunks.touched(piece.at, piece.length))
        if ahead and self._fetcher is not None:
            self._fetcher.ahead(cached, ahead)

    def handle(self, disk: DiskMap, piece: Piece) -> int:
        """Returns the file of a piece's blob; only within `taking`."""
        return self._blob(disk, piece)[0].handle

    def content(self, disk: DiskMap, piece: Piece, held: Held) -> bytes:
        """Returns the bytes of a piece, wherever they are; of a blob only within `taking`.

        Raises OSError if a local file has not what it had.
        """
        if piece.overlay is not None:
            data = os.pread(piece.overlay.handle, piece.length, piece.offset)
        elif piece.blob < 0:
            data = bytes(piece.length)
        else:
            cached, _ = self._blob(disk, piece)
            ends = range(piece.at, piece.at + piece.length)
            data = b"".join(
                _chunk_part(cached, chunk, ends, held)
                for chunk in cached.chunks.touched(piece.at, piece.length)
            )
        if len(data) != piece.length:
            raise OSError(errno.EIO, "a local file is shorter than it was")
        return data

    def failed(self, disk: DiskMap, piece: Piece, error: OSError) -> Missing:
        """A local file cannot be read: cached chunks are fetched again. Raises it for an overlay."""
        if piece.blob < 0:
            raise error
        cached, _ = self._blob(disk, piece)
        log.error("the chunk cache of %s: %s", cached.name, error)
        wanted = cached.chunks.touched(piece.at, piece.length)
        self._cache.drop(cached, wanted)
        return {cached: list(wanted)}

    # --- waiting ---

    def want(self, waiter: Waiter, chunks: list[int]) -> None:
        """Gets what is missing; raises OSError at the end of everything."""
        if self._fetcher is None:
            raise OSError("not started")
        self._fetcher.want(waiter, chunks)

    def interrupt(self, number: int) -> None:
        """Breaks off a wait."""
        if self._fetcher is not None:
            self._fetcher.waiting.interrupt(number)

    def _blob(self, disk: DiskMap, piece: Piece) -> tuple[CachedBlob, Habits]:
        name = hex_of(disk.blobs[piece.blob].digest)
        found = self._open.get(name)
        if found is None:  # it was let go of when a snapshot took its place, and a read came late
            self.use(disk)
            found = self._open[name]
        return found


def _chunk_part(cached: CachedBlob, chunk: int, wanted: range, held: Held) -> bytes:
    """Returns what a chunk has of a range of its blob."""
    first = chunk * CHUNK_BYTES
    start, stop = max(first, wanted.start), min(first + CHUNK_BYTES, wanted.stop)
    content = held.get((cached.name, chunk))
    if content is None:
        return os.pread(cached.handle, stop - start, start)
    return content[start - first : stop - first]


def _without(wanted: range, alone: list[int]) -> Iterator[range]:
    """Gives what is left of a range without some of its numbers."""
    start = wanted.start
    for number in alone:
        if start < number:
            yield range(start, number)
        start = number + 1
    if start < wanted.stop:
        yield range(start, wanted.stop)
