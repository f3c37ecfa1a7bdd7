"""Chunks from the store: each fetched once for all who wait for it, in ranges, within a bound.

A read that misses becomes a `Waiter`. A `Flight` is one range of chunks on its way; whoever wants one
of them joins it. A range is wider the more often it was missed nearby: who reads one file of a package
reads more of it, and a request costs what a MiB does. Reads come before what is fetched ahead of a
reader, and that before what an earlier run touched; the last two never take all threads, the very last
only a quarter while reads wait, and both become urgent once somebody waits for them.

The store is asked again, with growing pauses, as long as somebody waits. A waiter waits `wait_s` at
most; once the store has failed for that long, others wait only `FAILING_WAIT_S`, until it answers.
A chunk that comes wrong is fetched again, alone; still wrong, it is a fault of the platform: its
readers are told so, and it is logged with its blob's digest and its number.
"""

from __future__ import annotations

import errno
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from skerry.errors import InvalidRequest, LayerDamaged
from skerry.images.lazy.cache import NEAR_BYTES, CachedBlob, ChunkCache
from skerry.images.lazy.habits import merged
from skerry.images.lazy.stats import Stats
from skerry.images.lazy.supply import Source, Supply
from skerry.images.lazy.waiting import Waiter, Waiting

URGENT, AHEAD, EARLIER = 0, 1, 2
_PAUSE_S: Final = 0.05
_JOIN_S: Final = 0.5
_GAP_BYTES: Final = 1 << 20  # fetched along between two parts that an earlier run touched
log = logging.getLogger("skerry.blobs")


@dataclass(frozen=True, kw_only=True)
class FetchConfig:
    """How the store is read."""

    range_bytes: int = 512 << 10  # fetched at once around a first miss, aligned
    range_max_bytes: int = 4 << 20  # after some misses close by; no more than `range_bytes`: never
    ahead_bytes: int = 16 << 20  # fetched ahead of who reads in order, at most; 0: nothing
    ahead_range_bytes: int = 2 << 20  # at once, of that
    threads: int = 12
    wait_s: float = 30.0  # a read's bound
    refetches: int = 2  # of a chunk that came wrong

    def check(self) -> FetchConfig:
        """Returns itself; InvalidRequest."""
        if not 4096 <= self.range_bytes <= 64 << 20 or not 0 <= self.ahead_bytes <= 256 << 20:
            raise InvalidRequest("range_bytes: 4 KiB to 64 MiB; ahead_bytes: at most 256 MiB")
        if (
            not 4096 <= self.ahead_range_bytes <= 64 << 20
            or not 0 <= self.range_max_bytes <= 64 << 20
        ):
            raise InvalidRequest(
                "ahead_range_bytes: 4 KiB to 64 MiB; range_max_bytes: at most 64 MiB"
            )
        if not 1 <= self.threads <= 128 or not 0 <= self.refetches <= 10:
            raise InvalidRequest("threads: 1 to 128; refetches: at most 10")
        if not 0.1 <= self.wait_s <= 600:
            raise InvalidRequest("wait_s: 0.1 to 600 seconds")
        return self


class _Flight:
    """Invariant: under the lock, each of its chunks on its way is in the fetcher's `_flights`."""

    __slots__ = ("blob", "chunks", "rank", "running", "waiting")

    def __init__(self, blob: CachedBlob, chunks: range, rank: int) -> None:
        self.blob, self.chunks, self.rank = blob, chunks, rank
        self.running = False
        self.waiting: dict[int, list[Waiter]] = {}

    def wanted(self) -> bool:
        """Says whether anybody still waits."""
        return any(not one.settled for many in self.waiting.values() for one in many)


