"""Reads that wait for chunks: each is answered once, by whoever comes first, within its bound."""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Callable, Iterable
from typing import Final

from skerry.images.lazy.cache import CachedBlob
from skerry.images.lazy.stats import Stats

FAILING_WAIT_S: Final = 2.0
_LOOK_S: Final = 0.25


class Waiter:
    """One read. `held` has the chunks that the cache has no room for."""

    __slots__ = (
        "began", "blob", "deadline", "held", "length", "needs", "offset", "settled", "unique", "wanted"
    )  # fmt: skip

    def __init__(
        self, unique: int, blob: CachedBlob, offset: int, length: int, wanted: range
    ) -> None:
        self.unique, self.blob = unique, blob
        self.offset, self.length, self.wanted = offset, length, wanted
        self.needs: set[int] = set()
        self.held: dict[int, bytes] = {}
        self.began = time.monotonic()
        self.deadline = 0.0  # set when it begins to wait, and kept when it waits again
        self.settled = False


class Waiting:
    """All that wait. Shares the fetcher's lock; `finish` is called without it."""

    def __init__(
        self,
        lock: threading.Lock,
        stats: Stats,
        wait_s: float,
        finish: Callable[[Waiter, int], None],
    ) -> None:
        self._lock, self._stats, self._wait_s, self._finish = lock, stats, wait_s, finish
        self._all: dict[int, Waiter] = {}
        self._ended = threading.Event()
        self.failing_since: float | None = None  # when the store began to fail; None: it works
        self._thread = threading.Thread(target=self._watch, name="deadlines", daemon=True)

    def __len__(self) -> int:
        return len(self._all)

    def start(self) -> None:
        """Begins to watch the deadlines."""
        self._thread.start()

    def close(self) -> None:
        """Tells all who wait EIO."""
        self._ended.set()
        with self._lock:
            left = list(self._all.values())
        self.settle(left, errno.EIO)

    def add(self, waiter: Waiter) -> bool:
        """Takes a read in; False at the end. The lock is held."""
        if self._ended.is_set():
            return False
        if not waiter.deadline:
            now, bound = time.monotonic(), self._wait_s
            if self.failing_since is not None and now - self.failing_since > bound:
                bound = min(bound, FAILING_WAIT_S)
            waiter.deadline = now + bound
        waiter.settled = False
        self._all[waiter.unique] = waiter
        return True

    def settle(self, waiters: Iterable[Waiter], error: int) -> None:
        """Answers those that are not answered yet."""
        for waiter in waiters:
            with self._lock:
                if waiter.settled:
                    continue
                waiter.settled = True
                if self._all.get(waiter.unique) is waiter:
                    del self._all[waiter.unique]
                self._stats.wait_s += time.monotonic() - waiter.began
            self._finish(waiter, error)

    def interrupt(self, unique: int) -> None:
        """Breaks off a read whose reader was killed."""
        with self._lock:
            found = self._all.get(unique)
        if found is not None:
            self.settle((found,), errno.EINTR)

    def _watch(self) -> None:
        while not self._ended.wait(_LOOK_S):
            now = time.monotonic()
            with self._lock:
                over = [one for one in self._all.values() if one.deadline <= now]
                self._stats.expired += len(over)
            self.settle(over, errno.EIO)
