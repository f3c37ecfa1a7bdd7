"""What is done to node, launcher, worker, trainer, clients, disk and connections."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import time
from collections.abc import Awaitable, Callable

from soak.crew import Crew
from soak.host import Host
from soak.judge import Judge
from soak.proxy import Relay

PAUSE_S = (1.0, 3.0)
AWAY_S = (0.0, 8.0)  # of a trainer: its lease may run out, or not
AGAIN_WITHIN_S = 20.0  # a launcher or a worker that was killed is there again
# With these no process lives long enough for its memory to be followed.
KILLING = frozenset({"node", "both", "worker"})


class Faults:
    """Injects one fault after another; each has ended when the next begins."""

    def __init__(
        self,
        host: Host,
        relay: Relay,
        judge: Judge,
        chance: random.Random,
        *,
        kill_client: Callable[[], Awaitable[None]],
        crew: Crew,
    ) -> None:
        self._host, self._relay, self._judge, self._chance = host, relay, judge, chance
        self._crew = crew
        self._table: dict[str, tuple[Callable[[], Awaitable[None]], float]] = {
            "launcher": (self._launcher, 2.0),
            "client": (kill_client, 1.5),
            "cut": (self._cut, 2.0),
            "stall": (self._stall, 1.0),
            "disk": (self._disk, 1.0),
            "node": (self._node, 2.5),
            "both": (self._both, 1.5),
            "worker": (self._worker, 2.0),
            "trainer": (self._trainer, 1.5),
            "hold": (self._hold, 0.7),
        }

    async def run(self, until: float, *, kill: bool, only: tuple[str, ...] = ()) -> None:
        """Injects until then (`only` these, if any); afterwards nothing is broken any more."""
        names = [name for name in self._table if kill or name not in KILLING]
        names = [name for name in names if not only or name in only] or ["cut"]
        weights = [self._table[name][1] for name in names]
        while True:
            pause = self._chance.uniform(*PAUSE_S)
            if time.monotonic() + pause > until:
                return
            await asyncio.sleep(pause)
            name = self._chance.choices(names, weights)[0]
            window = self._judge.begin(name, time.monotonic())
            try:
                await self._table[name][0]()
            finally:
                window.end = time.monotonic()

    async def _node(self) -> None:
        await asyncio.to_thread(self._host.node.kill)
        await asyncio.to_thread(self._host.node.start)

    async def _launcher(self) -> None:
        pid = await asyncio.to_thread(self._host.node.launcher)
        if pid:
            os.kill(pid, signal.SIGKILL)
        await self._another(self._host.node.launcher, pid)

    async def _another(self, find: Callable[[], int], pid: int) -> None:
        """Returns when there is another process than that, or after some time."""
        until = time.monotonic() + AGAIN_WITHIN_S
        while time.monotonic() < until:
            await asyncio.sleep(0.05)
            if await asyncio.to_thread(find) not in {0, pid}:
                return

    async def _worker(self) -> None:
        pid = await asyncio.to_thread(self._host.worker)
        if pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        await self._another(self._host.worker, pid)

    async def _trainer(self) -> None:
        await self._crew.kill_trainer(self._chance.uniform(*AWAY_S))

    async def _hold(self) -> None:
        await self._crew.hold(self._chance.uniform(0.0, 2.0))

    async def _both(self) -> None:
        pid = await asyncio.to_thread(self._host.node.launcher)
        if pid:
            os.kill(pid, signal.SIGKILL)
        await self._node()

    async def _cut(self) -> None:
        self._relay.cut(self._chance, self._chance.choice((0.2, 0.5, 1.0)))

    async def _stall(self) -> None:
        self._relay.hold()
        try:
            await asyncio.sleep(self._chance.uniform(0.2, 2.0))
            if self._chance.random() < 0.5:
                self._relay.cut(self._chance, 1.0)
        finally:
            self._relay.flow()

    async def _disk(self) -> None:
        leave = self._chance.choice((0, 0, 400 << 20, 800 << 20))
        await asyncio.to_thread(self._host.disk.fill, leave)
        try:
            await asyncio.sleep(self._chance.uniform(0.5, 3.0))
        finally:
            await asyncio.to_thread(self._host.disk.free)
