"""What the instances of one container backend share: launcher, slots, layers, cores, places."""

from __future__ import annotations

import asyncio
import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from skerry.backends.api import View
from skerry.backends.container.cores import Cores
from skerry.backends.container.layers import LayerMounts
from skerry.backends.container.remains import Remains
from skerry.backends.container.slots import Slot, SlotPool, idle_max_of
from skerry.backends.shared import proc
from skerry.backends.shared.cgroup import Counters, Layout, groups_of
from skerry.backends.shared.launcher import LauncherFailed
from skerry.backends.shared.launcher_process import LauncherProcess
from skerry.errors import Unavailable
from skerry.wire import plan, replies

if TYPE_CHECKING:
    from skerry.backends.container.instance import ContainerInstance

STARTS_MAX = 8
STOPS_MAX = 32
# Both need a core each; together fewer than the launcher's own bound of 16.
RECLAIMS_MAX = 4
PREFETCHES_MAX = 8
_READ_MAX = 4096


class Places(msgspec.Struct, frozen=True):
    """Where a node keeps its things. `layer_dirs` hold blobs outside the state directory."""

    state_dir: str
    run_dir: str
    node: str
    layer_dirs: tuple[str, ...] = ()
    orphan_after_s: float | None = None
    prefetch: bool = True  # memory is read ahead when an instance is resumed

    @property
    def keep_dir(self) -> str:
        """Holds a file for each instance that outlives a node that is gone for good."""
        return f"{self.run_dir}/keep"


class Parts:
    """Invariant: every instance in `instances` is held by the launcher, or being made or ended."""

    def __init__(self, places: Places, layout: Layout, log: logging.Logger) -> None:
        self.places, self.log = places, log
        self.groups = groups_of(layout, places.node)
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        self.slots = SlotPool(self.groups, self.ask_raw, log, idle_max=idle_max_of(memory))
        self.layers = LayerMounts(self.ask_raw, log)
        self.remains = Remains(self.groups, places.run_dir, self.ask_raw, log)
        self.cores = Cores()
        self.instances: dict[str, ContainerInstance] = {}
        self.making: set[str] = set()  # ids whose START is under way
        self.views: dict[str, View] = {}  # that outlive their instances, and those being taken
        self.unclaimed: set[str] = set()  # ids that a found launcher holds
        self.orphans: set[int] = set()  # slots of an earlier node that nobody claimed yet
        self.restored = False
        self.boot = proc.boot_id()
        self.features: frozenset[str] = frozenset()
        self.starts = asyncio.Semaphore(STARTS_MAX)
        self.stops = asyncio.Semaphore(STOPS_MAX)
        self.reclaims = asyncio.Semaphore(RECLAIMS_MAX)
        self.prefetches = asyncio.Semaphore(PREFETCHES_MAX)
        self.process: LauncherProcess | None = None
        self._tasks: set[asyncio.Task[Any]] = set()

    def track(self, task: asyncio.Task[Any]) -> None:
        """Holds a task until it ends; `settle` waits for all of them."""
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self.log.warning("in the background: %s", task.exception())

    async def settle(self) -> None:
        """Returns when nothing is under way in the background."""
        while self._tasks:
            await asyncio.wait(set(self._tasks))

    async def ask_raw(self, request: plan.Request) -> replies.Reply:
        """Asks the launcher; LauncherFailed, or Unavailable if it is lost."""
        if self.process is None:
            raise Unavailable("the container backend is not running")
        return await (await self.process.get()).ask(request)

    async def ready(self) -> None:
        """Returns when the launcher is there and knows what lives."""
        if self.process is not None:
            await self.process.get()

    async def ask(self, request: plan.Request) -> replies.Reply:
        """Asks the launcher; raises errors of the seam only."""
        try:
            return await self.ask_raw(request)
        except LauncherFailed as error:
            raise error.to_error() from error

    def socket_path(self, instance: str) -> str:
        """Where an instance's agent listens."""
        return f"{self.places.run_dir}/i/{instance}"

    def launcher_root(self) -> str:
        """The root of the launcher's mount namespace, as the node sees it."""
        if self.process is None:
            raise Unavailable("the container backend is not running")
        return f"/proc/{self.process.pid}/root"

    def upper_root(self) -> str:
        """Where all uppers lie, as the node sees it."""
        return f"{self.launcher_root()}/upper"

    def uppers(self) -> set[str]:
        """Returns the names of all uppers and views; spare ones and trash begin with a dot."""
        try:
            names = os.listdir(self.upper_root())
        except OSError:
            return set()
        return {name for name in names if not name.startswith(".")}

    def read_counters(self, slot: Slot) -> Counters:
        """Reads a slot's groups."""
        return self.groups.parse(
            tuple(proc.content(path, _READ_MAX) for path in slot.groups.readings)
        )

    def keep(self, instance: str) -> None:
        """Marks an instance that stays when the node is gone for good."""
        if self.places.orphan_after_s is not None:
            Path(self.places.keep_dir, instance).touch()

    def forget(self, instance: str) -> None:
        """Takes an ended instance off the books."""
        self.instances.pop(instance, None)
        if self.places.orphan_after_s is not None:
            Path(self.places.keep_dir, instance).unlink(missing_ok=True)
