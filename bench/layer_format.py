"""How a layer should be stored: one EROFS blob or two, compressed or not, in which units.

Usage: python bench/layer_format.py [--quick] [--json] [--out FILE]

The layer is the Debian base, made anew in every form from one tree. Each sample begins with a fresh
mount (as the launcher makes it: from files, direct) and with none of the blobs' pages in memory.

- `FORM_mib`: all blobs as stored.
- `FORM_random_us`: one `pread` of 4 KiB at a random place of a random file above 1 MiB, 200 a round,
  without readahead; p50 of all. Floor: the same on the data blob itself, on the disk.
- `FORM_sequential_mib_s`: all files in the order of their paths, in reads of 1 MiB; median of the
  rounds. Floor: the data blob from start to end.
- `FORM_start_ms`: `chroot MOUNT python3 -c 'import json, http.client'`, from just before the fork until
  its end; median of the rounds.

The notes have the same of more forms, how large the metadata is that a node copies before it mounts,
how long the making took (from the tree to blobs with digests), and the CPU time of the sequential
reader, without that of decompression in kernel threads.

Forms: `plain`, `lz4`, `zstd` are one blob, the last two compressed by EROFS (zstd level 3, clusters of
64 KiB). `pairU` is a pair in units of U KiB, mounted. `pairz` is the pair with zstd chunks, which no
kernel mounts: a random read is fetching, unpacking and checking the chunk of 256 KiB around the 4
KiB, sequential reading is that of all chunks, and `pairz_start_ms` is that of the chunks that
`pair64_start_ms` touched, plus that start itself. `pairn` is the same without compression: what
checking costs.
"""

import ctypes
import os
import random
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from harness import BenchmarkFailedError, RawLog, interleave, percentiles
from report import Result, run
from skerry.images.archives.tarimport import ImportLimits, read_tar
from skerry.images.format import pair, placing
from skerry.images.format.chunks import ChunkList, Codec, build_list, pick_chunk
from skerry.images.format.erofs import Tools, build_image
from skerry.images.scratch import Spool
from skerry.images.sources import debian
from skerry.images.tree.entry import Tree
from skerry.images.tree.notes import Notes

MIB = 1 << 20
UNITS = (4, 16, 64, 1024)
READS = 200
TOLD = ("plain", "lz4", "zstd", "pair64", "pairz")  # the others stand in the notes
ROUNDS = {False: 5, True: 2}
START = ["/usr/bin/python3", "-c", "import json, http.client"]
FSOPEN, FSCONFIG, FSMOUNT, MOVE_MOUNT, CLONE_NEWNS, MS_REC_PRIVATE = (
    430,
    431,
    432,
    429,
    1 << 17,
    0x44000,
)
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass
class Form:
    """One way to store the layer; `chunks` where it is read through a chunk list."""

    name: str
    metadata: str
    data: str | None = None
    chunks: ChunkList | None = None
    build_s: float = 0.0
    mib_s: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)
    start_ms: list[float] = field(default_factory=list)
    random_us: list[float] = field(default_factory=list)

    @property
    def files(self) -> list[str]:
        """Its blobs."""
        return [path for path in (self.metadata, self.data) if path]


# ---- Making the forms --------------------------------------------------------------------------


def forms(tree: Tree, spool: Spool, top: Path) -> Iterator[Form]:
    """Gives every form of the layer, made below `top`."""
    tools = Tools()
    for name in ("plain", "lz4", "zstd"):
        path = str(top / name)
        compression = "none" if name == "plain" else name
        if compression != "none" and compression not in tools.mkfs().compressors:
            continue
        began = time.perf_counter()
        build_image(tree, spool, path, tools=tools, scratch=str(top), compression=compression)
        yield Form(name, path, build_s=time.perf_counter() - began)
    for unit in UNITS:
        place = top / f"pair{unit}"
        place.mkdir()
        placing.UNIT_BYTES = unit << 10  # type: ignore[misc]
        placing.UNIT_BITS = placing.UNIT_BYTES.bit_length() - 1  # type: ignore[misc]
        began = time.perf_counter()
        made = pair.build_layer(tree, spool, str(place), tools=tools)
        yield Form(place.name, made.path, made.data, build_s=time.perf_counter() - began)
        if unit == 64 and made.data and made.chunks:
            yield Form("pairn", made.path, made.data, made.chunks)
            began = time.perf_counter()
            packed = build_list(made.data, f"{made.data}.zst")
            took = time.perf_counter() - began
            yield Form("pairz", made.path, f"{made.data}.zst", packed, build_s=took)


# ---- Mounting and forgetting -------------------------------------------------------------------


