"""Reads of a cached lazy layer beside the same layer on a local disk.

`layers.py` says what is measured, and when its clocks start and end.
"""

import asyncio
import statistics
import time
from typing import Any

from harness import RawLog
from layers_cold import SANDBOX
from layers_images import WARM_MIB, Bench, one_file
from report import Result

SAMPLES, TIMES = 9, 8  # a warm sample is long: starting a command takes as long as reading the file
DROP = "import os; f = os.open('/opt/file', 0); os.posix_fadvise(f, 0, 0, os.POSIX_FADV_DONTNEED)"


async def reading(client: Any) -> tuple[list[float], list[float]]:
    """Return MiB/s of reads with pages in memory, and right after they were dropped."""
    warm, dropped = [], []
    sandbox = await client.sandboxes.create(layers=["workspace/bench-file"], **SANDBOX)
    await sandbox.run("cat /opt/file > /dev/null", timeout=300)
    for _ in range(SAMPLES):
        await sandbox.run(["python3", "-c", DROP])
        for found, times in ((dropped, 1), (warm, TIMES)):
            files = "/opt/file " * times
            start = time.perf_counter()
            await sandbox.run(f"cat {files} > /dev/null", timeout=300)
            found.append(times * WARM_MIB / (time.perf_counter() - start))
    await sandbox.destroy()
    return warm, dropped


async def warm(bench: Bench, far: Any, result: Result, raw: RawLog) -> None:
    """Measure reads of a cached lazy layer beside the same layer on a local disk."""
    await bench.fresh(bench.config(far.endpoint))
    async with bench.node.client() as client:
        lazy, lazy_dropped = await reading(client)
    await bench.fresh("")
    async with bench.node.client() as client:
        await client.images.debian("debian:12", "bookworm")
        root = bench.scratch / "warm"
        await asyncio.to_thread(one_file, root)
        await client.images.import_directory("workspace/bench-file", root)
        local, local_dropped = await reading(client)
    raw.write("warm", 0, [{"lazy": lazy, "local": local}])
    median = statistics.median
    result.add("warm_read_ratio_to_local", median(lazy) / median(local), "x", SAMPLES, "higher")
    result.add("lazy_read_mib_s", median(lazy_dropped), "MiB/s", SAMPLES, "higher")
    result.add_peer("local layer", "lazy_read_mib_s", median(local_dropped))
