"""How much a quick command suffers from load on every core, with CPU classes and without.

Usage: python bench/qos.py [--quick] [--json] [--out FILE]

One latency-sensitive sandbox (1 core) runs `ls /`, one client, closed loop: from just before the call
until its result is in the client's hands (`ls_ms_*`). It does so in turn

- alone (`ls_ms_p50_alone`, ...),
- beside two sandboxes for each core that compute all the time and are latency-sensitive too: what
  happens without classes (the peer `no_classes`),
- beside as many best-effort ones (`ls_ms_p50`, ...).

The load is started before each turn and ended after it; the clocks begin when it has used CPU.

- `ls_p50_inflation_percent`, `ls_p99_inflation_percent`: p50 and p99 under load, divided by those
  alone, minus 1. The paper (DSec, section 5.2) has 45.2% unprotected and 17.3% protected for its own
  commands.
- `be_share_percent`: CPU time of the best-effort sandboxes meanwhile, as a share of all cores: they are
  to have what is left, not nothing.
- `ls_per_second`: commands a second of the one client under best-effort load.
"""

import asyncio
import contextlib
import os
import sys
import time
from collections.abc import AsyncIterator
from typing import Any

from harness import BenchmarkFailedError, Loop, RawLog, Sample, closed_loop, interleave, percentiles
from product import own_client
from report import Result, run

SANDBOX: dict[str, Any] = {"image": "debian:12", "cpu": 1, "memory": "128MiB", "pids": 64}
LOADERS_PER_CORE = 2
BUSY_SECONDS = 0.02
PATIENCE_SECONDS = 60.0
SPIN = "while :; do :; done"


class Load:
    """Sandboxes that compute while they are told to; the only place that knows the SDK's calls."""

    def __init__(self, sandboxes: list[Any]) -> None:
        self._sandboxes = sandboxes
        self.seconds = 0.0  # CPU, over all turns
        self.wall = 0.0

    async def _used(self) -> list[float]:
        usages = await asyncio.gather(*(sandbox.usage() for sandbox in self._sandboxes))
        return [usage.cpu_seconds for usage in usages]

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Compute on every core within the block."""
        idle = sum(await self._used())
        spins = [asyncio.create_task(one.run(SPIN, timeout=600)) for one in self._sandboxes]
        try:
            until = time.perf_counter() + PATIENCE_SECONDS
            while sum(await self._used()) - idle < BUSY_SECONDS * len(spins):
                if time.perf_counter() > until:
                    raise BenchmarkFailedError("the load did not start: is the machine busy?")
                await asyncio.sleep(0.1)
            before, start = sum(await self._used()), time.perf_counter()
            yield
            self.seconds += sum(await self._used()) - before
            self.wall += time.perf_counter() - start
        finally:
            for spin in spins:
                spin.cancel()
            await asyncio.gather(*spins, return_exceptions=True)

    @property
    def share_percent(self) -> float:
        """CPU time as a share of all cores."""
        return 100 * self.seconds / self.wall / len(os.sched_getaffinity(0))


async def measure(result: Result, quick: bool) -> None:
    rounds, seconds = (3, 4.0) if quick else (6, 10.0)
    loops = {name: Loop() for name in ("alone", "no_classes", "best_effort")}
    count = LOADERS_PER_CORE * len(os.sched_getaffinity(0))
    with RawLog("qos") as raw:
        async with own_client() as client:
            quick_one = await client.sandboxes.create("container", **SANDBOX)
            plain = Load(await client.sandboxes.create_many(count, **SANDBOX))
            yielding = Load(
                await client.sandboxes.create_many(count, cpu_class="best-effort", **SANDBOX)
            )

            async def command(_: int) -> Sample:
                start = time.perf_counter()
                done = await quick_one.run(["ls", "/"])
                end = time.perf_counter()
                if done.exit_code != 0:
                    raise RuntimeError(f"ls ended with status {done.exit_code}")
                return {"ls_ms": (end - start) * 1e3}

            await command(0)

            async def turn(name: str, number: int) -> None:
                loop = await closed_loop(command, concurrency=1, seconds=seconds)
                raw.write(name, number, loop.samples)
                loops[name].extend(loop)

            async def alone(number: int) -> None:
                await turn("alone", number)

            async def unprotected(number: int) -> None:
                async with plain.running():
                    await turn("no_classes", number)

            async def protected(number: int) -> None:
                async with yielding.running():
                    await turn("best_effort", number)

            parties = {"alone": alone, "no_classes": unprotected, "best_effort": protected}
            await interleave(rounds, parties)
    tell(result, loops, yielding)


def tell(result: Result, loops: dict[str, Loop], yielding: Load) -> None:
    """Add the figures."""
    seen = {name: percentiles(loop.values("ls_ms")) for name, loop in loops.items()}
    alone, plain, ours = seen["alone"], seen["no_classes"], seen["best_effort"]
    for name in ("p50", "p99"):
        base = getattr(alone, name)
        inflation = 100 * (getattr(ours, name) / base - 1)
        result.add(f"ls_{name}_inflation_percent", inflation, "%", ours.n, "lower")
        peer = 100 * (getattr(plain, name) / base - 1)
        result.add_peer("no_classes", f"ls_{name}_inflation_percent", peer)
        result.add_peer("no_classes", f"ls_ms_{name}", getattr(plain, name))
        result.add_floor(f"ls_ms_{name}", base, "the same command without load, same run")
    result.add("be_share_percent", yielding.share_percent, "%", ours.n, "higher")
    result.add_percentiles("ls_ms", "", ours, "ms")
    result.add_percentiles("ls_ms", "_alone", alone, "ms")
    per_second = loops["best_effort"].per_second
    result.add("ls_per_second", per_second, "1/s", ours.n, "higher")


if __name__ == "__main__":
    sys.exit(run("qos", __doc__ or "", measure))
