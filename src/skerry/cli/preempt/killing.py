"""Kills of trainers and workers: random, and spread over the job's progress as the witness sees it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from typing import IO, TYPE_CHECKING

import msgspec

from skerry.cli.preempt.trainer import Orders
from skerry.cli.preempt.witness import Witness
from skerry.errors import SkerryError, Unavailable

if TYPE_CHECKING:
    from skerry.aio import Client

LAST_PART = 0.8  # of the requests: the last kill comes before the rest of them is delivered
HESITATION_S = 0.3  # a kill comes up to so long after the request that it waited for
LOOK_S = 0.05
DEATHS_MAX = 3  # of trainers that nobody killed

Say = Callable[[str], None]


def kill_points(kills: int, requests: int, draw: random.Random) -> list[int]:
    """Returns after how many delivered requests to kill: one at random in each of equal parts."""
    part = LAST_PART * requests / max(1, kills)
    return [max(1, int(part * (number + draw.random()))) for number in range(kills)]


class Trainers:
    """Keeps one trainer process alive until one has nothing left to do."""

    def __init__(self, orders: Orders) -> None:
        self._orders = msgspec.json.encode(orders) + b"\n"
        self._process: asyncio.subprocess.Process | None = None
        self._killed = False
        self.kills = 0
        self.deaths: list[str] = []  # that nobody ordered: what they said last

    async def keep(self) -> None:
        """Returns when a trainer ended in order; raises Unavailable if they keep dying by themselves."""
        while True:
            with tempfile.TemporaryFile() as said:
                status = await self._live(said)
                if status == 0:
                    return
                if not self._killed:
                    said.seek(0)
                    self.deaths.append(said.read()[-1000:].decode(errors="replace"))
                    if len(self.deaths) > DEATHS_MAX:
                        raise Unavailable(f"the trainer does not stay alive: {self.deaths[-1]}")

    async def _live(self, said: IO[bytes]) -> int:
        self._killed = False
        argv = [sys.executable, "-m", "skerry.cli.preempt.trainer"]
        process = self._process = await asyncio.create_subprocess_exec(
            *argv,
            stdin=subprocess.PIPE,
            stdout=said,
            stderr=said,
            start_new_session=True,  # Ctrl-C is ours to act on
        )
        try:
            assert process.stdin is not None  # noqa: S101
            with contextlib.suppress(ConnectionError):
                process.stdin.write(self._orders)
                await process.stdin.drain()
            return await process.wait()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()

    async def kill(
        self, points: Sequence[int], witness: Witness, draw: random.Random, say: Say
    ) -> None:
        """Kills the trainer at each of the points, once it has attached."""
        for number, point in enumerate(points):
            await witness.until(partial(self._due, witness, point, number))
            await asyncio.sleep(draw.uniform(0, HESITATION_S))
            process = self._process
            if process is None or process.returncode is not None:
                continue
            owed = len(witness.delivered) - len(witness.heard)
            self._killed = True
            process.kill()
            self.kills += 1
            say(
                f"killed the trainer ({self.kills} of {len(points)}) with {owed} requests in hand; "
                f"{len(witness.heard)} answered so far"
            )

    def _due(self, witness: Witness, point: int, lives: int) -> bool:
        return _came(witness, point) and len(witness.trainers) > lives + len(self.deaths)


def _came(witness: Witness, point: int) -> bool:
    return len(witness.delivered) >= point


class Workers:
    """Kills workers of a node on this machine; the node starts them again."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.kills = 0

    async def kill(
        self, points: Sequence[int], witness: Witness, draw: random.Random, say: Say
    ) -> None:
        """Kills one that is ready at each of the points."""
        for point in points:
            await witness.until(partial(_came, witness, point))
            await asyncio.sleep(draw.uniform(0, HESITATION_S))
            while not (ready := await self._ready()):  # noqa: ASYNC110 - it tells nobody
                await asyncio.sleep(LOOK_S)
            with contextlib.suppress(ProcessLookupError):
                os.kill(draw.choice(ready), signal.SIGKILL)
                self.kills += 1
                say(f"killed the worker ({self.kills} of {len(points)})")

    async def _ready(self) -> list[int]:
        with contextlib.suppress(SkerryError):
            return [one.pid for one in await self._client.workers() if one.state == "ready"]
        return []
