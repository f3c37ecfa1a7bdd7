"""Ranges of a large object out of an S3 store, as the lazy reader asks for them, beside plain HTTP.

Usage: python bench/ranges.py [--quick] [--json] [--out FILE]

The store is a SeaweedFS on this machine, which shares its processors with the client. `near` is the way
over loopback; `far` goes through a link in a process of its own (decision 39): 200 MB/s for all
connections together, and 2 ms for each request.

- `WAY_SIZEk_cN_mib_s`: closed loops of N threads, each asks for a random, aligned
  range of an object of 256 MiB with `S3Objects.read`; the clock of one runs from the call until its
  bytes are there. Bytes of ranges that ended, divided by the time of the loops.
- `WAY_SIZEk_cN_ms_p50` and so on: of the same clocks.
- `upload_mib_s`: `S3Objects.put_file` of the object, near.
- floor: the same loops with signed requests over kept connections of `http.client`, which share no code
  with obstore and check nothing; same run, rounds in turn. It also holds Python's lock while it reads.

`--quick`: only 256 KiB and 1 MiB with 8 in flight.
"""

import asyncio
import http.client
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from harness import BenchmarkFailedError, RawLog, percentiles
from report import Result, run
from skerry.images.objects.s3 import S3Objects
from skerry.images.objects.s3_options import S3Options
from skerry.images.objects.signing import signed
from skerry.testing.link import link
from skerry.testing.s3_server import S3Server, missing

MIB = 1 << 20
OBJECT_BYTES = 256 * MIB
RATE, LATENCY_S = 200e6, 0.002


@dataclass(frozen=True)
class Plan:
    """How much, and how often."""

    sizes: tuple[int, ...] = (256 << 10, MIB, 4 * MIB)
    in_flight: tuple[int, ...] = (1, 8, 32)
    rounds: int = 3
    seconds: float = 1.0


FULL = Plan()
QUICK = Plan((256 << 10, MIB), (8,), 2, 1.5)


@dataclass
class Turn:
    """What the loops of one party saw in one cell."""

    clocks: list[float] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def per_second(self) -> float:
        """Ranges that ended, by time."""
        return len(self.clocks) / self.seconds


class Plain:
    """The floor: one kept connection a thread."""

    def __init__(self, server: S3Server, endpoint: str, path: str) -> None:
        self._server = server
        self._host = urlsplit(endpoint).netloc
        self._path = path
        self._kept: dict[int, http.client.HTTPConnection] = {}

    def read(self, thread: int, offset: int, length: int) -> bytes:
        """Returns one range."""
        if thread not in self._kept:
            self._kept[thread] = http.client.HTTPConnection(self._host, timeout=60)
        keys, region = self._server.keys, self._server.region
        headers = signed("GET", self._host, self._path, keys=keys, region=region)
        headers["Range"] = f"bytes={offset}-{offset + length - 1}"
        self._kept[thread].request("GET", self._path, headers=headers)
        answer = self._kept[thread].getresponse()
        data = answer.read()
        if answer.status != 206:
            raise BenchmarkFailedError(f"the floor got {answer.status}")
        return data

    def close(self) -> None:
        """Ends the connections."""
        for connection in self._kept.values():
            connection.close()
        self._kept.clear()


def loops(read: Callable[[int, int, int], bytes], size: int, threads: int, seconds: float) -> Turn:
    """Runs one party's threads for about that long."""
    turn = Turn()
    start = time.perf_counter()
    deadline = start + seconds

    def client(thread: int) -> list[float]:
        draw, clocks = random.Random(thread), []
        while (now := time.perf_counter()) < deadline:
            offset = draw.randrange(OBJECT_BYTES // size) * size
            if len(read(thread, offset, size)) != size:
                raise BenchmarkFailedError("a range came short")
            clocks.append(time.perf_counter() - now)
        return clocks

    with ThreadPoolExecutor(threads) as pool:
        for clocks in pool.map(client, range(threads)):
            turn.clocks += clocks
    turn.seconds = time.perf_counter() - start
    return turn


@dataclass(frozen=True)
class Way:
    """How the store is reached, and who reads over it."""

    name: str
    plan: Plan
    parties: dict[str, Callable[[int, int, int], bytes]]


def cell(result: Result, raw: RawLog, way: Way, size: int, threads: int) -> None:
    """Measures one size and number in flight, parties in turn."""
    stem = f"{way.name}_{size >> 10}k_c{threads}"
    plan, parties = way.plan, way.parties
    turns = {party: Turn() for party in parties}
    for number in range(plan.rounds):
        order = list(parties)
        for party in order[number % 2 :] + order[: number % 2]:
            seen = loops(parties[party], size, threads, plan.seconds)
            raw.write(f"{party} {stem}", number, [{"s": clock} for clock in seen.clocks])
            turns[party].clocks += seen.clocks
            turns[party].seconds += seen.seconds
    ours, floor = turns["skerry"], turns["floor"]
    how = "signed requests over kept connections of http.client, same run"
    name, factor = f"{stem}_mib_s", size / MIB
    result.add(name, ours.per_second * factor, "MiB/s", len(ours.clocks), "higher")
    result.add_floor(name, floor.per_second * factor, how)
    result.add_percentiles(f"{stem}_ms", "", percentiles(c * 1000 for c in ours.clocks), "ms")


def measure_all(result: Result, quick: bool) -> None:
    """Blocks until all is measured."""
    plan = QUICK if quick else FULL
    if reason := missing():
        raise BenchmarkFailedError(reason)
    with (
        tempfile.TemporaryDirectory(prefix="skerry-ranges-", dir="/var/tmp") as place,
        S3Server().running() as server,
        link(server.port, rate=RATE, latency_s=LATENCY_S) as far,
        RawLog("ranges") as raw,
    ):
        for name, secret in (("access", server.keys.access), ("secret", server.keys.secret)):
            Path(place, name).write_text(secret)
        references = {f"{name}_key": f"file:{place}/{name}" for name in ("access", "secret")}
        source = Path(place, "object")
        with source.open("wb") as file:
            for _ in range(OBJECT_BYTES // MIB):
                file.write(os.urandom(MIB))
        for name, endpoint in (("near", server.endpoint), ("far", far.endpoint)):
            options = S3Options(endpoint=endpoint, **references)
            objects = S3Objects(f"s3://{server.bucket}/bench", options)
            if name == "near":
                start = time.perf_counter()
                objects.put_file("object", str(source))
                took = time.perf_counter() - start
                result.add("upload_mib_s", OBJECT_BYTES / MIB / took, "MiB/s", 1, "higher")
            plain = Plain(server, endpoint, f"/{server.bucket}/bench/object")
            parties = {
                "skerry": lambda _thread, at, length, o=objects: o.read("object", at, length),
                "floor": plain.read,
            }
            # Near is only to tell what the link costs.
            sizes, in_flight = ((MIB,), (8,)) if name == "near" else (plan.sizes, plan.in_flight)
            for size in sizes:
                for threads in in_flight:
                    cell(result, raw, Way(name, plan, parties), size, threads)
            plain.close()


async def measure(result: Result, quick: bool) -> None:
    """Runs it outside the loop, which has nothing to do here."""
    await asyncio.to_thread(measure_all, result, quick)


if __name__ == "__main__":
    sys.exit(run("ranges", __doc__ or "", measure))
