"""How the benchmarks measure: samples, closed loops, rounds, and facts about the machine.

What holds for every benchmark that uses this module:

- A clock is `time.perf_counter`, read in the client that waits for the answer. Which two moments
  it joins is said in the docstring of the benchmark.
- A loop is closed: each of N clients starts its next operation when its last one has ended. At
  the deadline no new operation starts; those under way are finished and counted, and the time
  runs until the last of them has ended.
- An operation that raises ends the benchmark. There is no quiet retry.
- Percentiles are nearest-rank over all raw samples, never means of percentiles.
- Product, floor and peers take turns within one run, and each round starts with another of them,
  so that a noisy minute does not fall on one party.
"""

import asyncio
import concurrent.futures
import json
import math
import multiprocessing
import os
import re
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing import resource_tracker
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import uvloop

BENCH = Path(__file__).resolve().parent
CHECKOUT = BENCH.parent
RESULTS = BENCH / "results"
PAGE_KIB = os.sysconf("SC_PAGE_SIZE") // 1024

Sample = Mapping[str, float]
Operation = Callable[[int], Awaitable[Sample]]
Party = Callable[[int], Awaitable[None]]


class BenchmarkFailedError(Exception):
    """The run broke a rule, so that its figures must not be used."""


# ---- Samples -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Percentiles:
    """Nearest-rank percentiles of `n` samples; `n` is at least 1."""

    p50: float
    p90: float
    p99: float
    max: float
    n: int


def percentiles(samples: Iterable[float]) -> Percentiles:
    ordered = sorted(samples)
    if not ordered:
        raise BenchmarkFailedError("a percentile of no samples was asked for")

    def rank(percent: int) -> float:
        return ordered[math.ceil(len(ordered) * percent / 100) - 1]

    return Percentiles(rank(50), rank(90), rank(99), ordered[-1], len(ordered))


@dataclass
class Loop:
    """What closed loops at one concurrency have seen; rounds are added up with `extend`."""

    samples: list[Sample] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def per_second(self) -> float:
        """Operations that ended, divided by the time of the loops."""
        return len(self.samples) / self.seconds if self.seconds else 0.0

    def extend(self, other: "Loop") -> None:
        """Append a loop that ran after this one, so that the times add up."""
        self.samples.extend(other.samples)
        self.seconds += other.seconds

    def values(self, name: str) -> list[float]:
        """One clock of all samples."""
        return [sample[name] for sample in self.samples]


class RawLog:
    """One JSON object a line for each sample, in `bench/results/raw/NAME.jsonl`.

    Opening it drops the samples of the run before.
    """

    def __init__(self, name: str, directory: Path = RESULTS / "raw") -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._file = (directory / f"{name}.jsonl").open("w", encoding="utf-8")

    def write(self, party: str, turn: int, samples: Iterable[Mapping[str, Any]]) -> None:
        """Append the samples that one party took in one round."""
        for sample in samples:
            line = {"party": party, "round": turn, **sample}
            self._file.write(json.dumps(line, separators=(",", ":")) + "\n")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()


# ---- Loops and rounds --------------------------------------------------------------------------


async def closed_loop(operation: Operation, *, concurrency: int, seconds: float) -> Loop:
    """Run `operation` in `concurrency` clients of this event loop for about `seconds`."""
    samples: list[Sample] = []
    start = time.perf_counter()
    deadline = start + seconds
    numbers = iter(range(1 << 62))

    async def client() -> None:
        while time.perf_counter() < deadline:
            samples.append(await operation(next(numbers)))

    async with asyncio.TaskGroup() as group:
        for _ in range(concurrency):
            group.create_task(client())
    return Loop(samples, time.perf_counter() - start)


def _client_process(
    make: Callable[..., Awaitable[Loop]], start_at: float, arguments: tuple[Any, ...]
) -> Loop:
    time.sleep(max(0.0, start_at - time.monotonic()))
    return uvloop.run(_awaited(make(*arguments)))


async def _awaited(work: Awaitable[Loop]) -> Loop:
    return await work


async def in_processes(
    make: Callable[..., Awaitable[Loop]], *arguments: Any, shards: Sequence[Any], lead: float = 2.0
) -> Loop:
    """Run the module-level coroutine function `make` in a process for each shard at the same time.

    Its first argument is the shard, and the others follow. One Python client saturates near 2,000
    operations a second, which would hide a faster server. All start at one moment, `lead` seconds
    from now, so that none measures an idle server; the time of the result is that of the slowest.
    """
    start_at = time.monotonic() + lead
    loop = asyncio.get_running_loop()
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(len(shards), mp_context=context) as pool:
        loops = await asyncio.gather(
            *(
                loop.run_in_executor(pool, _client_process, make, start_at, (shard, *arguments))
                for shard in shards
            )
        )
    resource_tracker._resource_tracker._stop()  # a process of its own, which would outlive the census
    merged = [sample for part in loops for sample in part.samples]
    return Loop(merged, max(part.seconds for part in loops))


