"""Files into and out of a container sandbox, beside the copies that the kernel does alone.

Usage: python bench/files.py [--quick] [--json] [--out FILE]

Clocks are read in the client, a Python process that talks to one node through the SDK. The local side
of every transfer lies on the file system that holds the node's state too.

- `upload_1gib_mib_s`: 1 GiB of random bytes from a local file to a new file inside, from just before
  `files.upload` is called until it has returned; size divided by time, median of the rounds.
- `download_1gib_mib_s`: the same file back to a new local file by `files.download`.
- floor of both: `cp --reflink=never` of the same file on the same file system, same run. It crosses no
  process border and no file system; the product crosses four processes and writes through an overlay.
- `peak_rss_mib`: the highest resident size of the node plus that of the client plus those of the agent
  and its helper, over all transfers of a gibibyte. Each reset before the first.
- `tree_10000_files_s`: 10,000 files of 2 KiB in 100 directories: `files.upload` of the tree until it has
  returned; `tree_10000_files_down_s` the way back. Floor: `tar -c | tar -x` of the tree on the host's
  file system, same run.
- `node_cpu_s_per_gib_up`, `..._down`: CPU time of the node in a transfer of a gibibyte.
- `sparse_1tib_s`: a file of 1 TiB that holds 1 MiB, up and down again.

`--quick`: 256 MiB instead of 1 GiB (the names stay), one round fewer.
"""

import asyncio
import os
import shutil
import statistics
import sys
import time
from collections.abc import Awaitable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from daemons import Daemons, peak_kib, reset_peak, used_cpu_s
from harness import BenchmarkFailedError, RawLog, interleave
from product import RUN, STATE, own_client
from report import Result, run

MIB = 1 << 20
SANDBOX: dict[str, Any] = {"image": "debian:12", "memory": "1GiB", "disk": "8GiB"}
FILES, DIRECTORIES, FILE_BYTES = 10_000, 100, 2048
PLACE = Path(f"{STATE}-files")  # beside the node's state


@dataclass(frozen=True)
class Plan:
    """How much, and how often."""

    mib: int
    rounds: int


FULL = Plan(1024, 5)
QUICK = Plan(256, 2)


@dataclass
class Samples:
    """Seconds by party, and the most that the processes inside took."""

    seconds: dict[str, list[float]] = field(default_factory=dict)
    cpu: dict[str, list[float]] = field(default_factory=dict)
    inside_kib: int = 0

    def add(self, party: str, seconds: float) -> None:
        """Adds one sample."""
        self.seconds.setdefault(party, []).append(seconds)

    def median(self, party: str) -> float:
        """Returns the median of a party's samples."""
        return statistics.median(self.seconds[party])


async def timed(work: Awaitable[Any]) -> float:
    """Returns the seconds that something took."""
    start = time.perf_counter()
    await work
    return time.perf_counter() - start


async def host(*argv: str) -> float:
    """Returns the seconds of a program on the host."""

    async def work() -> None:
        process = await asyncio.create_subprocess_exec(*argv)
        if await process.wait():
            raise BenchmarkFailedError(f"{argv[0]} failed")

    return await timed(work())


