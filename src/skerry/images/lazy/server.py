"""The file system: threads that take requests from /dev/fuse and answer them.

    /HEX    the content of the data blob of that name; whether it exists the chunk lists say

A read whose chunks are here is answered at once by the thread that took it. Any other waits in
`fetch`, and no thread waits with it. The session may be one that an earlier process served: what that
one had taken and not answered is asked for again.
"""

from __future__ import annotations

import errno
import logging
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from skerry.errors import InvalidRequest
from skerry.images.format.chunks import ChunkList
from skerry.images.lazy import protocol
from skerry.images.lazy.cache import CachedBlob, ChunkCache
from skerry.images.lazy.catalog import Catalog
from skerry.images.lazy.fetch import EARLIER, Fetcher
from skerry.images.lazy.habits import Habits
from skerry.images.lazy.loop import FuseLoop
from skerry.images.lazy.pipes import FileFailed
from skerry.images.lazy.protocol import Op, Request
from skerry.images.lazy.stats import Stats
from skerry.images.lazy.waiting import Waiter

log = logging.getLogger("skerry.blobs")


@dataclass(frozen=True, kw_only=True)
class ServerConfig:
    """How requests are served."""

    threads: int = 3
    # Told to the kernel (Linux 6.15), which ends the session if a request is not answered for so
    # long: only when this process is gone and nobody starts another. 0: never.
    request_timeout_s: int = 300

    def check(self) -> ServerConfig:
        """Returns itself; InvalidRequest."""
        if not 1 <= self.threads <= 64 or not 0 <= self.request_timeout_s <= 65_535:
            raise InvalidRequest("server threads: 1 to 64; request_timeout_s: at most 65535")
        return self


@dataclass(slots=True)
class Mounted:
    """A blob that the kernel knows."""

    name: str
    chunks: ChunkList
    cached: CachedBlob
    habits: Habits


class Profiles(Protocol):
    """What is known of first runs."""

    def habits(self, name: str, chunks: ChunkList) -> Habits:
        """Returns the habits of a blob that is now mounted."""

    def earlier(self, name: str, chunks: ChunkList) -> list[int]:
        """Returns what an earlier run touched, in its order."""


