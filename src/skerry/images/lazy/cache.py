"""Chunks of data blobs on this host's disk, bounded, and safe against every kind of crash.

    ROOT/lock    locked by the process that writes here
    ROOT/HEX     the content of the data blob of that name; what is not here is a hole

The holes are the only record of what is here, so no record can be wrong: there is nothing to sync,
and a crash at any moment leaves chunks that are here, in part, or not. A chunk counts as the blob's
once this process has written it after checking it, or has read it back and checked it (`SURE`).
What an earlier process left is `UNSURE` until its first read.

Room is made by punching out the segments (4 MiB) that were not read for longest. A segment that is
being read from or written to is never punched.
"""

from __future__ import annotations

import fcntl
import os
import re
import threading
import time
from collections import Counter, OrderedDict
from typing import Final

from skerry.errors import Conflict, StorageFailed
from skerry.images.format.chunks import ChunkList
from skerry.images.lazy.stats import Stats
from skerry.images.sparse import extents, punch

SEGMENT_BYTES: Final = 4 << 20  # no smaller than the largest chunk
MAX_BYTES_MIN: Final = 64 << 20
NEAR_BYTES: Final = 64 << 20  # parts of a blob whose misses are counted together
_ABSENT, _UNSURE, _SURE, _FILLING = 0, 1, 2, 3
_NAME: Final = re.compile(r"[0-9a-f]{64}")
_LOOK_S: Final = 1.0


