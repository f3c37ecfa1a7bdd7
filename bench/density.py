"""Thousands of live container sandboxes: memory of an idle one, and what the others cost.

Usage: python bench/density.py [--quick] [--json] [--out FILE]

3,000 live sandboxes (`--quick`: 1,000), made by `create_many` in parts of 250, of which none runs a
command unless said otherwise. Clocks are read in the client, which talks to a node of its own.

- `idle_kib`: available memory (harness.memory_kib) before the first of them, minus that when all live,
  divided by their number. It holds all that there is: agent, namespaces, groups, mounts, the node's and
  the launcher's share. Both times the pool of spare slots is at rest and equally full, for which a burst
  of 130 comes before the first reading. `idle_kernel_kib` is the same difference of the kernel's memory
  in use (slabs, page tables, kernel stacks, per-cpu), and `idle_reclaimable_kib` the part of that which
  it gives up when asked (names and inodes that are only cached; available memory has them as available).
  `idle_user_kib` is the proportional set size of an agent (smaps_rollup, median of 50).
- `idle_over_floor_kib`: `idle_kib` minus the floor, which is the same difference for as many bare
  processes, each with a memory group, a network and a pid namespace, made by `bench/floor/idle.c` in
  the same run after the last sandbox has gone. After, because a memory group costs more the more
  superblocks the machine has ever had at once: so both are taken at the same high-water mark.
- `idle_held_kib`: the same by adding up what is held: the kernel's memory in use without what it
  gives up, an agent's proportional set size, and what node, launcher and client have written more than
  before. `idle_held_over_floor_kib` is that minus the floor's. Other programs move it little, while all
  that they take or free moves available memory: where both differ much, the machine was not idle.
- `live_max`: how many lived at once; each has then answered a command within the limit of the SDK.
- `create_ms_p50_at_N`: one client, closed loop, from just before the create call until it has
  returned, while N others live (the new one is destroyed at once, outside of the clock) and the pool
  is at rest.
  `create_p50_ratio_at_3000` is that at the highest N divided by that of an empty node.
- `teardown_3000_s`: one `destroy_many` of all, until it has returned; nothing of them is left then.
- `mix_true_ms_p99_N`: N sandboxes under the paper's mix (9 of 10 use at most 5% of a core, here 2.5% on
  average, the tenth 20%), one client runs `/bin/true` in them, in turn, one at a time. `mix_cpu_N`
  is the share of the machine's processors that was busy meanwhile. All others idle.
- `fds_node_per_sandbox`, `fds_launcher_per_sandbox`: open descriptors at the highest N, divided by N.
"""

import asyncio
import contextlib
import random
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from daemons import Daemons, busy_share, children, median_pss_kib
from floors import BUILD, build
from harness import BenchmarkFailedError, Loop, RawLog, Sample, closed_loop, memory_kib, percentiles
from product import RUN, own_client
from report import Result, run

SANDBOX: dict[str, Any] = {"image": "debian:12", "cpu": 1, "memory": "64MiB", "pids": 64}
PART = 250
# After a burst the pool makes as many slots as the use rose, keeps them for up to 20 s, and gives back
# what is beyond twice its lowest target of 64, by 64 a second. One descriptor is the launcher's own.
BURST = 130
SPARE_AT_REST = 2 * 64 + 1
REST_S = 4.0
AT_REST_WITHIN_S = 180.0
HOW = (
    "bench/floor/idle.c: as many bare processes with memory group, net and pid namespace, same run"
)

# Busy for the first argument's share of each 100 ms. CPU time is looked at often, for a slice of the
# kernel's may be longer than what is wanted.
LOADER = """my $u = $ARGV[0]; my $d = 0.1 * $u; srand $$; select undef, undef, undef, rand 0.1;
while (1) { my $t = (times)[0]; my $n = 0; my $w = 2000 * $u * 20; while ($n++ < $w) { $t += $n }
select undef, undef, undef, 0.1 - $d }"""


@dataclass(frozen=True)
class Plan:
    """Numbers of sandboxes, seconds of loops."""

    live: int
    steps: tuple[int, ...]  # of live sandboxes at which creates are timed, besides none
    create_seconds: float
    mix: tuple[int, ...]
    mix_seconds: float


FULL = Plan(3000, (1000, 3000), 8.0, (10, 20, 40, 60, 80), 8.0)
QUICK = Plan(1000, (1000,), 4.0, (20, 60), 4.0)


