"""One create that waits in a queue: served when its turn comes, or told why it never will."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable

from skerry.errors import SkerryError, Unavailable
from skerry.node.admission.fairness import Ticket
from skerry.node.admission.shortage import Claim
from skerry.node.timers import Timer

PLACE_KEPT_S = 10.0
Gone = Callable[[], Awaitable[None]]  # returns when the client that waits has gone


class ClientLeft(Unavailable):
    """Whoever asked does not wait any more; another who asked for the same may go on."""


class KeptPlaces:
    """Places of those whose time was over, for the same request again.

    Else who waits long, in several requests, would be at the end each time.

    Invariant: at most `most`, and none older than PLACE_KEPT_S after a look.
    """

    def __init__(self, now: Callable[[], float], most: int) -> None:
        self._now = now
        self._most = most
        self._places: OrderedDict[tuple[str, str], tuple[int, float]] = OrderedDict()

    def keep(self, flow: str, key: str, number: int) -> None:
        """The one of that number has left."""
        self._places[flow, key] = (number, self._now())
        while len(self._places) > self._most:
            self._places.popitem(last=False)

    def take(self, flow: str, key: str | None) -> int | None:
        """Returns the number that it had, once."""
        oldest = self._now() - PLACE_KEPT_S
        while self._places and next(iter(self._places.values()))[1] < oldest:
            self._places.popitem(last=False)
        found = None if key is None else self._places.pop((flow, key), None)
        return None if found is None else found[0]


class Wait:
    """One create in a queue. Done with None when its turn has come, or with why it never will."""

    __slots__ = ("claim", "done", "key", "ticket", "timer")

    def __init__(self, claim: Claim, key: str | None = None) -> None:
        self.claim = claim
        self.key = key  # by which a repeat is known
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.ticket: Ticket[Wait] | None = None
        self.timer: Timer | None = None

    @property
    def served(self) -> bool:
        """Whether its turn has come."""
        done = self.done
        return done.done() and not done.cancelled() and done.exception() is None

    def leave(self, error: SkerryError) -> None:
        """It waits no longer; harmless once its turn has come."""
        if not self.done.done():
            self.done.set_exception(error)

    async def until_served(self, gone: Gone | None) -> None:
        """Returns when its turn has come; raises ClientLeft as soon as `gone` returns."""
        if gone is None:
            await self.done
            return

        async def watch() -> None:
            await gone()
            self.leave(
                ClientLeft("the client that asked went away while this waited", retry_after_s=0.1)
            )

        watcher = asyncio.create_task(watch())
        try:
            await self.done
        finally:
            watcher.cancel()
            await asyncio.wait((watcher,))
