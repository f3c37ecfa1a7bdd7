"""Block disks: opened cold over a slow link, written, read, snapshotted; beside copies and files.

Usage: python bench/disks.py [--quick] [--json] [--out FILE]

A disk of 4 GiB with DATA_MIB of random bytes in an S3 store (SeaweedFS) behind a link in a process of
its own (decision 39): 200 MB/s for all connections, 2 ms a request. Two nodes, each with a service
that runs already.

- `open_first_read_ms`: on a node that has nothing of the disk, from the call of `open` to the end of a
  first read of 4 KiB in the middle of the data. Peer `copy`: the same bytes as stored, fetched whole
  with 8 requests at once over the same link, checked and unpacked to a local sparse file, then the read.
- `fetched_mib`: what that open and read took over the link; peer `copy`: all of it.
- `write_mib_s`, `read_mib_s`: 1 MiB at a time through a loop device with direct I/O on the open disk,
  as a file system on it would, to the end of a final fsync; read: after it, from the overlay, which is
  in the host's memory then. Floor: the same on a loop device on a plain file, which reads its disk.
- `snapshot_ack_ms_p50`: from the call of `snapshot` on a disk with 64 MiB of changes, not flushed, to
  its end; `snapshot_usable_s`: until it is in the store. Peer `copy`: such bytes to a file, with fsync.

Rounds in turn. `--quick`: less data, fewer rounds.
"""

import asyncio
import contextlib
import mmap
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from harness import BenchmarkFailedError, RawLog, percentiles
from report import Result, run
from skerry.images.disks.config import ServiceConfig
from skerry.images.disks.library import Disks
from skerry.images.disks.snapshot import StoreBelow
from skerry.images.format.chunks import CHUNK_BYTES
from skerry.images.objects.s3_options import S3Options
from skerry.testing.link import link
from skerry.testing.s3_server import S3Server, missing

MIB = 1 << 20
DISK_BYTES = 4 << 30
RATE, LATENCY_S = 200e6, 0.002
CHANGED_MIB = 64


@contextlib.contextmanager
def attached(path: str) -> Iterator[str]:
    """A loop device with direct I/O on a file."""
    argv = ["losetup", "--find", "--show", "--direct-io=on", path]
    device = subprocess.run(argv, check=True, capture_output=True, text=True).stdout.strip()
    try:
        yield device
    finally:
        subprocess.run(["losetup", "-d", device], check=True)
        until = time.monotonic() + 30
        while os.path.exists(f"/sys/block/{device[5:]}/loop"):
            if time.monotonic() > until:
                raise BenchmarkFailedError(f"{device} stays")
            time.sleep(0.02)


def sequential(device: str, megabytes: int, *, write: bool) -> float:
    """Returns MiB/s of direct reads or writes of 1 MiB, with a final fsync."""
    with mmap.mmap(-1, MIB) as page:
        page[:] = random.Random(1).randbytes(MIB)
        handle = os.open(device, os.O_RDWR | os.O_DIRECT)
        try:
            start = time.perf_counter()
            for at in range(megabytes):
                if write:
                    os.pwritev(handle, [page], at * MIB)
                else:
                    os.preadv(handle, [page], at * MIB)
            os.fsync(handle)
            return megabytes / (time.perf_counter() - start)
        finally:
            os.close(handle)


