"""Stored chunks as they come from the store, which is asked again as long as somebody waits for them."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Iterator
from typing import Final, Protocol, runtime_checkable

from skerry.errors import NotFound
from skerry.images.format.chunks import ChunkList
from skerry.images.lazy.stats import Stats
from skerry.images.lazy.waiting import Waiting

_PAUSE_S, _PAUSE_MAX_S = 0.05, 2.0
_CODEC_PART: Final = {"none": "", "zstd": ".zst"}
log = logging.getLogger("skerry.blobs")


class Source(Protocol):
    """Where bytes come from: what is needed of `skerry.images.objects.api.Objects`."""

    def read(self, key: str, offset: int, length: int) -> bytes:
        """Returns a part of an object; blocks; raises NotFound, StorageFailed and others."""


@runtime_checkable
class Streaming(Source, Protocol):
    """A source whose bytes can be had while the rest of them is still on its way."""

    def stream(self, key: str, offset: int, length: int) -> Iterator[bytes]:
        """Gives a part of an object piece by piece; raises as `read` does, also in its midst."""


class Supply:
    """One store; shares the fetcher's lock, and tells those who wait since when it fails."""

    def __init__(
        self,
        source: Source,
        key_of: Callable[[str, str], str],
        stats: Stats,
        waiting: Waiting,
        lock: threading.Lock,
    ) -> None:
        self._source, self._key_of, self._stats = source, key_of, stats
        self._waiting, self._lock = waiting, lock

    def chunks(
        self, name: str, lists: ChunkList, wanted: range, awaited: Callable[[], bool]
    ) -> Iterator[tuple[int, bytes | memoryview]]:
        """Gives chunks of the blob `name` in order, as they are stored, each once it has come.

        Whatever the store gave is given, wrong or short. Ends early if the blob is gone, or when the
        store fails and nobody awaits it. `awaited` is called with the lock held.
        """
        pause, at = _PAUSE_S, wanted.start
        while at < wanted.stop:
            try:
                for stored in self._pieces(name, lists, range(at, wanted.stop)):
                    yield at, stored
                    at += 1
            except NotFound as error:
                log.error("platform fault: sha256:%s: %s", name, error)  # noqa: TRY400
                with self._lock:
                    self._stats.store_failures += 1
                return
            except Exception as error:  # noqa: BLE001 - whatever a client of a store may raise
                if not self._failed(error, awaited):
                    return
                time.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311
                pause = min(pause * 2, _PAUSE_MAX_S)

    def _pieces(self, name: str, lists: ChunkList, wanted: range) -> Iterator[bytes | memoryview]:
        first, last = lists.stored_span(wanted.start), lists.stored_span(wanted.stop - 1)
        key = self._key_of(name, _CODEC_PART[lists.codec])
        length = last.offset + last.length - first.offset
        buffer, at = bytearray(), wanted.start
        for data in self._bytes(key, first.offset, length):
            buffer += data
            while at < wanted.stop and len(buffer) >= (size := lists.stored_span(at).length):
                yield bytes(memoryview(buffer)[:size])
                del buffer[:size]
                at += 1
        for _ in range(at, wanted.stop):  # the stored blob is too short
            yield bytes(buffer)
            buffer.clear()

    def _bytes(self, key: str, offset: int, length: int) -> Iterator[bytes]:
        if isinstance(self._source, Streaming):
            coming = self._source.stream(key, offset, length)
        else:
            coming = iter((self._source.read(key, offset, length),))
        for at, data in enumerate(coming):
            with self._lock:
                self._stats.fetches += not at
                self._stats.fetched_bytes += len(data)
                self._waiting.failing_since = None
            yield data

    def _failed(self, error: Exception, awaited: Callable[[], bool]) -> bool:
        """Takes note; says whether somebody waits who makes another try worth it."""
        with self._lock:
            self._stats.store_failures += 1
            if self._waiting.failing_since is None:
                self._waiting.failing_since = time.monotonic()
                log.warning("the store fails: %s: %s", type(error).__name__, error)
            if not awaited():
                return False
            self._stats.retries += 1
            return True
