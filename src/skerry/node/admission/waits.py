"""One create that waits in a queue: served when its turn comes, or told why it never will."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from skerry.errors import SkerryError, Unavailable
from skerry.node.admission.fairness import Ticket
from skerry.node.admission.shortage import Claim
from skerry.node.timers import Timer

Gone = Callable[[], Awaitable[None]]  # returns when the client that waits has gone


class ClientLeft(Unavailable):
    """Whoever asked does not wait any more; another who asked for the same may go on."""


class Wait:
    """One create in a queue. Done with None when its turn has come, or with why it never will."""

    __slots__ = ("claim", "done", "ticket", "timer")

    def __init__(self, claim: Claim) -> None:
        self.claim = claim
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