class Server(FuseLoop):
    """Serves one session until it ends, or `close`."""

    def __init__(
        self,
        fuse: int,
        catalog: Catalog,
        cache: ChunkCache,
        profiles: Profiles,
        *,
        config: ServerConfig,
        stats: Stats,
        fetcher_of: Callable[[Callable[[Waiter, int], None]], Fetcher],
    ) -> None:
        super().__init__(fuse, config.check().threads, log, protocol.REQUEST_BYTES_MAX)
        self._catalog, self._cache, self._profiles = catalog, cache, profiles
        self._config, self._stats = config, stats
        self._fetcher = fetcher_of(self._finish)
        self._counting = threading.Lock()
        self._mounted: dict[int, Mounted] = {}
        self._table: dict[int, Callable[[Request], None]] = {
            Op.LOOKUP: self._lookup,
            Op.GETATTR: self._getattr,
            Op.OPEN: lambda request: self._answer(request.unique, protocol.open_out()),
            Op.READ: self._read,
            Op.STATFS: lambda request: self._answer(request.unique, protocol.statfs_out()),
            Op.RELEASE: lambda request: self._answer(request.unique),
            Op.FLUSH: lambda request: self._answer(request.unique),
            Op.DESTROY: lambda request: self._answer(request.unique),
            Op.INIT: self._init,
            Op.INTERRUPT: self._interrupt,
            Op.FORGET: lambda request: self._forget([request.node]),
            Op.BATCH_FORGET: lambda request: self._forget(protocol.batch_forget_in(request.body)),
        }

    def start(self) -> None:
        """Takes over what another process left unanswered, and serves from now on."""
        self._fetcher.start()
        self._start_serving()

    def close(self) -> None:
        """Tells all who wait EIO, and ends the threads, but those that wait for the kernel or store."""
        self.ended.set()
        self._fetcher.close()
        self._stop_serving()

    def mounted(self) -> list[Mounted]:
        """Returns what the kernel knows now."""
        with self._lock:
            return list(self._mounted.values())

    def gauges(self) -> dict[str, float]:
        """Returns what stands now, beside what `Stats` counts."""
        return {
            "blobs": len(self._mounted),
            "waiting": len(self._fetcher.waiting),
            "cached_bytes": self._cache.used,
            "store_failing": float(self._fetcher.waiting.failing_since is not None),
        }

    def _handle(self, request: Request) -> None:
        self._table.get(request.op, self._unknown)(request)

    # --- names ---

    def _init(self, request: Request) -> None:
        answer = protocol.init_out(request.body, self._config.request_timeout_s)
        if not answer:
            log.error("this kernel's FUSE is too old: Linux 5.4 or newer is needed")
            self._refuse(request.unique, errno.EPROTO)
            return
        self._answer(request.unique, answer)

    def _lookup(self, request: Request) -> None:
        name = bytes(request.body).rstrip(b"\0").decode("ascii", "replace")
        found = self._catalog.find(name) if request.node == protocol.ROOT else None
        if found is None:
            self._refuse(request.unique, errno.ENOENT)
            return
        node, chunks = found
        blob = self._mount(node, name, chunks)
        self._answer(request.unique, protocol.entry_out(node, chunks.size))
        earlier = self._profiles.earlier(name, chunks)
        if earlier:
            self._fetcher.ahead(blob.cached, earlier, EARLIER)

    def _mount(self, node: int, name: str, chunks: ChunkList) -> Mounted:
        with self._lock:
            known = self._mounted.get(node)
            if known is None:
                cached = self._cache.open(name, chunks)
                known = Mounted(name, chunks, cached, self._profiles.habits(name, chunks))
                self._mounted[node] = known
            return known

    def _blob(self, node: int) -> Mounted | None:
        blob = self._mounted.get(node)
        if blob is not None:
            return blob
        found = self._catalog.by_node(node)  # an earlier process was asked for its name
        return None if found is None else self._mount(node, *found)

    def _getattr(self, request: Request) -> None:
        size = 0
        if request.node != protocol.ROOT:
            blob = self._blob(request.node)
            if blob is None:
                self._refuse(request.unique, errno.EIO)
                return
            size = blob.chunks.size
        self._answer(request.unique, protocol.attr_out(request.node, size))

    def _forget(self, nodes: list[int]) -> None:
        for node in nodes:
            with self._lock:
                blob = self._mounted.pop(node, None)
                if blob is not None:
                    self._cache.close(blob.name)
            self._catalog.forget(node)

    def _interrupt(self, request: Request) -> None:
        self._fetcher.waiting.interrupt(protocol.interrupt_in(request.body))

    def _unknown(self, request: Request) -> None:
        self._refuse(request.unique, errno.ENOSYS)

    # --- reads ---

    def _read(self, request: Request) -> None:
        blob = self._blob(request.node)
        offset, length = protocol.read_in(request.body)
        if blob is None:
            log.error("platform fault: there is no chunk list for node %x", request.node)
            self._refuse(request.unique, errno.EIO)
            return
        wanted = blob.chunks.touched(offset, length)
        if not wanted:
            self._answer(request.unique)
            return
        length = min(length, blob.chunks.size - offset)
        missing = self._give(request.unique, blob.cached, offset, length, wanted)
        if missing:
            waiter = Waiter(request.unique, blob.cached, offset, length, wanted)
            self._wait(waiter, missing)
        else:
            self._count(length, hit=True)
        ahead = blob.habits.seen(wanted)
        if ahead:
            self._fetcher.ahead(blob.cached, ahead)

    def _give(
        self, unique: int, cached: CachedBlob, offset: int, length: int, wanted: range
    ) -> list[int]:
        """Answers from the cache; returns what is missing there, and then has not answered."""
        missing = self._cache.take(cached, wanted)
        if missing:
            return missing
        try:
            self._conveyor().send(protocol.head(unique, length), cached.handle, offset, length)
        except FileFailed as error:
            log.error("the chunk cache of %s: %s", cached.name, error)  # noqa: TRY400
            self._cache.drop(cached, wanted)
            return list(wanted)
        except OSError as error:
            self._unsent(error)
        finally:
            self._cache.release(cached, wanted)
        return []

    def _wait(self, waiter: Waiter, missing: list[int]) -> None:
        try:
            self._fetcher.want(waiter, missing)
        except OSError:
            self._finish(waiter, errno.EIO)

    def _finish(self, waiter: Waiter, error: int) -> None:
        """Answers a read whose chunks came, or did not; called once each time that it waited."""
        if error:
            self._refuse(waiter.unique, error)
            self._count(0, hit=False, fault=error == errno.EIO)
            return
        if waiter.held:
            missing = self._give_held(waiter)
        else:
            missing = self._give(
                waiter.unique, waiter.blob, waiter.offset, waiter.length, waiter.wanted
            )
        if missing:  # gone again already: the cache is too small for what is read at once
            self._wait(waiter, missing)
        else:
            self._count(waiter.length, hit=False)

    def _give_held(self, waiter: Waiter) -> list[int]:
        parts: list[bytes] = []
        missing: list[int] = []
        for chunk in waiter.wanted:
            held = waiter.held.get(chunk)
            if held is None:
                one = range(chunk, chunk + 1)
                if self._cache.take(waiter.blob, one):
                    missing.append(chunk)
                    continue
                try:
                    span = waiter.blob.chunks.span(chunk)
                    held = os.pread(waiter.blob.handle, span.length, span.offset)
                finally:
                    self._cache.release(waiter.blob, one)
                waiter.held[chunk] = held
            parts.append(held)
        if not missing:
            start = waiter.offset - waiter.blob.chunks.span(waiter.wanted.start).offset
            self._answer(waiter.unique, b"".join(parts)[start : start + waiter.length])
        return missing

    def _count(self, length: int, *, hit: bool, fault: bool = False) -> None:
        with self._counting:
            self._stats.reads += 1
            self._stats.read_bytes += length
            self._stats.hits += hit
            self._stats.misses += not hit
            self._stats.faults += fault
