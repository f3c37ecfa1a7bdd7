"""More than fits: 10,000 sandboxes asked for at once, and what everybody else feels meanwhile.

Usage: python bench/overload.py [--quick] [--json] [--out FILE]

A node of its own with its defaults (`sandboxes_max` 4,000), a client that asks, and a second one, a
process of its own, that watches. Clocks are read in the clients.

- `asked_made`, `asked_refused`: of 10,000 asked for in one streamed batch that does not wait (`--quick`:
  the same), those that ran, and those that were refused by a limit's name. They add up.
- `asked_ready_s`: from just before the request until the last outcome has come; `first_ready_ms` until
  the first member.
- `turned_over`: of as many again asked for with waiting, those that ran while earlier ones were
  destroyed as soon as they had come; `turned_over_per_second` is their rate. Quick: 2,000.
- `other_health_ms`, `other_create_ms`: what the watching client felt during both: the health route every
  50 ms; one create and destroy after the other, under a job of its own, waiting for room like everybody.
- `clients200_life_per_second`: 200 clients with a connection and an owner each, which create, run
  `/bin/true` and destroy, in a closed loop; `clients200_life_ms`.
- `node_peak_mib`: highest resident size of the node during all of it; `loop_lag_ms_max`: the latest
  heartbeat of its event loop, `loop_late_share`: heartbeats later than 100 ms.
- `teardown_s`: one request that destroys all that fit.
"""

import asyncio
import sys
import time
from dataclasses import dataclass
from typing import Any

from daemons import peak_kib, reset_peak
from harness import BenchmarkFailedError, RawLog, closed_loop, percentiles
from product import RUN, STATE, own_client
from report import Result, run

SANDBOX: dict[str, Any] = {"memory": "64MiB", "pids": 64}
ASKED = 10_000
CLIENTS = 200
LATE_S = 0.1


@dataclass(frozen=True)
class Plan:
    """How many are turned over, and how long 200 clients work."""

    turned: int
    seconds: float


FULL = Plan(10_000, 15.0)
QUICK = Plan(2_000, 5.0)

WATCHER = """
import asyncio, json, sys, time
from skerry.sdk.client import connect

async def main():
    health, creates = [], []
    async with connect(state_dir=sys.argv[1], run_dir=sys.argv[2]) as client:
        async def look():
            while True:
                begin = time.perf_counter()
                await client.health()
                health.append((time.perf_counter() - begin) * 1e3)
                await asyncio.sleep(0.05)

        async def live():
            while True:
                begin = time.perf_counter()
                sandbox = await client.sandboxes.create(
                    memory="64MiB", pids=64, labels={"job": "watcher"}, wait=600
                )
                creates.append((time.perf_counter() - begin) * 1e3)
                await sandbox.destroy()

        tasks = [asyncio.create_task(look()), asyncio.create_task(live())]
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
        broken = [task.exception() for task in tasks if task.done()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if broken:
            raise broken[0]
    print(json.dumps({"health_ms": health, "create_ms": creates}))

asyncio.run(main())
"""


class Watcher:
    """The second client, a process of its own, that feels what others feel."""

    def __init__(self) -> None:
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """Begins to watch."""
        pipe = asyncio.subprocess.PIPE
        argv = (sys.executable, "-c", WATCHER, STATE, RUN)
        self._process = await asyncio.create_subprocess_exec(
            *argv, stdin=pipe, stdout=pipe, limit=1 << 24
        )

    async def stop(self) -> dict[str, list[float]]:
        """Returns what it felt."""
        import json

        if self._process is None:
            raise BenchmarkFailedError("nobody watches")
        out, _ = await asyncio.wait_for(self._process.communicate(b""), 60)
        if self._process.returncode != 0:
            raise BenchmarkFailedError("the watching client failed")
        felt: dict[str, list[float]] = json.loads(out)
        return felt


async def ask(result: Result, client: Any, spec: Any) -> list[Any]:
    """10,000 at once, without waiting: what fits runs, the rest is refused by name."""
    refused: dict[int, Any] = {}
    made: list[Any] = []
    start = time.perf_counter()
    async for sandbox in client.sandboxes.create_each(
        spec, ASKED, wait=0, failed=refused.__setitem__
    ):
        if not made:
            result.add("first_ready_ms", (time.perf_counter() - start) * 1e3, "ms", 1, "lower")
        made.append(sandbox)
    seconds = time.perf_counter() - start
    nameless = [error for error in refused.values() if not error.fields.get("limit")]
    if nameless or len(made) + len(refused) != ASKED:
        raise BenchmarkFailedError(f"{len(made)} made, {len(refused)} refused: {nameless[:1]}")
    limits = sorted({str(error.fields["limit"]) for error in refused.values()})
    result.notes.append(f"refused by: {', '.join(limits)}")
    result.add("asked_made", len(made), "sandboxes", 1, "higher")
    result.add("asked_refused", len(refused), "sandboxes", 1, "lower")
    result.add("asked_ready_s", seconds, "s", 1, "lower")
    return made


