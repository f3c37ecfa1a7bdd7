"""Trajectories for the event loop: archives, read in threads that let the loop go first."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from skerry.errors import Overloaded, Unavailable
from skerry.spec.trajectory import EventPage, TrajectoryCheck, TrajectoryPage
from skerry.trajectory.reading.archive import Archive, Wanted
from skerry.trajectory.reading.blobs import check_digest
from skerry.trajectory.reading.checking import check_sandbox

T = TypeVar("T")

WAITING_MAX = 64
BREATH_S = 0.00005
REST_S = 30.0  # after so long without a read its pieces of segments and its listing are let go of


class Trajectories:
    """What was recorded, of living sandboxes and of others.

    Pages of events have a thread of their own, beside listings and checks, which may take long.
    """

    def __init__(self, archive: Callable[[Callable[[], None]], Archive]) -> None:
        """`archive` makes one, given what it is to call now and then."""
        self._pages = Lane("trajectory-pages", archive)
        self._surveys = Lane("trajectory-surveys", archive)
        self._blobs = self._surveys.archive.blobs
        self._blob_threads = ThreadPoolExecutor(2, "contents")

    async def select(self, wanted: Wanted, limit: int, cursor: str | None) -> TrajectoryPage:
        """Returns a page of trajectories; InvalidRequest for a cursor of none."""
        return await self._surveys.run(lambda archive: archive.select(wanted, limit, cursor))

    async def page(self, sandbox: str, start: int, limit: int) -> EventPage:
        """Returns events of a sandbox; NotFound, InvalidRequest."""
        return await self._pages.run(lambda archive: archive.page(sandbox, start, limit))

    async def check(self, sandbox: str) -> TrajectoryCheck:
        """Reads all that is recorded of a sandbox again and says what is wrong; NotFound."""
        return await self._surveys.run(lambda archive: check_sandbox(archive, sandbox))

    async def blob(self, digest: str) -> AsyncIterator[bytes]:
        """Gives a content, piece by piece; NotFound, StorageFailed, LayerDamaged at its end."""
        loop = asyncio.get_running_loop()
        pieces = self._blobs.pieces(check_digest(digest))
        while True:
            piece = await loop.run_in_executor(self._blob_threads, next, pieces, None)
            if piece is None:
                return
            yield piece

    def close(self) -> None:
        """Ends the threads; what is being read is left."""
        self._pages.close()
        self._surveys.close()
        self._blob_threads.shutdown(wait=False, cancel_futures=True)


class Lane:
    """One thread, and an archive that only it uses. Reads wait for each other, in order.

    What is read for a client that has gone is left within a moment. A lane that nobody asks for REST_S
    keeps only what finds things.
    """

    def __init__(self, name: str, archive: Callable[[Callable[[], None]], Archive]) -> None:
        self.archive = archive(self._breathe)
        self.waiting = 0
        self._thread = ThreadPoolExecutor(1, name)
        self._left = threading.Event()  # by who asked for what is read now
        self._resting: asyncio.TimerHandle | None = None
        self._closed = False

    async def run(self, work: Callable[[Archive], T]) -> T:
        """Returns what the work does; Overloaded if too many wait."""
        if self.waiting >= WAITING_MAX:
            raise Overloaded(
                f"trajectories: {WAITING_MAX} requests wait",
                limit="trajectories",
                maximum=WAITING_MAX,
                retry_after_s=1.0,
            )
        left = threading.Event()

        def turn() -> T:
            self._left = left
            self._breathe()
            return work(self.archive)

        self.waiting += 1
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._thread, turn)
        except _LeftAlone:
            raise Unavailable("the node is ending: ask again", retry_after_s=0.1) from None
        finally:
            left.set()
            self.waiting -= 1
            if self._resting is not None:
                self._resting.cancel()
            self._resting = loop.call_later(REST_S, self._rest)

    def _rest(self) -> None:
        if not self._closed and not self.waiting:
            self._thread.submit(self.archive.rest)

    def close(self) -> None:
        """Ends the thread."""
        self._closed = True
        if self._resting is not None:
            self._resting.cancel()
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _breathe(self) -> None:
        """Lets other threads have the interpreter; ends a read that nobody waits for."""
        time.sleep(BREATH_S)
        if self._left.is_set() or self._closed:
            raise _LeftAlone


class _LeftAlone(Exception):
    """Nobody waits for what is being read."""
