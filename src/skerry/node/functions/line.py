"""Calls that wait for a place: turns go round by job, and nobody waits for another environment.

One queue for all pools. A flow is a job (or owner, or token) that waits for one kind of place: while
there is none its flows are parked, and hold up nobody. Full queues
answer with 429, which names who waits.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from skerry.backends.function.pool import Place, Pool
from skerry.errors import Bug, Overloaded, SkerryError
from skerry.node.admission.fairness import FairQueue, Ticket
from skerry.node.admission.holders import Holder, name_of
from skerry.node.admission.rates import Rate

SHOWN: Final = 3
RETRY_S: Final = (1.0, 30.0)


class Wanted(NamedTuple):
    """What a call waits for: a place in that pool, and whether Python must be ready there."""

    pool: Pool
    zygote: bool


class Waiting:
    """A call in the queue. Done once it may try for a place, or with why it never will."""

    __slots__ = ("done", "holder", "key", "memory_bytes", "size", "ticket")

    def __init__(
        self, key: Wanted, holder: Holder, *, size: int = 0, memory_bytes: int = 0
    ) -> None:
        self.key = key  # of what it waits for
        self.holder = holder
        self.size = size  # bytes that are held for it while it waits
        self.memory_bytes = memory_bytes  # what it may use when it runs
        self.done: asyncio.Future[Place] = asyncio.get_running_loop().create_future()
        self.ticket: Ticket[Waiting] | None = None

    def leave(self, error: SkerryError) -> None:
        """It waits no longer; harmless once it has its place."""
        if not self.done.done():
            self.done.set_exception(error)


class CallLine:
    """The queue. Invariant: `bytes` is what all who wait hold; a flow of a parked key is parked."""

    def __init__(
        self,
        *,
        calls_max: int,
        calls_per_owner_max: int,
        bytes_max: int,
        now: Callable[[], float],
        weights: dict[str, float],
    ) -> None:
        self.bytes = 0
        self.served = Rate(now)
        self.refused: Counter[str] = Counter()
        self._calls_max = calls_max
        self._mine_max = calls_per_owner_max
        self._bytes_max = bytes_max
        self._weights = weights
        self._queue: FairQueue[Waiting] = FairQueue(self._weight)
        self._numbers: dict[Wanted, int] = {}  # of keys, as flows name them
        self._count = itertools.count()
        self._flows: dict[Wanted, Counter[str]] = {}  # who waits, by pool
        self._holders: Counter[Holder] = Counter()
        self._parked: set[Wanted] = set()

    def __len__(self) -> int:
        return len(self._queue)

    def of(self, key: Wanted) -> int:
        """Returns how many wait for that."""
        return self._flows[key].total() if key in self._flows else 0

    def all_of(self, key: Wanted) -> Iterable[Waiting]:
        """Returns who waits for that."""
        return [one.item for flow in self._flows.get(key, ()) for one in self._queue.line(flow)]

    def everybody(self) -> list[Waiting]:
        """Returns who waits."""
        return [one for key in tuple(self._flows) for one in self.all_of(key)]

    def push(self, wait: Waiting, *, priority: int, rank: int) -> None:
        """Puts a call at the end of its flow; Overloaded if too many wait, or hold too much."""
        self._check(wait)
        number = self._numbers.get(wait.key)
        if number is None:
            number = self._numbers[wait.key] = next(self._count)
        flow = f"{wait.holder.flow}\0{number}"
        # Ranks order the jobs of a token in one pool: elsewhere there is other room.
        group = f"{wait.holder.tenant}\0{number}"
        wait.ticket = self._queue.push(flow, priority, wait, group=group, rank=rank)
        self._flows.setdefault(wait.key, Counter())[flow] += 1
        self._holders[wait.holder] += 1
        self.bytes += wait.size
        if wait.key in self._parked:
            self._queue.park(flow)

    def head(self) -> Waiting | None:
        """Returns whose turn it is and leaves it there; None if all who wait are parked."""
        while (ticket := self._queue.head()) is not None:
            if not ticket.item.done.done():
                return ticket.item
            self.remove(ticket.item)  # it has left, and is about to say so itself
        return None

    def serve(self, wait: Waiting) -> None:
        """Takes the head out: it has its place."""
        if wait.ticket is not None:
            self._queue.serve(wait.ticket)
            self._left(wait)
            self.served.note()

    def remove(self, wait: Waiting) -> None:
        """Takes one out that waits no longer; idempotent."""
        if wait.ticket is not None:
            self._queue.remove(wait.ticket)
            self._left(wait)

    def park(self, key: Wanted) -> None:
        """There is no such place: who waits for it gets no turn until `unpark`."""
        if key not in self._parked:
            self._parked.add(key)
            for flow in self._flows.get(key, ()):
                self._queue.park(flow)

    def unpark(self, key: Wanted) -> None:
        """There may be one again."""
        if key in self._parked:
            self._parked.discard(key)
            for flow in self._flows.get(key, ()):
                self._queue.unpark(flow)

    def unpark_all(self) -> None:
        """Nobody waits, so nobody is held back."""
        if len(self):
            raise Bug("a call waits")
        self._parked.clear()

    def forget(self, key: Wanted) -> None:
        """Nobody will wait for that any more."""
        self._parked.discard(key)
        if key not in self._flows:
            self._numbers.pop(key, None)

    def late(self, wait: Waiting, waited_s: float) -> Overloaded:
        """Returns what is said to one whose time in the queue is over."""
        message = f"function calls: no place within {waited_s:g} s"
        return self._full("function calls", message, wait.holder, {"waiting": len(self)})

    def check_invariants(self) -> None:
        """Raises Bug unless the invariants hold."""
        self._queue.check_invariants()

    # -- inside -----------------------------------------------------------------------------------

    def _check(self, wait: Waiting) -> None:
        mine, total = self._holders.get(wait.holder, 0), len(self)
        for limit, used, maximum in (
            ("function calls", total, self._calls_max),
            ("function calls per owner", mine, self._mine_max),
        ):
            if used >= maximum:
                message = f"{limit}: {used} of {maximum} calls wait already"
                fields = {"used": used, "maximum": maximum}
                raise self._full(limit, message, wait.holder, fields)
        # One alone may be larger than all: it was let in, so it is within bounds of its own.
        if total and self.bytes + wait.size > self._bytes_max:
            limit = "bytes of function calls"
            message = f"{limit}: calls that wait hold {self.bytes} of {self._bytes_max} bytes"
            fields = {"used": self.bytes, "maximum": self._bytes_max}
            raise self._full(limit, message, wait.holder, fields)

    def _full(self, limit: str, message: str, holder: Holder, fields: dict[str, int]) -> Overloaded:
        self.refused[limit] += 1
        rate, (least, most) = self.served.per_second(), RETRY_S
        after = max(least, min(most, len(self) / rate)) if rate > 0 else 5.0
        merged: Counter[str] = Counter()
        for one, count in self._holders.most_common(SHOWN):
            merged[one.told_to(holder)] += count
        holders = [{"who": who, "calls": count} for who, count in merged.most_common()]
        holders.append({"who": "you", "calls": self._holders.get(holder, 0)})
        return Overloaded(
            message, limit=limit, retry_after_s=round(after, 2), holders=holders, **fields
        )

    def _left(self, wait: Waiting) -> None:
        ticket, wait.ticket = wait.ticket, None
        if ticket is None:
            return
        flows = self._flows[wait.key]
        flows[ticket.flow] -= 1
        if not flows[ticket.flow]:
            del flows[ticket.flow]
        if not flows:
            del self._flows[wait.key]
        self._holders[wait.holder] -= 1
        if not self._holders[wait.holder]:
            del self._holders[wait.holder]
        self.bytes -= wait.size

    def _weight(self, flow: str) -> float:
        return self._weights.get(name_of(flow.partition("\0")[0]), 1.0)
