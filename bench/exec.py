"""Commands in one running container sandbox, one after another.

Usage: python bench/exec.py [--quick] [--json] [--out FILE]

Clocks, read in the client, a Python process that talks to the embedded node:

- `true_ms_*`: from just before the call that runs `/bin/true` (dynamically linked) until its
  result is in the client's hands; one client, closed loop.
- floor of `true_ms_p50`: from before posix_spawn of the host's own `/bin/true` until it has been
  reaped, by a C program on the host (`bench/floor/spawnloop.c`): the command alone, without a
  sandbox and without any message.

The sandbox has run the command before the first clock starts, so files and code are warm.
"""

import contextlib
import statistics
import sys
import time
from collections.abc import AsyncIterator
from typing import Any

from floors import BUILD, build
from harness import Loop, RawLog, Sample, closed_loop, interleave, percentiles, run_json
from product import own_client
from report import Result, run

SANDBOX: dict[str, Any] = {"image": "debian:12", "cpu": 1, "memory": "256MiB", "pids": 64}
LATER = (
    "not measured yet: builtin_ms_p50 (needs sessions), commands_per_second_500, "
    "output_1gib_rss_mib"
)


class Product:
    """One running sandbox; the only place that knows the SDK's calls."""

    def __init__(self, sandbox: Any) -> None:
        self._sandbox = sandbox

    @staticmethod
    @contextlib.asynccontextmanager
    async def sandbox() -> AsyncIterator["Product"]:
        """Hold one running sandbox for the length of the block."""
        async with own_client() as client:
            sandbox = await client.sandboxes.create("container", **SANDBOX)
            try:
                yield Product(sandbox)
            finally:
                await sandbox.destroy()

    async def command(self, _: int) -> Sample:
        """Run one command; its clock in milliseconds."""
        start = time.perf_counter()
        done = await self._sandbox.run(["/bin/true"])
        end = time.perf_counter()
        if done.exit_code != 0:
            raise RuntimeError(f"/bin/true ended with status {done.exit_code}")
        return {"true_ms": (end - start) * 1e3}


async def measure(result: Result, quick: bool) -> None:
    rounds, seconds = (3, 6.0) if quick else (5, 12.0)
    total, floors = Loop(), []
    build()
    with RawLog("exec") as raw:
        async with Product.sandbox() as product:
            await product.command(0)

            async def ours(turn: int) -> None:
                loop = await closed_loop(product.command, concurrency=1, seconds=seconds)
                raw.write("skerry", turn, loop.samples)
                total.extend(loop)

            async def floor(turn: int) -> None:
                argv = [str(BUILD / "spawnloop"), str(seconds / 3), "1", "/bin/true"]
                summary = await run_json(argv, limit_seconds=seconds + 60)
                raw.write("floor", turn, [summary])
                floors.append(summary["p50_us"] / 1e3)

            await interleave(rounds, {"skerry": ours, "floor": floor})
    result.add_percentiles("true_ms", "", percentiles(total.values("true_ms")), "ms")
    result.add("true_per_second_c1", total.per_second, "1/s", len(total.samples), "higher")
    how = "posix_spawn of /bin/true on the host by a C program, same run; median of the rounds"
    result.add_floor("true_ms_p50", statistics.median(floors), how)
    result.notes.append(LATER)


if __name__ == "__main__":
    sys.exit(run("exec", __doc__ or "", measure))
