"""Draining: the node takes no new sandboxes, and what lives finishes or is stopped after a grace."""

from __future__ import annotations

import asyncio
import contextlib
import logging

from skerry.backends.shared import proc
from skerry.errors import SkerryError
from skerry.node.identity import read_line, write_line
from skerry.node.life.control import Control
from skerry.node.life.lives import Lives
from skerry.node.life.sandbox import ENDED, Draining, Sandbox
from skerry.node.parts import Parts
from skerry.node.timers import Timer
from skerry.wire.control import DrainBody, DrainState

log = logging.getLogger("skerry.node")

STOPS_AT_ONCE = 64
REASON = "its node was drained"
FILE = "drain"


class Drain:
    """Invariant: `admission.draining` is set exactly while every live sandbox carries `draining`.

    It outlives a restart of the node, as `drain` in the state directory, and ends with the host: that
    it was to go away is what draining is for. An embedded node forgets it.
    """

    def __init__(self, parts: Parts, control: Control, lives: Lives) -> None:
        self._clock = parts.clock
        self._timers = parts.timers
        self._tasks = parts.tasks
        self._admission = parts.admission
        self._sandboxes = parts.sandboxes
        self._control = control
        self._directory = None if parts.config.embedded else parts.config.state_dir
        self._lives = lives
        self._draining: Draining | None = None
        self._timer: Timer | None = None

    @property
    def on(self) -> bool:
        """Whether the node is being drained, or is drained."""
        return self._draining is not None

    def begin(self, body: DrainBody) -> DrainState:
        """Takes no new sandboxes from now on; asked again, only the deadline changes."""
        body.check()
        deadline = None if body.grace_s is None else self._clock.wall() + body.grace_s
        self._note(f"{proc.boot_id()} {'never' if deadline is None else repr(deadline)}")
        self._begin(deadline)
        return self.state()

    def recall(self) -> None:
        """Goes on with what an earlier process of this node began, if the host is the same since."""
        if self._directory is None:
            return
        boot, _, deadline = read_line(self._directory, FILE).partition(" ")
        if boot and boot == proc.boot_id():
            with contextlib.suppress(ValueError):  # it was cut short, or is not ours
                self._begin(None if deadline == "never" else float(deadline))

    def _begin(self, deadline: float | None) -> None:
        self._cancel()
        if deadline is not None:
            left = max(0.0, deadline - self._clock.wall())
            self._timer = self._timers.after(left, self._stop_all)
        self._set(Draining(deadline))
        log.warning("the node is being drained: %d sandboxes live", self._admission.sandboxes)

    def end(self) -> DrainState:
        """Takes new sandboxes again; nothing is stopped any more. Idempotent."""
        self._note("")
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

    def _note(self, line: str) -> None:
        if self._directory is None:
            return
        try:
            write_line(self._directory, FILE, line)
        except OSError as error:
            log.warning("a restart of the node will not know of this drain: %s", error)

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
                self._lives.withdrawn(sandbox, REASON)
                try:
                    await self._control.stop(sandbox, REASON)
                except SkerryError as error:
                    log.warning("%s is not stopped yet: %s", sandbox.id, error)

        await asyncio.gather(*(one(each) for each in self._sandboxes if each.state not in ENDED))
