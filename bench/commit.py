"""Commits of 10 MiB, 100 MiB and 1 GiB of changes, and forks of a sandbox with 100 MiB.

Usage: python bench/commit.py [--quick] [--json] [--out FILE]

A sandbox writes random bytes into files of 4 MiB (so nothing is stored once that was written twice), and
at once it is committed: what it wrote is still in memory and not on the disk, the worst case. Clocks are
read in the client.

- `commit_ack_ms_*`: from just before the call with `wait=False` until it returns: acknowledged.
- `commit_freeze_ms_*`: for how long the sandbox stood still, as the node tells.
- `commit_usable_s_*`: from just before that call until a new sandbox with the layer has ended its first
  command, which reads one of the files.
- Floor of the last: `cp -a` of the same files between two directories of the node's disk, with a sync of
  what it wrote; files just written too. Same run, taking turns.
- `neighbour_ms_p50`, `_p99`: a command (`true`) in another sandbox while the 1 GiB is packed, from just
  before the call to its result. Floor: the same while nothing is packed.
- `fork8_ms_p50`: `fork(8)` of a sandbox that has just written 100 MiB, from just before the call until
  all eight run. `fork8_again_ms_p50`: the same once what it wrote is on the disk.
"""

import asyncio
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from harness import RawLog, percentiles
from product import STATE, own_client
from report import Result, run

SIZES = {"10mib": 10, "100mib": 100, "1gib": 1024}
SANDBOX: dict[str, Any] = {"image": "debian:12", "cpu": 2, "memory": "1GiB"}
FILE_MIB = 4
FORKS = 8


