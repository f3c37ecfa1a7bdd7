"""Heartbeats of a trainer, from a thread of its own.

A training step that keeps the caller's event loop busy for minutes must cost no lease, so the
heartbeats run on a loop that nothing else uses, over connections of their own. A node that is away is
asked again for as long as it takes; a job that has ended is not.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import Future

from skerry.errors import Conflict, NotFound, SkerryError, Unauthorized
from skerry.sdk.transport import Transport
from skerry.spec.job import JobInfo

BEATS_A_LEASE = 3
AGAIN_S = 0.5  # at the soonest after a heartbeat that failed
ENDS_WITHIN_S = 5.0
_FINAL = (Conflict, NotFound, Unauthorized)  # asking again changes nothing


class Heart:
    """Renews a job's lease three times in its term until `stop`, or until the node says it is over.

    `lost` is why, once it has; `last` is what the newest answer said.
    """

    def __init__(self, connect: Callable[[], Transport], job: str, lease_s: float) -> None:
        self.lost: SkerryError | None = None
        self.last: JobInfo | None = None
        self.beats = 0
        self._connect = connect
        self._path = f"/v1/jobs/{job}/heartbeat"
        self._every_s = lease_s / BEATS_A_LEASE
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._ended: Future[None] = Future()
        # A daemon: a trainer that ends without a goodbye must not be held up by it.
        self._thread = threading.Thread(target=self._run, name=f"skerry-job-{job}", daemon=True)
        self._begun = threading.Event()

    def start(self) -> None:
        """Begins; the first heartbeat is sent at once."""
        self._thread.start()

    async def stop(self) -> None:
        """Returns when no further heartbeat comes. The lease then runs out by itself."""
        await asyncio.to_thread(self._begun.wait, ENDS_WITHIN_S)
        if self._loop is not None and self._task is not None and not self._ended.done():
            with contextlib.suppress(RuntimeError):  # it has ended in this very moment
                self._loop.call_soon_threadsafe(self._task.cancel)
        await asyncio.to_thread(self._thread.join, ENDS_WITHIN_S)

    def _run(self) -> None:
        try:
            asyncio.run(self._beat())
        except asyncio.CancelledError:
            pass
        finally:
            self._begun.set()
            self._ended.set_result(None)

    async def _beat(self) -> None:
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        self._begun.set()
        transport = self._connect()
        try:
            while self.lost is None:
                pause = await self._once(transport)
                await asyncio.sleep(pause)
        finally:
            await transport.close()

    async def _once(self, transport: Transport) -> float:
        """Sends one; returns the seconds until the next."""
        try:
            async with asyncio.timeout(max(self._every_s, AGAIN_S)):
                self.last = await transport.call("POST", self._path, JobInfo)
        except _FINAL as error:
            self.lost = error
            return 0.0
        except (SkerryError, TimeoutError):
            return min(self._every_s, AGAIN_S)
        self.beats += 1
        self._every_s = self.last.spec.lease_s / BEATS_A_LEASE  # it may have been changed
        return self._every_s
