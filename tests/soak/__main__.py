"""Runs a node for a while under churn and faults, and says whether it is as it was.

Usage: PYTHONPATH=tests python -m soak [--seconds S] [--seed N] [--clients N] [--workers N]

Each epoch: clients work, and a job's rollouts go on at the node's worker, while faults are injected;
then the faults end, the clients check and destroy what they made, the rollouts come to their ends and
an outside witness judges them, and a census is taken. What is held to, and by which bound, stands in
`soak.summary`. Beside a run of more than ten minutes OpenAI's own client is paused for longer than its
timeout (`soak.standstill`). The seed decides what clients do and which faults come; when they meet is
the machine's affair.
Exit status: 0 if nothing was violated, 1 if something was, 2 if it could not be set up.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import secrets
import sys
import time
from pathlib import Path

from skerry.sdk.client import AsyncClient, connect
from skerry.spec.job import JobInfo, JobState, OnLost
from skerry.testing.rootfs import container_reason
from soak.crew import Crew
from soak.faults import Faults
from soak.host import LEASE_S, Host
from soak.judge import Judge
from soak.proxy import Relay
from soak.standstill import PAUSE_S, Standstill
from soak.summary import Figures

TESTS = Path(__file__).resolve().parents[1]
EPOCH_S = 30.0
# Of every eight epochs two kill the node; in the others its memory can be followed.
BLOCK = 8
KILLING = 2
READY_S = 60.0
DRAIN_S = 300.0
STANDSTILL = f"seconds of a pause under OpenAI's client; 0: none; {PAUSE_S:g} if there is the time"


class Member:
    """One client process."""

    def __init__(self, process: asyncio.subprocess.Process, name: str, judge: Judge) -> None:
        self.process, self.name, self._judge = process, name, judge
        self.idle = asyncio.Event()
        self.killed = False
        self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            record = json.loads(line)
            if record["k"] in {"idle", "ready"}:
                self.idle.set()
            elif not self.killed:
                self._judge.take(record)
        if not self.killed:
            self._judge.violations.append(f"{self.name} ended by itself")
        self.idle.set()

    async def begin(self, seconds: float) -> None:
        """Lets it work for that long."""
        assert self.process.stdin is not None
        self.idle.clear()
        self.process.stdin.write(json.dumps({"seconds": seconds}).encode() + b"\n")
        await self.process.stdin.drain()

    async def kill(self) -> None:
        """Ends it as a crash would."""
        self.killed = True
        self.process.kill()
        await self.process.wait()
        await self._reading

    async def close(self) -> None:
        """Lets it end by itself."""
        self.killed = True
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            async with asyncio.timeout(20):
                await self.process.wait()
        except TimeoutError:
            self.process.kill()
        await self._reading


class Soak:
    """The run: a node, a relay in front of it, and clients that go through the relay."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.judge = Judge()
        self.figures = Figures()
        self.chance = random.Random(f"{options.seed} faults")
        self.host = Host()
        self.relay = Relay(f"{self.host.node.run}/node.sock")
        self.members: list[Member] = []
        self.dead: list[str] = []
        self.standstill = None
        if options.standstill:
            self.standstill = Standstill(self.judge, options.standstill)
        self._number = 0
        self._until = 0.0
        self.crew = Crew(self.host, self.judge)
        self.faults = Faults(
            self.host,
            self.relay,
            self.judge,
            self.chance,
            kill_client=self._kill_client,
            crew=self.crew,
        )

    @property
    def standstill_said(self) -> str:
        """What came of the standstill, if there was one."""
        return self.standstill.said if self.standstill else ""

    @property
    def url(self) -> str:
        """Where clients and trainers reach the node: through the relay."""
        return f"http://127.0.0.1:{self.relay.port}"

    async def run(self) -> None:
        """All epochs."""
        await asyncio.to_thread(self.host.node.start)
        async with self.host.node.client() as client:
            await client.images.debian("debian:12", "bookworm")
        await self.crew.prepare()
        await self.relay.open()
        for _ in range(self.options.clients):
            await self._add_client()
        async with self.standstill.beside() if self.standstill else contextlib.nullcontext():
            try:
                await self._epochs()
            finally:
                await asyncio.gather(*(member.close() for member in self.members))
                await self.relay.close()

    async def _epochs(self) -> None:
        end = time.monotonic() + self.options.seconds
        number = 0
        while True:
            left = end - time.monotonic()
            if number and left < self.options.epoch / 2:
                return
            await self._epoch(number, min(self.options.epoch, max(left, 5.0)))
            number += 1
            if len(self.judge.violations) > 50:
                return

    async def _epoch(self, number: int, seconds: float) -> None:
        killing = number % BLOCK >= BLOCK - KILLING or self.options.seconds < 8 * EPOCH_S
        begin = time.monotonic()
        self._until = begin + seconds
        await self.crew.begin(number, self.url)
        for member in self.members:
            await member.begin(seconds)
        only = tuple(self.options.only.split(",")) if self.options.only else ()
        await self.faults.run(self._until - 1.0, kill=killing, only=only)
        try:
            async with asyncio.timeout(DRAIN_S):
                for member in self.members:
                    await member.idle.wait()
        except TimeoutError:
            busy = [member.name for member in self.members if not member.idle.is_set()]
            self.judge.violations.append(f"still at work after {DRAIN_S:g} s: {busy}")
        await self.crew.finish()
        await self._empty()
        left = await asyncio.to_thread(self.host.left)
        self.judge.violations += [f"epoch {number} left: {line}" for line in left]
        times = self.judge.settle()
        sample = await asyncio.to_thread(self.host.sample)
        line = self.figures.take(number, sample, times, time.monotonic() - begin)
        print(f"{line}  violations {len(self.judge.violations)}", flush=True)
        for violation in self.judge.violations[self.figures.told :]:
            print(f"  ! {violation}", flush=True)
        self.figures.told = len(self.judge.violations)

    async def _empty(self) -> None:
        """What killed clients made must go with their leases; then what they left is looked for."""
        until = time.monotonic() + LEASE_S + 20
        async with connect(self.host.node.url) as client:
            await self._end_jobs(client, until)
            while left := await client.sandboxes.list():
                if time.monotonic() > until:
                    self.judge.violations += [
                        f"{info.id} of {info.spec.labels} outlived its owner's lease: {info.state}, "
                        f"{info.reason}"
                        for info in left
                    ]
                    await client.sandboxes.destroy_many([info.id for info in left])
                    return
                await asyncio.sleep(0.3)

    async def _end_jobs(self, client: AsyncClient, until: float) -> None:
        """Jobs of killed clients stand as they were made to; nobody will come back for them."""
        while True:
            jobs = await client.jobs.list(ended=True)
            if wrong := [info for info in jobs if not lost_as_agreed(info)]:
                if time.monotonic() < until:
                    await asyncio.sleep(0.3)
                    continue
                self.judge.violations += [f"its client was killed, it is {info}" for info in wrong]
            for info in jobs:
                if info.spec.labels.get("soak") not in self.dead:
                    self.judge.violations.append(f"job {info.id} is left: {info}")
                await (await client.jobs.get(info.id)).end()
            return

    async def _add_client(self) -> Member:
        self._number += 1
        name = f"client{self._number}"
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "soak.client",
            self.url,
            name,
            str(self.options.seed),
            str(self.options.workers),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env={"PYTHONPATH": str(TESTS), "PATH": "/usr/bin:/bin", "PYTHONUNBUFFERED": "1"},
            limit=1 << 20,
        )
        member = Member(process, name, self.judge)
        self.members.append(member)
        async with asyncio.timeout(READY_S):
            await member.idle.wait()
        return member

    async def _kill_client(self) -> None:
        victim = self.chance.choice(self.members)
        self.members.remove(victim)
        await victim.kill()
        self.dead.append(victim.name)
        fresh = await self._add_client()
        left = self._until - time.monotonic()
        if left > 1.0:
            await fresh.begin(left)