def writing(mib: int) -> str:
    """Return a shell line that writes so much, in files."""
    files = max(1, mib // FILE_MIB)
    each = mib // files
    rest = (mib - each * files) << 20
    return (
        f"mkdir -p /srv/d; for i in $(seq {files}); do "
        f"head -c {each << 20} /dev/urandom > /srv/d/$i || exit 1; done; "
        f"head -c {rest} /dev/urandom > /srv/d/rest"
    )


async def one_commit(client: Any, size: str, number: int) -> dict[str, float]:
    """Return the clocks of one commit; nothing of it stays."""
    sandbox = await client.sandboxes.create(**SANDBOX)
    await sandbox.run(writing(SIZES[size]), timeout=300)
    name = f"workspace/{size}-{number}"
    start = time.perf_counter()
    handle = await sandbox.commit(name, wait=False)
    acknowledged = time.perf_counter()
    await sandbox.destroy()
    other = await client.sandboxes.create(layers=[name], **SANDBOX)
    await other.run("sha256sum /srv/d/1", timeout=60)
    usable = time.perf_counter()
    await other.destroy()
    await client.images.remove(name)
    return {
        "ack_ms": (acknowledged - start) * 1e3,
        "freeze_ms": handle.freeze_seconds * 1e3,
        "usable_s": usable - start,
    }


def plain_copy(mib: int) -> float:
    """Return the seconds of a copy of files that were just written, on the disk of the node's state."""
    source, target = Path(STATE, "copy-from"), Path(STATE, "copy-to")
    source.mkdir(parents=True)
    for number in range(max(1, mib // FILE_MIB)):
        (source / str(number)).write_bytes(os.urandom(min(FILE_MIB, mib) << 20))
    start = time.perf_counter()
    subprocess.run(["cp", "-a", source, target], check=True)
    subprocess.run(["sync", "-f", target], check=True)
    seconds = time.perf_counter() - start
    shutil.rmtree(source)
    shutil.rmtree(target)
    return seconds


async def neighbour(sandbox: Any, until: asyncio.Event) -> list[float]:
    """Return the milliseconds of each command, until it is over."""
    each = []
    while not until.is_set():
        start = time.perf_counter()
        await sandbox.run(["true"])
        each.append((time.perf_counter() - start) * 1e3)
        await asyncio.sleep(0.01)
    return each


async def beside(client: Any, size: str, number: int) -> tuple[dict[str, float], list[float]]:
    """Return the clocks of a commit, and what a neighbour sees from its acknowledgement on."""
    other = await client.sandboxes.create(**SANDBOX)
    sandbox = await client.sandboxes.create(**SANDBOX)
    await sandbox.run(writing(SIZES[size]), timeout=300)
    over = asyncio.Event()
    handle = await sandbox.commit(f"workspace/beside-{number}", wait=False)
    watching = asyncio.create_task(neighbour(other, over))
    await handle.wait()
    over.set()
    each = await watching
    await client.sandboxes.destroy_many([other, sandbox])
    await client.images.remove(f"workspace/beside-{number}")
    return {"freeze_ms": handle.freeze_seconds * 1e3}, each


async def alone(client: Any, seconds: float) -> list[float]:
    """Return what the same neighbour sees while nothing is packed."""
    other = await client.sandboxes.create(**SANDBOX)
    over = asyncio.Event()
    watching = asyncio.create_task(neighbour(other, over))
    await asyncio.sleep(seconds)
    over.set()
    each = await watching
    await other.destroy()
    return each


async def forks(client: Any) -> tuple[float, float]:
    """Return the milliseconds of fork(8), just after 100 MiB were written and once more."""
    sandbox = await client.sandboxes.create(**SANDBOX)
    await sandbox.run(writing(100), timeout=300)
    clocks = []
    for _ in range(2):
        start = time.perf_counter()
        made = await sandbox.fork(FORKS)
        clocks.append((time.perf_counter() - start) * 1e3)
        await client.sandboxes.destroy_many(made)
    await sandbox.destroy()
    return clocks[0], clocks[1]


async def measure(result: Result, quick: bool) -> None:
    rounds = 2 if quick else 5
    seen: dict[str, list[dict[str, float]]] = {size: [] for size in SIZES}
    copies: dict[str, list[float]] = {size: [] for size in SIZES}
    packing: list[float] = []
    forked: list[tuple[float, float]] = []
    with RawLog("commit") as raw:
        async with own_client() as client:
            await one_commit(
                client, "10mib", -1
            )  # the mounts and slots of a fresh node are no part
            for turn in range(rounds):
                for size, mib in SIZES.items():
                    copies[size].append(await asyncio.to_thread(plain_copy, mib))
                    seen[size].append(await one_commit(client, size, turn))
                    raw.write(size, turn, [seen[size][-1] | {"copy_s": copies[size][-1]}])
                forked.append(await forks(client))
                raw.write("fork8", turn, [{"fresh_ms": forked[-1][0], "again_ms": forked[-1][1]}])
            quiet = await alone(client, 3.0)
            for turn in range(1 if quick else 3):
                packing += (await beside(client, "1gib", turn))[1]
            raw.write("neighbour", 0, [{"packing_ms": ms} for ms in packing])
            raw.write("neighbour", 0, [{"quiet_ms": ms} for ms in quiet])
    for size in SIZES:
        each = percentiles(one["ack_ms"] for one in seen[size])
        result.add(f"commit_ack_ms_{size}", each.p50, "ms", each.n, "lower")
        result.add(f"commit_ack_ms_max_{size}", each.max, "ms", each.n, "lower")
        each = percentiles(one["freeze_ms"] for one in seen[size])
        result.add(f"commit_freeze_ms_{size}", each.p50, "ms", each.n, "lower")
        each = percentiles(one["usable_s"] for one in seen[size])
        result.add(f"commit_usable_s_{size}", each.p50, "s", each.n, "lower")
        how = "cp -a of the same files just written, with a sync, same run"
        result.add_floor(f"commit_usable_s_{size}", percentiles(copies[size]).p50, how)
    result.add_percentiles("neighbour_ms", "", percentiles(packing), "ms")
    how = "the same while nothing is packed, same run"
    result.add_floor("neighbour_ms_p50", percentiles(quiet).p50, how)
    result.add_floor("neighbour_ms_p99", percentiles(quiet).p99, how)
    for name, which in (("fork8_ms", 0), ("fork8_again_ms", 1)):
        each = percentiles(one[which] for one in forked)
        result.add(f"{name}_p50", each.p50, "ms", each.n, "lower")
        result.add(f"{name}_max", each.max, "ms", each.n, "lower")


if __name__ == "__main__":
    sys.exit(run("commit", __doc__ or "", measure))
