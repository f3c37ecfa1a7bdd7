"""Cold start of one large image, and of bursts of smaller ones: on demand beside pulled and unpacked.

`layers.py` says what is measured, and when its clocks start and end.
"""

import asyncio
import operator
import shutil
import statistics
import time
from collections.abc import Sequence
from typing import Any

from daemons import busy_share, used_cpu_s
from harness import BenchmarkFailedError, RawLog
from layers_images import BURST, IMAGES, LARGE, MIB, Bench, inside, taken
from product import STATE
from report import Result

FAN_OUT = (28, 12, 7, 5, 4, 3, 3, 2)  # 64
RECORD_S = 15.0
AT_ONCE = 16
FAR_LATENCY_S = 0.02
SANDBOX = {"image": "debian:12", "cpu": 2, "memory": "2GiB"}


def stack(name: str) -> tuple[str, ...]:
    """Return the layers of an image above the base, lowest first: those of the burst share one."""
    return (LARGE,) if name == LARGE else (LARGE, name)


async def first_result(client: Any, name: str) -> None:
    """Make a sandbox of an image, do its first run in it, and end it."""
    layers = [f"workspace/{one}" for one in stack(name)]
    sandbox = await client.sandboxes.create(layers=layers, **SANDBOX)
    await test(sandbox, name)
    await sandbox.destroy()


async def test(sandbox: Any, name: str) -> float:
    """Do the first run of an image; return the seconds."""
    start = time.perf_counter()
    result = await sandbox.run(IMAGES[name].command, timeout=300)
    if not result.ok:
        raise BenchmarkFailedError(f"{name}: {result.text[-400:]} {result.error_text[-400:]}")
    return time.perf_counter() - start


# --- One large image ---


async def eager_cold(bench: Bench, far: Any) -> dict[str, float]:
    """Pull, unpack, run."""
    tree = bench.scratch / "pulled"
    far.reset()
    start = time.perf_counter()
    objects = bench.objects(far.endpoint)
    pulls = (asyncio.to_thread(bench.pull, objects, one, tree / one) for one in ("base", LARGE))
    await asyncio.gather(*pulls)
    pulled = time.perf_counter()
    trees = (tree / "base", tree / LARGE)
    await asyncio.to_thread(inside, trees, IMAGES[LARGE].command)
    end = time.perf_counter()
    down, disk = far.counts().down, taken(tree)
    shutil.rmtree(tree)
    return {"s": end - start, "run_s": end - pulled, "down": down, "disk": disk}


async def demand_cold(bench: Bench, far: Any, *, prefetch: bool) -> dict[str, float]:
    """Create, run; then the same with all of it here, which is what no fetching could better."""
    await bench.fresh(bench.config(far.endpoint, prefetch=prefetch))
    async with bench.node.client() as client:
        layer = await client.images.inspect(f"workspace/{LARGE}")
        base = await client.images.inspect("debian:12")
        size = sum(one.data_bytes + one.size_bytes for one in (layer, base))
        far.reset()
        costs = [used_cpu_s(pid) for pid in (bench.s3.pid, far.pid)]
        start = time.perf_counter()
        sandbox = await client.sandboxes.create(layers=[f"workspace/{LARGE}"], **SANDBOX)
        created, before = time.perf_counter(), far.counts().requests
        await test(sandbox, LARGE)
        end = time.perf_counter()
        seen = far.counts()
        store, link = map(operator.sub, [used_cpu_s(pid) for pid in (bench.s3.pid, far.pid)], costs)
        await sandbox.destroy()
        disk = taken(f"{STATE}/chunks", f"{STATE}/layers")
        sandbox = await client.sandboxes.create(layers=[f"workspace/{LARGE}"], **SANDBOX)
        floor = await test(sandbox, LARGE)
        await sandbox.destroy()
    return {
        "s": end - start, "create_s": created - start, "floor_s": floor, "down": seen.down,
        "store_cpu_s": store, "link_cpu_s": link, "create_requests": before,
        "requests": seen.requests, "in_flight_max": seen.in_flight_max, "disk": disk, "size": size,
    }  # fmt: skip


async def recorded(bench: Bench, far: Any, names: Sequence[str] = (LARGE,)) -> None:
    """Let a node do the first run of images, one after the other, and leave profiles in the store."""
    await bench.fresh(bench.config(far.endpoint, record_s=RECORD_S))
    async with bench.node.client() as client:
        for name in names:
            await first_result(client, name)
        await asyncio.sleep(RECORD_S + 5)


