"""All workers of a node."""

from __future__ import annotations

import asyncio
import os
import sys

from skerry.errors import NotFound, Unavailable
from skerry.node.workers.options import WorkersConfig
from skerry.node.workers.worker import Worker
from skerry.wire.workers import WorkerInfo

READY_S = 30.0  # a request from outside waits that long for a worker that is being started


class Workers:
    """Finds a worker for whoever needs one, and starts it when it is first used."""

    def __init__(
        self,
        config: WorkersConfig,
        *,
        state_dir: str,
        run_dir: str,
        node_socket: str,
        orphan_after_s: float | None = None,
    ) -> None:
        self.config = config
        self._ending = asyncio.Event()
        command = config.command or (sys.executable, "-I", "-m", "skerry.cli.main", "worker")
        alone = () if orphan_after_s is None else ("--orphan-after", f"{orphan_after_s:g}")
        self._all = [
            Worker(
                number,
                (*command, *alone),
                state=os.path.join(state_dir, "workers", str(number)),
                socket_path=os.path.join(run_dir, "workers", f"{number}.sock"),
                node=f"unix://{node_socket}",
            )
            for number in range(config.count)
        ]

    def __len__(self) -> int:
        return len(self._all)

    def start(self) -> None:
        """Keeps those running that were used before: they may have work."""
        for worker in self._all:
            if worker.used:
                worker.keep()

    async def close(self) -> None:
        """Ends all of them; what they know is on disk. None is started afterwards."""
        self._ending.set()
        await asyncio.gather(*(worker.close() for worker in self._all))

    async def ready(self, number: int) -> str:
        """Returns the socket of a worker that answers, however long that takes: for ever after `close`.

        Starts it if need be; raises NotFound if the node has no such worker.
        """
        worker = self._find(number)
        worker.keep()
        await worker.ready.wait()
        return worker.socket

    async def ready_soon(self, number: int) -> str:
        """Returns as `ready` does; Unavailable when it takes too long, or the node ends."""
        worker = self._find(number)
        if worker.ready.is_set():
            return worker.socket
        ready = asyncio.ensure_future(self.ready(number))
        ending = asyncio.ensure_future(self._ending.wait())
        try:
            await asyncio.wait(
                {ready, ending}, timeout=READY_S, return_when=asyncio.FIRST_COMPLETED
            )
            if ready.done():
                return ready.result()
        finally:
            ready.cancel()
            ending.cancel()
            await asyncio.wait({ready, ending})
        why = "the node ends" if self._ending.is_set() else worker.why
        raise Unavailable(f"worker {number} does not run: {why}", retry_after_s=1.0)

    def table(self) -> tuple[WorkerInfo, ...]:
        """Returns how each stands."""
        return tuple(
            WorkerInfo(
                worker=worker.number,
                state="ready" if worker.ready.is_set() else "starting" if worker.kept else "unused",
                pid=worker.pid if worker.ready.is_set() else 0,
                starts=worker.starts,
                problem="" if worker.ready.is_set() or not worker.kept else worker.why,
            )
            for worker in self._all
        )

    def gauges(self) -> dict[str, float]:
        """Returns counts for the page of metrics."""
        return {
            "workers_ready": float(sum(worker.ready.is_set() for worker in self._all)),
            "worker_starts_total": float(sum(worker.starts for worker in self._all)),
        }

    def _find(self, number: int) -> Worker:
        if not 0 <= number < len(self._all):
            raise NotFound(f"this node has no worker {number}: it has {len(self._all)}")
        return self._all[number]
