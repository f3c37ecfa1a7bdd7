"""A queue that is fair between those who wait: turns go round by flow, not by request.

Start-time fair queueing (Goyal, Vin, Cheng 1996) with requests of one size: each flow has a clock
that a turn moves on by 1/weight, and the flow whose clock is least behind is next. A flow that comes
back finds its clock where it was, so leaving and returning gains nothing. Within a flow the higher
priority is first, then who came first.
"""

from __future__ import annotations

import heapq
import itertools
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from skerry.errors import Bug

T = TypeVar("T")


@dataclass(slots=True, eq=False)
class Ticket(Generic[T]):
    """A place in the queue."""

    flow: str
    priority: int
    number: int
    item: T


@dataclass(slots=True)
class _Flow(Generic[T]):
    lanes: dict[int, OrderedDict[int, Ticket[T]]] = field(default_factory=dict)
    waiting: int = 0


class FairQueue(Generic[T]):
    """The queue.

    Invariants: every flow in `_flows` has someone waiting and one entry in `_turns`; what flows
    that left have in `_turns` and `_clocks` is bounded by those that wait, and a constant.
    """

    def __init__(self, weight: Callable[[str], float] = lambda _flow: 1.0) -> None:
        self._weight = weight
        self._flows: dict[str, _Flow[T]] = {}
        self._turns: list[tuple[float, int, str]] = []  # a heap
        self._listed: set[str] = set()
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

    def push(self, flow: str, priority: int, item: T) -> Ticket[T]:
        """Puts one at the end of its flow."""
        ticket = Ticket(flow, priority, next(self._numbers), item)
        known = self._flows.setdefault(flow, _Flow())
        known.lanes.setdefault(priority, OrderedDict())[ticket.number] = ticket
        known.waiting += 1
        self._waiting += 1
        if flow not in self._listed:
            self._list(flow)
        return ticket

    def head(self) -> Ticket[T] | None:
        """Returns who is next and leaves it there; None if nobody waits."""
        while self._turns:
            flow = self._turns[0][2]
            known = self._flows.get(flow)
            if known is not None:
                lane = known.lanes[max(known.lanes)]
                return next(iter(lane.values()))
            heapq.heappop(self._turns)
            self._listed.discard(flow)
        return None

    def serve(self, ticket: Ticket[T]) -> None:
        """Takes the head out: its flow has had a turn."""
        start, _, flow = heapq.heappop(self._turns)
        if flow != ticket.flow:
            raise Bug("a ticket was served out of turn")
        self._listed.discard(flow)
        self._clock = max(self._clock, start)
        self._clocks[flow] = start + 1.0 / self._weight(flow)
        if len(self._clocks) > 2 * len(self._flows) + 64:
            self._clocks = {f: c for f, c in self._clocks.items() if c > self._clock}
        self._take_out(ticket)
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
            del self._flows[ticket.flow]

    def check_invariants(self) -> None:
        """Raises Bug unless the invariants hold."""
        if not set(self._flows) <= self._listed:
            raise Bug("a flow waits and has no turn")
        if len(self._listed) != len(self._turns):
            raise Bug("a flow has two turns")
        if sum(flow.waiting for flow in self._flows.values()) != self._waiting:
            raise Bug("the queue has lost count")
