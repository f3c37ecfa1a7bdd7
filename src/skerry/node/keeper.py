"""What the node owes the layer store: a lease on what its sandboxes use, and now and then a collection.

The lease names the layers of every sandbox that has not been deleted, paused ones too. It outlives
the node's process, so that a restart finds the layers of what ran on.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from typing import Protocol

from skerry.errors import Bug, SkerryError
from skerry.images.objects.patience import patient_at_most
from skerry.node.clock import Clock, sleep
from skerry.spec.layers import CollectReport

log = logging.getLogger("skerry.node")

RENEW_S = 60.0
START_WAIT_S = 2.0  # for a store that is away: the sandboxes wait for the node
LEASE_S = 7 * 86_400.0  # a node that is away for longer has lost what only it used


class LeaseBook(Protocol):
    """What the node needs of `skerry.images.store.leases.Leases`; every call may block."""

    def recall(self) -> None:
        """Takes over what earlier processes of this node named."""

    def settle(self, live: Collection[str]) -> None:
        """Ends their leases; of what they named only `live` stays."""

    def renew(self, live: Collection[str] | None = None) -> float:
        """Names what is live."""

    def drop(self) -> None:
        """Ends the lease unless something is held."""


class Sweeper(Protocol):
    """What the node needs of the library to collect; every call may block."""

    def look(self) -> CollectReport:
        """Returns what a collection would remove."""

    def collect(self, log: Callable[[str], None]) -> CollectReport:
        """Removes what nothing needs."""

    def collected_ago_s(self) -> float | None:
        """Returns when anybody last did."""


class Keeper:
    """Renews and collects. `live` names the layers of all sandboxes; it is called in the loop."""

    def __init__(
        self,
        leases: LeaseBook | None,
        sweeper: Sweeper | None,
        live: Callable[[], Collection[str]],
        clock: Clock,
        *,
        collect_every_s: float,
        collect_after_s: float = 0.0,
        hurry: Callable[[], None] | None = None,
        counts: Callable[[], Mapping[str, int]] = dict,
    ) -> None:
        """`hurry` makes calls to a store that does not answer end soon; `counts` is what it counts."""
        self._counts = counts
        self._leases, self._sweeper, self._live, self._clock = leases, sweeper, live, clock
        self._every_s, self._after_s = collect_every_s, collect_after_s
        self._hurry = hurry
        self._settled = False
        self._asked = asyncio.Event()
        self._turn = asyncio.Lock()
        self.collections = 0
        self.freed_bytes = 0

    def gauges(self) -> dict[str, float]:
        """Returns plain counts by name."""
        return {
            "store_collections_total": self.collections,
            "store_freed_bytes_total": self.freed_bytes,
            **self._counts(),
        }

    async def recall(self) -> None:
        """Before anything is recovered: what earlier processes used stays until it is known.

        If the store is away, their leases stay in it until it is back.
        """
        if self._leases is None:
            return
        try:
            with patient_at_most(START_WAIT_S):
                await asyncio.to_thread(self._leases.recall)
        except SkerryError as error:
            log.warning("the layer store is away: %s", error)

    @asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        """Renews and collects within the block; what is live has been recovered."""
        tasks = []
        if self._leases is not None:
            with patient_at_most(START_WAIT_S):
                await self._settle()
            tasks = [asyncio.create_task(self._renewing()), asyncio.create_task(self._collecting())]
        try:
            yield
        finally:
            if self._hurry is not None:
                self._hurry()
            for task in tasks:
                task.cancel()
            if tasks:
                await asyncio.wait(tasks)

    async def end(self) -> None:
        """Ends the lease unless sandboxes stay; the store may be away, then it runs out by itself."""
        if self._leases is None:
            return
        leases = self._leases
        await self._renew(leases.renew)
        if not self._live():
            try:
                await asyncio.to_thread(leases.drop)
            except SkerryError as error:
                log.warning("the lease on the layer store is left to run out: %s", error)

    def collect_soon(self) -> None:
        """Something was removed: its bytes are to go."""
        self._asked.set()

    async def collect(self, *, dry_run: bool) -> CollectReport:
        """Collects now, after one that is under way; with `dry_run` only says what would go."""
        sweeper = self._sweeper
        if sweeper is None:
            raise Bug("this node has no layer store")
        if self._leases is not None:
            await self._renew(self._leases.renew)
        if dry_run:
            return await asyncio.to_thread(sweeper.look)
        async with self._turn:
            report = await asyncio.to_thread(sweeper.collect, log.info)
        self.collections += 1
        self.freed_bytes += report.freed_bytes
        return report

    async def _renew(self, write: Callable[[Collection[str]], object]) -> bool:
        live = tuple(self._live())
        try:
            await asyncio.to_thread(write, live)
        except SkerryError as error:
            log.warning("the lease on the layer store was not renewed: %s", error)
            return False
        return True

    async def _settle(self) -> None:
        if self._leases is not None:
            self._settled = await self._renew(self._leases.settle)

    async def _renewing(self) -> None:
        while self._leases is not None:
            await sleep(self._clock, RENEW_S)
            if self._settled:
                await self._renew(self._leases.renew)
            else:
                await self._settle()

    async def _collecting(self) -> None:
        while self._every_s > 0 and self._sweeper is not None:
            asked = asyncio.create_task(self._asked.wait())
            due = asyncio.create_task(sleep(self._clock, self._every_s))
            try:
                await asyncio.wait((asked, due), return_when=asyncio.FIRST_COMPLETED)
            finally:
                asked.cancel()
                due.cancel()
            try:
                if self._asked.is_set():
                    await sleep(self._clock, self._after_s)
                elif not await self._is_due(self._sweeper):
                    continue
                self._asked.clear()
                report = await self.collect(dry_run=False)
                if report.removed:
                    log.info("collected %d blobs", len(report.removed))
            except SkerryError as error:
                log.warning("the layer store was not collected: %s", error)

    async def _is_due(self, sweeper: Sweeper) -> bool:
        """Says whether no other node has collected lately."""
        ago = await asyncio.to_thread(sweeper.collected_ago_s)
        return ago is None or ago >= self._every_s
