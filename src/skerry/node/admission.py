"""Who may come in: limits that are answered at once, by name, before anything is made."""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from skerry.errors import Overloaded, Unavailable
from skerry.node.clock import Clock
from skerry.node.config import Limits

DRAINING_RETRY_S = 30.0
_PROBE_EVERY_S = 0.5  # memory and disk are read at most that often


def memory_available_bytes() -> int:
    """Returns what the kernel believes can be given out without swapping."""
    with open("/proc/meminfo", "rb") as file:
        for line in file:
            if line.startswith(b"MemAvailable:"):
                return int(line.split()[1]) * 1024
    return 1 << 62


def disk_free_bytes(path: str) -> Callable[[], int]:
    """Returns a reading of the free space of the file system that holds `path`."""

    def read() -> int:
        facts = os.statvfs(path)
        return facts.f_bavail * facts.f_frsize

    return read


class Admission:
    """Counts what is in, and says no with the limit's name and a time to come back.

    Invariant: 0 <= creating <= creates_in_flight_max; nobody waits while a place is free.
    """

    def __init__(
        self,
        limits: Limits,
        clock: Clock,
        memory: Callable[[], int] = memory_available_bytes,
        disk: Callable[[], int] = lambda: 1 << 62,
    ) -> None:
        self.limits = limits
        self.sandboxes = 0  # admitted and not yet gone
        self.operations = 0
        self.creating = 0
        self.closing = False  # the node is ending: nobody comes in any more
        self.draining = False  # no new sandboxes; commands in those that live go on
        self._clock = clock
        self._memory = memory
        self._disk = disk
        self._probed = float("-inf")
        self._shortage: Overloaded | None = None
        self._waiting: deque[asyncio.Future[None]] = deque()

    def room(self) -> int:
        """Returns how many more sandboxes may come in."""
        return self.limits.sandboxes_max - self.sandboxes

    def check(self, count: int = 1) -> None:
        """Raises Overloaded unless `count` more sandboxes fit now."""
        limits = self.limits
        if self.closing:
            raise _ending()
        if self.draining:
            raise _draining()
        if self.sandboxes + count > limits.sandboxes_max:
            raise _full("sandboxes", self.sandboxes, limits.sandboxes_max, 5.0)
        now = self._clock.monotonic()
        if now - self._probed >= _PROBE_EVERY_S:
            self._probed = now
            self._shortage = self._look()
        if self._shortage is not None:
            raise Overloaded(self._shortage.message, **self._shortage.fields)

    @asynccontextmanager
    async def place(self, *, queued: bool = True) -> AsyncIterator[None]:
        """Holds one of the places for creates; the first that waits gets the next free one.

        With `queued`, Overloaded if too many wait already; without, the caller bounds itself.
        """
        limits = self.limits
        if self.creating >= limits.creates_in_flight_max:
            if queued and len(self._waiting) >= limits.creates_waiting_max:
                raise _full("creates_waiting", len(self._waiting), limits.creates_waiting_max, 1.0)
            await self._wait()
        else:
            self.creating += 1
        try:
            yield
        finally:
            self._leave()

    async def _wait(self) -> None:
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(place)
        try:
            await place
        except asyncio.CancelledError:
            if place.done() and not place.cancelled():
                self._leave()  # it was handed to us in the same moment
            raise

    def _leave(self) -> None:
        while self._waiting:
            place = self._waiting.popleft()
            if not place.done():
                place.set_result(None)  # the place changes hands: `creating` stays
                return
        self.creating -= 1

    def check_operation(self, running_there: int) -> None:
        """Raises Overloaded unless one more command may run now."""
        limits = self.limits
        if self.closing:
            raise _ending()
        if self.operations >= limits.operations_max:
            raise _full("operations", self.operations, limits.operations_max, 1.0)
        if running_there >= limits.operations_per_sandbox_max:
            raise _full(
                "operations_per_sandbox", running_there, limits.operations_per_sandbox_max, 1.0
            )

    def _look(self) -> Overloaded | None:
        limits = self.limits
        memory = self._memory()
        if memory < limits.memory_free_min_bytes:
            return _short("memory_free", memory, limits.memory_free_min_bytes)
        disk = self._disk()
        if disk < limits.disk_free_min_bytes:
            return _short("disk_free", disk, limits.disk_free_min_bytes)
        return None


def _ending() -> Unavailable:
    return Unavailable("the node is ending: ask again", retry_after_s=0.1)


def _draining() -> Unavailable:
    return Unavailable(
        "the node is being drained: it takes no new sandboxes",
        reason="draining",
        retry_after_s=DRAINING_RETRY_S,
    )


def _full(limit: str, used: int, maximum: int, retry_after_s: float) -> Overloaded:
    return Overloaded(
        f"{limit}: {used} of {maximum} are in use",
        limit=limit,
        used=used,
        maximum=maximum,
        retry_after_s=retry_after_s,
    )


def _short(limit: str, value: int, minimum: int) -> Overloaded:
    return Overloaded(
        f"{limit}: {value >> 20} MiB left, and {minimum >> 20} MiB must stay",
        limit=limit,
        value=value,
        minimum=minimum,
        retry_after_s=5.0,
    )
