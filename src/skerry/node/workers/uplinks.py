"""Sandboxes and their uplinks: who gets one, and what it may do to its sandbox."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

from skerry.errors import InvalidRequest, NotFound, SkerryError
from skerry.node.clock import Clock
from skerry.node.life.link import Link
from skerry.node.life.sandbox import Sandbox
from skerry.node.tasks import Tasks
from skerry.node.workers.places import Places, Share
from skerry.node.workers.relay import Refused, Relay
from skerry.node.workers.requests import Requests
from skerry.node.workers.uplink import Uplink
from skerry.node.workers.workers import Workers
from skerry.spec.sandbox import SandboxSpec, State

SETTLE_S = 2.0  # an agent that does not answer for so long is not waited for

EnsureRunning = Callable[[Sandbox], Awaitable[Link]]


class Uplinks:
    """The node's part of uplinks. A sandbox that asks for none has none, and nothing listens for it."""

    def __init__(self, workers: Workers, clock: Clock, tasks: Tasks, *, proxy_port: int) -> None:
        self.workers = workers
        self._places = Places(workers.config)
        self._clock = clock
        self._tasks = tasks
        self._proxy_port = proxy_port

    def check(self, spec: SandboxSpec) -> None:
        """Raises InvalidRequest unless this node can give the sandbox its uplinks."""
        for uplink in spec.uplinks:
            if uplink.worker >= len(self.workers):
                raise InvalidRequest(
                    f"uplinks: this node has {len(self.workers)} workers, no {uplink.worker}"
                )
            if uplink.port == self._proxy_port:
                raise InvalidRequest(f"uplinks: port {uplink.port} is that of the network's proxy")

    def attach(self, sandbox: Sandbox, link: Link, ensure_running: EnsureRunning) -> None:
        """Gives a sandbox its uplinks before its agent is connected to.

        The link then listens with every connection that it makes.
        """
        host = _Inside(sandbox, link, self._clock, ensure_running)
        share = Share(self._places)
        for wanted in sandbox.spec.uplinks:
            requests = Requests()
            relay = Relay(sandbox.id, requests, self._ready(wanted.worker), self._count)
            uplink = Uplink(relay, requests, host, share, self._tasks.spawn)
            link.add(wanted.port, uplink.serve)

    def gauges(self) -> dict[str, float]:
        """Returns counts for the page of metrics."""
        places = self._places
        counts = {
            f"uplink_{word}_total": float(places.counts[word])
            for word in ("requests", "resent", "refused")
        }
        return {
            "uplink_connections": float(places.connections),
            "uplink_waiting": float(places.waiting),
            "uplink_body_bytes": float(places.body_bytes),
            **counts,
        }

    def _ready(self, worker: int) -> Callable[[], Awaitable[str]]:
        async def ready() -> str:
            try:
                return await self.workers.ready(worker)
            except NotFound as error:  # the operator has taken it away since
                raise Refused(503, error.message, "unavailable", retry=True) from None

        return ready

    def _count(self, word: str) -> None:
        self._places.counts[word] += 1


class _Inside:
    """A sandbox as its uplinks see it."""

    def __init__(
        self, sandbox: Sandbox, link: Link, clock: Clock, ensure_running: EnsureRunning
    ) -> None:
        self._sandbox = sandbox
        self._link = link
        self._clock = clock
        self._ensure_running = ensure_running

    def work_time(self) -> float:
        """Returns a time that stands still while the sandbox does."""
        return self._sandbox.work_time(self._clock.monotonic())

    def held_s(self) -> float:
        """Returns for how long it has stood still in all."""
        now = self._clock.monotonic()
        return now - self._sandbox.work_time(now)

    def paused(self) -> bool:
        """Whether it stands still, or is about to."""
        return self._sandbox.state in {State.PAUSING, State.PAUSED}

    async def settle(self) -> None:
        """Returns when what was written to it is in its sockets, as far as that fits.

        The agent writes what it is sent before it answers what comes after.
        """
        with contextlib.suppress(SkerryError, TimeoutError):
            async with asyncio.timeout(SETTLE_S):
                client = await self._link.ready()
                await client.ping()

    async def resume(self) -> None:
        """Returns when it goes on, or cannot."""
        with contextlib.suppress(SkerryError):
            await self._ensure_running(self._sandbox)
            self._sandbox.touch(self._clock.wall(), self._clock.monotonic())