def make_inputs(mib: int) -> None:
    """Writes the big file, the tree and the file with holes: set-up, in no clock."""
    shutil.rmtree(PLACE, ignore_errors=True)
    PLACE.mkdir()
    with (PLACE / "big").open("wb") as file:
        for _ in range(mib):
            file.write(os.urandom(MIB))
    for directory in range(DIRECTORIES):
        place = PLACE / "tree" / str(directory)
        place.mkdir(parents=True)
        for number in range(FILES // DIRECTORIES):
            (place / str(number)).write_bytes(os.urandom(FILE_BYTES))
    with (PLACE / "sparse").open("wb") as file:
        file.truncate(1 << 40)
        file.seek(1 << 39)
        file.write(os.urandom(MIB))
    os.sync()


def agents_kib(daemons: Daemons) -> int:
    """Returns the highest resident sizes of the agent and what runs for it now, added up."""
    total = 0
    for agent in daemons.agents():
        with suppress(OSError):
            children = Path(f"/proc/{agent}/task/{agent}/children").read_text().split()
            total += sum(peak_kib(pid) for pid in (agent, *map(int, children)))
    return total


class Product:
    """One running sandbox; the only place that knows the SDK's calls."""

    def __init__(self, sandbox: Any, daemons: Daemons, samples: Samples) -> None:
        self._sandbox = sandbox
        self._daemons = daemons
        self._samples = samples

    async def upload(self, name: str) -> None:
        """Puts a local input to its place inside."""
        await self._watched(f"up {name}", self._sandbox.files.upload(PLACE / name, f"/root/{name}"))

    async def download(self, name: str) -> None:
        """Gets it back, to be compared and thrown away."""
        back = PLACE / f"{name}.back"
        await self._watched(f"down {name}", self._sandbox.files.download(f"/root/{name}", back))
        if name == "big":
            await host("cmp", str(back), str(PLACE / name))
        shutil.rmtree(back) if back.is_dir() else back.unlink()
        await self._sandbox.files.remove(f"/root/{name}", recursive=True)

    async def _watched(self, party: str, work: Awaitable[Any]) -> None:
        watcher = asyncio.create_task(self._peaks())
        before = used_cpu_s(self._daemons.node)
        try:
            self._samples.add(party, await timed(work))
        finally:
            watcher.cancel()
        self._samples.cpu.setdefault(party, []).append(used_cpu_s(self._daemons.node) - before)

    async def _peaks(self) -> None:
        while True:
            found = await asyncio.to_thread(agents_kib, self._daemons)
            self._samples.inside_kib = max(self._samples.inside_kib, found)
            await asyncio.sleep(0.5)


async def floor(samples: Samples) -> None:
    """What the kernel takes for the same bytes without us."""
    copy = str(PLACE / "copy")
    argv = ("cp", "--reflink=never", str(PLACE / "big"), copy)
    samples.add("cp", await host(*argv))
    os.unlink(copy)
    os.mkdir(copy)
    line = f"tar -C {PLACE}/tree -cf - . | tar -C {copy} -xf -"
    samples.add("tar", await host("sh", "-c", line))
    shutil.rmtree(copy)


async def measure(result: Result, quick: bool) -> None:
    """Runs everything and adds the figures."""
    plan = QUICK if quick else FULL
    samples = Samples()
    try:
        await asyncio.to_thread(make_inputs, plan.mib)
        async with own_client() as client:
            node = (await client.health()).pid
            async with await client.sandboxes.create("container", **SANDBOX) as sandbox:
                product = Product(sandbox, Daemons(node, Path(RUN)), samples)
                await sandbox.files.write("/root/warm", b"x")
                for pid in (node, os.getpid()):
                    reset_peak(pid)

                async def ours(_turn: int) -> None:
                    for name in ("big", "tree", "sparse"):
                        await product.upload(name)
                        await product.download(name)

                async def theirs(_turn: int) -> None:
                    await floor(samples)

                await interleave(plan.rounds, {"skerry": ours, "kernel": theirs})
                rss_kib = peak_kib(node) + peak_kib(os.getpid()) + samples.inside_kib
    finally:
        shutil.rmtree(PLACE, ignore_errors=True)
    with RawLog("files") as raw:
        for party, seconds in samples.seconds.items():
            raw.write(party, 0, [{"seconds": value} for value in seconds])
    report(result, plan, samples, rss_kib / 1024)


def report(result: Result, plan: Plan, samples: Samples, rss_mib: float) -> None:
    """Adds the figures to the result."""
    n, gib = plan.rounds, plan.mib / 1024
    cp, tar = plan.mib / samples.median("cp"), samples.median("tar")
    for way in ("up", "down"):
        name = f"{way}load_1gib_mib_s"
        result.add(name, plan.mib / samples.median(f"{way} big"), "MiB/s", n, "higher")
        result.add_floor(name, cp, "cp --reflink=never on the host's file system, same run")
        cpu = statistics.median(samples.cpu[f"{way} big"]) / gib
        result.add(f"node_cpu_s_per_gib_{way}", cpu, "s", n, "lower")
    result.add("peak_rss_mib", rss_mib, "MiB", n, "lower")
    for way, suffix in (("up", ""), ("down", "_down")):
        name = f"tree_10000_files{suffix}_s"
        result.add(name, samples.median(f"{way} tree"), "s", n, "lower")
        result.add_floor(name, tar, "tar | tar on the host's file system, same run")
    both = samples.median("up sparse") + samples.median("down sparse")
    result.add("sparse_1tib_s", both, "s", n, "lower")
    if plan is QUICK:
        result.notes.append(f"quick: {plan.mib} MiB instead of 1 GiB")


if __name__ == "__main__":
    sys.exit(run("files", __doc__ or "", measure))