def lost_as_agreed(info: JobInfo) -> bool:
    """Returns whether what was agreed on for the loss of its trainer has come over a job."""
    if info.spec.on_lost is OnLost.STOP:
        return info.state is JobState.ENDED
    if info.spec.on_lost is OnLost.PAUSE and info.paused_by == "loss":
        return info.sandboxes.keys() <= {"paused"}
    return info.state in {JobState.AWAY, JobState.ENDED} or info.paused_by == "request"


def options_of(arguments: list[str] | None = None) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(prog="soak", description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=3600.0, help="how long clients work")
    parser.add_argument("--epoch", type=float, default=EPOCH_S, help="seconds between two censuses")
    parser.add_argument("--seed", type=int, default=None, help="of what is done and injected")
    parser.add_argument("--clients", type=int, default=3, help="processes")
    parser.add_argument("--workers", type=int, default=4, help="scenarios at once in each")
    parser.add_argument("--only", default="", help="faults to inject, with commas; all if empty")
    parser.add_argument("--standstill", type=float, default=None, help=STANDSTILL)
    options = parser.parse_args(arguments)
    if options.standstill is None:
        options.standstill = PAUSE_S if options.seconds > PAUSE_S else 0.0
    if options.seed is None:
        options.seed = secrets.randbelow(1 << 31)
    return options


def main() -> int:
    """Returns the exit status."""
    options = options_of()
    if reason := container_reason():
        print(f"soak: containers cannot be run here: {reason}", file=sys.stderr)
        return 2
    print(
        f"soak: {options.seconds:g} s, seed {options.seed}, {options.clients} clients with "
        f"{options.workers} scenarios each",
        flush=True,
    )
    soak = Soak(options)
    try:
        asyncio.run(soak.run())
    except BaseException as error:  # noqa: BLE001  whatever it is, it is told
        soak.judge.violations.append(f"the soak broke off: {error!r}")
        log = soak.host.node.tail()
        print(log, flush=True)
    finally:
        if soak.judge.violations:
            print(f"the node's log is kept: {soak.host.keep_log()}", flush=True)
        left = soak.host.close()
        soak.judge.violations += [f"left at the end: {line}" for line in left]
    bad = soak.figures.summary(soak.judge, soak.crew.said(), soak.standstill_said)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
