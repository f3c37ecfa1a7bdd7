"""The blobs process: serves data blobs to the kernel, for all layers that a node mounts verified.

    python -m skerry.images.lazy.main FUSE CONFIG [--socket PATH --node NAME]

FUSE is the number of an inherited descriptor of /dev/fuse, CONFIG that of one from which a `LazyConfig`
is read as JSON; PATH and NAME only say in the process table whose it is. Once it serves, it goes on in
the background and the command ends with 0: it outlives the node, and ends with the session.
Memory: about 45 MiB, the chunk lists (36 bytes a chunk), and `fetch.threads` ranges under way.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import msgspec

from skerry.errors import Conflict, InvalidRequest, SkerryError
from skerry.images.lazy.cache import ChunkCache
from skerry.images.lazy.catalog import Catalog
from skerry.images.lazy.fetch import Fetcher
from skerry.images.lazy.options import LazyOptions
from skerry.images.lazy.privilege import BLOBS_UID, give_up, name_process
from skerry.images.lazy.profiles import ProfileFiles
from skerry.images.lazy.server import Server
from skerry.images.lazy.stats import Stats
from skerry.images.lazy.status import StatusSocket
from skerry.images.lazy.supply import Source
from skerry.images.objects.directory import DirectoryObjects
from skerry.images.objects.s3_options import S3Options, is_s3
from skerry.images.store import keys

LOG_BYTES_MAX: Final = 4 << 20
HOUSEKEEPING_S: Final = 1.0
LOCK_WAIT_S: Final = 5.0
VERSION: Final = 1
NAME: Final = "skerry-blobs"
log = logging.getLogger("skerry.blobs")


@dataclass(frozen=True, kw_only=True)
class LazyConfig(LazyOptions):
    """All that the process is told."""

    layers_dir: str  # chunk lists, and profiles of earlier runs
    cache_dir: str  # made if it is not there
    socket: str  # where it answers
    store: str  # a directory, or s3://bucket/prefix
    s3: S3Options = field(default_factory=S3Options)

    def check(self) -> LazyConfig:
        """Returns itself if it makes sense; raises InvalidRequest."""
        for name in ("layers_dir", "cache_dir", "socket"):
            if not os.path.isabs(getattr(self, name)):
                raise InvalidRequest(f"{name} must be an absolute path")
        if is_s3(self.store):
            self.s3.check()
        super().check()
        return self


class _BoundedLog(logging.StreamHandler):  # type: ignore[type-arg]
    """Writes to standard error; a file there is emptied when it has grown to LOG_BYTES_MAX."""

    def emit(self, record: logging.LogRecord) -> None:
        """Writes a line."""
        super().emit(record)
        with contextlib.suppress(OSError):
            if os.fstat(2).st_size > LOG_BYTES_MAX:
                os.ftruncate(2, 0)


@dataclass(frozen=True)
class Process:
    """What runs in the process."""

    server: Server
    cache: ChunkCache
    profiles: ProfileFiles
    stats: Stats
    directories: tuple[int, ...]

    def tell(self) -> dict[str, object]:
        """Returns how it stands."""
        counted = self.stats.as_dict() | self.server.gauges()
        return {"version": VERSION, "pid": os.getpid(), "stats": counted}

    def keep_house(self) -> None:
        """Writes down first runs, until the session ends."""
        while not self.server.ended.wait(HOUSEKEEPING_S):
            self.profiles.save(self.server.mounted())

    def close(self) -> None:
        """Ends what can be ended, and lets go of everything."""
        self.server.close()
        self.cache.leave()
        for directory in self.directories:
            os.close(directory)


def build(config: LazyConfig, fuse: int, source: Source) -> Process:
    """Returns the parts, put together; Conflict while another process has the cache."""
    stats = Stats()
    layers = os.open(config.layers_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    directory = os.open(config.cache_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    cache = ChunkCache(
        directory, stats, max_bytes=config.cache_bytes, free_min_bytes=config.disk_free_min_bytes
    )
    profiles = ProfileFiles(
        layers,
        directory,
        config.profile,
        range_bytes=config.fetch.range_bytes,
        ahead_bytes=config.fetch.ahead_bytes,
    )
    server = Server(
        fuse,
        Catalog(layers),
        cache,
        profiles,
        config=config.server,
        stats=stats,
        fetcher_of=lambda finish: Fetcher(
            source, cache, config.fetch, stats, key_of=keys.blob, finish=finish
        ),
    )
    return Process(server, cache, profiles, stats, (layers, directory))


def open_source(store: str, s3: S3Options, wait_s: float) -> Source:
    """Returns the store, to be read from; a read of ours waits for `wait_s` at most."""
    if is_s3(store):
        from skerry.images.objects.s3 import S3Objects  # large, and of no use otherwise

        # The fetcher repeats, as long as somebody waits; a request that hangs is not all of his time.
        hasty = min(s3.timeout_s, max(1.0, wait_s / 3))
        return S3Objects(store, dataclasses.replace(s3, patience_s=0.0, timeout_s=hasty))
    return DirectoryObjects(store, lag_s=0.0)


def take_cache(path: str, uid: int) -> None:
    """Makes the cache directory, and everything in it, that user's."""
    os.makedirs(path, mode=0o700, exist_ok=True)
    if os.geteuid() == 0:
        for name in (".", *os.listdir(path)):
            os.chown(os.path.join(path, name), uid, uid, follow_symlinks=False)


def build_patiently(config: LazyConfig, fuse: int, source: Source) -> Process:
    """Builds once an earlier process, which may still be dying, has let go of the cache."""
    until = time.monotonic() + LOCK_WAIT_S
    while True:
        try:
            return build(config, fuse, source)
        except Conflict:
            if time.monotonic() >= until:
                raise
        time.sleep(0.02)


def run(fuse: int, config: LazyConfig, serving: Callable[[], None]) -> None:
    """Serves until the session ends or the process is told to stop; `serving` is called once."""
    config.check()
    take_cache(config.cache_dir, BLOBS_UID)
    status = StatusSocket(config.socket, fuse)
    give_up()
    process = build_patiently(
        config, fuse, open_source(config.store, config.s3, config.fetch.wait_s)
    )
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: process.server.ended.set())
    process.server.start()
    status.start(process.tell, process.server.ended.set)
    log.info("serving, process %d", os.getpid())
    serving()
    process.keep_house()
    process.close()
    log.info("the session has ended")


def main() -> int:
    """Runs the process; returns its exit status."""
    logging.basicConfig(
        level=logging.INFO,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        handlers=[_BoundedLog()],
    )
    name_process(NAME)
    try:
        fuse, handed = int(sys.argv[1]), int(sys.argv[2])
        with open(handed, "rb") as file:
            config = msgspec.json.decode(file.read(), type=LazyConfig)
        told = _detach()
        run(fuse, config, lambda: _tell(told))
    except (SkerryError, OSError, ValueError, IndexError) as error:
        log.error("the blobs process cannot run: %s", error)  # noqa: TRY400 - it says where
        return 1
    finally:
        logging.shutdown()
    return 0


def _detach() -> int:
    """Goes on in a process of its own session; the first one ends when that one serves, or has ended."""
    heard, told = os.pipe2(os.O_CLOEXEC)
    if os.fork():
        os.close(told)
        os._exit(0 if os.read(heard, 1) else 1)
    os.close(heard)
    os.setsid()
    return told


def _tell(told: int) -> None:
    os.write(told, b"r")
    os.close(told)


if __name__ == "__main__":
    # Threads may be waiting for the kernel or the store: nothing would be gained by waiting for them.
    os._exit(main())
