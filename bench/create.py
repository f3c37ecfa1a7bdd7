"""Full lives of warm container sandboxes: create, one command, destroy.

Usage: python bench/create.py [--quick] [--json] [--out FILE]

Clocks, all read in the client, a Python process on uvloop that talks to a node of its own:

- `first_output_ms_*_cN`: from just before the create call until the result of the first command
  (`/bin/true`, dynamically linked) is in the client's hands; N clients in a closed loop.
- `life_per_second_cN`: lives divided by time. A life starts just before the create call and ends
  when the destroy call has returned. `life_per_second` is the better of N = 16 and N = 64.
- `life_ratio_to_floor`: `life_per_second` divided by the rate of the floor program, which makes
  every life from nothing and runs a static no-op, with one worker per processor.
- `batchN_ready_ms`: from just before `create_many(N)` until it has returned N running sandboxes;
  destroying them is not counted. The median of the repeats; `..._first` is the first of them, which
  finds fewer pooled slots than those that follow within the node's memory of recent demand.

Warm: the image's layers are mounted and one sandbox has lived before the first clock starts. The
cost of a cold image is the subject of the benchmark `layers`. The peers' lives are described in
`bench/peers.py`; they have one worker per processor too, and their command is the static no-op.
"""

import contextlib
import statistics
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from floors import HOW, arena
from harness import Loop, Party, RawLog, Sample, closed_loop, interleave, machine_facts, percentiles
from peers import Rivals
from product import own_client
from report import Result, run

SANDBOX: dict[str, Any] = {"image": "debian:12", "cpu": 1, "memory": "256MiB", "pids": 64}
LADDER = (1, 16, 64)


@dataclass(frozen=True)
class Plan:
    """How long and how often; seconds are per party and round, `batches` maps size to repeats."""

    rounds: int
    seconds: dict[int, float]
    floor_seconds: float
    peer_seconds: float
    batches: dict[int, int]


FULL = Plan(3, {1: 5.0, 16: 10.0, 64: 10.0}, 10.0, 5.0, {64: 15, 1000: 5})
QUICK = Plan(2, {1: 1.0, 16: 4.0, 64: 4.0}, 2.0, 1.5, {64: 3, 1000: 3})


class Product:
    """The only place that knows the SDK's calls."""

    def __init__(self, client: Any) -> None:
        self._sandboxes = client.sandboxes

    @staticmethod
    @contextlib.asynccontextmanager
    async def connect() -> AsyncIterator["Product"]:
        """A node of its own for the length of the block."""
        async with own_client() as client:
            yield Product(client)

    async def life(self, _: int) -> Sample:
        """One life; its two clocks in milliseconds."""
        start = time.perf_counter()
        sandbox = await self._sandboxes.create("container", **SANDBOX)
        done = await sandbox.run(["/bin/true"])
        first = time.perf_counter()
        await sandbox.destroy()
        end = time.perf_counter()
        if done.exit_code != 0:
            raise RuntimeError(f"/bin/true ended with status {done.exit_code}")
        return {"first_output_ms": (first - start) * 1e3, "life_ms": (end - start) * 1e3}

    async def batch(self, count: int) -> float:
        """Milliseconds until `count` sandboxes run; they are destroyed before it returns."""
        start = time.perf_counter()
        sandboxes = await self._sandboxes.create_many(count, "container", **SANDBOX)
        ready = time.perf_counter()
        await self._sandboxes.destroy_many([sandbox.id for sandbox in sandboxes])
        if len(sandboxes) != count:
            raise RuntimeError(f"asked for {count} sandboxes, got {len(sandboxes)}")
        return (ready - start) * 1e3


async def measure(result: Result, quick: bool) -> None:
    plan = QUICK if quick else FULL
    workers = machine_facts()["cpus"]
    loops = {concurrency: Loop() for concurrency in LADDER}
    with RawLog("create") as raw, arena() as place:
        rivals = Rivals(
            place,
            floor_seconds=plan.floor_seconds,
            peer_seconds=plan.peer_seconds,
            workers=workers,
        )
        async with Product.connect() as product:
            await product.life(0)
            turns = {
                f"c{concurrency}": turn_of(product, loops[concurrency], concurrency, plan, raw)
                for concurrency in LADDER
            }
            await interleave(plan.rounds, {**turns, **rivals.parties})
            await measure_batches(result, product, plan, raw)
        for name, tally in rivals.tallies.items():
            for turn, summary in enumerate(tally.runs):
                raw.write(name, turn, [summary])
    rivals.check()
    summarise(result, loops, rivals)


def turn_of(product: Product, total: Loop, concurrency: int, plan: Plan, raw: RawLog) -> Party:
    async def turn(number: int) -> None:
        seconds = plan.seconds[concurrency]
        loop = await closed_loop(product.life, concurrency=concurrency, seconds=seconds)
        raw.write(f"c{concurrency}", number, loop.samples)
        total.extend(loop)

    return turn


async def measure_batches(result: Result, product: Product, plan: Plan, raw: RawLog) -> None:
    for count, repeats in plan.batches.items():
        times = [await product.batch(count) for _ in range(repeats)]
        raw.write(f"batch{count}", 0, [{"ready_ms": value} for value in times])
        # The first batch of a size finds fewer slots ready than those that follow it.
        result.add(f"batch{count}_ready_ms_first", times[0], "ms", 1, "lower")
        result.add(f"batch{count}_ready_ms", statistics.median(times), "ms", repeats, "lower")


def summarise(result: Result, loops: dict[int, Loop], rivals: Rivals) -> None:
    for concurrency, loop in loops.items():
        figures = percentiles(loop.values("first_output_ms"))
        result.add_percentiles("first_output_ms", f"_c{concurrency}", figures, "ms")
        rate = loop.per_second
        result.add(f"life_per_second_c{concurrency}", rate, "1/s", len(loop.samples), "higher")
    best = max((loops[16], loops[64]), key=lambda loop: loop.per_second)
    floor = rivals.tallies["floor"].per_second
    result.add("life_per_second", best.per_second, "1/s", len(best.samples), "higher")
    ratio = best.per_second / floor
    result.add("life_ratio_to_floor", ratio, "x", len(best.samples), "higher")
    result.add_floor("life_per_second", floor, HOW)
    for peer, rate in rivals.peer_rates.items():
        result.add_peer(peer, "life_per_second", rate)
    result.notes += rivals.reasons
    result.notes.append(
        "floor and peers run a static no-op; ours runs the image's dynamic /bin/true"
    )


if __name__ == "__main__":
    sys.exit(run("create", __doc__ or "", measure))
