"""Every deadline of the node in one heap with one wake-up: no task and no loop timer a sandbox."""

from __future__ import annotations

import heapq
from collections.abc import Callable

from skerry.node.clock import Clock


class Timer:
    """A deadline that can be taken back."""

    __slots__ = ("call", "deadline")

    def __init__(self, deadline: float, call: Callable[[], None]) -> None:
        self.deadline = deadline
        self.call: Callable[[], None] | None = call

    def cancel(self) -> None:
        """The call will not come; harmless afterwards and twice."""
        self.call = None


class Timers:
    """A heap of deadlines. Calls are short and raise nothing.

    Invariant: if any timer waits, the clock was asked to wake at or before the earliest deadline.
    A cancelled timer leaves the heap when its deadline comes, or when more than half are cancelled.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._heap: list[tuple[float, int, Timer]] = []
        self._made = 0
        self._sweep_at = 1024
        self._wake: Callable[[], None] | None = None
        self._wake_deadline = float("inf")

    def __len__(self) -> int:
        return sum(timer.call is not None for _, _, timer in self._heap)

    def now(self) -> float:
        """Returns the monotonic time that deadlines are told in."""
        return self._clock.monotonic()

    def after(self, delay_s: float, call: Callable[[], None]) -> Timer:
        """Calls once `delay_s` seconds have passed, unless cancelled."""
        deadline = self._clock.monotonic() + delay_s
        timer = Timer(deadline, call)
        self._made += 1
        heapq.heappush(self._heap, (deadline, self._made, timer))
        if len(self._heap) > self._sweep_at:
            self._sweep()
        if deadline < self._wake_deadline:
            self._arm()
        return timer

    def run_due(self) -> None:
        """Makes every call whose deadline has passed, in order."""
        self._wake = None
        self._wake_deadline = float("inf")
        now = self._clock.monotonic()
        while self._heap and self._heap[0][0] <= now:
            timer = heapq.heappop(self._heap)[2]
            call, timer.call = timer.call, None
            if call is not None:
                call()
        self._arm()

    def close(self) -> None:
        """No call comes any more."""
        self._heap.clear()
        if self._wake is not None:
            self._wake()
            self._wake = None

    def _arm(self) -> None:
        while self._heap and self._heap[0][2].call is None:
            heapq.heappop(self._heap)
        if not self._heap:
            return
        deadline = self._heap[0][0]
        if deadline < self._wake_deadline:
            if self._wake is not None:
                self._wake()
            self._wake_deadline = deadline
            self._wake = self._clock.wake_at(deadline, self.run_due)

    def _sweep(self) -> None:
        self._heap = [entry for entry in self._heap if entry[2].call is not None]
        heapq.heapify(self._heap)
        self._sweep_at = max(1024, 2 * len(self._heap))
