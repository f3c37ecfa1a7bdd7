"""The pool of slots (decisions 17 to 19): the unit of reuse between sandboxes.

A slot is a number that stands for a range of ids, an owner uid, namespaces and limit groups. Idle
slots are kept towards recent demand. One comes back only if the launcher found it clean and its
memory group holds nothing that cannot be explained; else it is dropped. A number whose groups could
not be removed stays out of use until they are. A slot with cells is made for one container and dropped
with it: its user namespace allows more, and no sandbox ever gets it.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import logging
import math
import time
from collections.abc import Awaitable, Callable

from skerry.backends.shared.cells import CellGroups, cell_groups, with_cells
from skerry.backends.shared.cgroup import Counters, Groups, Limits, SlotGroups
from skerry.backends.shared.launcher import LauncherFailed
from skerry.errors import Overloaded, SkerryError
from skerry.wire import plan, replies

SLOTS_MAX = 20_000
UID_BASE_FIRST = 1 << 20
IDS_PER_SLOT = 65_536
OWNER_UID_FIRST = 3_000_000_000
IDLE_MIN = 64
# An idle slot pins about 320 KiB of kernel memory, most of it the network namespace.
IDLE_MAX = 1024
IDLE_BYTES = 320 << 10
IDLE_SHARE = 0.02  # of the host's memory, at most
RESIDUE_UNEXPLAINED_MAX = 8 << 20
# A limit below what a group still holds would evict pages that other sandboxes share.
RESIDUE_ROOM = 2
DEMAND_WINDOW_S = 10.0
REFILL_PAUSE_S = 0.5
DROPS_AT_ONCE = 32  # a pass: what a burst left over is given back within half a minute
DROP_TRIES = 40
DROP_PAUSE_S = 0.05

Ask = Callable[[plan.Request], Awaitable[replies.Reply]]


class Slot:
    """One slot. `limits` is what its groups are set to, `base` what they counted at hand-out.

    Its plan is 40 texts; one that serves a sandbox rests: thousands do, and it is rarely asked for.
    """

    def __init__(
        self, number: int, groups: Groups, *, best_effort: bool = False, cells: int = 0
    ) -> None:
        self.number = number
        self.cells = cells  # above 0: of the function profile
        self.best_effort = best_effort  # for life: its cgroup namespace is rooted in these groups
        self._planner = groups
        self._groups: SlotGroups | None = None
        self.wake()
        self.limits: Limits | None = None
        self.base = Counters()
        self.reusable = not cells

    @property
    def groups(self) -> SlotGroups:
        """The plan of its groups."""
        return self._groups or self._plan()

    def wake(self) -> None:
        """Keeps its plan at hand, for a START."""
        self._groups = self._plan()

    def rest(self) -> None:
        """Makes its plan anew, in some 10 us, whenever that is asked for."""
        self._groups = None

    def _plan(self) -> SlotGroups:
        own = self._planner.slot(self.number, self.owner_uid, best_effort=self.best_effort)
        return with_cells(own, self.cells, self.owner_uid)

    def cell_plans(self) -> list[CellGroups]:
        """Returns the plans of its cells' groups."""
        if not self.cells:  # nearly always; its plan may rest
            return []
        groups = self.groups
        return [cell_groups(groups, cell, self.owner_uid) for cell in range(self.cells)]

    @property
    def owner_uid(self) -> int:
        """The host id that its agent runs as."""
        return OWNER_UID_FIRST + self.number

    @property
    def uid_base(self) -> int:
        """The host id of its root."""
        return UID_BASE_FIRST + self.number * IDS_PER_SLOT

    @property
    def top(self) -> str:
        """Its cgroup2 directory, above the agent's and the work group."""
        return self.groups.agent.rpartition("/")[0]


