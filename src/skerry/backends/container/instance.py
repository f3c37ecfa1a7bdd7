"""A live container: PID 1 is the guest agent, reached over a unix socket that is invisible inside."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import msgspec

from skerry.backends.api import CellLimits, CellUsage, Exit, Reclaimed, Record, Upper, View
from skerry.backends.container import memory, quota, views
from skerry.backends.container.cells import CellBooks
from skerry.backends.container.parts import Parts
from skerry.backends.container.remains import remove_groups_below
from skerry.backends.container.slots import Slot
from skerry.backends.shared.cgroup import Counters, Limits
from skerry.backends.shared.launcher import LauncherFailed
from skerry.errors import SandboxFailed, Unavailable
from skerry.spec.layers import LayerFile
from skerry.spec.sandbox import Usage
from skerry.wire import plan

RECORD_VERSION = 1
CONNECT_TIMEOUT_S = 10.0
STOP_TRIES = 3
_ALL = 1 << 62


class Facts(msgspec.Struct, frozen=True):
    """What an instance is made of; also its record's content."""

    instance: str
    slot: int
    pid: int
    start_ticks: int  # of the pid: with `boot` it tells the process from a later one
    boot: str
    layers: tuple[LayerFile, ...]  # lowest first
    limits: Limits
    base: Counters
    cores: tuple[int, ...] = ()
    disk_base: int | None = None  # of the ids of its files on disk; None: the slot's
    disk_bytes: int | None = None  # its limit, as asked for
    inherited: int = 0  # bytes of that which others had written
    cells: int = 0


def exit_of(wait_status: int) -> Exit:
    """Returns what a wait status says."""
    if os.WIFSIGNALED(wait_status):
        return Exit(signal=os.WTERMSIG(wait_status))
    return Exit(status=os.WEXITSTATUS(wait_status))


