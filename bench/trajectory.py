"""What the record costs: a command, an answer that waits for the disk, events by the thousand.

Usage: python bench/trajectory.py [--quick] [--json] [--out FILE]

- `command_overhead_percent_p95`: 100 times the time that the two records of a command take at its
  95th percentile (`record_us_p95`: from before the append of `Asked` to after it, and the same of
  `Answered`; encoded, hashed, chained and written as the node does it, in this process), divided by
  `command_on_ms_p50`.
- `command_on_ms_*`, `command_off_ms_*`: /bin/true in one sandbox of a node, from before the call until
  its result is there, with the record switched on and off in turn, some commands each;
  `command_difference_percent_p50` is how much longer it takes with it. A cross-check from outside:
  what differs is small beside what this machine adds by itself.
- `durable_overhead_ms_p95_c1`, `..._c64`: at the level `local`, from before the wait of an answer for
  its record until it is on the disk; 1 or 64 loops that record a command and wait, without a pause
  between. In this process, with the node's own code, on the disk of the state directory. 64 such loops
  leave the one thread that records no rest: an answer waits while the others record.
- `durable_overhead_ms_p95_paced`: the same with 64 loops and 50 ms between the commands of each, about
  1,250 commands a second, which is what a node of two cores carries.
- floor of these: 1 or 64 threads, each of which makes one pwrite of as many bytes into a file of zeros
  and one fdatasync, without a pause (with the pause where there is one), same run.
- `local_difference_ms_p95_c1`, `..._c64`: /bin/true in 1 or 64 sandboxes at once that are `local`,
  less the same in sandboxes that are `process`, at the 95th percentile, through a node.
- `events_per_second`: CLIENTS processes post batches of BATCH events of a harness to one sandbox each,
  closed loop; events on record divided by the time. Floor: the journal alone, as many at once.
- `fastforward_per_second`: a rollout of OPERATIONS commands in one sandbox is run again: recorded
  answers by the same calls, one after another, from before the first until the last is there; the
  best of the rounds, all of which are in the raw log. `fastforward_client_us`, `fastforward_node_us`:
  processor time of client and node for one of them, of the same round. Peer `live`: the same
  commands when they were run.
- `local_commits_share`: syncs per answer at 64 at once: below 1 they were shared.
"""

import asyncio
import itertools
import os
import shutil
import signal
import statistics
import sys
import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from harness import Loop, RawLog, Sample, closed_loop, in_processes, interleave, percentiles
from product import RUN, STATE, OwnNode
from report import Result, run

SANDBOX: dict[str, Any] = {"image": "debian:12", "memory": "64MiB", "pids": 64, "detached": True}
TRUE = ["/bin/true"]
CLIENTS, BATCH, IN_FLIGHT = 2, 500, 2
OPERATIONS, QUICK_OPERATIONS = 20_000, 3_000  # of a rollout that is run again
LIVE_AT_ONCE, ROUNDS = 16, 5
BLOCK = 40  # commands between two switches
EVENT = {"step": 7, "tool": "bash", "observation": "x" * 80}
AT_ONCE = (1, 64)
PAUSE_S = 0.05
# Of waits: name, loops, seconds between two commands of one.
WAITS = (("c1", 1, 0.0), ("c64", 64, 0.0), ("paced", 64, PAUSE_S))


@dataclass(frozen=True)
class Plan:
    """Seconds are per party and round."""

    rounds: int
    seconds: float
    records: int
    blocks: int


FULL = Plan(3, 6.0, 50_000, 60)
QUICK = Plan(1, 3.0, 10_000, 16)
RUN_OF_PARENT = os.environ.setdefault("SKERRY_BENCH_RUN", RUN)


async def measure(result: Result, quick: bool) -> None:
    plan = QUICK if quick else FULL
    with RawLog("trajectory") as raw:
        own_record(result, plan, raw)
        await own_waits(result, plan, raw)
        program = (sys.executable, str(Path(__file__).parent / "node_with_switch.py"))
        async with OwnNode(program) as node:
            await node.start("")
            async with node.client() as client:
                await client.images.debian("debian:12", "bookworm")
                await commands(result, plan, client, raw)
                for count in AT_ONCE:
                    await levels(result, plan, client, count, raw)
                await events(result, plan, client, raw)
                await fastforward(result, QUICK_OPERATIONS if quick else OPERATIONS, client, raw)