def idle_max_of(memory_bytes: int) -> int:
    """Returns how many slots may idle on a host with that much memory."""
    return max(IDLE_MIN, min(IDLE_MAX, int(memory_bytes * IDLE_SHARE) // IDLE_BYTES))


def unexplained(counters: Counters) -> int:
    """Returns bytes that a group holds after its last process, beyond page cache."""
    return max(0, counters.memory_bytes - counters.cache_bytes)


class Window:
    """Remembers by how much a count rose within a window of time and the one before."""

    def __init__(self) -> None:
        self._begin = -math.inf
        self._low = self._high = self._before = 0

    def note(self, now: float, count: int) -> None:
        """Takes the count as it is now."""
        if now - self._begin > DEMAND_WINDOW_S:
            fresh = now - self._begin < 2 * DEMAND_WINDOW_S
            self._before = self._high - self._low if fresh else 0
            self._begin, self._low, self._high = now, count, count
        self._low, self._high = min(self._low, count), max(self._high, count)

    def rise(self, now: float) -> int:
        """Returns the larger rise of both windows; 0 if they are long ago."""
        if now - self._begin > 2 * DEMAND_WINDOW_S:
            return 0
        return max(self._before, self._high - self._low)


class SlotPool:
    """Invariant: each number below SLOTS_MAX is free, idle, in use, reserved, or stuck."""

    def __init__(
        self, groups: Groups, ask: Ask, log: logging.Logger, *, idle_max: int = IDLE_MAX
    ) -> None:
        self._groups, self._ask, self._log = groups, ask, log
        self._idle_max = idle_max
        self._idle: list[Slot] = []
        self._free: list[int] = []
        self._next = 0
        self._taken: set[int] = set()  # in use, reserved, idle or stuck
        self._stuck: dict[int, Slot] = {}
        self._wake = asyncio.Event()
        self._filling = asyncio.Lock()
        self._closing = False
        self._used = 0
        self._window = Window()
        self.made = 0
        self.dropped = 0

    @property
    def idle(self) -> int:
        """How many wait to be used."""
        return len(self._idle)

    @property
    def taken(self) -> frozenset[int]:
        """Numbers that are not free."""
        return frozenset(self._taken)

    @property
    def stuck(self) -> tuple[int, ...]:
        """Numbers whose groups could not be removed yet."""
        return tuple(self._stuck)

    @property
    def target(self) -> int:
        """How many shall be idle: by how many the use rose in the last ten to twenty seconds."""
        return min(self._idle_max, max(IDLE_MIN, self._window.rise(time.monotonic())))

    def check_invariants(self) -> None:
        """Raises AssertionError if a number is in two places."""
        idle = [slot.number for slot in self._idle]
        assert len(set(idle)) == len(idle), "an idle slot twice"  # noqa: S101
        assert set(idle) <= self._taken, "an idle slot is not taken"  # noqa: S101
        assert not set(self._free) & self._taken, "a free number is taken"  # noqa: S101

    async def acquire(
        self, memory_bytes: int, *, best_effort: bool = False, cells: int = 0
    ) -> Slot:
        """Returns a slot for a sandbox of that size and class: an idle one, else a new one."""
        self._count(1)
        for at in range(len(self._idle) - 1, -1, -1):
            if cells:
                break
            slot = self._idle[at]
            fits = slot.base.memory_bytes * RESIDUE_ROOM <= memory_bytes
            if fits and slot.best_effort == best_effort:
                self._wake.set()
                return self._idle.pop(at)
        try:
            return await self._make(best_effort=best_effort, cells=cells)
        except BaseException:
            self._count(-1)
            raise

    async def release(self, slot: Slot, *, clean: bool, after: Counters, why: str = "") -> None:
        """Takes a slot back, into the pool or apart."""
        self._count(-1)
        left = unexplained(after)
        if clean and left > RESIDUE_UNEXPLAINED_MAX:
            clean, why = False, f"{left >> 20} MiB of memory stayed without an explanation"
        if clean and slot.reusable and len(self._idle) < self._idle_max:
            slot.base = after
            slot.wake()
            self._idle.append(slot)
            return
        if why:
            self._log.info("slot %d is not used again: %s", slot.number, why)
        await self.drop(slot)

    async def drop(self, slot: Slot) -> None:
        """Removes a slot's namespaces and groups; if that fails its number is put aside."""
        try:
            await self._ask(plan.SlotDrop(slot=slot.number, step=slot.groups.drop))
        except (LauncherFailed, SkerryError) as error:
            self._log.warning("slot %d could not be dropped yet: %s", slot.number, error)
            self._stuck[slot.number] = slot
            return
        self.dropped += 1
        self._stuck.pop(slot.number, None)
        self.unreserve(slot.number)

    def unreserve(self, number: int) -> None:
        """Makes a number free whose slot is gone."""
        self._taken.discard(number)
        heapq.heappush(self._free, number)

    def reserve(self, number: int, *, best_effort: bool = False, cells: int = 0) -> Slot:
        """Takes a certain number out of use, for an instance that is being recovered."""
        while self._next <= number:
            heapq.heappush(self._free, self._next)
            self._next += 1
        if number in self._free:
            self._free.remove(number)
            heapq.heapify(self._free)
        self._taken.add(number)
        return Slot(number, self._groups, best_effort=best_effort, cells=cells)

    def lost(self, held: set[int]) -> None:
        """Puts aside idle slots that a new launcher does not hold; `keep_filled` drops them."""
        for slot in [slot for slot in self._idle if slot.number not in held]:
            self._idle.remove(slot)
            self._stuck[slot.number] = slot
        self._wake.set()

    async def close(self) -> None:
        """Ends `keep_filled` and drops every idle slot and what was put aside."""
        self._closing = True
        self._wake.set()
        async with self._filling:
            idle, self._idle = self._idle, []
        for slot in idle:
            await self.drop(slot)
        for _ in range(DROP_TRIES):
            for slot in list(self._stuck.values()):
                await self.drop(slot)
            if not self._stuck:
                return
            await asyncio.sleep(DROP_PAUSE_S)

    async def keep_filled(self) -> None:
        """Makes or drops idle slots until `close`; one at a time, behind the creates."""
        async with self._filling:
            while not self._closing:
                await self._fill()

    async def _fill(self) -> None:
        self._wake.clear()
        try:
            # Slots for best effort are made when asked for: who asks can wait the 2 ms.
            while self._common() < self.target and not self._closing:
                self._idle.append(await self._make())
            for _ in range(DROPS_AT_ONCE):
                if len(self._idle) <= 2 * self.target:  # asked each time: creates take some away
                    break
                await self.drop(self._idle.pop(0))
            for slot in list(self._stuck.values()):
                await self.drop(slot)
        except (LauncherFailed, SkerryError) as error:
            self._log.warning("the pool of slots is not filled: %s", error)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(REFILL_PAUSE_S):
                await self._wake.wait()

    def _common(self) -> int:
        return sum(not slot.best_effort for slot in self._idle)

    async def _make(self, *, best_effort: bool = False, cells: int = 0) -> Slot:
        slot = Slot(self._number(), self._groups, best_effort=best_effort, cells=cells)
        request = plan.SlotMake(
            slot=slot.number,
            uid_base=slot.uid_base,
            owner_uid=slot.owner_uid,
            step=slot.groups.make,
            agent_group=slot.groups.agent,
            tasks=slot.groups.tasks,
            profile=plan.FUNCTION if cells else None,
        )
        try:
            await self._ask(request)
        except BaseException:
            self._stuck[slot.number] = slot  # half of it may be there: `keep_filled` drops it
            raise
        self.made += 1
        return slot

    def _number(self) -> int:
        if self._free:
            number = heapq.heappop(self._free)
        elif self._next < SLOTS_MAX:
            number = self._next
            self._next += 1
        else:
            raise Overloaded(
                f"slots: {SLOTS_MAX} of {SLOTS_MAX} are in use",
                limit="slots",
                used=SLOTS_MAX,
                maximum=SLOTS_MAX,
                retry_after_s=5.0,
            )
        self._taken.add(number)
        return number

    def _count(self, change: int) -> None:
        self._used += change
        self._window.note(time.monotonic(), self._used)
