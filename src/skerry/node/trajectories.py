"""Trajectories for the event loop: an archive, read in one thread that lets the loop go first."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from skerry.errors import Overloaded
from skerry.spec.trajectory import EventPage, TrajectoryCheck, TrajectoryPage
from skerry.trajectory.archive import Archive, Wanted
from skerry.trajectory.blobs import check_digest
from skerry.trajectory.checking import check_sandbox

T = TypeVar("T")

WAITING_MAX = 64
BREATH_S = 0.00005


def breathe() -> None:
    """Lets other threads have the interpreter."""
    time.sleep(BREATH_S)


class Trajectories:
    """What was recorded, of living sandboxes and of others. Reads wait for each other, in order."""

    def __init__(self, archive: Archive) -> None:
        self._archive = archive
        self._thread = ThreadPoolExecutor(1, "trajectories")
        self._blob_threads = ThreadPoolExecutor(2, "contents")
        self._waiting = 0

    async def select(self, wanted: Wanted, limit: int, cursor: str | None) -> TrajectoryPage:
        """Returns a page of trajectories; InvalidRequest for a cursor of none."""
        return await self._run(lambda: self._archive.select(wanted, limit, cursor))

    async def page(self, sandbox: str, start: int, limit: int) -> EventPage:
        """Returns events of a sandbox; NotFound, InvalidRequest."""
        return await self._run(lambda: self._archive.page(sandbox, start, limit))

    async def check(self, sandbox: str) -> TrajectoryCheck:
        """Reads all that is recorded of a sandbox again and says what is wrong; NotFound."""
        return await self._run(lambda: check_sandbox(self._archive, sandbox))

    async def blob(self, digest: str) -> AsyncIterator[bytes]:
        """Gives a content, piece by piece; NotFound, StorageFailed, LayerDamaged at its end."""
        loop = asyncio.get_running_loop()
        pieces = self._archive.blobs.pieces(check_digest(digest))
        while True:
            piece = await loop.run_in_executor(self._blob_threads, next, pieces, None)
            if piece is None:
                return
            yield piece

    def close(self) -> None:
        """Ends the threads; what is being read is not waited for."""
        self._thread.shutdown(wait=False, cancel_futures=True)
        self._blob_threads.shutdown(wait=False, cancel_futures=True)

    async def _run(self, work: Callable[[], T]) -> T:
        if self._waiting >= WAITING_MAX:
            raise Overloaded(
                f"trajectories: {WAITING_MAX} requests wait",
                limit="trajectories",
                maximum=WAITING_MAX,
                retry_after_s=1.0,
            )
        self._waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, work)
        finally:
            self._waiting -= 1