# -- in this process ------------------------------------------------------------------------------


def _command() -> tuple[Any, Any]:
    from skerry.node.ledger import Answered, Asked
    from skerry.spec.command import CommandSpec, RunResult

    op = os.urandom(16)
    asked = Asked(op, 5, op, b"f" * 16, CommandSpec(argv=tuple(TRUE)), time.time())
    return asked, Answered(op, time.time(), RunResult(exit_code=0, op_id=op.hex()))


def own_record(result: Result, plan: Plan, raw: RawLog) -> None:
    """`record_us`, and the floor of events."""
    from skerry.node.ledger import Did, Ledger
    from skerry.trajectory.journal.journal import Journal

    place = f"{STATE}-journal"
    journal = Journal.open(place, now_ns=time.time_ns)
    try:
        ledger, samples = Ledger(journal), []
        for number in range(plan.records):
            asked, answered = _command()
            subject = f"s{number % 500:020d}"
            start = time.perf_counter()
            ledger.append(subject, asked)
            ledger.append(subject, answered)
            samples.append({"record_us": (time.perf_counter() - start) * 1e6})
        raw.write("record", 0, samples)
        figures = percentiles(sample["record_us"] for sample in samples)
        result.add("record_us_p50", figures.p50, "us", len(samples), "lower")
        p95 = _p95([sample["record_us"] for sample in samples])
        result.add("record_us_p95", p95, "us", len(samples), "lower")
        batch = [Did("harness.step", EVENT, result={}) for _ in range(BATCH)]
        start, count = time.perf_counter(), 0
        while time.perf_counter() - start < 1.0:
            ledger.append_all("s" + "a" * 20, batch)
            count += BATCH
        per_second = count / (time.perf_counter() - start)
        result.add_floor("events_per_second", per_second, "the journal alone, as many at once")
    finally:
        journal.close()
        shutil.rmtree(place, ignore_errors=True)


async def own_waits(result: Result, plan: Plan, raw: RawLog) -> None:
    """`durable_overhead_ms`, beside one fdatasync."""
    from skerry.node.clock import SystemClock
    from skerry.node.tasks import Tasks
    from skerry.node.trail.records import open_records
    from skerry.spec.sandbox import Durability, SandboxSpec
    from skerry.trajectory.options import TrajectoryOptions

    place, tasks = f"{STATE}-waits", Tasks()
    os.makedirs(place)
    options = TrajectoryOptions(ship=False)
    parts = open_records(place, options, SystemClock(), node="bench", store=None)
    local = SandboxSpec(durability=Durability.LOCAL)
    loops = {name: Loop() for name, *_ in WAITS}
    floors: dict[str, list[float]] = {name: [] for name, *_ in WAITS}

    async def one(number: int, pause: float = 0.0) -> Sample:
        if pause:
            await asyncio.sleep(pause)
        asked, answered = _command()
        parts.ledger.append(f"s{number % 64:020d}", asked)
        parts.ledger.append(f"s{number % 64:020d}", answered)
        start = time.perf_counter()
        await parts.trail.levels.reach(local)
        return {"wait_ms": (time.perf_counter() - start) * 1e3}

    def party(name: str, count: int, pause: float) -> Any:
        async def turn(number: int) -> None:
            syncs = parts.trail.levels.gauges()["trajectory_local_commits_total"]
            paced = partial(one, pause=pause)
            loop = await closed_loop(paced, concurrency=count, seconds=plan.seconds)
            done = parts.trail.levels.gauges()["trajectory_local_commits_total"] - syncs
            loop.samples[-1] = {**loop.samples[-1], "syncs": done}
            raw.write(f"wait {name}", number, loop.samples)
            loops[name].extend(loop)

        return turn

    def floor(name: str, count: int, pause: float) -> Any:
        async def turn(number: int) -> None:
            path = f"{place}/floor"
            samples = await asyncio.to_thread(_syncs, path, count, pause, plan.seconds / 2)
            raw.write(f"floor of wait {name}", number, [{"sync_ms": one} for one in samples])
            floors[name].extend(samples)

        return turn

    try:
        async with parts.shipping.working():
            await one(0)
            await asyncio.sleep(3.0)  # a second later a segment is prepared for syncs
            parties = {name: party(name, *how) for name, *how in WAITS}
            parties |= {f"floor {name}": floor(name, *how) for name, *how in WAITS}
            await interleave(plan.rounds, parties)
    finally:
        await tasks.close()
        parts.trail.levels.close()
        parts.shipping.close()
        parts.ledger.close()
        shutil.rmtree(place, ignore_errors=True)
    how = "as many threads, each with its own pwrite and fdatasync of one file of zeros, same run"
    for name, loop in loops.items():
        waits = loop.values("wait_ms")
        for which, of in (("p95", _p95), ("p50", statistics.median)):
            metric = f"durable_overhead_ms_{which}_{name}"
            result.add(metric, of(waits), "ms", len(waits), "lower")
            result.add_floor(metric, of(floors[name]), how)
    shared = loops["c64"]
    syncs = sum(sample.get("syncs", 0.0) for sample in shared.samples)
    result.add("local_commits_share", syncs / len(shared.samples), "", len(shared.samples), "lower")


