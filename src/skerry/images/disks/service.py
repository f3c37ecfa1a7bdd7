"""The process that serves the open disks of a node; `keeper.py` starts it, again if it dies.

    python -m skerry.images.disks.service FUSE LISTENER CONFIG [--root PATH]

The numbers are those of inherited descriptors: of /dev/fuse, of the listening control socket, and of
one from which a `ServiceConfig` is read as JSON. PATH only says in the process table whose it is. The
service has given up its rights: what needs them, packing into the store, it asks of the keeper by a
line on standard output, the path of a `PackJob`.
"""

from __future__ import annotations

import ctypes
import logging
import os
import shutil
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import Final

import msgspec

from skerry.errors import Conflict, NotFound, SkerryError
from skerry.images.disks import state
from skerry.images.disks.blobs import Blobs
from skerry.images.disks.config import ServiceConfig
from skerry.images.disks.control import Control, DiskView, Request, ServiceView
from skerry.images.disks.packer import Packer
from skerry.images.disks.server import DiskServer
from skerry.images.disks.volume import Volume, open_volume
from skerry.images.lazy.cache import ChunkCache
from skerry.images.lazy.fetch import Fetcher
from skerry.images.lazy.main import open_source
from skerry.images.lazy.privilege import give_up, name_process
from skerry.images.lazy.stats import Stats
from skerry.images.lazy.supply import Source
from skerry.images.store import keys
from skerry.spec.layers import disk_name

log = logging.getLogger("skerry.disks")

NAME: Final = "skerry-disks"
SERVING: Final = b"serving\n"
_SET_IO_FLUSHER: Final = 57
_LOCK_WAIT_S: Final = 5.0


class Service:
    """The disks of one directory."""

    def __init__(self, config: ServiceConfig, fuse: int, source: Source) -> None:
        """Takes up what is open; Conflict while another process has the chunk cache."""
        self.config = config
        self.stats = Stats()
        chunks = os.open(
            os.path.join(config.root, "chunks"), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
        )
        self.cache = ChunkCache(
            chunks,
            self.stats,
            max_bytes=config.cache_bytes,
            free_min_bytes=config.disk_free_min_bytes,
        )
        self.blobs = Blobs(
            config.root,
            self.cache,
            config.fetch,
            lambda finish: Fetcher(
                source, self.cache, config.fetch, self.stats, key_of=keys.blob, finish=finish
            ),
        )
        self.server = DiskServer(fuse, config.server, self.blobs)
        self._turn = threading.Lock()  # of who opens or closes
        self._packer = Packer(config.root, self.server, self.blobs)
        for name in sorted(os.listdir(os.path.join(config.root, "open"))):
            try:
                self.server.add(open_volume(config.root, name))
            except SkerryError as error:
                log.error("the disk %s cannot be served: %s", name, error)  # noqa: TRY400

    def start(self) -> None:
        """Serves, and packs what is not packed yet."""
        self.server.start()
        self._packer.start()

    def close(self) -> None:
        """Puts everything that was written on the disk, and ends."""
        for volume in self.server.volumes():
            try:
                volume.flush()
            except OSError as error:
                log.error("flushing %s: %s", volume.state.id, error)  # noqa: TRY400
        self.server.close()
        self.cache.leave()

    # --- what is asked by the control socket ---

    def answer(self, request: Request) -> ServiceView:
        """Does what is asked and returns how everything stands then; raises SkerryError."""
        actions: dict[str, Callable[[Request], None]] = {
            "status": lambda _request: None,
            "attach": self._attach,
            "snapshot": self._snapshot,
            "close": self._close,
            "stop": self._stop,
        }
        action = actions.get(request.do)
        if action is None:
            raise NotFound(f"the disk service cannot {request.do[:20]!r}")
        action(request)
        return self._view()

    def _view(self) -> ServiceView:
        disks = tuple(
            DiskView(
                id=one.state.id,
                path=os.path.join(self.config.mount, one.state.id),
                name=one.state.manifest.name,
                digest=one.state.manifest.digest,
                size=one.size,
                opens=one.opens,
                changed=one.changed(),
                local_bytes=one.local_bytes(),
                packing=tuple(frozen.name for frozen in one.state.frozen),
                failed=dict(one.failures),
            )
            for one in sorted(self.server.volumes(), key=lambda one: one.state.id)
        )
        return ServiceView(pid=os.getpid(), disks=disks, stats=self.stats.as_dict())

    def _find(self, name: str) -> Volume:
        for volume in self.server.volumes():
            if volume.state.id == name:
                return volume
        raise NotFound(f"no disk {name!r} is open here")

    def _attach(self, request: Request) -> None:
        with self._turn:
            name = state.check_id(request.id)
            if not any(one.state.id == name for one in self.server.volumes()):
                self.server.add(open_volume(self.config.root, name))

    def _snapshot(self, request: Request) -> None:
        volume = self._find(request.id)
        name = str(disk_name(request.name))
        if any(one.name == name for one in volume.state.frozen):
            raise Conflict(f"a snapshot {name} of {request.id} is just being packed")
        volume.failures.pop(name, None)
        volume.freeze(name)
        self._packer.wake()

    def _close(self, request: Request) -> None:
        with self._turn:
            volume = self._find(request.id)
            if volume.opens and not request.force:
                raise Conflict(f"{request.id} is in use: detach what uses it first")
            if volume.changed() and not request.discard:
                raise Conflict(f"{request.id} has changes that are in no snapshot yet")
            self.server.remove(volume)
            volume.closed = True
            shutil.rmtree(volume.directory, ignore_errors=True)
            self.blobs.keep(one.view.map for one in self.server.volumes())

    def _stop(self, request: Request) -> None:
        used = [one.state.id for one in self.server.volumes() if one.opens]
        if used and not request.force:
            raise Conflict(f"in use: {', '.join(used)}")
        self.server.ended.set()


def build_patiently(config: ServiceConfig, fuse: int, source: Source) -> Service:
    """Builds once an earlier process, which may still be dying, has let go of the cache."""
    until = time.monotonic() + _LOCK_WAIT_S
    while True:
        try:
            return Service(config, fuse, source)
        except Conflict:
            if time.monotonic() >= until:
                raise
        time.sleep(0.02)


def main() -> int:
    """Serves until the session ends or the service is told to stop; returns the exit status."""
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    name_process(NAME)
    fuse, listener, handed = (int(number) for number in sys.argv[1:4])
    with open(handed, "rb") as file:
        config = msgspec.json.decode(file.read(), type=ServiceConfig).check()
    # Pages of the very disks may have to be written for memory to be had: not by waiting for us.
    if ctypes.CDLL(None, use_errno=True).prctl(_SET_IO_FLUSHER, 1, 0, 0, 0) < 0:
        log.warning("PR_SET_IO_FLUSHER: %s", os.strerror(ctypes.get_errno()))
    give_up()
    service = build_patiently(
        config, fuse, open_source(config.store, config.s3, config.fetch.wait_s)
    )
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: service.server.ended.set())
    service.start()
    Control(socket.socket(fileno=listener), service.answer).start()
    os.write(1, SERVING)
    log.info("serving, process %d", os.getpid())
    service.server.ended.wait()
    service.close()
    log.info("the session has ended")
    return 0


if __name__ == "__main__":
    # Threads may be waiting for the kernel or the store: nothing would be gained by waiting for them.
    os._exit(main())