def read_direct(path: str, offset: int) -> None:
    """Reads 4 KiB past the kernel's cache."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECT)
    with mmap.mmap(-1, 4096) as page:
        os.preadv(handle, [page], offset)
    os.close(handle)


def copy_whole(disks: Disks, name: str, target: Path, offset: int) -> float:
    """Returns seconds until a disk is a local sparse file, and read once."""
    start = time.perf_counter()
    manifest = disks.find(name)
    disk = disks.map_of(manifest)
    below = StoreBelow(disks.store, disk)
    places = list(disk.places())
    below.digest(places[0][1])  # one list for all threads
    handle = os.open(target, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    os.ftruncate(handle, disk.size)
    step = 4 * MIB // CHUNK_BYTES

    def take(first: int) -> None:
        for chunk, content in below.read_many(places[first : first + step]):
            os.pwrite(handle, content, chunk * CHUNK_BYTES)

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(take, range(0, len(places), step)))
    os.pread(handle, 4096, offset)
    os.close(handle)
    return time.perf_counter() - start


def opening(result: Result, raw: RawLog, b: Disks, place: Path, rounds: int) -> None:
    """Cold opens beside whole copies, in turn."""
    mine, theirs, fetched = [], [], []
    offset = b.find("bench:1").data_bytes // 2
    for number in range(rounds):
        b.stop()
        subprocess.run(["rm", "-rf", str(place / "b")], check=True)
        b.start()
        start = time.perf_counter()
        view = b.open("bench:1")
        read_direct(view.path, offset)
        mine.append((time.perf_counter() - start) * 1000)
        fetched.append(b.status().stats["fetched_bytes"] / MIB)
        theirs.append(copy_whole(b, "bench:1", place / "copy", offset) * 1000)
        raw.write("open", number, [{"skerry_ms": mine[-1], "copy_ms": theirs[-1]}])
        b.close("bench")
    result.add("open_first_read_ms", percentiles(mine).p50, "ms", rounds, "lower")
    result.add_peer("copy", "open_first_read_ms", percentiles(theirs).p50)
    result.add("fetched_mib", max(fetched), "MiB", rounds, "lower")
    result.add_peer("copy", "fetched_mib", b.find("bench:1").stored_bytes / MIB)


def streaming(
    result: Result, raw: RawLog, files: tuple[str, Path], effort: tuple[int, int]
) -> None:
    """Writes and reads in order, in turn with a plain file."""
    (path, plain), (rounds, megabytes) = files, effort
    seen: dict[str, list[float]] = {}
    with plain.open("wb") as file:
        file.truncate(DISK_BYTES)
    with attached(path) as device, attached(str(plain)) as other:
        for number in range(rounds):
            for write in (True, False):
                for party, one in (("skerry", device), ("floor", other)):
                    key = f"{party} {'write' if write else 'read'}_mib_s"
                    seen.setdefault(key, []).append(sequential(one, megabytes, write=write))
                    raw.write(key, number, [{"mib_s": seen[key][-1]}])
    for name in ("write_mib_s", "read_mib_s"):
        result.add(name, max(seen[f"skerry {name}"]), "MiB/s", rounds, "higher")
        how = "a loop device with direct I/O on a plain file; best round, same run"
        result.add_floor(name, max(seen[f"floor {name}"]), how)


def snapshots(result: Result, raw: RawLog, a: Disks, plain: Path, rounds: int) -> None:
    """Snapshots of 64 MiB of changes."""
    path = a.view("bench").path
    acks, usable, copies = [], [], []
    for number in range(rounds):
        content = os.urandom(CHANGED_MIB * MIB)
        with open(path, "r+b", buffering=0) as disk:
            for at in range(CHANGED_MIB):
                os.pwrite(disk.fileno(), content[at * MIB : (at + 1) * MIB], at * MIB)
        name = f"bench:s{number}"
        start = time.perf_counter()
        a.snapshot("bench", name)
        acks.append((time.perf_counter() - start) * 1000)
        a.wait("bench", name, 300)
        usable.append(time.perf_counter() - start)
        start = time.perf_counter()
        with plain.open("wb") as file:
            file.write(content)
            os.fsync(file.fileno())
        copies.append((time.perf_counter() - start) * 1000)
        raw.write("snapshot", number, [{"ack_ms": acks[-1], "usable_s": usable[-1]}])
    result.add("snapshot_ack_ms_p50", percentiles(acks).p50, "ms", rounds, "lower")
    result.add_peer("copy", "snapshot_ack_ms_p50", percentiles(copies).p50)
    result.add("snapshot_usable_s", percentiles(usable).p50, "s", rounds, "lower")


def measure_all(result: Result, quick: bool) -> None:
    """Blocks until all is measured."""
    if reason := missing():
        raise BenchmarkFailedError(reason)
    data_mib, rounds = (128, 2) if quick else (1024, 5)
    result.notes.append(f"a disk of 4 GiB with {data_mib} MiB of random bytes")
    with (
        tempfile.TemporaryDirectory(prefix="skerry-disks-", dir="/var/tmp") as name,
        S3Server().running() as server,
        link(server.port, rate=RATE, latency_s=LATENCY_S) as far,
        RawLog("disks") as raw,
        contextlib.ExitStack() as stack,
    ):
        place = Path(name)
        references = {}
        for secret, value in (("access", server.keys.access), ("secret", server.keys.secret)):
            (place / secret).write_text(value)
            references[f"{secret}_key"] = f"file:{place}/{secret}"

        def node(called: str, endpoint: str) -> Disks:
            made = Disks(
                ServiceConfig(
                    root=str(place / called),
                    store=f"s3://{server.bucket}/disks",
                    s3=S3Options(endpoint=endpoint, **references),
                    holder=called,
                )
            )
            stack.callback(made.stop, force=True)
            return made

        a, b = node("a", server.endpoint), node("b", far.endpoint)
        a.create("bench", DISK_BYTES)
        path = a.open("bench").path
        with open(path, "r+b", buffering=0) as disk:
            for at in range(data_mib):
                os.pwrite(disk.fileno(), os.urandom(MIB), at * MIB)
        a.snapshot("bench", "bench:1", wait_s=600)
        opening(result, raw, b, place, rounds)
        streaming(result, raw, (path, place / "plain"), (rounds, 128 if quick else 512))
        snapshots(result, raw, a, place / "plain", rounds + 1)


async def measure(result: Result, quick: bool) -> None:
    """Runs it outside the loop, which has nothing to do here."""
    await asyncio.to_thread(measure_all, result, quick)


if __name__ == "__main__":
    sys.exit(run("disks", __doc__ or "", measure))