def _syncs(path: str, threads: int, pause: float, seconds: float) -> list[float]:
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    samples: list[float] = []

    def write(places: Iterator[int], until: float) -> None:
        while time.perf_counter() < until:
            if pause:
                time.sleep(pause)
            start = time.perf_counter()
            os.pwrite(fd, b"x" * 450, next(places))
            os.fdatasync(fd)
            samples.append((time.perf_counter() - start) * 1e3)

    try:
        os.pwrite(fd, bytes(32 << 20), 0)
        os.fsync(fd)
        places = itertools.cycle(range(64, 31 << 20, 450))
        with ThreadPoolExecutor(threads) as pool:
            until = time.perf_counter() + seconds
            for done in [pool.submit(write, places, until) for _ in range(threads)]:
                done.result()
        return samples
    finally:
        os.close(fd)


# -- through a node -------------------------------------------------------------------------------


async def commands(result: Result, plan: Plan, client: Any, raw: RawLog) -> None:
    """`command_*`: with the record and without it, in turn."""
    node = (await client.health()).pid
    sandbox = await client.sandboxes.create("container", **SANDBOX)
    times: dict[str, list[float]] = {"on": [], "off": []}
    for block in range(2 * plan.blocks + 1):
        which = "off" if block % 2 else "on"
        for _ in range(BLOCK):
            start = time.perf_counter()
            await sandbox.run(TRUE)
            if block:  # the first block warms up
                times[which].append((time.perf_counter() - start) * 1e3)
        os.kill(node, signal.SIGUSR1)
        await client.health()
    os.kill(node, signal.SIGUSR1)
    await client.health()
    raw.write("commands", 0, [{name: value} for name, all_ in times.items() for value in all_])
    for name, samples in times.items():
        result.add_percentiles(f"command_{name}_ms", "", percentiles(samples), "ms")
    on, off = statistics.median(times["on"]), statistics.median(times["off"])
    count = len(times["on"])
    result.add("command_difference_percent_p50", 100 * (on - off) / off, "%", count, "lower")
    record_ms = result.metrics["record_us_p95"].value / 1e3
    result.add("command_overhead_percent_p95", 100 * record_ms / on, "%", count, "lower")
    await sandbox.destroy()


@asynccontextmanager
async def boxes(client: Any, count: int, durability: str) -> AsyncIterator[list[Any]]:
    made = await client.sandboxes.create_many(count, "container", **SANDBOX, durability=durability)
    try:
        await asyncio.gather(*(box.run(TRUE) for box in made))
        yield made
    finally:
        await client.sandboxes.destroy_many(made)


