"""Function calls: a trivial Python function on a warm container, alone and many at once.

Usage: python bench/function.py [--quick] [--long] [--json] [--out FILE]

The call is `def main(x): return x * x` with 7, and 49 has to come back. Clocks are read in the client, a
Python process on uvloop that talks to a node of its own. The pool is warm: containers stand, and calls
have run at that concurrency, before the first clock starts.

- `call_ms_*_cN`: from just before `client.functions.call` until the result is in the client's hands; N
  clients in a closed loop, N = 1, 16, 128.
- `http_ms_*_cN`: the same without the SDK: from before the bytes of a request are written to a standing
  connection until its answer is read whole; N connections (`bench/function_http.py`).
- `calls_per_second`: 30 seconds (5 with --quick) of N = 16 over HTTP; `calls_per_second_sdk` by the
  SDK, whose process takes its part of the same processors. `node_cpu_us_per_call`: CPU time of the node
  by the calls of the former.
- `ratio_to_fork_floor`: a call's median by that of the floor, in turns with it: a warmed Python forks
  a child, which makes namespaces and mounts, calls, and is reaped (`bench/floor/forkfloor.py` lists
  the steps). `fork_floor_bare_ms` is the fork, the call and the reaping alone.
- `program_ms_p50_c1`: a call of the kind `program` that runs `python3 -c` from nothing in the image.
- `container_ms_p50_c1`: the same call with `isolation="container"`: a fresh container for it.
- `numpy_imported_ms_p50_c1`, `numpy_per_call_ms_p50_c1`: a call that adds up an array of numpy, in an
  environment that has numpy imported, and in one where each call imports it.
- `failures`: calls of all these loops that raised, or whose value was not the right one. They end the
  run, so a published figure has 0.
- `long_*`, only with --long: 128 clients over HTTP for ten minutes; `long_failures` counts here and does
  not end the run; `long_node_rss_mib_*` is the node's resident memory before and after,
  `long_available_mib` what the machine's available memory (`harness.memory_kib`) went down by.

Peers, in turns with the product: `python3 -c` started on this machine by a C program; a sandbox created,
one command run in it, destroyed, through the same SDK and node.
"""

import asyncio
import contextlib
import statistics
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from daemons import used_cpu_s
from floors import BUILD, build
from function_http import Connections
from harness import (
    BENCH,
    BenchmarkFailedError,
    Loop,
    Percentiles,
    RawLog,
    Sample,
    closed_loop,
    interleave,
    machine_facts,
    memory_kib,
    percentiles,
    run_json,
)
from product import RUN, own_client
from report import Result, run

CODE = "def main(x): return x * x"
NUMPY_CODE = "def main(n):\n    import numpy\n    return int(numpy.arange(n).sum())"
NUMPY_IMAGE = "bench/numpy"
SANDBOX: dict[str, Any] = {"image": "debian:12", "cpu": 1, "memory": "256MiB", "pids": 64}
LADDER = (1, 16, 128)
SUSTAINED, LONG_CLIENTS, LONG_SECONDS = 16, 128, 600.0
FORKFLOOR = BENCH / "floor" / "forkfloor.py"


@dataclass(frozen=True)
class Plan:
    """Seconds are per party and round."""

    rounds: int
    seconds: float
    small_seconds: float  # of the floor, the peers and the variants
    sustained_seconds: float


FULL = Plan(3, 6.0, 4.0, 30.0)
QUICK = Plan(1, 2.0, 1.0, 5.0)
Operation = Callable[[int], Awaitable[Sample]]


class Calls:
    """The only place that knows the SDK's calls; counts those that fail."""

    def __init__(self, client: Any) -> None:
        self.client = client
        self.failures = 0

    def operation(self, value: Any = 49, **options: Any) -> Operation:
        """One call through the SDK with these options."""
        kind = options.pop("kind", "python")
        if kind == "python":
            options = {"code": CODE, "args": [7], **options}

        async def call(_: int) -> Sample:
            start = time.perf_counter()
            try:
                done = await self.client.functions.call(kind, **options)
            except Exception:
                self.failures += 1
                raise
            end = time.perf_counter()
            if not done.ok or (value is not ... and done.value != value):
                self.failures += 1
                raise BenchmarkFailedError(f"a call ended as {done}")
            return {"ms": (end - start) * 1e3}

        return call

    async def sandbox(self, _: int) -> Sample:
        """A life of a sandbox with one command."""
        start = time.perf_counter()
        sandbox = await self.client.sandboxes.create("container", **SANDBOX)
        done = await sandbox.run(["python3", "-c", "print(7 * 7)"])
        await sandbox.destroy()
        end = time.perf_counter()
        if done.text != "49\n":
            raise BenchmarkFailedError(f"the peer's command ended as {done}")
        return {"ms": (end - start) * 1e3}