class ContainerInstance:
    """One container. Invariant: `_exit` is done once its first process is known to have ended."""

    def __init__(self, parts: Parts, facts: Facts, slot: Slot) -> None:
        self.facts = facts
        self.slot = slot
        self.paused = False
        self._parts = parts
        self._exit: asyncio.Future[Exit] = asyncio.get_running_loop().create_future()
        self._destroying: asyncio.Task[None] | None = None
        self._freeze = asyncio.Lock()
        self._snapshots = 0
        self._given = Reclaimed()  # by the last pause
        self._froze = True  # its group may be frozen, now or since earlier; `born` knows better
        self._cells = CellBooks(slot)

    @property
    def id(self) -> str:
        """Its id."""
        return self.facts.instance

    @property
    def disk_base(self) -> int:
        """What the ids of its files count from on disk: another's, if it began with those."""
        base = self.facts.disk_base
        return self.slot.uid_base if base is None else base

    @property
    def alive(self) -> bool:
        """False once its first process ended or it was destroyed."""
        return not self._exit.done()

    @property
    def socket_path(self) -> str:
        """Where its agent listens."""
        return self._parts.socket_path(self.id)

    def born(self, pid: int, start_ticks: int | None, cores: tuple[int, ...]) -> None:
        """Takes note of its first process, just started."""
        self._froze = False
        changes = {"pid": pid, "start_ticks": start_ticks or 0, "cores": cores}
        self.facts = msgspec.structs.replace(self.facts, **changes)

    def exited(self, wait_status: int) -> None:
        """Takes note of the end of its first process."""
        if not self._exit.done():
            self._exit.set_result(exit_of(wait_status))

    async def open_channel(self, factory: Callable[[], asyncio.Protocol]) -> asyncio.Transport:
        """Connects to the agent; SandboxFailed if it has ended, Unavailable if it does not answer."""
        if not self.alive:
            raise SandboxFailed(f"the first process of {self.id} has ended", instance=self.id)
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                transport, _ = await loop.create_unix_connection(factory, self.socket_path)
        except (OSError, TimeoutError) as error:
            raise Unavailable(f"the agent of {self.id} cannot be reached: {error}") from error
        return transport

    async def wait(self) -> Exit:
        """Returns when its first process ended or it was destroyed."""
        return await asyncio.shield(self._exit)

    async def usage(self) -> Usage:
        """Reads its groups; what they held when it was made is taken off."""
        now, base = self._parts.read_counters(self.slot), self.facts.base
        return Usage(
            cpu_seconds=max(0, now.cpu_us - base.cpu_us) / 1e6,
            memory_bytes=max(0, now.memory_bytes - base.memory_bytes),
            memory_peak_bytes=max(0, now.memory_peak_bytes - base.memory_bytes),
            pids=now.pids,
            oom_kills=max(0, now.oom_kills - base.oom_kills),
            memory_swapped=now.swap_bytes,
            major_faults=max(0, now.major_faults - base.major_faults),
        )

    @property
    def cells(self) -> int:
        """How many cells it has."""
        return len(self._cells)

    def open_cell(self, cell: int, limits: CellLimits, /) -> bool:
        """Sets limits of an empty cell, if what its group still holds leaves room for them."""
        return self._cells.of(cell).open(limits)

    def cell_usage(self, cell: int, /) -> CellUsage:
        """Reads its groups."""
        return self._cells.of(cell).usage()

    def cell_residue(self, cell: int, /) -> int:
        """Reads what its group holds beyond page cache."""
        return self._cells.of(cell).residue()

    async def destroy(self) -> None:
        """Leaves nothing of it; idempotent, and once begun it goes on if the caller gives up."""
        if self._destroying is None or (self._destroying.done() and self._failed_to_destroy()):
            self._destroying = asyncio.create_task(self._destroy())
            self._parts.track(self._destroying)
        await asyncio.shield(self._destroying)

    def _failed_to_destroy(self) -> bool:
        task = self._destroying
        return task is not None and (task.cancelled() or task.exception() is not None)

    async def _destroy(self) -> None:
        for tries in range(STOP_TRIES):
            try:
                async with self._parts.stops:
                    await self._end()
                break
            except Unavailable:
                # The launcher was lost: a new one adopts the instance, and is then asked again.
                if tries == STOP_TRIES - 1:
                    raise
        self.exited(9)
        self._cells.close()
        self._parts.forget(self.id)
        self._parts.layers.release(tuple(layer.id for layer in self.facts.layers))
        self._parts.cores.give_back(self.facts.cores, best_effort=self.facts.limits.best_effort)

    async def _end(self) -> None:
        """Stops it in the launcher and gives its slot back; Unavailable if the launcher is lost."""
        slot, slots, groups = self.slot, self._parts.slots, self.slot.groups
        try:
            # A group that stays frozen would hold whatever the slot's next sandbox starts in it.
            thaw = (f"write {groups.work}/cgroup.freeze 0",) if self._froze else ()
            request = plan.Stop(instance=self.id, read=groups.readings, step=thaw)
            stopped = (await self._parts.ask_raw(request)).stop()
        except LauncherFailed as error:
            raise error.to_error() from error
        self.exited(stopped.wait_status)
        if not stopped.slot_clean:
            # Also if the launcher did not know it: then its processes may still run.
            await self._parts.remains.kill(slot)
            remove_groups_below(groups.work)
        whole = len(stopped.read) == len(groups.readings)
        after = self._parts.groups.parse(stopped.read) if whole else Counters()
        clean = stopped.slot_clean and whole
        await slots.release(slot, clean=clean, after=after, why=stopped.text or "")

    def record(self) -> Record:
        """Returns its facts."""
        return Record("container", RECORD_VERSION, msgspec.to_builtins(self.facts))

    async def pause(self) -> Reclaimed:
        """Freezes it, then moves its memory to swap if the host has some; idempotent.

        Frozen is what counts: memory that cannot be moved stays, and is in the answer as 0.
        """
        async with self._freeze:
            if not self.paused:
                self._froze = True
                # Also if the answer is lost: it may stand still, and only a thaw makes sure.
                self.paused = True
                await self._parts.ask(plan.Freeze(self.id))
                self._given = await memory.give_back(self._parts, self.id, self.slot, _ALL)
            return self._given

    async def resume(self) -> None:
        """Thaws it, and reads its memory ahead while it runs already; idempotent.

        Measured (bench/pause.py): the first command is done earlier than if it waited for that.
        """
        async with self._freeze:
            if not self.paused:
                return
            swapped = self._parts.read_counters(self.slot).swap_bytes
            if swapped and self._parts.places.prefetch:
                fetching = memory.fetch(self._parts, self.id, swapped)
                self._parts.track(asyncio.create_task(fetching))
            await self._thaw()
            self.paused = False
            await memory.close_swap(self._parts, self.id, self.slot)

    async def reclaim(self, max_bytes: int, /) -> Reclaimed:
        """Moves up to that much of its memory to swap while it runs; nothing if it is paused."""
        if self.paused or not self.alive or self._freeze.locked():
            return Reclaimed()
        async with self._freeze:
            given = await memory.give_back(self._parts, self.id, self.slot, max_bytes)
            await memory.close_swap(self._parts, self.id, self.slot)
        return given

    @asynccontextmanager
    async def snapshot(self) -> AsyncIterator[Upper]:
        """Gives a consistent view of what was written.

        With snapshots it stands still for a moment only; else as long as the context is open, and
        `frozen_seconds` counts until the view was given.
        """
        if "snapshot" not in self._parts.features:
            async with self._frozen() as begin:
                yield self._upper(self.id, time.monotonic() - begin)
            return
        self._snapshots += 1
        name = f"{self.id}-snap{self._snapshots}"
        frozen = await self._take_snapshot(name)
        try:
            yield self._upper(name, frozen)
        except OSError as error:
            raise views.unreadable(self.id, error) from error
        finally:
            await views.drop(self._parts, name)

    async def view(self, name: str, /) -> View:
        """Takes a view that outlives it. What is unwritten goes to the disk before it is frozen."""
        parts = self._parts
        if "snapshot" not in parts.features:
            raise Unavailable("the disk of what sandboxes write has no snapshots")
        layers, base = self.facts.layers, self.disk_base
        early = f"{name}-early"
        view = View(name=name, layers=layers, uid_base=base)
        # From now on, for a sweep must not take it.
        parts.views[name] = view
        try:
            try:
                await parts.ask(plan.UpperSnapshot(instance=self.id, text=early))
                frozen = await self._take_snapshot(name)
            finally:
                # Not before: the launcher would wait for the snapshot under way, and all with it.
                views.drop_soon(parts, early)
            used = self.facts.inherited
            if self.facts.disk_bytes is not None:
                path = f"{parts.upper_root()}/{self.id}"
                used += await asyncio.to_thread(quota.used_bytes, path)
        except OSError as error:
            parts.views.pop(name, None)
            views.drop_soon(parts, name)
            raise views.unreadable(self.id, error) from error
        except BaseException:
            parts.views.pop(name, None)
            raise
        view = msgspec.structs.replace(view, used_bytes=used, frozen_seconds=frozen)
        parts.views[name] = view
        return view

    async def _take_snapshot(self, name: str) -> float:
        """Makes a snapshot while it stands still; returns for how long it did."""
        try:
            async with self._frozen() as begin:
                await self._parts.ask(plan.UpperSnapshot(instance=self.id, text=name))
        except BaseException:
            # Also if only the answer was lost: it may be there, and nobody else knows its name.
            views.drop_soon(self._parts, name)
            raise
        return time.monotonic() - begin

    @asynccontextmanager
    async def _frozen(self) -> AsyncIterator[float]:
        async with self._freeze:
            begin = time.monotonic()
            try:
                if not self.paused:
                    self._froze = True
                    await self._parts.ask(plan.Freeze(self.id))
                yield begin
            finally:
                if not self.paused and self.alive:
                    await self._thaw()

    async def _thaw(self) -> None:
        """Lets it go on, also by a launcher that comes after the one that was asked first."""
        for tries in range(STOP_TRIES):
            try:
                await self._parts.ask(plan.Thaw(self.id))
                return
            except Unavailable:
                if tries == STOP_TRIES - 1 or not self.alive:
                    raise

    def _upper(self, name: str, frozen: float) -> Upper:
        return views.upper_at(self._parts, name, self.facts.layers, self.disk_base, frozen)
