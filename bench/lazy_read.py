"""A layer's file read on demand: EROFS on the FUSE session of the blobs process, beside plain files.

Usage: python bench/lazy_read.py [--quick] [--json] [--out FILE]

One file of 256 MiB of random bytes, as an EROFS pair; the blobs process as a node starts it, its store
a SeaweedFS behind a link in a process of its own (decision 39): 200 MB/s for all connections, 2 ms a
request. The clock of a sequential figure runs over reads of 1 MiB from the first byte to the last.

- `cold_seq_mib_s`: nothing cached; floor: the object with 8 threads of `S3Objects.read`, 1 MiB each.
- `cached_seq_mib_s`: the chunk cache is full and in memory, the layer's own pages are not; floor: the
  cache file itself, by read(), from memory.
- `warm_seq_mib_s`: the layer's pages are in memory; floor: EROFS on the plain data file, likewise.
- `random_4k_us_p50` and so on: as for `cached`, 4 KiB at random places; floor: EROFS on the plain data
  file with direct reads of the disk (its device may answer from memory of its own).
- `resident_mib`: of the process, after all of it.

Rounds in turn. `--quick`: fewer.
"""

import asyncio
import contextlib
import ctypes
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from harness import BenchmarkFailedError, RawLog, percentiles
from report import Result, run
from skerry.images.format.chunks import build_list
from skerry.images.format.erofs import Tools
from skerry.images.lazy.main import LazyConfig
from skerry.images.objects.s3 import S3Objects
from skerry.images.objects.s3_options import S3Options
from skerry.images.store import keys
from skerry.testing.link import link
from skerry.testing.s3_server import S3Server, missing

MIB = 1 << 20
FILE_BYTES = 256 * MIB
RATE, LATENCY_S = 200e6, 0.002
FORCE, DETACH = 1, 2
libc = ctypes.CDLL(None, use_errno=True)


def checked(value: int, what: str) -> int:
    """Returns what a system call did."""
    if value < 0:
        raise BenchmarkFailedError(f"{what}: {os.strerror(ctypes.get_errno())}")
    return value


def mount_erofs(metadata: Path, device: Path, at: Path) -> None:
    """Mounts a pair as the launcher does."""
    at.mkdir()
    context = checked(libc.syscall(430, b"erofs", 0), "fsopen")
    options: tuple[tuple[int, bytes | None, bytes | None], ...] = (
        (1, b"source", bytes(metadata)), (1, b"device", bytes(device)),
        (0, b"directio", None), (0, b"ro", None), (6, None, None),
    )  # fmt: skip
    for command, key, value in options:
        checked(libc.syscall(431, context, command, key, value, 0), f"fsconfig {key!r}")
    mount = checked(libc.syscall(432, context, 0, 1), "fsmount")
    checked(libc.syscall(429, mount, b"", -100, bytes(at), 4), "move_mount")
    os.close(mount)
    os.close(context)


@contextlib.contextmanager
def served(place: Path, config: LazyConfig) -> Iterator[Path]:
    """A FUSE session at a place of its own, served by a process as a node starts it."""
    at = place / "blobs"
    at.mkdir()
    fuse = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={fuse},rootmode=40000,user_id=0,group_id=0".encode()
    checked(libc.mount(b"bench", bytes(at), b"fuse", 7, options), "mount")
    try:
        heard, told = os.pipe()
        os.write(told, msgspec.json.encode(config))
        os.close(told)
        argv = [sys.executable, "-m", "skerry.images.lazy.main", str(fuse), str(heard)]
        subprocess.run(argv, pass_fds=(fuse, heard), check=True, stderr=subprocess.DEVNULL)
        os.close(heard)
        yield at
    finally:
        libc.umount2(bytes(at), FORCE)
        libc.umount2(bytes(at), DETACH)
        os.close(fuse)


def sequential(path: Path, *, cold: bool) -> float:
    """Returns MiB/s; `cold`: the file's own pages are dropped first."""
    with path.open("rb", buffering=0) as file:
        if cold:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        start, total = time.perf_counter(), 0
        while data := file.read(MIB):
            total += len(data)
        return total / MIB / (time.perf_counter() - start)


def at_random(path: Path, count: int) -> list[float]:
    """Returns microseconds of single reads."""
    draw, clocks = random.Random(1), []
    with path.open("rb", buffering=0) as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        for _ in range(count):
            at = draw.randrange(FILE_BYTES // 4096) * 4096
            start = time.perf_counter()
            os.pread(file.fileno(), 4096, at)
            clocks.append((time.perf_counter() - start) * 1e6)
    return clocks


def speed(objects: S3Objects, digest: str) -> float:
    """Returns MiB/s of eight threads that read a blob from the store."""
    key = keys.blob(digest)
    start = time.perf_counter()
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda at: objects.read(key, at, MIB), range(0, FILE_BYTES, MIB)))
    return FILE_BYTES / MIB / (time.perf_counter() - start)