async def interleave(rounds: int, parties: Mapping[str, Party]) -> None:
    """Give every party one turn per round; the order moves by one from round to round."""
    names = list(parties)
    for turn in range(rounds):
        shift = turn % len(names)
        for name in names[shift:] + names[:shift]:
            await parties[name](turn)


# ---- Programs that measure themselves ----------------------------------------------------------


async def run_json(argv: Sequence[str], *, limit_seconds: float) -> dict[str, Any]:
    """Run a program that prints one line of JSON last, and return that object.

    The program is asked to end (SIGTERM), then killed, when this call is cancelled or late.
    """
    process = await asyncio.create_subprocess_exec(
        *argv,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(limit_seconds):
            out, err = await process.communicate()
    finally:
        await _end(process)
    lines = out.decode(errors="replace").strip().splitlines()
    if process.returncode != 0 or not lines:
        tail = (err.decode(errors="replace").strip() or (lines[-1] if lines else ""))[-500:]
        raise BenchmarkFailedError(f"{argv[0]} ended with status {process.returncode}: {tail}")
    result: dict[str, Any] = json.loads(lines[-1])
    return result


async def _end(process: asyncio.subprocess.Process) -> None:
    for ask in (process.terminate, process.kill):
        if process.returncode is not None:
            return
        ask()
        try:
            async with asyncio.timeout(10):
                await process.wait()
        except TimeoutError:
            continue


# ---- The machine -------------------------------------------------------------------------------


def _meminfo() -> dict[str, int]:
    text = Path("/proc/meminfo").read_text(encoding="ascii")
    return {name: int(kib) for name, kib in re.findall(r"^(\S+):\s+(\d+)", text, re.MULTILINE)}


def memory_kib() -> dict[str, int]:
    """Read what the kernel says of memory now; a cost is the difference of two of these.

    `kernel` is what is in use of slabs, page tables, kernel stacks and per-cpu memory, `reclaimable`
    the part of the slabs that the kernel gives up when asked: cached names and inodes.

    `available` is MemAvailable and what was freed and is kept for the next who asks, which the kernel
    counts nowhere: free pages on per-cpu lists (since Linux 6.7 up to an eighth of the memory, for
    seconds after much was freed: mm/page_alloc.c, `high_max`, `decay_pcp_high`), and free objects in
    slabs. Without the former, what was given back a moment ago seems to be in use; without the latter,
    who comes second seems cheaper than who comes first.

    Available memory moves with the page cache, the kernel's misses what processes hold: both are
    reported. Free objects can be told from used ones by root only.
    """
    info = _meminfo()
    used = slab_used_kib(Path("/proc/slabinfo").read_text(encoding="ascii"))
    kept = percpu_free_kib(Path("/proc/zoneinfo").read_text(encoding="ascii"))
    others = sum(info[name] for name in ("PageTables", "KernelStack", "Percpu"))
    return {
        "available": info["MemAvailable"] + kept + info["Slab"] - used,
        "kernel": used + others,
        "reclaimable": info["SReclaimable"],
    }


def percpu_free_kib(zoneinfo: str) -> int:
    """KiB of free pages on the per-cpu lists of all zones, in the text of /proc/zoneinfo."""
    counts = re.findall(r"^\s+count:\s+(\d+)$", zoneinfo, re.MULTILINE)
    return sum(map(int, counts)) * PAGE_KIB


def slab_used_kib(slabinfo: str) -> int:
    """KiB of slabs that objects in use take, with what lies between them, by /proc/slabinfo."""
    used = 0.0
    for line in slabinfo.splitlines()[2:]:
        _, active, _, _, in_slab, pages, *_ = line.split()
        used += int(active) * int(pages) * PAGE_KIB / int(in_slab)
    return round(used)


def machine_facts() -> dict[str, Any]:
    """Return the `machine` object of the contract; `load` is that of the minute before the run."""
    unified = Path("/sys/fs/cgroup/cgroup.controllers").exists()
    return {
        "cpus": len(os.sched_getaffinity(0)),
        "memory_gib": round(_meminfo()["MemTotal"] / (1 << 20), 1),
        "kernel": os.uname().release,
        "cgroup": "v2" if unified else "v1",
        "accelerator": None,
        "load": round(os.getloadavg()[0], 2),
    }