async def measure(result: Result, quick: bool) -> None:
    plan = QUICK if quick else FULL
    build()
    with RawLog("function") as raw:
        async with own_client() as client:
            calls = Calls(client)
            await client.images.debian(NUMPY_IMAGE, "bookworm", ("python3", "python3-numpy"))
            await ladders(result, plan, calls, raw)
            await beside(result, plan, calls, raw)
            await sustained(result, plan, calls, raw)
            if LONG:
                await long_run(result, calls)
            result.add("failures", calls.failures, "", 1, "lower")


async def ladders(result: Result, plan: Plan, calls: Calls, raw: RawLog) -> None:
    """`call_ms` and `http_ms` at each concurrency, in turns."""
    turns, parties = Turns(raw), {}
    async with contextlib.AsyncExitStack() as stack:
        for clients in LADDER:
            http = await stack.enter_async_context(connections(calls, clients))
            for stem, operation in (("call_ms", calls.operation()), ("http_ms", http.operation)):
                name = f"{stem}_c{clients}"
                parties[name] = turns.of(name, operation, clients=clients, seconds=plan.seconds)
                await closed_loop(operation, concurrency=clients, seconds=1.0)  # warm
        await interleave(plan.rounds, parties)
    for name in parties:
        stem, _, suffix = name.rpartition("_")
        result.add_percentiles(stem, f"_{suffix}", turns.percentiles(name), "ms")


class Turns:
    """Closed loops as turns of `interleave`, with what they have seen."""

    def __init__(self, raw: RawLog) -> None:
        self._raw = raw
        self.loops: dict[str, Loop] = {}

    def of(
        self, name: str, operation: Operation, *, clients: int, seconds: float
    ) -> Callable[[int], Awaitable[None]]:
        """A turn whose samples are added to the loop of this name."""
        self.loops[name] = Loop()

        async def turn(number: int) -> None:
            seen = await closed_loop(operation, concurrency=clients, seconds=seconds)
            self._raw.write(name, number, seen.samples)
            self.loops[name].extend(seen)

        return turn

    def percentiles(self, name: str) -> Percentiles:
        """Of the loop of this name."""
        return percentiles(self.loops[name].values("ms"))


@contextlib.asynccontextmanager
async def connections(calls: Calls, count: int) -> AsyncIterator[Connections]:
    """Raw connections to the node, whose failures are counted with the others."""
    async with Connections(f"{RUN}/node.sock", count, CODE) as made:
        yield made
    calls.failures += made.failures


async def beside(result: Result, plan: Plan, calls: Calls, raw: RawLog) -> None:
    """One client at a time: the call again, its variants, the floor and the peers, in turns."""
    numpy = {"value": 4950, "code": NUMPY_CODE, "args": [100], "image": NUMPY_IMAGE}
    python = ["python3", "-c", "print(7 * 7)"]
    ways: dict[str, Operation] = {
        "call": calls.operation(),
        "program": calls.operation(..., kind="program", argv=python),
        "container": calls.operation(isolation="container"),
        "numpy_imported": calls.operation(**numpy, modules=["numpy"]),
        "numpy_per_call": calls.operation(**numpy),
        "sandbox": calls.sandbox,
    }
    turns, parties = Turns(raw), {}
    for name, operation in ways.items():
        await operation(0)  # warm: its pool stands
        parties[name] = turns.of(name, operation, clients=1, seconds=plan.small_seconds)
    spawns: dict[str, list[float]] = {"bare": [], "isolated": [], "python": []}
    for name, medians in spawns.items():
        parties[name] = floor_turn(name, medians, plan.small_seconds, raw)
    await interleave(plan.rounds, parties)
    for name in ("program", "container", "numpy_imported", "numpy_per_call"):
        figures = turns.percentiles(name)
        result.add(f"{name}_ms_p50_c1", figures.p50, "ms", figures.n, "lower")
    call = turns.percentiles("call")
    floor, bare = (statistics.median(spawns[name]) for name in ("isolated", "bare"))
    result.add("ratio_to_fork_floor", call.p50 / floor, "", call.n, "lower")
    result.add("fork_floor_bare_ms", bare, "ms", len(spawns["bare"]), "lower")
    how = "bench/floor/forkfloor.py: fork of a warmed Python, namespaces, mounts, reap; same run"
    result.add_floor("call_ms_p50_c1", floor, how)
    result.add_peer("python3 -c", "call_ms_p50_c1", statistics.median(spawns["python"]))
    result.add_peer("a sandbox for each", "call_ms_p50_c1", turns.percentiles("sandbox").p50)
    result.notes.append(
        "the floor makes its namespaces in the time that is measured, the product before a call comes"
    )


