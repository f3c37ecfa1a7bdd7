"""Commands in running container sandboxes: one at a time, many at once, and one that floods.

Usage: python bench/exec.py [--quick] [--json] [--out FILE]

Clocks are read in the clients, Python processes that talk to one node through the SDK.

- `true_ms_*`: from just before the call that runs `/bin/true` (dynamically linked) until its
  result is in the client's hands; one client, one sandbox, closed loop.
- floor of `true_ms_p50`: from before posix_spawn of the host's own `/bin/true` until it has been
  reaped, by a C program on the host (`bench/floor/spawnloop.c`): the command alone, without a
  sandbox and without any message.
- `builtin_ms_*`: from just before the call that runs `:` in a session (a persistent shell) until its
  result is there.
- `commands_per_second_500`: over 500 live sandboxes, CLIENTS processes of which each has IN_FLIGHT
  commands under way, each command in the next of its sandboxes; ended commands divided by the time.
  The command is a static program that does nothing (`bench/floor/noop.c`); `..._dynamic` is the
  image's /bin/true. `node_cpu_us_per_command` and `client_cpu_us_per_command` are the CPU time of the
  node and of all clients, divided by the commands; `client_busy_share` that of one client in the time:
  below 1 the clients were not what bounded the figure.
- floor of `commands_per_second_500`: posix_spawn of the same static program by the C program, one
  worker per processor.
- `output_1gib_rss_mib`: 1 GiB of output of one command, streamed to a client that throws it away:
  the highest resident size of the node plus that of the client. `output_1gib_run_rss_mib`: the same,
  not streamed but kept to the output limit. `output_1gib_mib_s` is the speed of the first.

Sandboxes have run their command before the first clock starts, so files and code are warm.
"""

import asyncio
import contextlib
import itertools
import os
import statistics
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from daemons import peak_kib, reset_peak, used_cpu_s
from floors import BUILD, build
from harness import (
    BenchmarkFailedError,
    Loop,
    RawLog,
    Sample,
    closed_loop,
    in_processes,
    interleave,
    machine_facts,
    percentiles,
    run_json,
)
from product import RUN, own_client
from report import Result, run

SANDBOX: dict[str, Any] = {"image": "debian:12", "cpu": 1, "memory": "256MiB", "pids": 64}
SMALL = {**SANDBOX, "memory": "64MiB"}
GIB = 1 << 30
CLIENTS, IN_FLIGHT = 3, 12
NOOP = "/usr/local/bin/noop"
DYNAMIC = "/bin/true"


@dataclass(frozen=True)
class Plan:
    """Seconds are per party and round."""

    rounds: int
    seconds: float
    live: int
    many_rounds: int
    many_seconds: float


FULL = Plan(4, 8.0, 500, 3, 8.0)
QUICK = Plan(2, 3.0, 500, 1, 4.0)


class Product:
    """One running sandbox; with the functions below the only place that knows the SDK's calls."""

    def __init__(self, sandbox: Any) -> None:
        self._sandbox = sandbox

    @staticmethod
    @contextlib.asynccontextmanager
    async def sandbox(client: Any) -> AsyncIterator["Product"]:
        """Hold one running sandbox for the length of the block."""
        sandbox = await client.sandboxes.create("container", **SANDBOX)
        try:
            yield Product(sandbox)
        finally:
            await sandbox.destroy()

    async def command(self, _: int) -> Sample:
        """Run one command; its clock in milliseconds."""
        start = time.perf_counter()
        done = await self._sandbox.run([DYNAMIC])
        end = time.perf_counter()
        if done.exit_code != 0:
            raise RuntimeError(f"/bin/true ended with status {done.exit_code}")
        return {"true_ms": (end - start) * 1e3}


async def commands_in(ids: list[str], program: str, seconds: float) -> Loop:
    """One client process: commands in its sandboxes, in turn."""
    import skerry.aio

    async with skerry.aio.connect(f"unix://{RUN_OF_PARENT}/node.sock") as client:
        sandboxes = [await client.sandboxes.get(one) for one in ids]
        turns = itertools.cycle(sandboxes)

        async def one(_: int) -> Sample:
            start = time.perf_counter()
            done = await next(turns).run([program])
            end = time.perf_counter()
            if done.exit_code != 0:
                raise BenchmarkFailedError(f"{program} ended as {done}")
            return {"ms": (end - start) * 1e3}

        before = time.process_time()
        loop = await closed_loop(one, concurrency=IN_FLIGHT, seconds=seconds)
        cpu = time.process_time() - before
        loop.samples[-1] = {**loop.samples[-1], "client_cpu_s": cpu}
        return loop


