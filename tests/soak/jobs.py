"""What trainers do with jobs: they vanish and come back, pause all, and run a killed harness again."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from skerry.errors import Conflict, SkerryError
from skerry.spec.job import JobState, OnLost
from skerry.spec.sandbox import State
from soak import harness, hostile
from soak.client import HANG_S, Client, Stopped

SMALL = {"memory": "128MiB", "pids": 64}
COUNTED = 30
COUNT = f"for n in $(seq {COUNTED}); do echo $n; sleep 0.1; done"
WHOLE = "".join(f"{n}\n" for n in range(1, COUNTED + 1)).encode()
# The first runs out soon; what is stopped is over, so there it must outlast what the relay does.
LEASE_S, LEASE_OF_STOP_S, LEASE_OF_HOLD_S, GRACE_S = 2.0, 6.0, 8.0, 0.5
LOST_WITHIN_S = 60.0  # a killed node gives a lease its full term again
KILLS_MAX = 3
LIVES_MAX = 12  # a life that ended with an error that a fault explains is followed by another


@contextlib.asynccontextmanager
async def job_of(client: Client, **options: Any) -> AsyncIterator[Any]:
    """A job for a block; nothing of it is left afterwards."""
    name = f"{client.tell.name}-{client.nonce()}"
    making = client.sdk.jobs.create(name, grace=GRACE_S, labels=client.labels, **options)
    job = await client.tell.op("job", making)
    try:
        yield job
    finally:
        begin = time.monotonic()
        while True:
            with contextlib.suppress(Stopped):
                await client.tell.op("job", job.end())
                break
            if time.monotonic() - begin > HANG_S:
                client.tell.bad(f"job {name} cannot be ended", begin, kind="job")
                break
            await asyncio.sleep(0.2)


@contextlib.asynccontextmanager
async def held(client: Client, job: Any) -> AsyncIterator[None]:
    """Its trainer is there, for a block."""
    await client.tell.op("job", job.__aenter__())
    try:
        yield
    finally:
        await job.__aexit__()


async def leases(client: Client) -> None:
    """The trainer vanishes under a running command, and what was agreed on happens; it comes back."""
    begin = time.monotonic()
    on_lost = client.chance.choice((OnLost.PAUSE, OnLost.PAUSE, OnLost.STOP, OnLost.KEEP))
    stops = on_lost is OnLost.STOP
    options = {
        "lease": LEASE_OF_STOP_S if stops else LEASE_S,
        "on_lost": str(on_lost),
        "resume": client.chance.choice(("lazy", "all")),
    }
    async with job_of(client, **options) as job:
        # On a busy machine the lease may run out even now, and for "stop" that is the end.
        own = ("conflict", "sandbox_failed") if stops else ()
        async with held(client, job):
            making = job.sandboxes.create("container", labels=client.labels, **SMALL)
            sandbox = await client.tell.op("create", making, own=own)
            handle = await client.tell.op("start", sandbox.start(COUNT), own=own)
        if stops:
            await _stopped(client, job, sandbox, handle, begin)
            return
        if on_lost is OnLost.PAUSE:
            await _until(client, job, lambda info: info.sandboxes == {"paused": 1}, begin)
            held_by = await client.tell.op("job", client.sdk.jobs.attach(job.id))
        else:
            await _until(client, job, lambda info: info.state is JobState.AWAY, begin)
            held_by = job
        async with held(client, held_by):
            result = await client.tell.op("status", handle.wait(HANG_S - 10.0))
        right = result.ok and result.stdout == WHOLE
        client.expect(right, f"over a lost lease ({on_lost}): {result}", begin)


async def _until(client: Client, job: Any, holds: Callable[[Any], bool], begin: float) -> None:
    """Returns when what the loss of the lease leads to has happened."""
    since = time.monotonic()
    while True:
        info = await client.tell.op("job", job.info())
        if holds(info):
            return
        if time.monotonic() - since > LOST_WITHIN_S:
            client.expect(False, f"{LOST_WITHIN_S:g} s after its loss: {info}", begin)
            raise Stopped
        await asyncio.sleep(0.2)


async def _stopped(client: Client, job: Any, sandbox: Any, handle: Any, begin: float) -> None:
    """The job has ended, its answers are there, and nobody takes it up again."""
    await _until(client, job, lambda info: info.state is JobState.ENDED, begin)
    info = await client.tell.op("wait", sandbox.wait(State.STOPPED, timeout=30.0))
    client.expect(info.state is State.STOPPED, f"of an ended job it is {info.state}", begin)
    status = await client.tell.op("status", sandbox.op(handle.op_id, wait=20.0))
    over = status.result is not None or status.error is not None
    client.expect(over, f"of an ended job a command is {status.state}", begin)
    try:
        await client.sdk.jobs.attach(job.id)
    except Conflict:
        return
    except SkerryError as error:
        client.expect(False, f"an ended job: {error!r}", begin, excuse=("node", "both", "disk"))
    else:
        client.expect(False, "an ended job was taken up again", begin, excuse=())


async def holds(client: Client) -> None:
    """A paused job stands still, all of it; a request wakes one; resumed, no output is missing."""
    begin = time.monotonic()
    async with job_of(client, lease=LEASE_OF_HOLD_S) as job, held(client, job):
        making = job.sandboxes.create_many(
            client.chance.randint(2, 4), "container", labels=client.labels, **SMALL
        )
        made = await client.tell.op("batch", making)
        handles = [await client.tell.op("start", one.start(COUNT)) for one in made]
        await asyncio.sleep(client.chance.uniform(0, 1.0))
        moved = await client.tell.op("hold", job.pause())
        # A launcher that is killed in this moment cannot pause anything.
        excuse = ("launcher", "both", "disk")
        client.expect(not moved.failed, f"a pause of all: {moved}", begin, excuse=excuse)
        if not moved.failed:
            info = await client.tell.op("job", job.info())
            still = info.state is JobState.PAUSED and info.sandboxes == {"paused": len(made)}
            client.expect(still, f"paused, a job is {info}", begin)
        await asyncio.sleep(client.chance.uniform(0, 0.5))
        await hostile.alive(client, client.chance.choice(made), begin, "a pause of its job")
        moved = await client.tell.op("hold", job.resume())
        client.expect(not moved.failed, f"a resume of all: {moved}", begin, excuse=excuse)
        for handle in handles:
            result = await client.tell.op("status", handle.wait(HANG_S - 10.0))
            right = result.ok and result.stdout == WHOLE
            client.expect(right, f"over a pause of its job: {result}", begin)


async def repeats(client: Client) -> None:
    """A harness is killed and run again, some times: nothing runs twice, and answers stay the same."""
    begin = time.monotonic()
    async with job_of(client, lease=LEASE_OF_STOP_S, on_lost="stop") as job, held(client, job):
        told: dict[int, set[str]] = defaultdict(set)
        kills, ended = client.chance.randint(1, KILLS_MAX), False
        for _ in range(LIVES_MAX):
            after = client.chance.randint(0, harness.STEPS - 1) if kills else None
            ended = await _life(client, job, told, after)
            kills = max(0, kills - 1)
            if ended and not kills:
                break
        if not ended:
            raise Stopped  # of faults: each life's end is on record
        (info,) = await client.tell.op("list", job.sandboxes.list())
        sandbox = await client.tell.op("list", client.sdk.sandboxes.get(info.id))
        log = await client.run(sandbox, "cat /root/log")
        ran: dict[int, list[str]] = defaultdict(list)
        for line in log.text.splitlines():
            number, name = line.split()
            ran[int(number)].append(name)
        twice = {number: names for number, names in ran.items() if len(names) > 1}
        client.expect(not twice, f"of a killed harness ran twice: {twice}", begin, excuse=())
        heard = {number: {f"{name}\n" for name in names} for number, names in ran.items()}
        client.expect(dict(told) == heard, f"a harness heard {dict(told)} of {heard}", begin)
        client.expect(len(ran) == harness.STEPS, f"of a harness's steps ran {list(ran)}", begin)


def _kill(process: asyncio.subprocess.Process) -> None:
    """It may have come to its end by itself in this moment."""
    with contextlib.suppress(ProcessLookupError):
        process.kill()


async def _life(client: Client, job: Any, told: dict[int, set[str]], after: int | None) -> bool:
    """Runs the harness, to be killed after so many answers; returns whether it came to its end."""
    begin = time.monotonic()
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "soak.harness", client.url, f"soak/{job.id}", job.id,
        client.tell.name, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    said: dict[str, Any] = {}
    try:
        async with asyncio.timeout(HANG_S):
            while after != 0 and (line := await process.stdout.readline()):
                said = json.loads(line)
                if "step" in said:
                    told[said["step"]].add(said["answer"])
                    after = None if after is None else after - 1
            if after == 0:  # it may be under way with the next one
                await asyncio.sleep(client.chance.uniform(0, 0.05))
                _kill(process)
            await process.wait()
    except TimeoutError:
        _kill(process)
        client.tell.bad(f"a harness had no end within {HANG_S:g} s", begin, kind="hang")
        raise Stopped from None
    if "code" not in said:
        return False  # killed
    record = {"k": "op", "n": "repeat", "s": begin, "e": time.monotonic(), "x": said["code"]}
    client.tell.say(**record, own=(), m=said.get("message", ""))
    return said["code"] == ""


Scenario = Callable[[Client], Awaitable[None]]
SCENARIOS: dict[str, tuple[Scenario, float]] = {
    "leases": (leases, 1.2),
    "holds": (holds, 0.8),
    "repeats": (repeats, 0.8),
}
