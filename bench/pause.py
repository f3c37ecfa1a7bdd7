"""Pausing hundreds of sandboxes that hold content, and the first command after a resume.

Usage: python bench/pause.py [--quick] [--json] [--out FILE]

400 sandboxes (`--quick`: 60) each hold 25 MiB of which the first half of each page is random, so that
no compressor gets it below half. The node has compressed swap (`--zram`). Clocks are read in the
client.

- `pause_400_s`: from just before the first of all pause calls, 32 at a time, until the last has
  returned. `pause_ms_p50` is one such call. With `--quick` it is that of 60.
- `freed_mib_400`: available memory (harness.memory_kib) when all are paused, minus that before the
  first pause call; what the compressed swap itself takes is thus counted as not free. Floor: half of
  the content, which is what a perfect compressor would free of it. It is a figure of the whole
  machine, and other programs move it; hence also what only the swap devices say (mm_stat):
  `moved_mib_400`, what they hold for the processes, and `stored_mib_400`, the memory that takes them.
- `resume_first_command_ms_*`: from just before the call of a command in a paused sandbox (which
  resumes it) until its result is in the client's hands; one at a time. The command makes the holder
  touch every page of its content. `..._no_prefetch`: the same with a node that does not read ahead; the
  node is restarted for that, with the sandboxes paused, and both take turns.
  Floor: the same command in sandboxes that were not paused.
- `job_pause_400_s`, `job_resume_400_s`: the same sandboxes, all of whose content was touched again, are
  paused and resumed by one request for their job; from just before the call until it has returned. Peer
  of the pause: the single calls above. With `--quick` it is that of 60. Order: bench/jobs.py.
"""

import asyncio
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness import BenchmarkFailedError, RawLog, memory_kib, percentiles
from product import OwnNode
from report import Result, run

MIB = 1 << 20
CONTENT_MIB = 25
SANDBOX: dict[str, Any] = {"image": "debian:12", "cpu": 1, "memory": "96MiB", "pids": 64}
AT_ONCE = 32
HOLDER = """open R, "<", "/dev/urandom"; my $n = $ARGV[0] * 256; my $x = "\\0" x ($n * 4096);
for my $i (0 .. $n - 1) { sysread R, my $r, 2048; substr($x, $i * 4096, 2048) = $r }
system "mkfifo", "/tmp/in", "/tmp/out"; $| = 1; print "ready\\n";
while (1) { open I, "<", "/tmp/in"; <I>; close I; my $s = 0;
for (my $i = 0; $i < $n; $i++) { $s += ord substr $x, $i * 4096, 1 }
open O, ">", "/tmp/out"; print O "$s\\n"; close O }"""
BEGIN = (
    f"setsid perl /tmp/holder {CONTENT_MIB} > /tmp/ready 2>&1 & "
    "until grep -q . /tmp/ready; do sleep 0.1; done; cat /tmp/ready"
)
TOUCH = "echo > /tmp/in; read sum < /tmp/out; echo $sum"


@dataclass(frozen=True)
class Plan:
    """Numbers of sandboxes, and of resumes in a turn."""

    live: int
    turns: int
    resumes: int


FULL = Plan(400, 3, 60)
QUICK = Plan(60, 2, 20)


def config(plan: Plan, *, prefetch: bool) -> str:
    """Return the node's configuration: swap for twice the content, as much as there may be."""
    size = plan.live * CONTENT_MIB * 2
    text = f'zram = "{size}MiB"\n[limits]\nmemory_free_min_bytes = 0\n'
    return text + f"[backend_options.container]\nprefetch = {str(prefetch).lower()}\n"


async def bounded(calls: list[Any]) -> list[float]:
    """Await them, AT_ONCE at a time; return the milliseconds of each."""
    places = asyncio.Semaphore(AT_ONCE)

    async def one(call: Any) -> float:
        async with places:
            start = time.perf_counter()
            await call()
            return (time.perf_counter() - start) * 1e3

    return await asyncio.gather(*(one(call) for call in calls))


async def begin(sandbox: Any) -> str:
    """Make it hold its content; return what its sum is."""
    await sandbox.files.write("/tmp/holder", HOLDER.encode())
    done = await sandbox.run(BEGIN, timeout=300)
    if done.text != "ready\n":
        raise BenchmarkFailedError(f"the holder did not start: {done}")
    return str((await sandbox.run(TOUCH)).text)


async def first_command(sandbox: Any, wanted: str) -> float:
    """Return the milliseconds of the command; its answer must be right."""
    start = time.perf_counter()
    done = await sandbox.run(TOUCH)
    end = time.perf_counter()
    if done.text != wanted:
        raise BenchmarkFailedError(f"content was lost: {done}")
    return (end - start) * 1e3


