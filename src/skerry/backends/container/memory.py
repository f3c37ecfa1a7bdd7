"""An instance's memory goes to swap, and comes back before it is asked for.

The launcher does it, process by process (native/spawn/memory.c); here is decided whether, how much
and how many at a time. What a failure leaves is memory that stays where it is: never an error.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from skerry.backends.api import Reclaimed
from skerry.backends.shared.launcher import LauncherFailed
from skerry.errors import SkerryError
from skerry.wire import plan

if TYPE_CHECKING:
    from skerry.backends.container.parts import Parts
    from skerry.backends.container.slots import Slot

WORTH_BYTES = 256 << 10  # less is not worth a process of its own
ROUNDS_MAX = 8  # of at most 8 s each in the launcher
PREFETCH_BYTES_MAX = 512 << 20  # what a resume reads ahead at most
_ALL = (1 << 63) - 1


def swap_free_bytes(swaps: str | None = None) -> int:
    """Returns how much more the host's swap can take; 0 if it has none."""
    text = swaps if swaps is not None else _swaps()
    rows = [line.split() for line in text.splitlines()[1:]]
    numbers = [row[-3:-1] for row in rows if len(row) >= 5]
    return sum(int(size) - int(used) for size, used in numbers) << 10


def _swaps() -> str:
    try:
        return Path("/proc/swaps").read_text()
    except OSError:
        return ""


async def give_back(parts: Parts, instance: str, slot: Slot, max_bytes: int) -> Reclaimed:
    """Moves up to `max_bytes` to swap; returns by how much the instance's memory shrank.

    Clean pages of files that only it has mapped and may write go too. Page cache of layers stays:
    others share it.
    """
    begin = time.monotonic()
    before = parts.read_counters(slot).memory_bytes
    if before < WORTH_BYTES or swap_free_bytes() < WORTH_BYTES:
        return Reclaimed()
    wanted = min(max_bytes, before)
    steps = parts.groups.reclaim(slot.number, wanted)
    if steps:
        slot.limits = None  # swap is open now: whoever has the slot next writes all limits
    try:
        for _ in range(ROUNDS_MAX):
            asked = time.monotonic()
            async with parts.reclaims:
                request = plan.Reclaim(instance=instance, bytes=wanted, step=steps)
                moved = (await parts.ask_raw(request)).moved().bytes
            wanted -= moved
            # It answers early when all was looked at, and late when its time was up.
            if not moved or wanted <= 0 or time.monotonic() - asked < plan.MEMORY_WORK_S:
                break
    except (LauncherFailed, SkerryError) as error:
        parts.log.info("memory of %s stays where it is: %s", instance, error)
    after = parts.read_counters(slot).memory_bytes
    return Reclaimed(max(0, before - after), time.monotonic() - begin)


async def fetch(parts: Parts, instance: str, swapped: int) -> None:
    """Reads ahead what is in swap, in the order of addresses; returns when it is in memory."""
    # The bound is on addresses, and those of little content may be far apart: none if all may come.
    wanted = _ALL if swapped <= PREFETCH_BYTES_MAX else PREFETCH_BYTES_MAX
    try:
        async with parts.prefetches:
            await parts.ask_raw(plan.Prefetch(instance=instance, bytes=wanted))
    except (LauncherFailed, SkerryError) as error:
        parts.log.info("memory of %s is not read ahead: %s", instance, error)


async def close_swap(parts: Parts, instance: str, slot: Slot) -> None:
    """After `give_back`: what runs is not swapped out any more, where that was opened for it."""
    steps = parts.groups.settle(slot.number)
    if steps:
        try:
            await parts.ask_raw(plan.Reclaim(instance=instance, bytes=0, step=steps))
        except (LauncherFailed, SkerryError) as error:
            parts.log.warning("swap of %s stays open: %s", instance, error)