async def levels(result: Result, plan: Plan, client: Any, count: int, raw: RawLog) -> None:
    """`local_difference_ms`."""
    loops = {"local": Loop(), "process": Loop()}
    async with (
        boxes(client, count, "local") as local,
        boxes(client, count, "process") as process,
    ):

        def party(name: str, sandboxes: list[Any]) -> Any:
            async def one(number: int) -> Sample:
                start = time.perf_counter()
                await sandboxes[number % count].run(TRUE)
                return {"ms": (time.perf_counter() - start) * 1e3}

            async def turn(number: int) -> None:
                loop = await closed_loop(one, concurrency=count, seconds=plan.seconds)
                raw.write(f"{name} {count}", number, loop.samples)
                loops[name].extend(loop)

            return turn

        parties = {"local": party("local", local), "process": party("process", process)}
        await interleave(plan.rounds, parties)
    figures = {name: _p95(loop.values("ms")) for name, loop in loops.items()}
    samples = len(loops["local"].samples)
    difference = figures["local"] - figures["process"]
    result.add(f"local_difference_ms_p95_c{count}", difference, "ms", samples, "lower")


async def post(sandbox_id: str, seconds: float) -> Loop:
    """One client process: batches of events for one sandbox."""
    import skerry.aio
    from skerry.wire.events import EventsBody, EventsTaken, PostedEvent

    body = EventsBody(
        tuple(PostedEvent(action="harness.step", request=EVENT) for _ in range(BATCH))
    )
    async with skerry.aio.connect(f"unix://{RUN_OF_PARENT}/node.sock") as client:
        url = f"/v1/sandboxes/{sandbox_id}/events"

        async def one(_: int) -> Sample:
            start = time.perf_counter()
            await client._transport.call("POST", url, EventsTaken, body=body)
            return {"ms": (time.perf_counter() - start) * 1e3}

        return await closed_loop(one, concurrency=IN_FLIGHT, seconds=seconds)


async def events(result: Result, plan: Plan, client: Any, raw: RawLog) -> None:
    """`events_per_second`."""
    made = [await client.sandboxes.create("container", **SANDBOX) for _ in range(CLIENTS)]
    total = Loop()
    for number in range(plan.rounds):
        loop = await in_processes(post, plan.seconds, shards=[box.id for box in made])
        raw.write("events", number, loop.samples)
        total.extend(loop)
    count = len(total.samples) * BATCH
    result.add("events_per_second", count / total.seconds, "1/s", count, "higher")
    result.notes.append(f"{CLIENTS} clients, {IN_FLIGHT} batches of {BATCH} events in flight each")
    await client.sandboxes.destroy_many(made)


async def fastforward(result: Result, count: int, client: Any, raw: RawLog) -> None:
    """`fastforward_*`."""
    key = f"bench/fastforward/{os.urandom(4).hex()}"
    places = asyncio.Semaphore(LIVE_AT_ONCE)

    async def one(sandbox: Any) -> None:
        async with places:
            await sandbox.run(TRUE)

    async with client.rollout(key) as rollout:
        sandbox = await rollout.create("container", **SANDBOX)
        start = time.perf_counter()
        await asyncio.gather(*(one(sandbox) for _ in range(count)))
        live = count / (time.perf_counter() - start)
    rows, node = [], (await client.health()).pid
    for _ in range(ROUNDS):
        async with client.rollout(key) as rollout:
            sandbox = await rollout.create("container", **SANDBOX)
            start, used, theirs = time.perf_counter(), time.process_time(), _processor(node)
            for _ in range(count):
                await sandbox.run(TRUE)
            seconds, used = time.perf_counter() - start, time.process_time() - used
            theirs = _processor(node) - theirs
        times = {"client_us": used / count * 1e6, "node_us": theirs / count * 1e6}
        rows.append({"per_second": count / seconds, **times})
    raw.write("fastforward", 0, rows)
    await sandbox.destroy()
    best = max(rows, key=lambda row: row["per_second"])
    result.add("fastforward_per_second", best["per_second"], "1/s", count, "higher")
    for whose in ("client_us", "node_us"):
        result.add(f"fastforward_{whose}", best[whose], "us", count, "lower")
    result.add_peer("live", "fastforward_per_second", live)


def _processor(pid: int) -> float:
    """Return the seconds of processor time that a process has had."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _p95(samples: list[float]) -> float:
    ordered = sorted(samples)
    return ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))]


if __name__ == "__main__":
    sys.exit(run("trajectory", __doc__ or "", measure))