def make_pair(place: Path) -> tuple[Path, Path]:
    """Returns metadata and data of a layer with the one file."""
    (place / "tree").mkdir()
    with (place / "tree" / "file").open("wb") as file:
        for _ in range(FILE_BYTES // MIB):
            file.write(os.urandom(MIB))
    data, metadata = place / "data", place / "metadata"
    data.touch()
    argv = [Tools().mkfs().path, "-b4096", "--chunksize=1048576", f"--blobdev={data}"]
    subprocess.run([*argv, str(metadata), str(place / "tree")], check=True, capture_output=True)
    shutil.rmtree(place / "tree")
    return metadata, data


def resident_mib(socket_path: str) -> float:
    """Returns what the process that answers there has in memory."""
    import socket
    import struct

    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.connect(socket_path)
        peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pages = Path(f"/proc/{struct.unpack('3i', peer)[0]}/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE") / MIB


def compare(
    result: Result, raw: RawLog, name: str, rounds: int, parties: dict[str, Callable[[], float]]
) -> None:
    """Measures the parties in turn; the best round of each counts: others use the machine too."""
    seen: dict[str, list[float]] = {party: [] for party in parties}
    for number in range(rounds):
        for party, take in parties.items():
            seen[party].append(take())
            raw.write(f"{party} {name}", number, [{"mib_s": seen[party][-1]}])
    result.add(name, max(seen["skerry"]), "MiB/s", rounds, "higher")
    result.add_floor(name, max(seen["floor"]), "as the docstring says; best round, same run")


def measure_all(result: Result, quick: bool) -> None:
    """Blocks until all is measured."""
    if reason := missing():
        raise BenchmarkFailedError(reason)
    rounds, count = (2, 1000) if quick else (5, 4000)
    with (
        tempfile.TemporaryDirectory(prefix="skerry-lazy-", dir="/var/tmp") as name,
        S3Server().running() as server,
        link(server.port, rate=RATE, latency_s=LATENCY_S) as far,
        RawLog("lazy_read") as raw,
    ):
        place = Path(name)
        for secret, value in (("access", server.keys.access), ("secret", server.keys.secret)):
            (place / secret).write_text(value)
        references = {f"{one}_key": f"file:{place}/{one}" for one in ("access", "secret")}
        options = S3Options(endpoint=far.endpoint, **references)
        objects = S3Objects(f"s3://{server.bucket}/bench", options)
        metadata, data = make_pair(place)
        chunks = build_list(str(data))
        digest = keys.hex_of(chunks.content_digest)
        objects.put_file(keys.blob(digest), str(data))
        (place / "layers").mkdir()
        (place / "layers" / f"{digest}.chunks").write_bytes(chunks.encode())
        config = LazyConfig(
            layers_dir=str(place / "layers"), cache_dir=str(place / "cache"),
            socket=str(place / "sock"), store=objects.where, s3=options,
        )  # fmt: skip
        with served(place, config) as blobs:
            lazy, plain = place / "lazy", place / "plain"
            try:
                mount_erofs(metadata, blobs / digest, lazy)
                mount_erofs(metadata, data, plain)
                cached = place / "cache" / digest
                files = (lazy / "file", plain / "file", cached)
                figures(result, raw, (rounds, count), files, lambda: speed(objects, digest))
                result.add("resident_mib", resident_mib(config.socket), "MiB", 1, "lower")
            finally:
                libc.umount2(bytes(blobs), FORCE)  # nobody waits for bytes from here on
                for at in (lazy, plain):
                    libc.umount2(bytes(at), DETACH)


def figures(
    result: Result,
    raw: RawLog,
    effort: tuple[int, int],
    files: tuple[Path, Path, Path],
    store: Callable[[], float],
) -> None:
    """Takes all figures; the first fills the cache."""
    (rounds, count), (lazy, plain, cached) = effort, files
    compare(result, raw, "cold_seq_mib_s", 1,
            {"floor": store, "skerry": lambda: sequential(lazy, cold=True)})  # fmt: skip
    sequential(cached, cold=False)
    compare(result, raw, "cached_seq_mib_s", rounds,
            {"skerry": lambda: sequential(lazy, cold=True),
             "floor": lambda: sequential(cached, cold=False)})  # fmt: skip
    sequential(plain, cold=False)
    compare(result, raw, "warm_seq_mib_s", rounds,
            {"skerry": lambda: sequential(lazy, cold=False),
             "floor": lambda: sequential(plain, cold=False)})  # fmt: skip
    result.add_percentiles("random_4k_us", "", percentiles(at_random(lazy, count)), "us")
    floor = percentiles(at_random(plain, count))
    result.add_floor("random_4k_us_p50", floor.p50, "EROFS on the plain file, direct; same run")


async def measure(result: Result, quick: bool) -> None:
    """Runs it outside the loop, which has nothing to do here."""
    await asyncio.to_thread(measure_all, result, quick)


if __name__ == "__main__":
    sys.exit(run("lazy_read", __doc__ or "", measure))