async def stream_all(sandbox_id: str) -> Loop:
    """One client process: a gibibyte of output, thrown away; its own peak of resident memory."""
    import skerry.aio

    async with skerry.aio.connect(f"unix://{RUN_OF_PARENT}/node.sock") as client:
        sandbox = await client.sandboxes.get(sandbox_id)
        size, result = 0, None
        start = time.perf_counter()
        async for event in sandbox.stream(["head", "-c", str(GIB), "/dev/zero"]):
            size += len(event.stdout or b"")
            result = event.result
        end = time.perf_counter()
        if size != GIB or result is None or result.exit_code != 0:
            raise BenchmarkFailedError(f"{size} bytes came, and {result}")
    return Loop([{"seconds": end - start, "client_kib": peak_kib(os.getpid())}], end - start)


async def run_all(sandbox_id: str) -> Loop:
    """The same with `run`, whose result is cut to the output limit."""
    import skerry.aio

    async with skerry.aio.connect(f"unix://{RUN_OF_PARENT}/node.sock") as client:
        sandbox = await client.sandboxes.get(sandbox_id)
        start = time.perf_counter()
        result = await sandbox.run(["head", "-c", str(GIB), "/dev/zero"])
        end = time.perf_counter()
        if result.stdout_total != GIB or not result.truncated:
            raise BenchmarkFailedError(f"{result.stdout_total} bytes were counted")
    return Loop([{"seconds": end - start, "client_kib": peak_kib(os.getpid())}], end - start)


# The processes of `in_processes` are started afresh and import this module under another pid.
RUN_OF_PARENT = os.environ.setdefault("SKERRY_BENCH_RUN", RUN)


async def measure(result: Result, quick: bool) -> None:
    plan = QUICK if quick else FULL
    build()
    with RawLog("exec") as raw:
        async with own_client() as client:
            async with Product.sandbox(client) as product:
                await one_at_a_time(result, plan, product, raw)
            await builtins(result, plan, client, raw)
            await floods(result, client, raw)
            await many(result, plan, client, raw)


async def one_at_a_time(result: Result, plan: Plan, product: Product, raw: RawLog) -> None:
    """`true_ms` beside its floor."""
    total, floors = Loop(), []
    await product.command(0)

    async def ours(turn: int) -> None:
        loop = await closed_loop(product.command, concurrency=1, seconds=plan.seconds)
        raw.write("skerry", turn, loop.samples)
        total.extend(loop)

    async def floor(turn: int) -> None:
        argv = [str(BUILD / "spawnloop"), str(plan.seconds / 3), "1", "/bin/true"]
        summary = await run_json(argv, limit_seconds=plan.seconds + 60)
        raw.write("floor", turn, [summary])
        floors.append(summary["p50_us"] / 1e3)

    await interleave(plan.rounds, {"skerry": ours, "floor": floor})
    result.add_percentiles("true_ms", "", percentiles(total.values("true_ms")), "ms")
    result.add("true_per_second_c1", total.per_second, "1/s", len(total.samples), "higher")
    how = "posix_spawn of /bin/true on the host by a C program, same run; median of the rounds"
    result.add_floor("true_ms_p50", statistics.median(floors), how)


async def many(result: Result, plan: Plan, client: Any, raw: RawLog) -> None:
    """Commands a second over many sandboxes, the static program and the dynamic one in turn."""
    sandboxes = await client.sandboxes.create_many(plan.live, "container", **SMALL)
    try:
        noop = (BUILD / "noop").read_bytes()
        places = asyncio.Semaphore(16)

        async def warm(sandbox: Any) -> None:
            async with places:
                await sandbox.files.write(NOOP, noop, mode=0o755)
                for program in (NOOP, DYNAMIC):
                    await sandbox.run([program])

        await asyncio.gather(*map(warm, sandboxes))
        ids = [sandbox.id for sandbox in sandboxes]
        await rates(result, plan, ids, (await client.health()).pid, raw)
    finally:
        await client.sandboxes.destroy_many(sandboxes)


