"""A queue that is fair between those who wait: turns go round by flow, not by request.

Start-time fair queueing (Goyal, Vin, Cheng 1996) with requests of one size: each flow has a clock
that a turn moves on by 1/weight, and the flow whose clock is least behind is next. A flow that comes
back finds its clock where it was, so leaving and returning gains nothing. Within a flow the higher
priority is first, then who came first.

Flows of one group may differ in rank: a turn of any of them goes to the highest rank that waits in the
group. So a rank moves turns within a group and never takes one from another. A flow that is parked
keeps its place and gets no turn.
"""

from __future__ import annotations

import heapq
import itertools
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

from skerry.errors import Bug

T = TypeVar("T")


@dataclass(slots=True, eq=False)
class Ticket(Generic[T]):
    """A place in the queue."""

    flow: str
    priority: int
    number: int
    item: T


class Flow(NamedTuple):
    """A flow as others see it: how many of it wait, whose it is, its rank there, and its weight."""

    name: str
    waiting: int
    group: str = ""
    rank: int = 0
    weight: float = 1.0


@dataclass(slots=True)
class _Flow(Generic[T]):
    group: str
    rank: int
    lanes: dict[int, OrderedDict[int, Ticket[T]]] = field(default_factory=dict)
    waiting: int = 0

    def first(self) -> Ticket[T]:
        return next(iter(self.lanes[max(self.lanes)].values()))