class Product:
    """The only place that knows the SDK's calls."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self.live: list[Any] = []

    async def grow(self, count: int) -> None:
        """Makes sandboxes until that many live."""
        while len(self.live) < count:
            part = min(PART, count - len(self.live))
            self.live += await self._client.sandboxes.create_many(part, "container", **SANDBOX)

    async def create(self, _: int) -> Sample:
        """One create; its clock in milliseconds."""
        start = time.perf_counter()
        sandbox = await self._client.sandboxes.create("container", **SANDBOX)
        end = time.perf_counter()
        await sandbox.destroy()
        return {"create_ms": (end - start) * 1e3}

    async def command(self, sandbox: Any) -> Sample:
        """One command in a sandbox; its clock in milliseconds."""
        start = time.perf_counter()
        done = await sandbox.run(["/bin/true"])
        end = time.perf_counter()
        if done.exit_code != 0:
            raise BenchmarkFailedError(f"/bin/true in {sandbox.id} ended as {done}")
        return {"true_ms": (end - start) * 1e3}

    async def all_answer(self) -> None:
        """Each live sandbox runs a command."""
        places = asyncio.Semaphore(32)

        async def ask(sandbox: Any) -> None:
            async with places:
                await self.command(sandbox)

        await asyncio.gather(*map(ask, self.live))

    async def load(self, sandboxes: list[Any], chance: random.Random) -> None:
        """Starts the mix in these, in the background of each."""
        for at, sandbox in enumerate(sandboxes):
            share = 0.2 if at % 10 == 9 else chance.uniform(0.0, 0.05)
            line = 'setsid perl -e "$LOADER" $SHARE </dev/null >/dev/null 2>&1 &'
            done = await sandbox.run(line, env={"LOADER": LOADER, "SHARE": f"{share:.4f}"})
            if done.exit_code != 0:
                raise BenchmarkFailedError(f"the load does not start: {done}")

    async def tear_down(self) -> float:
        """Destroys all in one request; seconds."""
        doomed, self.live = self.live, []
        start = time.perf_counter()
        await self._client.sandboxes.destroy_many(doomed)
        return time.perf_counter() - start


async def memory() -> dict[str, float]:
    """The median of readings over two seconds: other programs come and go."""
    readings = []
    for _ in range(20):
        readings.append(memory_kib() | {"groups": memory_groups()})
        await asyncio.sleep(0.1)
    return {name: statistics.median(r[name] for r in readings) for name in readings[0]}


def memory_groups() -> int:
    """Memory groups of the whole machine: if others made some meanwhile, the figures are not ours."""
    rows = (line.split() for line in Path("/proc/cgroups").read_text().splitlines())
    return next((int(row[2]) for row in rows if row[0] == "memory"), 0)


def cost(before: dict[str, float], after: dict[str, float], count: int) -> dict[str, float]:
    """KiB each, and how many memory groups for each."""
    return {
        "groups": (after["groups"] - before["groups"]) / count,
        "available": (before["available"] - after["available"]) / count,
        "kernel": (after["kernel"] - before["kernel"]) / count,
        "reclaimable": (after["reclaimable"] - before["reclaimable"]) / count,
    }


def held(each: dict[str, float], own_kib: float) -> float:
    """KiB each, added up: the kernel's that it does not give up, and what a process has of its own."""
    return each["kernel"] - each["reclaimable"] + own_kib