def floor_turn(
    name: str, medians: list[float], seconds: float, raw: RawLog
) -> Callable[[int], Awaitable[None]]:
    """A turn of a program that measures itself."""
    if name == "python":
        argv = [str(BUILD / "spawnloop"), str(seconds), "1", sys.executable, "-c", "print(7 * 7)"]
    else:
        argv = [sys.executable, "-I", str(FORKFLOOR), name, str(seconds), "1"]

    async def turn(number: int) -> None:
        said = await run_json(argv, limit_seconds=seconds + 60)
        raw.write(f"floor {name}", number, [said])
        medians.append(said["p50_us"] / 1e3)

    return turn


async def sustained(result: Result, plan: Plan, calls: Calls, raw: RawLog) -> None:
    """Calls a second, by HTTP and by the SDK; what the node and the floor need for one."""
    node = (await calls.client.health()).pid
    seconds = plan.sustained_seconds
    async with connections(calls, SUSTAINED) as http:
        before = used_cpu_s(node)
        loop = await closed_loop(http.operation, concurrency=SUSTAINED, seconds=seconds)
        cpu = used_cpu_s(node) - before
    count = len(loop.samples)
    raw.write("sustained http", 0, loop.samples)
    result.add("calls_per_second", loop.per_second, "1/s", count, "higher")
    result.add("node_cpu_us_per_call", cpu * 1e6 / count, "us", count, "lower")
    sdk = await closed_loop(calls.operation(), concurrency=SUSTAINED, seconds=seconds)
    raw.write("sustained sdk", 0, sdk.samples)
    result.add("calls_per_second_sdk", sdk.per_second, "1/s", len(sdk.samples), "higher")
    workers = str(machine_facts()["cpus"])
    argv = [sys.executable, "-I", str(FORKFLOOR), "isolated", str(seconds / 3), workers]
    said = await run_json(argv, limit_seconds=seconds + 60)
    how = "bench/floor/forkfloor.py isolated, one worker per processor, same run"
    result.add_floor("calls_per_second", said["lives_per_second"], how)


async def long_run(result: Result, calls: Calls) -> None:
    """Ten minutes of 128 clients."""
    node = (await calls.client.health()).pid
    before, rss = memory_kib()["available"], resident_mib(node)
    async with Connections(f"{RUN}/node.sock", LONG_CLIENTS, CODE, raises=False) as http:
        loop = await closed_loop(http.operation, concurrency=LONG_CLIENTS, seconds=LONG_SECONDS)
    await asyncio.sleep(5)
    count = len(loop.samples)
    figures = percentiles(loop.values("ms"))
    result.add("long_calls_per_second", loop.per_second, "1/s", count, "higher")
    result.add("long_ms_p50_c128", figures.p50, "ms", count, "lower")
    result.add("long_ms_p99_c128", figures.p99, "ms", count, "lower")
    result.add("long_ms_max_c128", figures.max, "ms", count, "lower")
    result.add("long_failures", http.failures, "", count, "lower")
    result.add("long_node_rss_mib_before", rss, "MiB", 1, "lower")
    result.add("long_node_rss_mib_after", resident_mib(node), "MiB", 1, "lower")
    went = (before - memory_kib()["available"]) / 1024
    result.add("long_available_mib", went, "MiB", 1, "lower")


def resident_mib(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise BenchmarkFailedError(f"process {pid} is gone")


# Not an option of every benchmark: it is taken away before those are read.
LONG = "--long" in sys.argv

if __name__ == "__main__":
    sys.argv = [word for word in sys.argv if word != "--long"]
    sys.exit(run("function", __doc__ or "", measure))