class FairQueue(Generic[T]):
    """The queue.

    Invariants: every flow in `_flows` has someone waiting and, unless it is parked, one entry in
    `_turns` and its place in `_ranks`; what flows that left have in `_turns` and `_clocks` is bounded
    by those that wait, and a constant.
    """

    def __init__(self, weight: Callable[[str], float] = lambda _flow: 1.0) -> None:
        self._weight = weight
        self._flows: dict[str, _Flow[T]] = {}
        self._turns: list[tuple[float, int, str]] = []  # a heap
        self._listed: set[str] = set()
        self._parked: set[str] = set()
        self._ranks: dict[str, dict[int, OrderedDict[str, None]]] = {}  # by group
        self._clocks: dict[str, float] = {}
        self._clock = 0.0
        self._numbers = itertools.count()
        self._waiting = 0

    def __len__(self) -> int:
        return self._waiting

    def waiting(self, flow: str) -> int:
        """Returns how many of that flow wait."""
        known = self._flows.get(flow)
        return 0 if known is None else known.waiting

    def flows(self) -> list[Flow]:
        """Returns every flow that waits."""
        return [
            Flow(name, one.waiting, one.group, one.rank, self._weight(name))
            for name, one in self._flows.items()
        ]

    def line(self, flow: str) -> list[Ticket[T]]:
        """Returns who waits of a flow, in the order of being served."""
        known = self._flows.get(flow)
        if known is None:
            return []
        return [
            one for rank in sorted(known.lanes, reverse=True) for one in known.lanes[rank].values()
        ]

    def push(
        self,
        flow: str,
        priority: int,
        item: T,
        *,
        group: str = "",
        rank: int = 0,
        number: int | None = None,
    ) -> Ticket[T]:
        """Puts one at the end of its flow, whose group and rank are those of its first one.

        With the number of a ticket that was removed it gets that one's place.
        """
        ticket = Ticket(flow, priority, next(self._numbers) if number is None else number, item)
        known = self._flows.get(flow)
        if known is None:
            known = self._flows[flow] = _Flow(group, rank)
            self._rank(flow, known)
        lane = known.lanes.setdefault(priority, OrderedDict())
        later = [] if number is None else [one for one in lane if one > number]
        lane[ticket.number] = ticket
        for one in later:
            lane.move_to_end(one)
        known.waiting += 1
        self._waiting += 1
        if flow not in self._listed:
            self._list(flow)
        return ticket

    def head(self) -> Ticket[T] | None:
        """Returns who is next and leaves it there; None if nobody waits that is not parked."""
        while self._turns:
            flow = self._turns[0][2]
            known = self._flows.get(flow)
            if known is not None and flow not in self._parked:
                ranks = self._ranks[known.group]
                highest = max(ranks)
                if highest > known.rank:
                    known = self._flows[next(iter(ranks[highest]))]
                return known.first()
            heapq.heappop(self._turns)
            self._listed.discard(flow)
        return None

    def park(self, flow: str) -> None:
        """It gets no turn until `unpark`; idempotent."""
        known = self._flows.get(flow)
        if known is not None and flow not in self._parked:
            self._parked.add(flow)
            self._unrank(flow, known)

    def unpark(self, flow: str) -> None:
        """It gets turns again, none of those that it missed; idempotent."""
        if flow not in self._parked:
            return
        self._parked.discard(flow)
        known = self._flows[flow]
        self._rank(flow, known)
        if flow not in self._listed:
            self._list(flow)

    def serve(self, ticket: Ticket[T]) -> None:
        """Takes the head out: the flow whose turn it was has had it, whoever of its group came in."""
        start, _, flow = heapq.heappop(self._turns)
        if flow not in self._flows or self._flows[flow].group != self._flows[ticket.flow].group:
            raise Bug("a ticket was served out of turn")
        self._listed.discard(flow)
        self._clock = max(self._clock, start)
        self._clocks[flow] = start + 1.0 / self._weight(flow)
        if len(self._clocks) > 2 * len(self._flows) + 64:
            self._clocks = {f: c for f, c in self._clocks.items() if c > self._clock}
        self._take_out(ticket)
        if ticket.flow != flow and ticket.flow in self._flows:  # a gift: the next one is another's
            known = self._flows[ticket.flow]
            self._ranks[known.group][known.rank].move_to_end(ticket.flow)
        if flow in self._flows:
            self._list(flow)
        elif not self._waiting:  # the busy period is over: nobody is ahead of anybody
            self._clock = max(self._clocks.values())
            self._clocks.clear()

    def remove(self, ticket: Ticket[T]) -> bool:
        """Takes one out that will not wait any longer; False if it is not there."""
        known = self._flows.get(ticket.flow)
        lane = None if known is None else known.lanes.get(ticket.priority)
        if lane is None or ticket.number not in lane:
            return False
        self._take_out(ticket)
        if len(self._turns) > 2 * len(self._flows) + 64:
            self._turns = [turn for turn in self._turns if turn[2] in self._flows]
            heapq.heapify(self._turns)
            self._listed = {turn[2] for turn in self._turns}
        return True

    def _list(self, flow: str) -> None:
        start = max(self._clock, self._clocks.get(flow, 0.0))
        heapq.heappush(self._turns, (start, next(self._numbers), flow))
        self._listed.add(flow)

    def _take_out(self, ticket: Ticket[T]) -> None:
        known = self._flows[ticket.flow]
        lane = known.lanes[ticket.priority]
        del lane[ticket.number]
        if not lane:
            del known.lanes[ticket.priority]
        known.waiting -= 1
        self._waiting -= 1
        if not known.waiting:
            if ticket.flow in self._parked:
                self._parked.discard(ticket.flow)
            else:
                self._unrank(ticket.flow, known)
            del self._flows[ticket.flow]

    def _rank(self, flow: str, known: _Flow[T]) -> None:
        self._ranks.setdefault(known.group, {}).setdefault(known.rank, OrderedDict())[flow] = None

    def _unrank(self, flow: str, known: _Flow[T]) -> None:
        ranks = self._ranks[known.group]
        del ranks[known.rank][flow]
        if not ranks[known.rank]:
            del ranks[known.rank]
        if not ranks:
            del self._ranks[known.group]

    def check_invariants(self) -> None:
        """Raises Bug unless the invariants hold."""
        if not set(self._flows) - self._parked <= self._listed:
            raise Bug("a flow waits and has no turn")
        if not self._parked <= set(self._flows):
            raise Bug("a flow is parked and nobody of it waits")
        ranked = [
            flow for ranks in self._ranks.values() for rank in ranks.values() for flow in rank
        ]
        if sorted(ranked) != sorted(set(self._flows) - self._parked):
            raise Bug("a flow waits and has no rank")
        if len(self._listed) != len(self._turns):
            raise Bug("a flow has two turns")
        if sum(flow.waiting for flow in self._flows.values()) != self._waiting:
            raise Bug("the queue has lost count")
