"""Places among the creates that a backend carries out at once."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from skerry.errors import Bug
from skerry.node.admission.fairness import FairQueue
from skerry.node.admission.waits import Gone, Wait
from skerry.node.config import Limits


class Places:
    """Invariants: 0 <= taken <= creates_in_flight_max; nobody waits while a place is free."""

    def __init__(self, limits: Limits, weight: Callable[[str], float]) -> None:
        self.taken = 0
        self.queue: FairQueue[Wait] = FairQueue(weight)
        self._limits = limits

    @asynccontextmanager
    async def hold(
        self, enqueue: Callable[[], Wait], dequeue: Callable[[Wait], None], gone: Gone | None
    ) -> AsyncIterator[None]:
        """Holds one within the block; `enqueue` puts who has to wait for it into the queue."""
        if self.taken >= self._limits.creates_in_flight_max:
            wait = enqueue()
            try:
                await wait.until_served(gone)
            except BaseException:
                if wait.served:
                    self._leave()  # it was handed to us in the same moment
                raise
            finally:
                dequeue(wait)
        else:
            self.taken += 1
        try:
            yield
        finally:
            self._leave()

    def _leave(self) -> None:
        while (head := self.queue.head()) is not None:
            if head.item.done.done():
                self.queue.remove(head)
                continue
            self.queue.serve(head)
            head.item.ticket = None
            head.item.done.set_result(None)  # the place changes hands: `taken` stays
            return
        self.taken -= 1

    def check_invariants(self) -> None:
        """Raises Bug unless the invariants hold."""
        self.queue.check_invariants()
        if not 0 <= self.taken <= self._limits.creates_in_flight_max:
            raise Bug(f"{self.taken} creates are under way")
        if len(self.queue) and self.taken < self._limits.creates_in_flight_max:
            raise Bug("someone waits for a place while one is free")