async def turn_over(result: Result, client: Any, spec: Any, count: int) -> None:
    """As many again, with waiting: each is destroyed as it comes, and its place goes to the next."""
    ended = 0
    start = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        async for sandbox in client.sandboxes.create_each(spec, count, wait=3600):
            group.create_task(sandbox.destroy())
            ended += 1
    seconds = time.perf_counter() - start
    if ended != count:
        raise BenchmarkFailedError(f"{ended} of {count} came")
    result.add("turned_over", ended, "sandboxes", 1, "higher")
    result.add("turned_over_per_second", ended / seconds, "1/s", ended, "higher")


async def many_clients(result: Result, seconds: float, raw: RawLog) -> None:
    """200 clients of their own, in a closed loop."""
    import skerry.aio

    clients = [skerry.aio.connect(state_dir=STATE, run_dir=RUN) for _ in range(CLIENTS)]
    await asyncio.gather(*(client.__aenter__() for client in clients))
    free = list(clients)

    async def life(_: int) -> dict[str, float]:
        client = free.pop()
        start = time.perf_counter()
        sandbox = await client.sandboxes.create("container", wait=120, **SANDBOX)
        done = await sandbox.run(["/bin/true"])
        await sandbox.destroy()
        end = time.perf_counter()
        free.append(client)
        if done.exit_code != 0:
            raise BenchmarkFailedError(f"/bin/true ended as {done}")
        return {"life_ms": (end - start) * 1e3}

    try:
        loop = await closed_loop(life, concurrency=CLIENTS, seconds=seconds)
    finally:
        await asyncio.gather(*(client.__aexit__(None, None, None) for client in clients))
    raw.write("clients200", 0, loop.samples)
    result.add_percentiles("clients200_life_ms", "", percentiles(loop.values("life_ms")), "ms")
    rate, count = loop.per_second, len(loop.samples)
    result.add("clients200_life_per_second", rate, "1/s", count, "higher")


async def loop_lag() -> tuple[float, float, int]:
    """Returns the largest lag in ms, the share of late heartbeats, and their number, from the node."""
    from skerry.sdk.transport import Transport

    transport = Transport("http://node", socket_path=f"{RUN}/node.sock")
    pieces = [piece async for piece in transport.receive("GET", "/v1/metrics")]
    await transport.close()
    text = b"".join(pieces).decode()
    counts: dict[str, float] = {}
    for line in text.splitlines():
        name, _, value = line.rpartition(" ")
        if name.startswith("skerry_loop_"):
            counts[name] = float(value)
    beats = counts["skerry_loop_beats_seconds_count"]
    in_time = counts[f'skerry_loop_beats_seconds_bucket{{le="{LATE_S:g}"}}']
    return counts["skerry_loop_lag_seconds_max"] * 1e3, 1 - in_time / beats, int(beats)


async def measure(result: Result, quick: bool) -> None:
    """All phases, on one node."""
    from skerry.spec.limits import MIB
    from skerry.spec.sandbox import SandboxSpec

    plan = QUICK if quick else FULL
    spec = SandboxSpec(memory_bytes=64 * MIB, pids=64, labels={"job": "greedy"})
    with RawLog("overload") as raw:
        async with own_client() as client:
            async with await client.sandboxes.create("container", **SANDBOX) as first:
                await first.run(["/bin/true"])
            node = (await client.health()).pid
            reset_peak(node)
            await many_clients(result, plan.seconds, raw)
            watcher = Watcher()
            await watcher.start()
            made = await ask(result, client, spec)
            start = time.perf_counter()
            await client.sandboxes.destroy_many(made)
            result.add("teardown_s", time.perf_counter() - start, "s", len(made), "lower")
            await turn_over(result, client, spec, plan.turned)
            felt = await watcher.stop()
            for name in ("health_ms", "create_ms"):
                raw.write(name, 0, [{name: value} for value in felt[name]])
                result.add_percentiles(f"other_{name}", "", percentiles(felt[name]), "ms")
            worst, late, beats = await loop_lag()
            result.add("loop_lag_ms_max", worst, "ms", beats, "lower")
            result.add("loop_late_share", late, "x", beats, "lower")
            result.add("node_peak_mib", peak_kib(node) / 1024, "MiB", 1, "lower")


if __name__ == "__main__":
    sys.exit(run("overload", __doc__ or "", measure))
