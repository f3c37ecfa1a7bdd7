"""The model requests of one job that have no answer: who waits, who holds them, since when.

A request is given to one consumer at a time. It is given again when that one has been silent for
`LEASE_S`, or lets go of it. Nothing here is on record: after a restart all of them wait again, and
only the first answer counts.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from skerry.errors import Overloaded

LEASE_S = 30.0  # without a word of its consumer
CONSUMERS_MAX = 1024
DELIVERER = "/url"  # this process itself, which is never gone; no consumer may be called so


class Name(NamedTuple):
    """A request within its job."""

    number: int
    attempt: int
    ordinal: int


class Waiting(msgspec.Struct):
    """One request. `consumer` holds it, unless that is empty."""

    since: float  # seconds since the epoch
    consumer: str = ""
    deliveries: int = 0


class Requests:
    """Invariant: `_free` holds exactly the names in `_all` that nobody holds, oldest first."""

    def __init__(self, now: Callable[[], float], changed: Callable[[], None]) -> None:
        self._now = now  # a clock that nobody sets
        self._changed = changed
        self._all: dict[Name, Waiting] = {}
        self._free: dict[Name, None] = {}
        self._heard: dict[str, float] = {}  # of each consumer, when
        self._polls: dict[str, int] = {}  # of each consumer, how many wait now
        self._arrived = asyncio.Event()
        self._over = False
        self._turns = int(time.time() * 1000)  # of an earlier process there is none that is equal
        self._last: dict[str, tuple[int, list[Name]]] = {}  # what each consumer was given last
        self._newest: dict[str, object] = {}  # of each consumer's polls that wait

    def add(self, name: Name, since: float) -> None:
        """A request waits; one that is there stays as it is."""
        if name not in self._all:
            self._all[name] = Waiting(since)
            self._free[name] = None
            self._wake()

    def remove(self, name: Name) -> None:
        """A request has its answer, or needs none any more."""
        self._all.pop(name, None)
        self._free.pop(name, None)
        self._changed()

    def remove_of(self, number: int) -> None:
        """A rollout asks nothing any more."""
        for name in [name for name in self._all if name.number == number]:
            self.remove(name)

    async def poll(
        self, consumer: str, most: int, wait_s: float, got: int | None = None
    ) -> list[tuple[Name, Waiting]]:
        """Returns up to `most` requests, leased to the consumer, after waiting for the first of them.

        With `most` of 0 it only says that the consumer is there. `got` is the turn of the last page
        that it has seen: what it was given since then got lost on its way, and waits again; a poll of
        its that still waits is given nothing. Raises Overloaded for too many consumers.
        """
        self._hear(consumer)
        mine = object()
        if got is not None:
            self._lost(consumer, got)
            self._newest[consumer] = mine
        self._polls[consumer] = self._polls.get(consumer, 0) + 1
        try:
            if most and wait_s > 0:
                try:
                    async with asyncio.timeout(wait_s):
                        while not self._free and not self._over:
                            self._arrived.clear()
                            await self._arrived.wait()
                except TimeoutError:
                    pass
            if got is not None and self._newest.get(consumer) is not mine:
                return []  # its client has asked again since, and hears nothing of this
            return self._take(consumer, most)
        finally:
            if self._newest.get(consumer) is mine:
                del self._newest[consumer]
            self._polls[consumer] -= 1
            if not self._polls[consumer]:
                del self._polls[consumer]
            self._heard[consumer] = self._now()

    def _take(self, consumer: str, most: int) -> list[tuple[Name, Waiting]]:
        names = [name for name, _ in zip(self._free, range(most), strict=False)]
        for name in names:
            del self._free[name]
            self._all[name].consumer = consumer
            self._all[name].deliveries += 1
        if names:
            self._turns += 1
            self._last[consumer] = self._turns, names
            self._changed()
        return [(name, self._all[name]) for name in names]

    def turn(self, consumer: str) -> int:
        """Returns the turn of the page that the consumer was given last; 0 if there is none."""
        return self._last.get(consumer, (0, []))[0]

    def _lost(self, consumer: str, got: int) -> None:
        turn, names = self._last.get(consumer, (got, []))
        if turn != got:
            del self._last[consumer]
            for name in names:
                if name in self._all and self._all[name].consumer == consumer:
                    self.give_back(name)

    def let_go(self, consumer: str | None = None, *, but: str | None = None) -> None:
        """What this consumer holds waits again; without one, what all hold but that other."""
        for name, waiting in self._all.items():
            held = waiting.consumer
            gone = held == consumer if consumer is not None else held != but
            if held and held != DELIVERER and gone:
                waiting.consumer = ""
                self._free[name] = None
        if consumer is not None:
            self._heard.pop(consumer, None)
            self._last.pop(consumer, None)
        self._in_order()

    def give_back(self, name: Name) -> None:
        """One request waits again."""
        waiting = self._all.get(name)
        if waiting is not None:
            waiting.consumer = ""
            self._free[name] = None
            self._in_order()

    def _in_order(self) -> None:
        self._free = {name: None for name in self._all if name in self._free}
        self._wake()

    def expire(self) -> None:
        """What silent consumers hold waits again."""
        before = self._now() - LEASE_S
        for consumer, heard in list(self._heard.items()):
            if heard < before and consumer not in self._polls:
                self.let_go(consumer)

    def end(self) -> None:
        """No request will come any more: nobody waits for one."""
        self._over = True
        self._arrived.set()

    def _hear(self, consumer: str) -> None:
        if consumer not in self._heard and len(self._heard) >= CONSUMERS_MAX:
            raise Overloaded(f"{CONSUMERS_MAX} consumers ask already", limit="consumers")
        self._heard[consumer] = self._now()

    def _wake(self) -> None:
        if self._free:
            self._arrived.set()
        self._changed()

    @property
    def free(self) -> int:
        """How many nobody holds."""
        return len(self._free)

    @property
    def held(self) -> int:
        """How many a consumer holds."""
        return len(self._all) - len(self._free)

    def oldest(self) -> float | None:
        """Returns since when the oldest waits; None if there is none."""
        return min((waiting.since for waiting in self._all.values()), default=None)

    def check_invariants(self) -> None:
        """Raises AssertionError if something does not hold; for tests."""
        free = [name for name, waiting in self._all.items() if not waiting.consumer]
        assert free == list(self._free)  # noqa: S101
