"""What tests of lazily read blobs share: a store with knobs, and a served FUSE mount."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import mmap
import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from skerry.errors import NotFound, StorageFailed
from skerry.images.format.chunks import CHUNK_BYTES, ChunkList, Codec, build_list
from skerry.images.lazy.fetch import FetchConfig
from skerry.images.lazy.main import LazyConfig, Process, build
from skerry.images.lazy.profiles import ProfileConfig
from skerry.images.lazy.server import ServerConfig

_libc = ctypes.CDLL(None, use_errno=True)
MIB = 1 << 20
EIO = os.strerror(errno.EIO)
# What is not asked for is not fetched, so that it can be told what is.
FETCH = FetchConfig(
    range_bytes=CHUNK_BYTES, range_max_bytes=0, ahead_bytes=0, wait_s=5.0, threads=4
)
READ_ONLY, NOSUID, NODEV, FORCE, DETACH = 1, 2, 4, 1, 2


def content_of(size: int, seed: int = 1) -> bytes:
    """Returns bytes that no two chunks share."""
    return random.Random(seed).randbytes(size)


@dataclass
class Blob:
    """A data blob as it lies in a store."""

    content: bytes
    name: str
    chunks: ChunkList
    stored: bytes


def blob_of(content: bytes, codec: Codec, place: Path) -> Blob:
    """Returns the blob of some content."""
    plain, packed = place / "plain", place / "packed"
    plain.write_bytes(content)
    packed.unlink(missing_ok=True)
    chunks = build_list(str(plain), str(packed) if codec is Codec.ZSTD else None)
    stored = packed.read_bytes() if codec is Codec.ZSTD else content
    return Blob(content, chunks.content_digest.removeprefix("sha256:"), chunks, stored)


@dataclass
class Knobs:
    """A store in memory that can be slow, away, wrong, and counts what is asked of it."""

    blobs: dict[str, Blob] = field(default_factory=dict)
    delay_s: float = 0.0
    failing: bool = False
    gate: threading.Event = field(default_factory=threading.Event)
    wrong: dict[int, int] = field(default_factory=dict)  # offset of a byte: how often it is flipped
    cut: int | None = None  # the stored blob ends there
    asked: list[tuple[int, int]] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self.gate.set()

    def read(self, key: str, offset: int, length: int) -> bytes:
        """Returns a part of a blob."""
        with self.lock:
            self.asked.append((offset, length))
        self.gate.wait()
        time.sleep(self.delay_s)
        if self.failing:
            raise StorageFailed("the store is away")
        name = key.rpartition("/")[2].removesuffix(".zst")
        if name not in self.blobs:
            raise NotFound(key)
        data = bytearray(self.blobs[name].stored[: self.cut][offset : offset + length])
        with self.lock:
            for at, left in self.wrong.items():
                if left and offset <= at < offset + len(data):
                    data[at - offset] ^= 1
                    self.wrong[at] = left - 1
        return bytes(data)


@dataclass
class Streams(Knobs):
    """A store that gives ranges piece by piece, and stops after some bytes until it may go on."""

    pause_at: int | None = None  # bytes of a range
    breaks: int = 0  # so many ranges break off there instead
    go_on: threading.Event = field(default_factory=threading.Event)

    def stream(self, key: str, offset: int, length: int) -> Iterator[bytes]:
        """Gives a part of a blob."""
        data = self.read(key, offset, length)
        for at in range(0, len(data), 100_000):
            if self.pause_at is not None and at >= self.pause_at:
                if self.breaks:
                    self.breaks -= 1
                    raise StorageFailed("the connection broke off")
                self.go_on.wait()
            yield data[at : at + 100_000]


def mount_fuse(path: Path) -> int:
    """Mounts a file system without a server; returns the descriptor of its session."""
    handle = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    options = f"fd={handle},rootmode=40000,user_id=0,group_id=0".encode()
    flags = READ_ONLY | NOSUID | NODEV
    if _libc.mount(b"skerry", bytes(path), b"fuse.skerry", flags, options) < 0:
        number = ctypes.get_errno()
        os.close(handle)
        raise OSError(number, os.strerror(number))
    return handle


def unmount(path: Path) -> None:
    """Ends the session at once, whoever waits there, and takes the mount away."""
    _libc.umount2(bytes(path), FORCE)
    _libc.umount2(bytes(path), DETACH)


@dataclass
class Stand:
    """A mount that is served by this process."""

    place: Path
    at: Path
    source: Knobs
    process: Process
    fuse: int

    def open(self, blob: Blob) -> int:
        """Opens a blob so that every read reaches the server as it is."""
        return os.open(self.at / blob.name, os.O_RDONLY | os.O_DIRECT)

    def asked_chunks(self) -> int:
        """Returns how many chunks were asked of the store."""
        return sum(-(-length // CHUNK_BYTES) for _, length in self.source.asked)


def read(handle: int, offset: int, length: int) -> bytes:
    """Reads as O_DIRECT wants it: any offset, any length, into whole pages."""
    start, end = offset // 4096 * 4096, -(-(offset + length) // 4096) * 4096
    with mmap.mmap(-1, max(4096, end - start)) as pages:
        got = os.preadv(handle, [pages], start)
        return pages[:got][offset - start : offset - start + length]


def config_of(place: Path, **changes: object) -> LazyConfig:
    """Returns a configuration with everything below `place`."""
    known: dict[str, object] = {
        "layers_dir": str(place / "layers"),
        "cache_dir": str(place / "cache"),
        "socket": str(place / "blobs.sock"),
        "store": str(place / "store"),
        "cache_bytes": 256 << 20,
        "disk_free_min_bytes": 0,
        "fetch": FetchConfig(
            range_bytes=CHUNK_BYTES, range_max_bytes=0, ahead_bytes=0, wait_s=5.0, threads=4
        ),
        "server": ServerConfig(threads=2),
        "profile": ProfileConfig(record_s=0.0),
    }
    return LazyConfig(**(known | changes))  # type: ignore[arg-type]


def put_list(place: Path, blob: Blob) -> None:
    """Puts a chunk list where the server looks for it."""
    (place / "layers").mkdir(exist_ok=True)
    (place / "layers" / f"{blob.name}.chunks").write_bytes(blob.chunks.encode())


@contextlib.contextmanager
def served(place: Path, source: Knobs, **changes: object) -> Iterator[Stand]:
    """A served mount within the block."""
    for blob in source.blobs.values():
        put_list(place, blob)
    for name in ("layers", "cache", "mount"):
        (place / name).mkdir(exist_ok=True)
    fuse = mount_fuse(place / "mount")
    process = build(config_of(place, **changes), fuse, source)
    process.server.start()
    try:
        yield Stand(place, place / "mount", source, process, fuse)
    finally:
        source.gate.set()
        unmount(place / "mount")
        process.server.ended.wait(5)
        process.close()
        os.close(fuse)


def until(holds: Callable[[], bool], seconds: float = 10.0) -> None:
    """Returns once it holds; fails after that time."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "it did not come to hold"
        time.sleep(0.01)


def served_one(
    place: Path, blob: Blob, **changes: object
) -> contextlib.AbstractContextManager[Stand]:
    """Serves one blob from a store with default knobs."""
    return served(place, Knobs({blob.name: blob}), **changes)