class Fetcher:
    """Threads that fetch. `finish` is called in one of them, with 0 or an errno, once a waiter."""

    def __init__(
        self,
        source: Source,
        cache: ChunkCache,
        config: FetchConfig,
        stats: Stats,
        *,
        key_of: Callable[[str, str], str],
        finish: Callable[[Waiter, int], None],
    ) -> None:
        self._cache = cache
        self._config, self._stats = config.check(), stats
        self._lock = threading.Lock()
        self._work = threading.Condition(self._lock)
        self._flights: dict[tuple[int, int], _Flight] = {}
        self._queues: tuple[deque[_Flight], ...] = (deque(), deque(), deque())
        self._running = [0, 0, 0]
        self._most_ahead = max(1, config.threads * 3 // 4)
        self._widest = max(config.range_bytes, config.range_max_bytes)
        self._few = max(1, config.threads // 4)
        self._closing = False
        self.waiting = Waiting(self._lock, stats, config.wait_s, finish)
        self._supply = Supply(source, key_of, stats, self.waiting, self._lock)
        self._threads = [
            threading.Thread(target=self._serve, name=f"fetch-{at}", daemon=True)
            for at in range(config.threads)
        ]

    def start(self) -> None:
        """Starts the threads."""
        self.waiting.start()
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Lets the threads end after what they are at; who waits is told EIO."""
        with self._work:
            self._closing = True
            self._work.notify_all()
        self.waiting.close()
        for thread in self._threads:
            thread.join(_JOIN_S)

    # --- what is wanted ---

    def want(self, waiter: Waiter, missing: Iterable[int]) -> None:
        """Gets what a read misses; `finish` follows within the bound."""
        blob = waiter.blob
        with self._work:
            if self._closing or not self.waiting.add(waiter):
                raise OSError(errno.EIO, "closing")
            alone: list[int] = []
            for chunk in missing:
                if self._cache.is_sure(blob, chunk):
                    continue  # it has just come
                waiter.needs.add(chunk)
                flight = self._flights.get((blob.number, chunk))
                if flight is None:
                    alone.append(chunk)
                else:
                    flight.waiting.setdefault(chunk, []).append(waiter)
                    self._hasten(flight)
            if waiter.needs and not alone:
                self._stats.merged += 1
            for run in self._runs(blob, alone):
                flight = self._add(blob, run, URGENT)
                for chunk in run:
                    if chunk in waiter.needs:
                        flight.waiting.setdefault(chunk, []).append(waiter)
            ready = () if waiter.needs else (waiter,)
        self.waiting.settle(ready, 0)

    def ahead(self, blob: CachedBlob, chunks: Iterable[int], rank: int = AHEAD) -> None:
        """Gets what somebody may want soon, in that order; nothing is told of it."""
        step, gap = self._chunks(blob, self._config.ahead_range_bytes), 0
        if rank == EARLIER:
            step, gap = self._chunks(blob, self._widest), self._chunks(blob, _GAP_BYTES)
        with self._work:
            for run in merged(self._lacking(blob, chunks), step, gap):
                for piece in self._pieces(blob, run):
                    self._add(blob, piece, rank)

    def idle(self) -> bool:
        """Says whether nothing is on its way."""
        with self._lock:
            return not self._flights

    def _chunks(self, blob: CachedBlob, size: int) -> int:
        return max(1, size // blob.chunks.chunk_bytes)

    def _step(self, blob: CachedBlob, chunk: int) -> int:
        """Returns how wide the range around a miss is, and takes note of the miss."""
        near = chunk * blob.chunks.chunk_bytes // NEAR_BYTES
        size = self._config.range_bytes << blob.missed[near]
        if size < self._config.range_max_bytes:
            blob.missed[near] += 1
        return self._chunks(blob, min(size, self._widest))

    def _lacking(self, blob: CachedBlob, chunks: Iterable[int]) -> list[int]:
        return [chunk for chunk in chunks if self._lacks(blob, chunk)]

    def _lacks(self, blob: CachedBlob, chunk: int) -> bool:
        return not self._cache.has(blob, chunk) and (blob.number, chunk) not in self._flights

    def _runs(self, blob: CachedBlob, alone: list[int]) -> list[range]:
        """Widens what is missing to whole ranges, as far as nothing there is here or on its way."""
        runs: list[range] = []
        for chunk in alone:
            if runs and chunk in runs[-1]:
                continue
            start = end = chunk
            step = self._step(blob, chunk)
            low, high = chunk // step * step, min((chunk // step + 1) * step, blob.chunks.count)
            while (
                start > low
                and self._lacks(blob, start - 1)
                and not (runs and start - 1 in runs[-1])
            ):
                start -= 1
            while end + 1 < high and self._lacks(blob, end + 1):
                end += 1
            runs.append(range(start, end + 1))
        return runs

    def _pieces(self, blob: CachedBlob, run: range) -> list[range]:
        """Leaves out of a run what is here or on its way."""
        pieces: list[range] = []
        for chunk in run:
            if not self._lacks(blob, chunk):
                continue
            if pieces and pieces[-1].stop == chunk:
                pieces[-1] = range(pieces[-1].start, chunk + 1)
            else:
                pieces.append(range(chunk, chunk + 1))
        return pieces

    def _add(self, blob: CachedBlob, chunks: range, rank: int) -> _Flight:
        flight = _Flight(blob, chunks, rank)
        for chunk in chunks:
            self._flights[blob.number, chunk] = flight
        self._queues[rank].append(flight)
        self._work.notify()
        return flight

    def _hasten(self, flight: _Flight) -> None:
        if not flight.running and flight.rank != URGENT:
            flight.rank = URGENT
            self._queues[URGENT].append(flight)
            self._work.notify()

    # --- threads ---

    def _serve(self) -> None:
        while True:
            with self._work:
                while (flight := self._next()) is None:
                    if self._closing:
                        return
                    self._work.wait()
                flight.running = True
                rank = flight.rank
                self._running[rank] += 1
            try:
                self._fly(flight)
            except Exception:
                log.exception("fetching %s", flight.blob.name)
            finally:
                with self._work:
                    lost = [one for chunk in flight.chunks for one in self._land(flight, chunk)]
                    self._running[rank] -= 1
                    self._work.notify()
                self.waiting.settle(lost, errno.EIO)

    def _next(self) -> _Flight | None:
        for rank, queue in enumerate(self._queues):
            while queue and (queue[0].running or queue[0].rank != rank):
                queue.popleft()  # another took it, or it became urgent
            if queue and self._may_run(rank) and not self._closing:
                return queue.popleft()
        return None

    def _may_run(self, rank: int) -> bool:
        if rank == URGENT:
            return True
        if rank == EARLIER and self._running[URGENT]:
            return self._running[EARLIER] < self._few
        return self._running[AHEAD] + self._running[EARLIER] < self._most_ahead

    def _fly(self, flight: _Flight) -> None:
        wrong: list[int] = []
        for chunk, stored in self._coming(flight, flight.chunks):
            try:
                self._deliver(flight, chunk, flight.blob.chunks.open_chunk(chunk, stored))
            except LayerDamaged:
                wrong.append(chunk)
        for chunk in wrong:
            self._again(flight, chunk)

    def _coming(self, flight: _Flight, chunks: range) -> Iterator[tuple[int, bytes | memoryview]]:
        blob = flight.blob
        return self._supply.chunks(
            blob.name, blob.chunks, chunks, lambda: not self._closing and flight.wanted()
        )

    def _again(self, flight: _Flight, chunk: int) -> None:
        """Fetches a chunk that came wrong once more, and more often; or gives it up."""
        chunks = flight.blob.chunks
        said = ""
        for tries in range(self._config.refetches + 1):
            with self._lock:
                self._stats.verify_failures += 1
            if tries == self._config.refetches:
                break
            time.sleep(_PAUSE_S * tries)
            came = [stored for _, stored in self._coming(flight, range(chunk, chunk + 1))]
            if not came:
                return
            try:
                self._deliver(flight, chunk, chunks.open_chunk(chunk, came[0]))
            except LayerDamaged as error:
                said = error.message
                continue
            log.warning("chunk %d of %s came wrong once", chunk, flight.blob.name)
            return
        log.error(
            "platform fault: chunk %d of sha256:%s stays wrong after %d fetches: %s",
            chunk, flight.blob.name, self._config.refetches + 1, said,
        )  # fmt: skip
        with self._work:
            waiters = self._land(flight, chunk)
        self.waiting.settle(waiters, errno.EIO)

    def _deliver(self, flight: _Flight, chunk: int, content: bytes | memoryview) -> None:
        kept = self._cache.fill(flight.blob, chunk, content)
        ready: list[Waiter] = []
        with self._work:
            self._stats.fetched_chunks += 1
            self._stats.ahead_chunks += flight.rank == AHEAD
            self._stats.prefetched_chunks += flight.rank == EARLIER
            for waiter in self._land(flight, chunk):
                waiter.needs.discard(chunk)
                if not kept:
                    waiter.held[chunk] = bytes(content)
                if not waiter.needs:
                    ready.append(waiter)
        self.waiting.settle(ready, 0)

    def _land(self, flight: _Flight, chunk: int) -> list[Waiter]:
        """Takes a chunk off the books; returns who waits for it. The lock is held."""
        if self._flights.get((flight.blob.number, chunk)) is flight:
            del self._flights[flight.blob.number, chunk]
        return flight.waiting.pop(chunk, [])
