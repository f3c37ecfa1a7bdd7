"""Pausing and resuming all sandboxes of a job: how long, in which order, how evenly it is told.

Usage: python bench/jobs.py [--quick] [--json] [--out FILE]

400 sandboxes (`--quick`: 60) of one job, each with a command under way, were last used in an order
that was drawn. They hold next to nothing, and the node has no swap: what moving their content costs
is in bench/pause.py. Clocks are read in the client. Each turn pauses and resumes all by one request
each, and then by as many single requests, 32 at a time (peer `calls`): what a client without jobs does.

- `job_pause_400_s`, `job_resume_400_s`: from just before the call until it has returned; the median of
  the turns. With `--quick` it is that of 60.
- `job_pause_first_ms`, `job_resume_first_ms`: until the first sandbox was told of.
- `job_step_gap_ms_max`: the longest time between two steps of progress, of all turns.
- `job_pause_places_p50`, `job_pause_places_max`: by how many places a sandbox was told away from its
  turn (the longest idle first). They are begun in order and told as they are done: 32 are under way at
  once, and one whose agent gets no processor for a while is overtaken.
- `job_heartbeat_ms_p50`, `job_heartbeat_ms_p99`: heartbeats while a pause is under way.
"""

import asyncio
import random
import statistics
import sys
import time
from typing import Any

from harness import BenchmarkFailedError, RawLog, percentiles
from product import OwnNode
from report import Result, run

SANDBOX: dict[str, Any] = {"image": "debian:12", "cpu": 1, "memory": "96MiB", "pids": 64}
AT_ONCE = 32
TURNS = 5
QUICK_TURNS = 3
SEED = 7


class Steps:
    """When each step of progress came, and of which sandbox."""

    def __init__(self) -> None:
        self.began = time.perf_counter()
        self.times: list[float] = []
        self.order: list[str] = []

    def __call__(self, step: Any) -> None:
        """Take one."""
        if step.sandbox:
            self.times.append(time.perf_counter() - self.began)
            self.order.append(step.sandbox)

    def gap(self) -> float:
        """Return the longest time between two steps."""
        return max(b - a for a, b in zip(self.times, self.times[1:], strict=False))


async def all_in(calls: list[Any]) -> float:
    """Return the seconds that the calls take, AT_ONCE at a time."""
    places = asyncio.Semaphore(AT_ONCE)

    async def one(call: Any) -> None:
        async with places:
            await call()

    start = time.perf_counter()
    await asyncio.gather(*(one(call) for call in calls))
    return time.perf_counter() - start


async def beat(job: Any, times: list[float]) -> None:
    """Send heartbeats until cancelled."""
    while True:
        start = time.perf_counter()
        await job.heartbeat()
        times.append((time.perf_counter() - start) * 1e3)
        await asyncio.sleep(0.05)


async def one_turn(job: Any, made: list[Any], used: list[str], raw: RawLog, turn: int) -> Any:
    """Pause and resume all both ways; return the figures of the turn."""
    beats: list[float] = []
    beating = asyncio.create_task(beat(job, beats))
    down = Steps()
    paused = await job.pause(down)
    pause_s = time.perf_counter() - down.began
    beating.cancel()
    await asyncio.gather(beating, return_exceptions=True)
    up = Steps()
    resumed = await job.resume(up)
    resume_s = time.perf_counter() - up.began
    if (paused.done, resumed.done, paused.failures) != (len(made), len(made), 0):
        raise BenchmarkFailedError(f"not all of {len(made)}: {paused}, {resumed}")
    calls = await all_in([one.pause for one in made]), await all_in([one.resume for one in made])
    places = {name: place for place, name in enumerate(used)}
    away = [abs(places[name] - place) for place, name in enumerate(down.order)]
    row = {
        "pause_s": pause_s,
        "resume_s": resume_s,
        "pause_first_ms": down.times[0] * 1e3,
        "resume_first_ms": up.times[0] * 1e3,
        "gap_ms": max(down.gap(), up.gap()) * 1e3,
        "places_p50": statistics.median(away),
        "places_max": max(away),
        "calls_pause_s": calls[0],
        "calls_resume_s": calls[1],
    }
    raw.write("turn", turn, [row])
    return row, beats


async def measure(result: Result, quick: bool) -> None:
    live, turns = (60, QUICK_TURNS) if quick else (400, TURNS)
    rows, beats = [], []
    draw = random.Random(SEED)
    with RawLog("jobs") as raw:
        async with OwnNode() as node:
            await node.start("[limits]\nmemory_free_min_bytes = 0\n")
            async with node.client() as client:
                await client.images.debian("debian:12", "bookworm")
                job = await client.jobs.create("bench", lease=3600)
                made = await job.sandboxes.create_many(live, **SANDBOX)
                for one in made:
                    await one.start("sleep 100000")
                for turn in range(turns):
                    draw.shuffle(made)
                    for one in made:
                        await one.run("true")
                    row, times = await one_turn(job, made, [one.id for one in made], raw, turn)
                    rows.append(row)
                    beats += times
                await job.end()
    tell(result, rows, beats, live)


def tell(result: Result, rows: list[dict[str, float]], beats: list[float], live: int) -> None:
    """Add the figures."""

    def median(name: str) -> float:
        return statistics.median(row[name] for row in rows)

    for word in ("pause", "resume"):
        result.add(f"job_{word}_400_s", median(f"{word}_s"), "s", live, "lower")
        result.add_peer("calls", f"job_{word}_400_s", median(f"calls_{word}_s"))
        result.add(f"job_{word}_first_ms", median(f"{word}_first_ms"), "ms", len(rows), "lower")
    result.add("job_step_gap_ms_max", max(row["gap_ms"] for row in rows), "ms", live, "lower")
    result.add("job_pause_places_p50", median("places_p50"), "places", live, "lower")
    result.add(
        "job_pause_places_max", max(row["places_max"] for row in rows), "places", live, "lower"
    )
    figures = percentiles(beats)
    result.add("job_heartbeat_ms_p50", figures.p50, "ms", figures.n, "lower")
    result.add("job_heartbeat_ms_p99", figures.p99, "ms", figures.n, "lower")
    if live != 400:
        result.notes.append(f"what ends in 400 is that of {live} sandboxes")


if __name__ == "__main__":
    sys.exit(run("jobs", __doc__ or "", measure))
