"""One client process of the soak: does work in its own sandboxes and says what came of it.

Standard input: {"seconds": S} begins an epoch, its end ends the process. Standard output: one JSON
object a line; "idle" when an epoch's work is over and everything it made is destroyed.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import sys
import time
from collections.abc import Awaitable
from typing import Any, TypeVar

from skerry.errors import Bug, SkerryError
from skerry.sdk.client import AsyncClient, connect
from skerry.sdk.embedded import OwnerConnection

T = TypeVar("T")

HANG_S = 90.0
# What is best effort gets the CPU that others leave, which on a busy machine is next to nothing: a
# command of a second takes more than a minute there, and is no hang.
STARVED_S = 180.0
DESTROY_WITHIN_S = 60.0


class Stopped(Exception):
    """An operation ended with an error, which is on record: the scenario is over."""


class Teller:
    """Says what happens, and takes the time of it."""

    def __init__(self, name: str) -> None:
        self.name = name

    def say(self, **record: Any) -> None:
        print(json.dumps({"who": self.name, **record}), flush=True)

    def bad(self, text: str, since: float, *, kind: str = "bad", excuse: tuple[str, ...] = ()):
        """Says that something is not as promised, unless one of these faults explains it."""
        now = time.monotonic()
        self.say(k="bad", n=kind, text=text[:600], s=since, e=now, excuse=excuse)

    async def op(
        self,
        kind: str,
        work: Awaitable[T],
        *,
        own: tuple[str, ...] = (),
        limit: float = HANG_S,
        what: str = "",
    ) -> T:
        """Awaits one operation; raises Stopped if it ended with an error.

        `own` names the codes that its sandbox may have brought upon itself.
        """
        begin = time.monotonic()
        try:
            async with asyncio.timeout(limit) as bound:
                result = await work
        except SkerryError as error:
            code = "untyped" if isinstance(error, Bug) else error.code
            said = f"{error.message[:300]} {error.fields} {what}"[:700]
            self.say(k="op", n=kind, s=begin, e=time.monotonic(), x=code, own=own, m=said)
            raise Stopped from error
        except TimeoutError as error:
            if not bound.expired():
                self.say(k="op", n=kind, s=begin, e=time.monotonic(), x="untyped", m=repr(error))
                raise Stopped from error
            self.bad(f"{kind} had no end within {limit:g} s: {what}", begin, kind="hang")
            raise Stopped from error
        except Exception as error:
            self.say(k="op", n=kind, s=begin, e=time.monotonic(), x="untyped", m=repr(error)[:300])
            raise Stopped from error
        self.say(k="op", n=kind, s=begin, e=time.monotonic(), x="")
        return result


class Client:
    """What scenarios work with."""

    def __init__(self, client: AsyncClient, tell: Teller, chance: random.Random, url: str) -> None:
        self.sdk, self.tell, self.chance, self.url = client, tell, chance, url
        self.labels = {"soak": tell.name}
        self._starved: set[str] = set()  # sandboxes of best effort

    def nonce(self) -> str:
        return f"{self.chance.getrandbits(64):016x}"

    @contextlib.asynccontextmanager
    async def sandbox(self, **spec: Any):
        """A sandbox for a block."""
        kind = "best-effort" if self.chance.random() < 0.15 else "latency-sensitive"
        base = {"memory": "256MiB", "pids": 64, "labels": self.labels, "cpu_class": kind}
        spec = {**base, **spec}
        made = await self.tell.op("create", self.sdk.sandboxes.create("container", **spec))
        if spec["cpu_class"] == "best-effort":
            self._starved.add(made.id)
        try:
            yield made
        finally:
            self._starved.discard(made.id)
            await self.destroy(made)

    async def destroy(self, sandbox: Any) -> None:
        """Destroys it, whatever it takes: every state can be deleted."""
        begin = time.monotonic()
        while time.monotonic() - begin < DESTROY_WITHIN_S:
            with contextlib.suppress(Stopped):
                await self.tell.op("destroy", sandbox.destroy())
                return
            await asyncio.sleep(0.2)
        self.tell.bad(f"{sandbox.id} cannot be destroyed", begin, kind="destroy")

    async def run(self, sandbox: Any, command: Any, *, own: tuple[str, ...] = (), **more: Any):
        """Runs a command under a fresh operation id, which the result carries."""
        op_id = f"{self.chance.getrandbits(128):032x}"
        work = sandbox.run(command, op_id=op_id, **more)
        what = f"{self._kind(sandbox)} {sandbox.id} {op_id} {command!r}"
        return await self.tell.op("run", work, own=own, what=what, limit=self.patience(sandbox))

    def _kind(self, sandbox: Any) -> str:
        return "best-effort" if sandbox.id in self._starved else "latency-sensitive"

    def patience(self, sandbox: Any) -> float:
        """Returns how long a command in it may take before it counts as a hang."""
        return STARVED_S if sandbox.id in self._starved else HANG_S

    def expect(
        self, truth: bool, text: str, since: float, *, excuse: tuple[str, ...] = ("disk",)
    ) -> None:
        """Says so if something is not true."""
        if not truth:
            self.tell.bad(text, since, excuse=excuse)


async def epoch(client: Client, seconds: float, workers: int) -> None:
    """Works for that long, then sees to it that nothing of it is left."""
    from soak.work import SCENARIOS

    until = time.monotonic() + seconds
    names, weights = list(SCENARIOS), [weight for _, weight in SCENARIOS.values()]

    async def work() -> None:
        while time.monotonic() < until:
            name = client.chance.choices(names, weights)[0]
            begin = time.monotonic()
            try:
                await SCENARIOS[name][0](client)
            except Stopped:
                await asyncio.sleep(0.1)
            except asyncio.CancelledError as error:
                task = asyncio.current_task()
                if task is None or task.cancelling():
                    raise
                # Nobody asked for it, and a group takes it for an end: the worker would be gone.
                client.tell.bad(
                    f"{name} was cancelled by nobody: {error!r}", begin, kind="scenario"
                )
            except Exception as error:  # noqa: BLE001 - it is told
                client.tell.bad(f"{name}: {error!r}", begin, kind="scenario")
            else:
                client.tell.say(k="op", n=f"scenario {name}", s=begin, e=time.monotonic(), x="")

    async with asyncio.TaskGroup() as group:
        for _ in range(workers):
            group.create_task(work())
    begin = time.monotonic()
    for info in await client.sdk.sandboxes.list(labels=client.labels):
        client.tell.bad(f"{info.id} is left, {info.state}: {info.reason}", begin, kind="left")
        await (await client.sdk.sandboxes.get(info.id)).destroy()
    for job in await client.sdk.jobs.list(labels=client.labels, ended=True):
        client.tell.bad(f"job {job.id} is left, {job.state}: {job.reason}", begin, kind="left")
        await (await client.sdk.jobs.get(job.id)).end()


async def main(url: str, name: str, seed: str, workers: int) -> None:
    """Serves epochs until standard input ends."""
    chance = random.Random(f"{seed} {name}")
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    async with connect(url) as sdk:
        # As an embedded client has it: what a killed client made ends with its lease.
        owner = OwnerConnection(sdk._transport)
        await owner.open()
        client = Client(sdk, Teller(name), chance, url)
        client.tell.say(k="ready")
        while line := await reader.readline():
            begin = time.monotonic()
            try:
                await epoch(client, json.loads(line)["seconds"], workers)
            except Exception as error:  # noqa: BLE001 - it is told
                client.tell.bad(f"the epoch ended with {error!r}", begin, kind="epoch")
            client.tell.say(k="idle")
        await owner.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])))