class CachedBlob:
    """One blob's file. The cache alone changes it, under its lock; but `missed` is the fetcher's."""

    __slots__ = (
        "busy", "chunks", "closed", "handle", "missed", "name", "number", "per_segment", "states"
    )  # fmt: skip

    def __init__(self, name: str, number: int, handle: int, chunks: ChunkList) -> None:
        self.name, self.number, self.handle, self.chunks = name, number, handle, chunks
        self.states = bytearray(chunks.count)
        self.per_segment = SEGMENT_BYTES // chunks.chunk_bytes
        self.busy = 0  # who uses the handle
        self.closed = False
        self.missed = bytearray(chunks.size // NEAR_BYTES + 1)

    def key(self, chunk: int) -> int:
        """Returns the number of the segment of a chunk, over all blobs."""
        return self.number << 24 | chunk // self.per_segment


class ChunkCache:
    """For many threads. Invariant: `used` is the sum of `_segments`, and at most `max_bytes`."""

    def __init__(
        self, directory: int, stats: Stats, *, max_bytes: int, free_min_bytes: int
    ) -> None:
        """Takes over what is there; Conflict if another process has it, StorageFailed."""
        self._directory, self._stats = directory, stats
        self.max_bytes, self._free_min = max_bytes, free_min_bytes
        self._lock = threading.Lock()
        self._segments: OrderedDict[int, int] = OrderedDict()  # bytes here; least used first
        self._pins: dict[int, int] = {}
        self._punching: set[int] = set()
        self._per_blob: Counter[int] = Counter()  # segments here
        self._names: list[str] = []
        self._numbers: dict[str, int] = {}
        self._open: dict[str, CachedBlob] = {}
        self._full_until = 0.0
        self._looked = 0.0
        self.used = 0
        self._turn = os.open("lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600, dir_fd=directory)
        try:
            fcntl.flock(self._turn, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._turn)
            raise Conflict("another process has the chunk cache") from None
        self._try_punching()
        self._scan()

    # --- blobs ---

    def open(self, name: str, chunks: ChunkList) -> CachedBlob:
        """Returns the file of a blob, made if it is not there; StorageFailed."""
        with self._lock:
            found = self._open.get(name)
            if found is not None:
                return found
            number = self._number(name)
            try:
                handle = _open_file(self._directory, name, chunks.size)
                blob = CachedBlob(name, number, handle, chunks)
                self._recognise(blob)
            except OSError as error:
                raise StorageFailed(f"the chunk cache: {error}", errno=error.errno) from error
            self._open[name] = blob
            return blob

    def close(self, name: str) -> None:
        """Lets go of a blob's file; what is in it stays."""
        with self._lock:
            blob = self._open.pop(name, None)
            if blob is not None:
                blob.closed = True
                self._close_idle(blob)

    def leave(self) -> None:
        """Closes all files and lets another process have the directory; idempotent."""
        for name in list(self._open):
            self.close(name)
        if self._turn >= 0:
            os.close(self._turn)
            self._turn = -1

    # --- reading ---

    def take(self, blob: CachedBlob, wanted: range) -> list[int]:
        """Returns the chunks that are missing; if none is, all of them stay until `release`."""
        states = blob.states
        with self._lock:
            if blob.closed:
                return list(wanted)
            if states.count(_SURE, wanted.start, wanted.stop) == len(wanted):
                self._pin(blob, wanted)
                self._touch(blob, wanted)
                return []
            self._pin(blob, wanted)
        missing = [chunk for chunk in wanted if not self._is_sure(blob, chunk)]
        if missing:
            self.release(blob, wanted)
        return missing

    def release(self, blob: CachedBlob, wanted: range) -> None:
        """Ends what `take` began when it returned nothing."""
        with self._lock:
            self._unpin(blob, wanted)

    def has(self, blob: CachedBlob, chunk: int) -> bool:
        """Says whether a chunk seems to be here."""
        return blob.states[chunk] in (_SURE, _UNSURE)

    def is_sure(self, blob: CachedBlob, chunk: int) -> bool:
        """Says whether a chunk is here and checked."""
        return blob.states[chunk] == _SURE

    def drop(self, blob: CachedBlob, wanted: range) -> None:
        """Forgets chunks that the disk does not give back; they are fetched again."""
        with self._lock:
            for chunk in wanted:
                if blob.states[chunk] == _SURE:
                    blob.states[chunk] = _ABSENT
                    self._count(blob.key(chunk), -blob.chunks.span(chunk).length)

    # --- writing ---

    def fill(self, blob: CachedBlob, chunk: int, content: bytes | memoryview) -> bool:
        """Keeps a checked chunk; returns False, and keeps nothing, where there is no room for it."""
        one = range(chunk, chunk + 1)
        key, length = blob.key(chunk), len(content)
        with self._lock:
            if blob.states[chunk] == _SURE:
                return True
            victims = None if self._is_closed_to(blob, key) else self._victims(length, key)
            if victims is None:
                self._stats.uncached_chunks += 1
                return False
            if blob.states[chunk] == _ABSENT:
                self._count(key, length)
            blob.states[chunk] = _FILLING
            self._pin(blob, one)
        kept = False
        try:
            self._punch_all(victims)
            kept = self._write(blob, chunk, content)
        finally:
            with self._lock:
                blob.states[chunk] = _SURE if kept else _ABSENT
                if not kept:
                    self._count(key, -length)
                    self._stats.uncached_chunks += 1
                self._touch(blob, one)
                self._unpin(blob, one)
        return kept

    def _write(self, blob: CachedBlob, chunk: int, content: bytes | memoryview) -> bool:
        span = blob.chunks.span(chunk)
        done = 0
        try:
            while done < len(content):
                done += os.pwrite(blob.handle, memoryview(content)[done:], span.offset + done)
        except OSError:
            # Full, or failing: what is served does not need it.
            self._full_until = time.monotonic() + _LOOK_S
            punch(blob.handle, span.offset, span.length)
            return False
        return True

    # --- room ---

    def _is_closed_to(self, blob: CachedBlob, key: int) -> bool:
        now = time.monotonic()
        if blob.closed or key in self._punching or now < self._full_until:
            return True
        if now - self._looked >= _LOOK_S:
            self._looked = now
            facts = os.fstatvfs(self._directory)
            if facts.f_bavail * facts.f_frsize < self._free_min:
                self._full_until = now + _LOOK_S
                return True
        return False

    def _victims(self, length: int, filled: int) -> list[tuple[int, str]] | None:
        """Takes as many segments off the books as room is needed; None if that is not to be had."""
        needed = self.used + length - self.max_bytes
        chosen: list[int] = []
        for key, size in self._segments.items() if needed > 0 else ():
            if needed <= 0:
                break
            if key not in self._pins and key != filled:
                chosen.append(key)
                needed -= size
        if needed > 0:
            return None
        for key in chosen:
            size = self._segments[key]
            self._count(key, -size)
            self._stats.evicted_bytes += size
            self._punching.add(key)
            self._forget(key)
        return [(key, self._names[key >> 24]) for key in chosen]

    def _forget(self, key: int) -> None:
        blob = self._open.get(self._names[key >> 24])
        if blob is None:
            return
        first = (key & 0xFFFFFF) * blob.per_segment
        end = min(first + blob.per_segment, blob.chunks.count)
        self._stats.evicted_chunks += end - first - blob.states.count(_ABSENT, first, end)
        blob.states[first:end] = bytes(end - first)

    def _punch_all(self, victims: list[tuple[int, str]]) -> None:
        """Frees what was taken off the books; nobody reads or writes there until it is done."""
        for key, name in victims:
            try:
                handle = os.open(name, os.O_RDWR | os.O_CLOEXEC, dir_fd=self._directory)
                try:
                    punch(handle, (key & 0xFFFFFF) * SEGMENT_BYTES, SEGMENT_BYTES)
                finally:
                    os.close(handle)
            except FileNotFoundError:
                pass
            finally:
                with self._lock:
                    self._punching.discard(key)
                    self._unlink_empty(key >> 24)

    def _unlink_empty(self, number: int) -> None:
        name = self._names[number]
        if name in self._open or any(key >> 24 == number for key in self._punching):
            return
        if not self._per_blob[number]:
            os.unlink(name, dir_fd=self._directory)

    # --- books; the lock is held ---

    def _number(self, name: str) -> int:
        number = self._numbers.get(name)
        if number is None:
            number = self._numbers[name] = len(self._names)
            self._names.append(name)
        return number

    def _count(self, key: int, length: int) -> None:
        before = self._segments.get(key, 0)
        self.used += length
        self._segments[key] = before + length
        if not before:
            self._per_blob[key >> 24] += 1
        if not before + length:
            del self._segments[key]
            self._per_blob[key >> 24] -= 1

    def _keys(self, blob: CachedBlob, wanted: range) -> range:
        return range(blob.key(wanted.start), blob.key(wanted.stop - 1) + 1)

    def _touch(self, blob: CachedBlob, wanted: range) -> None:
        for key in self._keys(blob, wanted):
            if key in self._segments:
                self._segments.move_to_end(key)

    def _pin(self, blob: CachedBlob, wanted: range) -> None:
        blob.busy += 1
        for key in self._keys(blob, wanted):
            self._pins[key] = self._pins.get(key, 0) + 1

    def _unpin(self, blob: CachedBlob, wanted: range) -> None:
        blob.busy -= 1
        for key in self._keys(blob, wanted):
            left = self._pins[key] - 1
            if left:
                self._pins[key] = left
            else:
                del self._pins[key]
        self._close_idle(blob)

    def _close_idle(self, blob: CachedBlob) -> None:
        if blob.closed and not blob.busy and blob.handle >= 0:
            os.close(blob.handle)
            blob.handle = -1

    # --- what earlier processes left ---

    def _is_sure(self, blob: CachedBlob, chunk: int) -> bool:
        """Says whether a pinned chunk may be served; reads it back if this was not done yet."""
        state = blob.states[chunk]
        if state != _UNSURE:
            return state == _SURE
        span = blob.chunks.span(chunk)
        try:
            content = os.pread(blob.handle, span.length, span.offset)
        except OSError:
            content = b""
        good = blob.chunks.holds(chunk, content)
        with self._lock:
            # Another may have come to a verdict, or be writing it: that one counts.
            if blob.states[chunk] == _UNSURE and good:
                blob.states[chunk] = _SURE
                self._touch(blob, range(chunk, chunk + 1))
            elif blob.states[chunk] == _UNSURE:
                blob.states[chunk] = _ABSENT
                self._count(blob.key(chunk), -span.length)
                self._stats.stale_chunks += 1
            return blob.states[chunk] == _SURE

    def _recognise(self, blob: CachedBlob) -> None:
        """Marks what is here as a whole; what is here in part is punched out."""
        chunk_bytes = blob.chunks.chunk_bytes
        for key in [key for key in self._segments if key >> 24 == blob.number]:
            self._count(key, -self._segments[key])
        for start, end in extents(blob.handle):
            first = -(-start // chunk_bytes)
            last = blob.chunks.count if end >= blob.chunks.size else end // chunk_bytes
            for chunk in range(first, last):
                if blob.key(chunk) in self._punching:
                    continue
                blob.states[chunk] = _UNSURE
                self._count(blob.key(chunk), blob.chunks.span(chunk).length)
            if start < first * chunk_bytes:
                punch(blob.handle, start, min(end, first * chunk_bytes) - start)
            if last >= first and last * chunk_bytes < end:
                punch(blob.handle, last * chunk_bytes, end - last * chunk_bytes)

    def _scan(self) -> None:
        names = [name for name in os.listdir(self._directory) if _NAME.fullmatch(name)]
        facts = {name: os.stat(name, dir_fd=self._directory).st_mtime for name in names}
        for name in sorted(names, key=lambda name: facts[name]):
            number = self._number(name)
            handle = os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=self._directory)
            try:
                for start, end in extents(handle):
                    for at in range(start // SEGMENT_BYTES, -(-end // SEGMENT_BYTES)):
                        low, high = max(start, at * SEGMENT_BYTES), (at + 1) * SEGMENT_BYTES
                        self._count(number << 24 | at, min(end, high) - low)
            finally:
                os.close(handle)
        with self._lock:
            victims = self._victims(0, -1) or []
        self._punch_all(victims)

    def _try_punching(self) -> None:
        """Raises StorageFailed if room cannot be made here."""
        try:
            os.ftruncate(self._turn, 1 << 16)
            punch(self._turn, 0, 1 << 16)
            os.ftruncate(self._turn, 0)
        except OSError as error:
            text = "the chunk cache needs a file system with holes (ext4, XFS, btrfs, tmpfs)"
            raise StorageFailed(f"{text}: {error.strerror}", errno=error.errno) from error


def _open_file(directory: int, name: str, size: int) -> int:
    handle = os.open(name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600, dir_fd=directory)
    try:
        if os.fstat(handle).st_size != size:
            os.ftruncate(handle, 0)
            os.ftruncate(handle, size)
    except BaseException:
        os.close(handle)
        raise
    return handle