def call(number: int, *words: int | bytes | None) -> int:
    """One system call; raises OSError."""
    given = [ctypes.c_long(word) if isinstance(word, int) else word for word in words]
    done = int(_libc.syscall(number, *given))
    if done < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), f"system call {number}")
    return done


@contextmanager
def mounted(form: Form, at: str, *, direct: bool = True) -> Iterator[None]:
    """The form mounted for a block, as the launcher does it; its blobs are not in memory before."""
    forget(form)
    fs = call(FSOPEN, b"erofs", 1)
    try:
        call(FSCONFIG, fs, 1, b"source", form.metadata.encode(), 0)
        if form.data:
            call(FSCONFIG, fs, 1, b"device", form.data.encode(), 0)
        for flag in (b"directio", b"ro") if direct else (b"ro",):
            call(FSCONFIG, fs, 0, flag, None, 0)
        call(FSCONFIG, fs, 6, None, None, 0)
        mount = call(FSMOUNT, fs, 1, 1 | 4)
    finally:
        os.close(fs)
    call(MOVE_MOUNT, mount, b"", -100, at.encode(), 4)
    os.close(mount)
    try:
        yield
    finally:
        subprocess.run(["umount", at], check=True)


def forget(form: Form) -> None:
    """Drops the blobs' own pages from the page cache."""
    for path in form.files:
        with open(path, "rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


# ---- Clocks ------------------------------------------------------------------------------------


@contextmanager
def clocks(mib_s: list[float], cpu_s: list[float], counted: Callable[[], int]) -> Iterator[None]:
    """Adds the rate at which `counted` bytes were read in the block, and its CPU time."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    began = time.perf_counter()
    yield
    mib_s.append(counted() / MIB / (time.perf_counter() - began))
    now = resource.getrusage(resource.RUSAGE_SELF)
    cpu_s.append(now.ru_utime + now.ru_stime - used.ru_utime - used.ru_stime)


def read_mounted(form: Form, at: str, rng: random.Random) -> None:
    """One round of a form that the kernel reads."""
    with mounted(form, at):
        listed = (os.path.join(top, name) for top, _, names in os.walk(at) for name in names)
        sizes = {path: os.stat(path).st_size for path in sorted(listed) if not os.path.islink(path)}
    total = 0
    with mounted(form, at), clocks(form.mib_s, form.cpu_s, lambda: total):
        for path in sizes:
            with suppress(OSError):
                total += read_whole(path)
    large = [path for path, size in sizes.items() if size > MIB]
    with mounted(form, at):
        for _ in range(READS):
            path = rng.choice(large)
            form.random_us.append(one_read(path, rng.randrange(sizes[path] >> 12) << 12))
    with mounted(form, at):
        began = time.perf_counter()
        done = subprocess.run(["/usr/sbin/chroot", at, *START], env={}, check=False)
        form.start_ms.append((time.perf_counter() - began) * 1e3)
        if done.returncode:
            raise BenchmarkFailedError(f"{form.name}: python3 ended with {done.returncode}")


def read_whole(path: str) -> int:
    """Reads a file in pieces of 1 MiB; returns its length."""
    total = 0
    with open(path, "rb", buffering=0) as file:
        while data := file.read(MIB):
            total += len(data)
    return total


def one_read(path: str, offset: int) -> float:
    """Microseconds of a read without readahead."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
        began = time.perf_counter()
        os.pread(fd, 4096, offset)
        return (time.perf_counter() - began) * 1e6
    finally:
        os.close(fd)


def read_chunks(form: Form, touched: list[int], rng: random.Random) -> None:
    """One round of a form that is read through its chunk list."""
    chunks, path = form.chunks, form.data
    assert chunks
    assert path
    with open(path, "rb", buffering=0) as file:
        forget(form)
        with clocks(form.mib_s, form.cpu_s, lambda: chunks.size):
            for chunk in range(chunks.count):
                pick_chunk(chunks, file, chunk)
        forget(form)
        for _ in range(READS):
            began = time.perf_counter()
            pick_chunk(chunks, file, rng.randrange(chunks.count))
            form.random_us.append((time.perf_counter() - began) * 1e6)
        forget(form)
        began = time.perf_counter()
        for chunk in touched:
            pick_chunk(chunks, file, chunk)
        form.start_ms.append((time.perf_counter() - began) * 1e3)


def touched_chunks(form: Form, at: str) -> list[int]:
    """The chunks of the data blob that a start reads, seen by the pages that it leaves in memory."""
    assert form.data
    size = os.stat(form.data).st_size
    with mounted(form, at, direct=False):
        subprocess.run(["/usr/sbin/chroot", at, *START], env={}, check=True)
        with open(form.data, "rb") as file:
            _libc.mmap.restype = ctypes.c_void_p
            long = ctypes.c_size_t(size)
            address = ctypes.c_void_p(_libc.mmap(None, long, 1, 1, file.fileno(), ctypes.c_long(0)))
            vector = (ctypes.c_ubyte * (-(-size // 4096)))()
            _libc.mincore(address, long, vector)
            _libc.munmap(address, long)
    return sorted({page * 4096 >> 18 for page, one in enumerate(vector) if one & 1})


# ---- The run -----------------------------------------------------------------------------------


async def measure(result: Result, quick: bool) -> None:
    """Make the forms, read them in turns, and tell."""
    tar = debian.root_tar("bookworm", (), Tools().cache_dir, lambda _line: None)
    if _libc.unshare(CLONE_NEWNS) or _libc.mount(None, b"/", None, MS_REC_PRIVATE, None):
        raise BenchmarkFailedError("needs root, for a mount namespace of its own")
    top = Path(tempfile.mkdtemp(prefix="skerry-bench-format-", dir="/var/tmp"))
    try:
        spool = Spool(str(top))
        with Path(tar).open("rb") as file:  # noqa: ASYNC230 - nothing else runs here
            tree = read_tar(file, spool, Notes(), ImportLimits())
        made = list(forms(tree, spool, top))
        spool.close()
        await _read(result, made, top, rounds=ROUNDS[quick])
    finally:
        shutil.rmtree(top)


async def _read(result: Result, made: list[Form], top: Path, *, rounds: int) -> None:
    at = str(top / "mount")
    os.mkdir(at)
    rng = random.Random(1)
    by_name = {form.name: form for form in made}
    touched = touched_chunks(by_name["pair64"], at)
    disk = Form("disk", by_name["pair64"].data or "")

    async def disk_turn(_: int) -> None:
        size = os.stat(disk.metadata).st_size
        forget(disk)
        with clocks(disk.mib_s, disk.cpu_s, lambda: size):
            read_whole(disk.metadata)
        forget(disk)
        offsets = [rng.randrange(size >> 12) << 12 for _ in range(READS)]
        disk.random_us += [one_read(disk.metadata, offset) for offset in offsets]

    def party(form: Form):
        async def turn(_: int) -> None:
            if form.chunks:
                read_chunks(form, touched, rng)
            else:
                read_mounted(form, at, rng)

        return turn

    await interleave(rounds, {"disk": disk_turn} | {form.name: party(form) for form in made})
    with RawLog("layer_format") as raw:
        for form in (*made, disk):
            raw.write(form.name, 0, [{"random_us": one} for one in form.random_us])
    _tell(result, made, disk, len(touched))


def _tell(result: Result, made: list[Form], disk: Form, touched: int) -> None:
    started = statistics.median(next(one for one in made if one.name == "pair64").start_ms)
    rate, reads = statistics.median(disk.mib_s), percentiles(disk.random_us)
    for form in made:
        sizes = [os.path.getsize(path) / MIB for path in form.files]
        figures = percentiles(form.random_us)
        start = statistics.median(form.start_ms) + (started if form.chunks else 0)
        sequential, rounds = statistics.median(form.mib_s), len(form.mib_s)
        cpu = statistics.median(form.cpu_s)
        result.notes.append(
            f"{form.name}: {sum(sizes):.1f} MiB, of that metadata {sizes[0]:.2f}; made in "
            f"{form.build_s:.1f} s; random {figures.p50:.0f} us, p99 {figures.p99:.0f}; "
            f"sequential {sequential:.0f} MiB/s with {cpu:.2f} s of CPU; start {start:.0f} ms"
        )
        if form.name not in TOLD:
            continue
        result.add(f"{form.name}_mib", sum(sizes), "MiB", 1, "lower")
        result.add(f"{form.name}_random_us", figures.p50, "us", figures.n, "lower")
        result.add_floor(f"{form.name}_random_us", reads.p50, "the data blob on the disk")
        result.add(f"{form.name}_sequential_mib_s", sequential, "MiB/s", rounds, "higher")
        result.add_floor(f"{form.name}_sequential_mib_s", rate, "the data blob on the disk")
        result.add(f"{form.name}_start_ms", start, "ms", rounds, "lower")
    result.notes.append(
        f"a start of python3 touches {touched} chunks of 256 KiB; {Codec.ZSTD} chunks by level 3"
    )


if __name__ == "__main__":
    sys.exit(run("layer_format", __doc__ or "", measure))