async def rates(result: Result, plan: Plan, ids: list[str], node: int, raw: RawLog) -> None:
    shards = [ids[at::CLIENTS] for at in range(CLIENTS)]
    loops = {NOOP: Loop(), DYNAMIC: Loop()}
    cpu = {NOOP: [0.0, 0.0], DYNAMIC: [0.0, 0.0]}  # of the node, of the clients
    floors = []

    def ours(program: str) -> Any:
        async def turn(number: int) -> None:
            before = used_cpu_s(node)
            loop = await in_processes(commands_in, program, plan.many_seconds, shards=shards)
            cpu[program][0] += used_cpu_s(node) - before
            cpu[program][1] += sum(sample.get("client_cpu_s", 0.0) for sample in loop.samples)
            raw.write(program, number, loop.samples)
            loops[program].extend(loop)

        return turn

    async def floor(number: int) -> None:
        workers = str(machine_facts()["cpus"])
        argv = [str(BUILD / "spawnloop"), str(plan.many_seconds / 2), workers, str(BUILD / "noop")]
        summary = await run_json(argv, limit_seconds=plan.many_seconds + 60)
        raw.write("floor of many", number, [summary])
        floors.append(summary["lives_per_second"])

    parties = {"static": ours(NOOP), "dynamic": ours(DYNAMIC), "floor": floor}
    await interleave(plan.many_rounds, parties)
    for program, suffix in ((NOOP, ""), (DYNAMIC, "_dynamic")):
        loop = loops[program]
        count = len(loop.samples)
        result.add(f"commands_per_second_500{suffix}", loop.per_second, "1/s", count, "higher")
        figures = percentiles(loop.values("ms"))
        result.add(f"command_ms_p50_500{suffix}", figures.p50, "ms", count, "lower")
        result.add(f"command_ms_p99_500{suffix}", figures.p99, "ms", count, "lower")
        for who, seconds in zip(("node", "client"), cpu[program], strict=True):
            name = f"{who}_cpu_us_per_command{suffix}"
            result.add(name, seconds * 1e6 / count, "us", count, "lower")
    busy = cpu[NOOP][1] / CLIENTS / loops[NOOP].seconds
    result.add("client_busy_share", busy, "", CLIENTS, "lower")
    how = (
        "posix_spawn of the same static program by a C program, one worker per processor, same run"
    )
    result.add_floor("commands_per_second_500", statistics.median(floors), how)
    result.notes.append(f"{CLIENTS} client processes with {IN_FLIGHT} commands in flight each")


async def builtins(result: Result, plan: Plan, client: Any, raw: RawLog) -> None:
    """`builtin_ms`."""
    sandbox = await client.sandboxes.create("container", **SANDBOX)
    session = await sandbox.session()

    async def builtin(_: int) -> Sample:
        start = time.perf_counter()
        done = await session.run(":")
        end = time.perf_counter()
        if done.exit_code != 0:
            raise RuntimeError(f"`:` ended with status {done.exit_code}")
        return {"builtin_ms": (end - start) * 1e3}

    await builtin(0)
    loop = await closed_loop(builtin, concurrency=1, seconds=plan.seconds)
    raw.write("skerry session", 0, loop.samples)
    result.add_percentiles("builtin_ms", "", percentiles(loop.values("builtin_ms")), "ms")
    await sandbox.destroy()


async def floods(result: Result, client: Any, raw: RawLog) -> None:
    """A gibibyte of output, streamed and not."""
    node = (await client.health()).pid
    for make, suffix in ((stream_all, ""), (run_all, "_run")):
        sandbox = await client.sandboxes.create("container", **SANDBOX)
        reset_peak(node)
        loop = await in_processes(make, shards=[sandbox.id], lead=0.1)
        await sandbox.destroy()
        sample = {**loop.samples[0], "node_kib": peak_kib(node)}
        raw.write(make.__name__, 0, [sample])
        both = (sample["node_kib"] + sample["client_kib"]) / 1024
        result.add(f"output_1gib{suffix}_rss_mib", both, "MiB", 1, "lower")
        result.add(
            f"output_1gib{suffix}_node_rss_mib", sample["node_kib"] / 1024, "MiB", 1, "lower"
        )
        result.add(f"output_1gib{suffix}_mib_s", 1024 / sample["seconds"], "MiB/s", 1, "higher")


if __name__ == "__main__":
    sys.exit(run("exec", __doc__ or "", measure))