async def measure(result: Result, quick: bool) -> None:
    plan = QUICK if quick else FULL
    samples: dict[str, list[float]] = {"prefetch": [], "no_prefetch": [], "not_paused": []}
    with RawLog("pause") as raw:
        async with OwnNode() as node:
            await node.start(config(plan, prefetch=True))
            async with node.client() as client:
                await client.images.debian("debian:12", "bookworm")
                job = await client.jobs.create("pause", lease=86400)
                made = await job.sandboxes.create_many(plan.live, **SANDBOX)
                sums = {}
                for at in range(0, len(made), AT_ONCE):
                    part = made[at : at + AT_ONCE]
                    answers = await asyncio.gather(*(begin(sandbox) for sandbox in part))
                    sums |= {one.id: text for one, text in zip(part, answers, strict=True)}
                for sandbox in made[: plan.resumes]:
                    samples["not_paused"].append(await first_command(sandbox, sums[sandbox.id]))
                await all_paused(result, raw, made, plan)
                await whole_job(result, job, made, sums)
            for turn in range(2 * plan.turns):
                party = "prefetch" if turn % 2 == 0 else "no_prefetch"
                await node.start(config(plan, prefetch=party == "prefetch"))
                async with node.client() as client:
                    for number in range(plan.resumes):
                        name = made[(turn * plan.resumes + number) % len(made)].id
                        sandbox = await client.sandboxes.get(name)
                        samples[party].append(await first_command(sandbox, sums[name]))
                        await sandbox.pause()
                rows = [{"first_command_ms": ms} for ms in samples[party][-plan.resumes :]]
                raw.write(party, turn, rows)
    tell(result, samples)


def swap_mib() -> tuple[float, float]:
    """What all zram devices hold, and the memory that takes them, in MiB (zram.rst, mm_stat)."""
    rows = [path.read_text().split() for path in Path("/sys/block").glob("zram*/mm_stat")]
    return sum(int(row[0]) for row in rows) / MIB, sum(int(row[2]) for row in rows) / MIB


async def all_paused(result: Result, raw: RawLog, made: list[Any], plan: Plan) -> None:
    """Pause all of them; adds what it took and gave."""
    await asyncio.sleep(2)
    held = swap_mib()
    before, start = memory_kib()["available"], time.perf_counter()
    each = await bounded([sandbox.pause for sandbox in made])
    seconds = time.perf_counter() - start
    freed = (memory_kib()["available"] - before) / 1024
    moved, stored = (now - then for now, then in zip(swap_mib(), held, strict=True))
    raw.write("pause", 0, [{"pause_ms": ms} for ms in each])
    result.add("pause_400_s", seconds, "s", plan.live, "lower")
    result.add("freed_mib_400", freed, "MiB", plan.live, "higher")
    result.add_floor(
        "freed_mib_400", plan.live * CONTENT_MIB / 2, "half of the content: a perfect compressor"
    )
    result.add("moved_mib_400", moved, "MiB", plan.live, "higher")
    result.add("stored_mib_400", stored, "MiB", plan.live, "lower")
    result.add_percentiles("pause_ms", "", percentiles(each), "ms")
    if plan.live != FULL.live:
        result.notes.append(f"what ends in 400 is that of {plan.live} sandboxes")


async def whole_job(result: Result, job: Any, made: list[Any], sums: dict[str, str]) -> None:
    """Pause and resume all by one request each; leaves them paused. No content may be lost."""
    await touch_all(made, sums)
    start = time.perf_counter()
    paused = await job.pause()
    between = time.perf_counter()
    resumed = await job.resume()
    end = time.perf_counter()
    if (paused.done, resumed.done) != (len(made), len(made)):
        raise BenchmarkFailedError(f"not all of {len(made)}: {paused}, {resumed}")
    result.add("job_pause_400_s", between - start, "s", len(made), "lower")
    result.add_peer("calls", "job_pause_400_s", result.metrics["pause_400_s"].value)
    result.add("job_resume_400_s", end - between, "s", len(made), "lower")
    await touch_all(made, sums)
    await bounded([sandbox.pause for sandbox in made])


async def touch_all(made: list[Any], sums: dict[str, str]) -> None:
    """Make all holders touch their content."""
    await bounded([lambda one=one: first_command(one, sums[one.id]) for one in made])


def tell(result: Result, samples: dict[str, list[float]]) -> None:
    """Add the first commands."""
    stem = "resume_first_command_ms"
    result.add_percentiles(stem, "", percentiles(samples["prefetch"]), "ms")
    result.add_percentiles(stem, "_no_prefetch", percentiles(samples["no_prefetch"]), "ms")
    floor = percentiles(samples["not_paused"])
    how = "the same command in sandboxes that were not paused, same run"
    result.add_floor(f"{stem}_p50", floor.p50, how)
    result.add_floor(f"{stem}_p99", floor.p99, how)


if __name__ == "__main__":
    sys.exit(run("pause", __doc__ or "", measure))
