"""Idle sandboxes give memory back while memory is short (the policy is `density.idle`)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from skerry.backends.api import Reclaimable
from skerry.density.idle import Host, Idle, IdleMarks, Seen, Step
from skerry.errors import SkerryError
from skerry.node.clock import Clock, sleep
from skerry.node.gauges.host import host_view
from skerry.node.life.sandbox import Sandbox
from skerry.node.life.sandboxes import Sandboxes
from skerry.spec.sandbox import State

log = logging.getLogger("skerry.node")

LOOKED_AT_MAX = 256  # sandboxes a round: reading their groups takes about 0.1 ms each
AT_ONCE = 2


class IdleReclaim:
    """Looks at the host every few seconds; at sandboxes only while memory is short."""

    def __init__(
        self,
        marks: IdleMarks,
        sandboxes: Sandboxes,
        clock: Clock,
        read: Callable[[], Host] | None = None,
    ) -> None:
        self.policy = Idle(marks)
        self.given_bytes = 0
        self.rounds = 0
        self._sandboxes, self._clock, self._read = sandboxes, clock, read or read_host

    @asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        """Looks within the block."""
        task = asyncio.create_task(self._work())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait((task,))

    async def _work(self) -> None:
        while self.policy.marks.when != "off":
            await sleep(self._clock, self.policy.marks.look_s)
            try:
                if self.policy.pressed(self._read()):
                    await self.round()
            except Exception:  # what fails once must not end this for good
                log.exception("idle sandboxes were not asked for memory")

    async def round(self) -> None:
        """Has cold sandboxes give back one step each."""
        self.rounds += 1
        now = self._clock.monotonic()
        running = [one for one in self._sandboxes if self._may_give(one, now)]
        running.sort(key=lambda one: one.active)
        by_id = {one.id: one for one in running[:LOOKED_AT_MAX]}
        seen = []
        for sandbox in by_id.values():
            found = await self._look(sandbox)
            if found is not None:
                seen.append(found)
        steps = self.policy.look(now, seen, self._sandboxes.by_id)
        places = asyncio.Semaphore(AT_ONCE)
        async with asyncio.TaskGroup() as group:
            for step in steps:
                group.create_task(self._take(by_id[step.id], step, places))

    def _may_give(self, sandbox: Sandbox, now: float) -> bool:
        """Requests under way are activity, commands that wait are not; the policy looks at CPU."""
        idle_for = now - sandbox.active
        fresh = sandbox.busy > 0 or idle_for < self.policy.marks.idle_s
        return sandbox.state is State.RUNNING and not fresh

    async def _look(self, sandbox: Sandbox) -> Seen | None:
        instance: object = sandbox.instance
        if sandbox.instance is None or not isinstance(instance, Reclaimable):
            return None
        try:
            used = await sandbox.instance.usage()
        except SkerryError:
            return None  # it has just ended
        await asyncio.sleep(0)  # others have their turn between two
        return Seen(
            sandbox.id, sandbox.active, used.memory_bytes, used.cpu_seconds, used.major_faults
        )

    async def _take(self, sandbox: Sandbox, step: Step, places: asyncio.Semaphore) -> None:
        async with places:
            instance: object = sandbox.instance
            # A request may have come while others were served.
            if not self._may_give(sandbox, self._clock.monotonic()):
                return
            if not isinstance(instance, Reclaimable):
                return
            given = await instance.reclaim(step.bytes)
            after = await self._look(sandbox)
        if after is not None:
            self.given_bytes += given.bytes
            self.policy.gave(self._clock.monotonic(), step, given.bytes, after.major_faults)
            log.debug("%s gave back %d KiB", sandbox.id, given.bytes >> 10)


def read_host() -> Host:
    """Reads memory, memory pressure and free swap of this host."""
    view = host_view()
    share = view.memory_available_bytes / max(1, view.memory_total_bytes)
    return Host(share, view.pressure.get("memory", 0.0), view.swap_free_bytes)
