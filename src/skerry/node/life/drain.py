"""Draining: the node takes no new sandboxes, and what lives finishes or is stopped after a grace."""

from __future__ import annotations

import asyncio
import logging

from skerry.errors import SkerryError
from skerry.node.life.control import Control
from skerry.node.life.sandbox import ENDED, Draining, Sandbox
from skerry.node.parts import Parts
from skerry.node.timers import Timer
from skerry.wire.control import DrainBody, DrainState

log = logging.getLogger("skerry.node")

STOPS_AT_ONCE = 64
REASON = "its node was drained"


class Drain:
    """Invariant: `admission.draining` is set exactly while every live sandbox carries `draining`.

    A restart of the node ends it.
    """

    def __init__(self, parts: Parts, control: Control) -> None:
        self._clock = parts.clock
        self._timers = parts.timers
        self._tasks = parts.tasks
        self._admission = parts.admission
        self._sandboxes = parts.sandboxes
        self._control = control
        self._draining: Draining | None = None
        self._timer: Timer | None = None

    @property
    def on(self) -> bool:
        """Whether the node is being drained, or is drained."""
        return self._draining is not None

    def begin(self, body: DrainBody) -> DrainState:
        """Takes no new sandboxes from now on; asked again, only the deadline changes."""
        body.check()
        self._cancel()
        deadline = None
        if body.grace_s is not None:
            deadline = self._clock.wall() + body.grace_s
            self._timer = self._timers.after(body.grace_s, self._stop_all)
        self._set(Draining(deadline))
        log.warning("the node is being drained: %d sandboxes live", self._admission.sandboxes)
        return self.state()

    def end(self) -> DrainState:
        """Takes new sandboxes again; nothing is stopped any more. Idempotent."""
        self._cancel()
        self._set(None)
        return self.state()

    def state(self) -> DrainState:
        """Returns how far it is."""
        return DrainState(
            draining=self.on,
            live=self._admission.sandboxes,
            commands=self._admission.operations,
            deadline=None if self._draining is None else self._draining.deadline,
        )

    def _set(self, draining: Draining | None) -> None:
        self._draining = draining
        self._admission.draining = draining is not None
        for sandbox in self._sandboxes:
            sandbox.draining = None if sandbox.state in ENDED else draining

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _stop_all(self) -> None:
        self._timer = None
        self._tasks.spawn(self._stop())

    async def _stop(self) -> None:
        places = asyncio.Semaphore(STOPS_AT_ONCE)

        async def one(sandbox: Sandbox) -> None:
            async with places:
                if not self.on:
                    return  # taken back while this one waited for its turn
                try:
                    await self._control.stop(sandbox, REASON)
                except SkerryError as error:
                    log.warning("%s is not stopped yet: %s", sandbox.id, error)

        await asyncio.gather(*(one(each) for each in self._sandboxes if each.state not in ENDED))
