"""Prepares and seals the journal's segments, and has them shipped, whatever the store does.

A segment is sealed when it is full, or `seal_after_s` after its first record. It waits on this host's
disk until it is in the store; if more than `local_bytes_max` waits, the oldest is given up, which the
store is told later (a `gap`). Nothing that sandboxes do waits for any of this.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Final, TypeVar

from skerry.errors import SkerryError, StorageFailed
from skerry.node.clock import Clock, sleep
from skerry.node.trail.levels import Levels
from skerry.trajectory.journal.journal import Journal
from skerry.trajectory.options import TrajectoryOptions
from skerry.trajectory.shipping.contents import Contents
from skerry.trajectory.shipping.shipper import Progress, Shipper

T = TypeVar("T")

TICK_S: Final = 1.0
AGAIN_MAX_S: Final = 60.0
PRUNE_EVERY_S: Final = 6 * 3600.0
PRUNE_AFTER_S: Final = 300.0
TAILS_MAX: Final = 512  # of one segment: then it is sealed, and they go

log = logging.getLogger("skerry.node")


class Shipping:
    """Without a shipper the journal keeps nothing beyond its sandboxes, and nothing is sealed."""

    def __init__(
        self,
        journal: Journal,
        contents: Contents,
        shipper: Shipper | None,
        *,
        levels: Levels,
        options: TrajectoryOptions,
        clock: Clock,
    ) -> None:
        self._journal, self._contents, self._shipper = journal, contents, shipper
        self._levels, self._options, self._clock = levels, options, clock
        # Not nice: whoever waits for a processor with the interpreter in hand makes the loop wait.
        self._thread = ThreadPoolExecutor(1, "record-ship")
        self._progress = Progress()
        self._again_at = self._again_s = 0.0
        self._prune_at = clock.monotonic() + PRUNE_AFTER_S
        self._tick_s = min(TICK_S, options.seal_after_s / 4)
        self._turn = asyncio.Lock()
        self._trouble = ""
        self.shipped = self.failures = self.lost = self.pruned = 0

    def gauges(self) -> dict[str, float]:
        """Returns plain counts by name."""
        shipper = self._shipper
        if shipper is None:
            return {}
        waiting = self._waiting()
        return {
            "trajectory_segments_waiting": len(waiting),
            "trajectory_bytes_waiting": self._bytes(waiting),
            "trajectory_segments_shipped_total": self.shipped,
            "trajectory_bytes_shipped_total": shipper.bytes,
            "trajectory_ship_failures_total": self.failures,
            "trajectory_segments_lost_total": self.lost,
            "trajectory_segments_pruned_total": self.pruned,
        }

    @asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        """Prepares, seals and ships within the block; what is left waits for the next start."""
        if self._shipper is not None:
            self._recall(self._shipper)
        task = asyncio.create_task(self._work(self._shipper))
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait((task,))

    async def flush(self) -> None:
        """Seals what is open, and ships all that it can, once; for an orderly end."""
        shipper = self._shipper
        if shipper is None:
            return
        try:
            self._seal()
            await self._ship(shipper)
        except SkerryError as error:
            log.warning("the last of the trajectories waits for the next start: %s", error)

    def close(self) -> None:
        """Ends the thread; what it does now it may finish."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    # --- inner parts ---

    def _recall(self, shipper: Shipper) -> None:
        try:
            self._progress = shipper.read_progress()
        except StorageFailed as error:  # all is shipped again, which changes nothing
            log.warning("%s", error)
        shipper.through = self._progress.through
        self._contents.claim(self._journal.written())
        self._journal.release(self._progress.through)

    async def _work(self, shipper: Shipper | None) -> None:
        while True:
            await sleep(self._clock, self._tick_s)
            try:
                await self._look(shipper)
                self._trouble = ""
            except SkerryError as error:
                self._failed(error)
            except Exception:  # what fails once must not end this for good
                log.exception("trajectories were not shipped")
                self._failed(StorageFailed("it failed"))

    def _failed(self, error: SkerryError) -> None:
        self.failures += 1
        self._again_s = min(AGAIN_MAX_S, max(self._tick_s, self._again_s * 2))
        self._again_at = self._clock.monotonic() + self._again_s
        if error.message != self._trouble:
            log.warning("trajectories wait on this host: %s", error.message)
        self._trouble = error.message

    async def _look(self, shipper: Shipper | None) -> None:
        """Does what is due."""
        options = self._options
        if self._journal.slow:
            await self._off(self._journal.prepare)
            self._seal()
        if self._journal.mark()[1] > options.segment_bytes // 2:
            await self._off(self._journal.prepare)
        if shipper is None:
            return
        if self._journal.age_ns() >= options.seal_after_s * 1e9 or self._levels.tails >= TAILS_MAX:
            self._seal()
        try:
            if self._clock.monotonic() >= self._again_at:
                await self._ship(shipper)
                await self._prune(shipper)
                self._again_s = 0.0
        finally:
            await self._bound(shipper)

    def _seal(self) -> None:
        self._journal.seal()
        self._levels.rolled()

    async def _ship(self, shipper: Shipper) -> None:
        async with self._turn:
            if self._progress.lost:
                await self._off(lambda: shipper.tell_lost(self._progress))
                await self._record(shipper, Progress(self._progress.through))
            for number, end in self._waiting():
                blobs = self._contents.upto(number)
                await self._off(_shipping(shipper, number, end, blobs))
                self._journal.shortened(number)
                self.shipped += 1
                await self._record(shipper, Progress(number, self._progress.lost))

    async def _bound(self, shipper: Shipper) -> None:
        """Gives the oldest up while more waits than there may."""
        async with self._turn:
            while waiting := self._waiting():
                if self._bytes(waiting) <= self._options.local_bytes_max:
                    return
                number = waiting[0][0]
                reason = "given up: the layer store was away for longer than this host had room"
                progress = await self._off(_losing(shipper, self._progress, number, reason))
                log.error("segment %d of the trajectories is %s", number, reason)
                self.lost += 1
                await self._record(shipper, progress)

    async def _record(self, shipper: Shipper, progress: Progress) -> None:
        """All up to there is shipped or lost: says so on the disk, and lets go of it."""
        await self._off(lambda: shipper.write_progress(progress))
        self._progress = progress
        shipper.through = max(shipper.through, progress.through)
        self._levels.shipped(progress.through)
        self._contents.take(progress.through)
        self._journal.release(progress.through)

    async def _prune(self, shipper: Shipper) -> None:
        days = self._options.keep_days
        if not days or self._clock.monotonic() < self._prune_at:
            return
        self._prune_at = self._clock.monotonic() + PRUNE_EVERY_S
        self.pruned += await self._off(lambda: shipper.prune(days * 86_400))

    def _waiting(self) -> list[tuple[int, int]]:
        through = self._progress.through
        return [(number, end) for number, end in self._journal.sealed() if number > through]

    def _bytes(self, waiting: list[tuple[int, int]]) -> int:
        return sum(end for _, end in waiting) + self._contents.bytes

    async def _off(self, work: Callable[[], T]) -> T:
        """Does blocking work in the thread."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)


def _shipping(shipper: Shipper, number: int, end: int, blobs: list[str]) -> Callable[[], None]:
    return lambda: shipper.ship(number, end, blobs)


def _losing(
    shipper: Shipper, progress: Progress, number: int, reason: str
) -> Callable[[], Progress]:
    return lambda: shipper.lose(progress, number, reason)
