"""The time in which an agent acts: it stands still while the trainer owes it an answer."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator


class ActClock:
    """Counts seconds while nobody holds it.

    Invariant: `spent` grows exactly while no name is in the set of holders.
    """

    def __init__(self, limit_s: float, spent_s: float, now: Callable[[], float]) -> None:
        self._limit_s = limit_s
        self._spent_s = spent_s
        self._now = now
        self._since: float | None = now()  # None: it is held
        self._holders: set[str] = set()
        self._changed = asyncio.Event()

    @property
    def spent_s(self) -> float:
        """The seconds that were counted until now."""
        running = 0.0 if self._since is None else self._now() - self._since
        return self._spent_s + max(0.0, running)

    @property
    def held(self) -> bool:
        """Returns whether it stands still."""
        return self._since is None

    def hold(self, who: str) -> None:
        """It stands still until this holder, and all others, release it. Idempotent."""
        if not self._holders:
            self._spent_s, self._since = self.spent_s, None
        self._holders.add(who)
        self._changed.set()

    def release(self, who: str) -> None:
        """It runs on, unless somebody else holds it. Idempotent."""
        self._holders.discard(who)
        if not self._holders and self._since is None:
            self._since = self._now()
        self._changed.set()

    async def expired(self) -> None:
        """Returns when the limit is used up."""
        while True:
            left = self._limit_s - self.spent_s
            if self._since is not None and left <= 0:
                return
            self._changed.clear()
            timeout = None if self._since is None else left
            try:
                async with asyncio.timeout(timeout):
                    await self._changed.wait()
            except TimeoutError:
                continue


class Clocks:
    """The clocks of a job, which stand still together while the job does.

    Invariant: each joined clock is held by `JOB` exactly while `standing`.
    """

    JOB = "the job stands still"

    def __init__(self) -> None:
        self.standing = False
        self._clocks: set[ActClock] = set()

    @contextlib.contextmanager
    def joined(self, clock: ActClock) -> Iterator[None]:
        """The clock is one of them for a block."""
        self._clocks.add(clock)
        if self.standing:
            clock.hold(self.JOB)
        try:
            yield
        finally:
            self._clocks.discard(clock)

    def stand(self, *, still: bool) -> None:
        """All stand still from here on, or go on. Idempotent."""
        self.standing = still
        for clock in self._clocks:
            if still:
                clock.hold(self.JOB)
            else:
                clock.release(self.JOB)