@contextlib.asynccontextmanager
async def bare(count: int) -> AsyncIterator[int]:
    """Holds the floor's processes for the length of the block; yields their parent."""
    process = await asyncio.create_subprocess_exec(
        str(BUILD / "idle"), str(count), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        if not await process.stdout.readline():
            raise BenchmarkFailedError(f"the floor cannot make {count}")
        yield process.pid
    finally:
        process.stdin.close()
        if await process.wait() != 0:
            raise BenchmarkFailedError("the floor left something behind")


async def timed_creates(product: Product, seconds: float, raw: RawLog) -> Loop:
    loop = await closed_loop(product.create, concurrency=1, seconds=seconds)
    raw.write(f"creates at {len(product.live)}", 0, loop.samples)
    return loop


async def at_rest(slots: Callable[[], int], live: int) -> int:
    """Waits until the pool neither fills up nor gives back; returns how many slots are spare."""
    until, since, before = time.monotonic() + AT_REST_WITHIN_S, time.monotonic(), -1
    while True:
        spare, now = slots() - live, time.monotonic()
        if spare != before:
            since, before = now, spare
        if spare <= SPARE_AT_REST and now - since >= REST_S:
            return spare
        if now > until:
            raise BenchmarkFailedError(f"{spare} slots are spare, and their number does not rest")
        await asyncio.sleep(0.5)


async def measure(result: Result, quick: bool) -> None:
    plan = QUICK if quick else FULL
    build()
    with RawLog("density") as raw:
        async with own_client() as client:
            product = Product(client)
            daemons = Daemons((await client.health()).pid, Path(RUN))
            await live(result, plan, product, daemons, raw)
        before = await memory()
        async with bare(plan.live) as parent:
            floor = cost(before, await memory(), plan.live)
            floor["held"] = held(floor, median_pss_kib(children(parent)[:50]))
        raw.write("floor", 0, [floor])
    held_over = result.metrics["idle_held_kib"].value - floor["held"]
    result.add("idle_held_over_floor_kib", held_over, "KiB", plan.live, "lower")
    result.add_floor("idle_held_kib", floor["held"], HOW)
    idle = result.metrics["idle_kib"].value
    over = idle - floor["available"]
    result.add("idle_over_floor_kib", over, "KiB", plan.live, "lower")
    result.add_floor("idle_kib", floor["available"], HOW)
    result.add_floor("idle_kernel_kib", floor["kernel"], HOW)
    result.add_floor("idle_reclaimable_kib", floor["reclaimable"], HOW)
    result.notes.append(
        "idle_kib and its floor: differences of available memory, on an otherwise idle machine; "
        f"the machine had {floor['groups']:.2f} more memory groups for each of the floor"
    )


async def live(result: Result, plan: Plan, product: Product, daemons: Daemons, raw: RawLog) -> None:
    """Everything that needs the node."""
    await product.grow(BURST)
    await product.tear_down()
    await at_rest(daemons.slots, 0)
    empty = await timed_creates(product, plan.create_seconds, raw)
    spare, before = await at_rest(daemons.slots, 0), await memory()
    written = daemons.written_kib()
    result.add(
        "create_ms_p50_at_0",
        percentiles(empty.values("create_ms")).p50,
        "ms",
        len(empty.samples),
        "lower",
    )
    for count in plan.steps:
        start = time.perf_counter()
        grown = count - len(product.live)
        await product.grow(count)
        raw.write("grow", count, [{"seconds": time.perf_counter() - start, "grown": grown}])
        await at_rest(daemons.slots, count)  # else the pool's refill is timed along
        loop = await timed_creates(product, plan.create_seconds, raw)
        figures = percentiles(loop.values("create_ms"))
        result.add(f"create_ms_p50_at_{count}", figures.p50, "ms", figures.n, "lower")
    ratio = figures.p50 / percentiles(empty.values("create_ms")).p50
    result.add("create_p50_ratio_at_3000", ratio, "x", figures.n, "lower")
    left = await at_rest(daemons.slots, plan.live)
    each = cost(before, await memory(), plan.live)
    agent = daemons.agent_pss_kib(50)
    each["held"] = held(each, agent + (daemons.written_kib() - written) / plan.live)
    raw.write("idle", 0, [{**each, "spare_before": spare, "spare_after": left}])
    result.notes.append(
        f"spare slots: {spare} before, {left} when idle_kib was taken; "
        f"the machine had {each['groups']:.2f} more memory groups for each sandbox"
    )
    result.add("idle_kib", each["available"], "KiB", plan.live, "lower")
    result.add("idle_kernel_kib", each["kernel"], "KiB", plan.live, "lower")
    result.add("idle_reclaimable_kib", each["reclaimable"], "KiB", plan.live, "lower")
    result.add("idle_held_kib", each["held"], "KiB", plan.live, "lower")
    result.add("idle_user_kib", agent, "KiB", 50, "lower")
    for name, fds in daemons.descriptors().items():
        result.add(f"fds_{name}_per_sandbox", fds / plan.live, "", plan.live, "lower")
    await curve(result, plan, product, raw)
    await product.all_answer()
    result.add("live_max", len(product.live), "", len(product.live), "higher")
    seconds = await product.tear_down()
    raw.write("teardown", 0, [{"seconds": seconds}])
    result.add("teardown_3000_s", seconds, "s", plan.live, "lower")
    if plan.live != 3000:
        result.notes.append(f"quick: the figures at 3,000 were taken at {plan.live} live")


async def curve(result: Result, plan: Plan, product: Product, raw: RawLog) -> None:
    """p99 of a command against the number that works."""
    chance = random.Random(1)
    working = 0
    for count in plan.mix:
        await product.load(product.live[working:count], chance)
        working = count
        turns = iter(range(1 << 62))

        async def one(_: int, turns: Any = turns, count: int = count) -> Sample:
            return await product.command(product.live[next(turns) % count])

        await asyncio.sleep(1.0)
        share = busy_share()
        loop = await closed_loop(one, concurrency=1, seconds=plan.mix_seconds)
        busy = share()
        raw.write(f"mix {count}", 0, loop.samples)
        figures = percentiles(loop.values("true_ms"))
        result.add(f"mix_true_ms_p50_{count}", figures.p50, "ms", figures.n, "lower")
        result.add(f"mix_true_ms_p99_{count}", figures.p99, "ms", figures.n, "lower")
        result.add(f"mix_cpu_{count}", busy * 100, "%", figures.n, "lower")


if __name__ == "__main__":
    sys.exit(run("density", __doc__ or "", measure))