async def cold(bench: Bench, far: Any, result: Result, raw: RawLog, rounds: int) -> None:
    """Measure one large image from nothing, parties in turn."""
    seen: dict[str, list[dict[str, float]]] = {"eager": [], "demand": [], "prefetch": []}
    await recorded(bench, far)
    for number in range(rounds):
        order = list(seen)
        for party in order[number % 3 :] + order[: number % 3]:
            if party == "eager":
                seen[party].append(await eager_cold(bench, far))
            else:
                seen[party].append(await demand_cold(bench, far, prefetch=party == "prefetch"))
            raw.write(f"{party} cold", number, [seen[party][-1]])

    def middle(party: str, name: str) -> float:
        return statistics.median(one[name] for one in seen[party])

    size, eager = middle("demand", "size"), middle("eager", "s")
    result.add("cold_image_mib", size / MIB, "MiB", 1, "higher")
    result.add_peer("eager", "cold_s", eager)
    result.add_peer("eager", "fetched_fraction", middle("eager", "down") / size)
    for party, suffix in (("demand", ""), ("prefetch", "_prefetch")):
        result.add(f"cold_s{suffix}", middle(party, "s"), "s", rounds, "lower")
        how = "the same run in a new sandbox, all of it in the node's cache; same node"
        result.add_floor(f"cold_s{suffix}", middle(party, "floor_s"), how)
        speedup = eager / middle(party, "s")
        result.add(f"cold_speedup_vs_eager{suffix}", speedup, "x", rounds, "higher")
        fetched = middle(party, "down") / size
        result.add(f"fetched_fraction{suffix}", fetched, "", rounds, "lower")
        written = middle("eager", "disk") / middle(party, "disk")
        result.add(f"cold_write_ratio{suffix}", written, "x", rounds, "higher")
        result.add(f"cold_create_s{suffix}", middle(party, "create_s"), "s", rounds, "lower")
        result.add(f"cold_store_cpu_s{suffix}", middle(party, "store_cpu_s"), "s", rounds, "lower")
        result.add(f"cold_requests{suffix}", middle(party, "requests"), "", rounds, "lower")


async def far_away(bench: Bench, far: Any, result: Result, raw: RawLog, rounds: int) -> None:
    """Measure the two of them again over ten times the latency."""
    far.set(latency_s=FAR_LATENCY_S)
    seen: dict[str, list[float]] = {"": [], "_prefetch": []}
    for number in range(rounds):
        for suffix in sorted(seen, reverse=bool(number % 2)):
            one = await demand_cold(bench, far, prefetch=bool(suffix))
            seen[suffix].append(one["s"])
            raw.write(f"demand{suffix} far", number, [one])
    for suffix, times in seen.items():
        result.add(f"cold_s_20ms{suffix}", statistics.median(times), "s", rounds, "lower")


# --- A burst ---


async def burst(bench: Bench, far: Any, result: Result, raw: RawLog) -> None:
    """Measure 64 sandboxes over 8 images from nothing, one party after the other."""
    jobs = [name for name, count in zip(BURST, FAN_OUT, strict=True) for _ in range(count)]
    await recorded(bench, far, BURST)
    theirs = await eager_burst(bench, far, jobs)
    raw.write("burst eager", 0, [theirs])
    result.add_peer("eager", "burst_s", theirs["s"])
    result.add_peer("eager", "burst_busy_share", theirs["busy"])
    for suffix in ("", "_prefetch"):
        ours = await demand_burst(bench, far, jobs, prefetch=bool(suffix))
        raw.write(f"burst{suffix}", 0, [ours])
        result.add(f"burst_s{suffix}", ours["s"], "s", len(jobs), "lower")
        how = "the same burst again on the same node, all of it in the node's cache"
        result.add_floor(f"burst_s{suffix}", ours["floor_s"], how)
        result.add(f"burst_busy_share{suffix}", ours["busy"], "", len(jobs), "lower")
        for name, key in (
            ("speedup_vs_eager", "s"),
            ("write_ratio", "disk"),
            ("fetched_ratio", "down"),
        ):
            ratio = theirs[key] / ours[key]
            result.add(f"burst_{name}{suffix}", ratio, "x", len(jobs), "higher")


async def demand_burst(
    bench: Bench, far: Any, jobs: Sequence[str], *, prefetch: bool
) -> dict[str, float]:
    """Do all jobs, at most 16 at once, on a node that has nothing; then again, when it has all."""
    await bench.fresh(bench.config(far.endpoint, prefetch=prefetch))
    runs = asyncio.Semaphore(AT_ONCE)
    async with bench.node.client() as client:

        async def demand(name: str) -> None:
            async with runs:
                await first_result(client, name)

        async def all_of_them() -> tuple[float, float]:
            since, start = busy_share(), time.perf_counter()
            await asyncio.gather(*map(demand, jobs))
            return time.perf_counter() - start, since()

        far.reset()
        took, busy = await all_of_them()
        down, disk = far.counts().down, taken(f"{STATE}/chunks", f"{STATE}/layers")
        floor, _ = await all_of_them()
    return {"s": took, "busy": busy, "floor_s": floor, "down": down, "disk": disk}


async def eager_burst(bench: Bench, far: Any, jobs: list[str]) -> dict[str, float]:
    """Pull each layer once, 4 at a time; run at most 16 jobs at once."""
    objects, tree = bench.objects(far.endpoint), bench.scratch / "pulled"
    pulls, runs = asyncio.Semaphore(4), asyncio.Semaphore(AT_ONCE)
    images: dict[str, asyncio.Task[None]] = {}

    async def pull(name: str) -> None:
        async with pulls:
            await asyncio.to_thread(bench.pull, objects, name, tree / name)

    async def eager(name: str) -> None:
        layers = ("base", *stack(name))
        for one in layers:
            if one not in images:
                images[one] = asyncio.ensure_future(pull(one))
        await asyncio.gather(*(images[one] for one in layers))
        async with runs:
            trees = [tree / one for one in layers]
            await asyncio.to_thread(inside, trees, IMAGES[name].command)

    far.reset()
    since, start = busy_share(), time.perf_counter()
    await asyncio.gather(*map(eager, jobs))
    took, busy = time.perf_counter() - start, since()
    found = {"s": took, "busy": busy, "down": far.counts().down, "disk": taken(tree)}
    shutil.rmtree(tree)
    return found
