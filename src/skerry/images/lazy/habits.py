"""How a blob is read: who goes through it in order, and what a first run touches."""

from __future__ import annotations

import threading
import time
from array import array
from collections.abc import Iterable, Iterator
from typing import Final

from skerry.images.format.profile import PROFILE_CHUNKS_MAX, encode_profile

_STREAMS_MAX: Final = 4


class _Stream:
    """One reader who goes through a blob in order."""

    __slots__ = ("next", "until", "window")

    def __init__(self, after: int) -> None:
        self.next = self.until = after
        self.window = 0


class Habits:
    """Of one blob since it was mounted; for many threads."""

    def __init__(self, chunks: int, *, first: int, longest: int, record_s: float) -> None:
        """Reads ahead by `first` chunks at first, by `longest` at last (0: never)."""
        self._chunks, self._first, self._longest = chunks, first, longest
        self._record_s = record_s
        self._lock = threading.Lock()
        self._streams: list[_Stream] = []
        self._last = -1
        self._touched = bytearray(chunks)
        self._order = array("I")
        self._began = 0.0

    def seen(self, wanted: range) -> range:
        """Takes note of a read; returns what should be fetched ahead of the reader, mostly nothing."""
        last = wanted.stop - 1
        if last == self._last and wanted.start == last:
            return range(0)
        with self._lock:
            self._last = last
            self._record(wanted)
            return self._ahead(wanted) if self._longest else range(0)

    def _record(self, wanted: range) -> None:
        if self._record_s <= 0 or len(self._order) >= PROFILE_CHUNKS_MAX:
            return
        now = time.monotonic()
        self._began = self._began or now
        if now - self._began > self._record_s:
            return
        for chunk in wanted:
            if not self._touched[chunk]:
                self._touched[chunk] = 1
                self._order.append(chunk)

    def _ahead(self, wanted: range) -> range:
        for stream in self._streams:
            if stream.next - 1 <= wanted.start <= stream.next:
                break
        else:
            self._streams = [*self._streams[-_STREAMS_MAX + 1 :], _Stream(wanted.stop)]
            return range(0)
        if wanted.stop <= stream.next:
            return range(0)
        stream.next = wanted.stop
        stream.until = max(stream.until, wanted.stop)
        # The next window is asked for when half of the last one is left.
        if stream.until - wanted.stop > stream.window // 2:
            return range(0)
        stream.window = min(max(stream.window * 2, self._first), self._longest)
        start = stream.until
        stream.until = max(start, min(wanted.stop + stream.window, self._chunks))
        return range(start, stream.until)

    def recorded(self) -> bytes | None:
        """Returns the profile of a run that is long enough ago to be complete, once."""
        with self._lock:
            over = self._began and time.monotonic() - self._began > self._record_s
            if not over or not self._order or self._record_s <= 0:
                return None
            self._record_s = 0.0
            return encode_profile(self._order)


def merged(chunks: Iterable[int], longest: int, gap: int = 0) -> Iterator[range]:
    """Gives runs that have all of `chunks`, each where its first one stands in them.

    No run crosses a multiple of `longest`. Up to `gap` chunks that nobody asked for come along
    between two that somebody did: one request is cheaper than two.
    """
    places: dict[int, int] = {}
    for place, chunk in enumerate(chunks):
        places.setdefault(chunk, place)
    runs: list[range] = []
    for chunk in sorted(places):
        last = runs[-1] if runs else None
        if last and chunk - last.stop <= gap and chunk // longest == last.start // longest:
            runs[-1] = range(last.start, chunk + 1)
        else:
            runs.append(range(chunk, chunk + 1))
    yield from sorted(runs, key=lambda run: min(places.get(chunk, len(places)) for chunk in run))
