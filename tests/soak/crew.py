"""Rollouts at the node's worker under faults: agents in sandboxes, a trainer that is killed, a witness.

They are those of `skerry demo --preempt`: agents of four kinds act on a real task, ask a scripted model
in four turns each, and tell the witness what they do; a trainer process without memory answers, through
the relay. The witness stands outside of everything that is killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import IO, Any

import msgspec

from skerry.cli.preempt import agent
from skerry.cli.preempt.script import TURNS, Script, script_of
from skerry.cli.preempt.trainer import Orders
from skerry.cli.preempt.undergo import WITNESS_PORT, table_of, unexpected
from skerry.cli.preempt.witness import Witness
from skerry.errors import SkerryError
from skerry.sdk.client import AsyncClient, connect
from skerry.spec.worker import Scaffold
from skerry.worker import Downloads, load_tasks
from soak.host import Host
from soak.judge import Judge

TASK = Path(__file__).parents[2] / "examples" / "tasks" / "xmltodict-0.14.2"
KINDS = 4
# Shorter than a trainer may stay away: then its loss pauses what it left.
LEASE_S, GRACE_S = 3.0, 0.5
PAUSE_AFTER_S = 2.0
ENDS_WITHIN_S = 240.0
LOOK_S = 0.2


class Trainer:
    """Keeps a trainer process alive until one has nothing left to do."""

    def __init__(self, orders: Orders) -> None:
        self._orders = msgspec.json.encode(orders) + b"\n"
        self._process: asyncio.subprocess.Process | None = None
        self._may_live = asyncio.Event()
        self._may_live.set()
        self._killed = False
        self.lives = 0
        self.deaths: list[tuple[float, float, str]] = []  # that nobody ordered

    async def keep(self) -> None:
        """Returns when a trainer has ended in order."""
        while True:
            await self._may_live.wait()
            began = time.monotonic()
            with tempfile.TemporaryFile() as said:
                if await self._live(said) == 0:
                    return
                if not self._killed:
                    said.seek(0)
                    text = said.read()[-600:].decode(errors="replace")
                    self.deaths.append((began, time.monotonic(), text))
                    await asyncio.sleep(1.0)

    async def _live(self, said: IO[bytes]) -> int:
        self._killed = False
        self.lives += 1
        argv = [sys.executable, "-m", "skerry.cli.preempt.trainer"]
        process = self._process = await asyncio.create_subprocess_exec(
            *argv, stdin=subprocess.PIPE, stdout=said, stderr=said
        )
        try:
            assert process.stdin is not None
            with contextlib.suppress(ConnectionError):
                process.stdin.write(self._orders)
                await process.stdin.drain()
            return await process.wait()
        finally:
            self._process = None
            if process.returncode is None:
                process.kill()
                await process.wait()

    async def kill(self, away_s: float) -> None:
        """Ends it as a preemption would; another one is started after that time."""
        process = self._process
        if process is None or process.returncode is not None:
            return
        self._may_live.clear()
        try:
            self._killed = True
            process.kill()
            await asyncio.sleep(away_s)
        finally:
            self._may_live.set()


class Crew:
    """The rollouts of one epoch after another."""

    def __init__(self, host: Host, judge: Judge) -> None:
        self._host, self._judge = host, judge
        self._script: Script
        self._tasks = tuple(load_tasks([TASK]))
        self._stack: contextlib.AsyncExitStack | None = None
        self._client: AsyncClient
        self._witness: Witness
        self._job: Any = None
        self._trainer: Trainer | None = None
        self._training: asyncio.Task[None]
        self._began = 0.0
        self.rollouts = 0
        self.requests = self.lost = self.double = self.restarted = 0
        self.kills = 0

    async def prepare(self) -> None:
        """Makes the layers of the task, before anything is broken; starts the worker."""
        downloads = Downloads(Path(os.environ.get("SKERRY_CACHE", "/var/cache/skerry")), os.environ)
        self._script = await script_of(self._tasks, downloads, KINDS, lambda _: None)
        async with connect(self._host.node.url) as client:
            job = await client.jobs.create("soak-layers", lease=600)
            await job.submit(self._tasks, policy="noop")
            async for _ in job.results():
                pass
            await job.end()

    async def begin(self, number: int, url: str) -> None:
        """Starts the rollouts of an epoch; trainers reach the node at that address."""
        self._began = time.monotonic()
        async with contextlib.AsyncExitStack() as stack:
            self._witness = Witness()
            await stack.enter_async_context(self._witness.serving())
            self._client = await stack.enter_async_context(connect(self._host.node.url))
            name = f"soak-{number}"
            job = await self._client.jobs.create(name, lease=LEASE_S, grace=GRACE_S)
            stack.push_async_callback(job.end)
            await job.submit(
                self._tasks,
                scaffold=_scaffold(),
                n=KINDS,
                concurrency=KINDS,
                pause_after=PAUSE_AFTER_S,
            )
            orders = Orders(job=name, witness=self._witness.url, script=self._script, url=url)
            self._trainer, self._job = Trainer(orders), job
            self._training = asyncio.create_task(self._trainer.keep())
            stack.push_async_callback(_cancelled, self._training)
            stack.push_async_callback(_cancelled, asyncio.create_task(self._ways()))
            self._stack = stack.pop_all()

    async def finish(self) -> None:
        """Returns when all have ended, were judged, and nothing is left of them."""
        stack, self._stack = self._stack, None
        if stack is None:
            return
        async with stack:
            try:
                async with asyncio.timeout(ENDS_WITHIN_S):
                    await asyncio.shield(self._training)
                    records = [one async for one in self._job.results()]
            except TimeoutError:
                states = [one async for one in self._job.rollouts()]
                where = [f"{one.number} {one.state} {one.attempt} {one.sandbox}" for one in states]
                self._bad(f"after {ENDS_WITHIN_S:g} s rollouts have not ended: {where}")
                return
            self._weigh(records)

    def _weigh(self, records: list[Any]) -> None:
        seen = self._witness.judge(KINDS, TURNS)
        self.rollouts += len(records)
        self.requests += seen.requests
        self.lost += seen.lost
        self.double += seen.double
        self.restarted += seen.restarted
        retried = [f"{one.rollout}: {one.attempts}" for one in records if one.attempts]
        if not seen.good:
            reasons = "; ".join(seen.reasons)
            self._bad(
                f"lost {seen.lost}, twice {seen.double}, restarted {seen.restarted}: {reasons}; "
                f"tried again: {retried}",
                excuse=() if seen.double and not seen.restarted else ("disk",),
            )
        for line in unexpected(table_of(records, self._script)):
            self._bad(f"{line}; tried again: {retried}")
        assert self._trainer is not None
        for began, ended, said in self._trainer.deaths:
            self._bad(f"a trainer ended by itself: {said}", began, ended)

    def _bad(
        self,
        text: str,
        began: float = 0.0,
        ended: float = 0.0,
        *,
        excuse: tuple[str, ...] = ("disk",),
    ) -> None:
        """Says that something is not as promised, unless one of these faults explains it."""
        now = time.monotonic()
        record = {"k": "bad", "who": "crew", "n": "rollouts", "text": text, "excuse": excuse}
        self._judge.take({**record, "s": began or self._began, "e": ended or now})

    def said(self) -> str:
        """What came of all epochs."""
        counts = (
            f"{self.lost} lost, {self.double} answered or run twice, {self.restarted} restarted"
        )
        return (
            f"rollouts: {self.rollouts} ended, {self.requests} requests, {counts}; "
            f"{self.kills} kills of trainers"
        )

    # --- what is done to them ---------------------------------------------------------------------

    async def kill_trainer(self, away_s: float) -> None:
        """Ends the trainer; the next one comes after that time."""
        if self._trainer is not None and self._stack is not None:
            self.kills += 1
            await self._trainer.kill(away_s)

    async def hold(self, seconds: float) -> None:
        """Pauses the job, all of it, for that time."""
        if self._stack is None:
            return
        began = time.monotonic()
        try:
            moved = [await self._job.pause()]
            await asyncio.sleep(seconds)
            moved.append(await self._job.resume())
        except SkerryError as error:
            self._bad(f"the job's pause: {error!r}", began)
            return
        for one in moved:
            if one.failed:
                excuse = ("disk", "launcher", "both")  # without a launcher nothing can be paused
                self._bad(f"the job's pause: {one}", began, excuse=excuse)

    async def _ways(self) -> None:
        """Keeps a way from each agent's sandbox to the witness; never returns."""
        kept: dict[str, asyncio.Task[None]] = {}
        try:
            while True:
                with contextlib.suppress(SkerryError):
                    for info in await self._client.sandboxes.list(labels={"role": "agent"}):
                        if info.id not in kept or kept[info.id].done():
                            kept[info.id] = asyncio.create_task(self._way(info.id))
                await asyncio.sleep(LOOK_S)
        finally:
            for task in kept.values():
                task.cancel()
            await asyncio.gather(*kept.values(), return_exceptions=True)

    async def _way(self, sandbox_id: str) -> None:
        with contextlib.suppress(SkerryError):
            sandbox = await self._client.sandboxes.get(sandbox_id)
            port = self._witness.port
            async with sandbox.reverse_forward(WITNESS_PORT, "127.0.0.1", port) as way:
                await way.wait()


def _scaffold() -> Scaffold:
    return Scaffold(
        argv=("/usr/bin/python3", "-I", "-c", Path(agent.__file__).read_text()),
        name="scripted",
        env={"WITNESS": f"http://127.0.0.1:{WITNESS_PORT}/"},
    )


async def _cancelled(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
