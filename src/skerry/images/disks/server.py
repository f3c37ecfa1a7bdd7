"""The file system of open disks: one file each, to be read, written, trimmed and flushed.

    /ID    the disk, as large as it is; a loop device or a virtual machine uses it as it stands

A write is answered once its bytes and its marks are in the overlay (`overlay.py`), a flush once they
are on the disk. What is read from data blobs comes through the chunk cache; who needs a chunk that is
not there is parked, and no thread waits with him.
"""

from __future__ import annotations

import errno
import itertools
import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final

from skerry.images.disks import protocol as writing
from skerry.images.disks.blobs import Blobs, Held, Missing
from skerry.images.disks.overlay import BLOCK_BYTES
from skerry.images.disks.volume import Piece, View, Volume
from skerry.images.lazy import protocol
from skerry.images.lazy.loop import FuseLoop
from skerry.images.lazy.pipes import FileFailed
from skerry.images.lazy.protocol import Op, Request
from skerry.images.lazy.server import ServerConfig
from skerry.images.lazy.waiting import Waiter

log = logging.getLogger("skerry.disks")

_TRIES_MAX: Final = 16
_SLOW_THREADS: Final = 4


@dataclass(slots=True, eq=False)
class Parked:
    """A request that needs chunks; `again` answers it, or returns what is still missing."""

    unique: int
    again: Callable[[Held], Missing]
    held: Held = field(default_factory=dict)
    outstanding: int = 0
    error: int = 0
    tries: int = 0
    deadline: float = 0.0
    waiters: list[Waiter] = field(default_factory=list)


class DiskServer(FuseLoop):
    """Serves the disks of a session until it ends, or `close`."""

    def __init__(self, fuse: int, config: ServerConfig, blobs: Blobs) -> None:
        super().__init__(fuse, config.check().threads, log, writing.REQUEST_BYTES_MAX)
        self._config, self._blobs = config, blobs
        self._volumes: dict[int, Volume] = {}
        self._parked: dict[int, Parked] = {}  # by the waiter's own number
        self._numbers = itertools.count(1)
        self._parking = threading.Lock()
        self._slow = ThreadPoolExecutor(_SLOW_THREADS, "slow")
        self._table: dict[int, Callable[[Request], None]] = {
            Op.INIT: self._init,
            Op.LOOKUP: self._lookup,
            Op.GETATTR: self._getattr,
            writing.Op.SETATTR: self._setattr,
            Op.OPEN: self._open,
            Op.RELEASE: self._release,
            Op.READ: self._read,
            writing.Op.WRITE: self._write,
            writing.Op.FALLOCATE: self._fallocate,
            writing.Op.FSYNC: self._fsync,
            writing.Op.OPENDIR: lambda request: self._answer(
                request.unique, protocol.open_out(keep=False)
            ),
            writing.Op.READDIR: self._readdir,
            writing.Op.RELEASEDIR: lambda request: self._answer(request.unique),
            Op.STATFS: lambda request: self._answer(request.unique, protocol.statfs_out()),
            Op.FLUSH: lambda request: self._answer(request.unique),
            Op.DESTROY: lambda request: self._answer(request.unique),
            Op.INTERRUPT: self._interrupt,
            Op.FORGET: self._forget,
            Op.BATCH_FORGET: self._forget,
        }

    def start(self) -> None:
        """Serves from now on; what an earlier process took and did not answer comes again."""
        self._blobs.start(self._finish)
        self._start_serving()

    def close(self) -> None:
        """Tells all who wait EIO, and ends the threads that can be ended."""
        self.ended.set()
        self._blobs.close()
        self._slow.shutdown(wait=False, cancel_futures=True)
        self._stop_serving()

    def add(self, volume: Volume) -> None:
        """Lets a disk be found; its blobs are open. Raises StorageFailed, LayerDamaged."""
        self._blobs.use(volume.view.map)
        self._volumes[volume.state.node] = volume

    def remove(self, volume: Volume) -> None:
        """Its name is not found any more."""
        self._volumes.pop(volume.state.node, None)

    def volumes(self) -> list[Volume]:
        """Returns the disks that can be found."""
        return list(self._volumes.values())

    def _handle(self, request: Request) -> None:
        self._table.get(request.op, self._unknown)(request)

    # --- names ---

    def _init(self, request: Request) -> None:
        answer = writing.init_out(request.body, self._config.request_timeout_s)
        if answer:
            self._answer(request.unique, answer)
        else:
            log.error("this kernel's FUSE is too old: Linux 5.4 or newer is needed")
            self._refuse(request.unique, errno.EPROTO)

    def _lookup(self, request: Request) -> None:
        name = bytes(request.body).rstrip(b"\0").decode("ascii", "replace")
        volumes = self.volumes() if request.node == protocol.ROOT else ()
        found = next((one for one in volumes if one.state.id == name), None)
        if found is None:
            self._refuse(request.unique, errno.ENOENT)
            return
        entry = protocol.entry_out(
            found.state.node, found.size, writing.FILE_MODE, known_s=writing.NAME_S
        )
        self._answer(request.unique, entry)

    def _volume(self, request: Request) -> Volume | None:
        found = self._volumes.get(request.node)
        if found is None:
            self._refuse(request.unique, errno.EIO)
        return found

    def _getattr(self, request: Request) -> None:
        size = 0
        if request.node != protocol.ROOT:
            volume = self._volume(request)
            if volume is None:
                return
            size = volume.size
        self._answer(request.unique, protocol.attr_out(request.node, size, writing.FILE_MODE))

    def _setattr(self, request: Request) -> None:
        if writing.changes_size(request.body):
            self._refuse(request.unique, errno.EPERM)
        else:
            self._getattr(request)

    def _open(self, request: Request) -> None:
        volume = self._volume(request)
        if volume is not None:
            volume.count_opens(1)
            self._answer(request.unique, protocol.open_out(keep=False))

    def _release(self, request: Request) -> None:
        volume = self._volumes.get(request.node)
        if volume is not None:
            volume.count_opens(-1)
        self._answer(request.unique)

    def _readdir(self, request: Request) -> None:
        offset, length = protocol.read_in(request.body)
        names = sorted((one.state.node, one.state.id) for one in self.volumes())
        self._answer(request.unique, writing.directory_out(names, offset, length))

    def _forget(self, request: Request) -> None:
        """Disks stay known as long as they are open: there is no answer to this."""

    def _unknown(self, request: Request) -> None:
        self._refuse(request.unique, errno.ENOSYS)

    # --- reading ---

    def _read(self, request: Request) -> None:
        volume = self._volume(request)
        if volume is None:
            return
        offset, length = protocol.read_in(request.body)
        length = min(length, volume.size - offset)
        if length <= 0:
            self._answer(request.unique)
            return
        unique = request.unique
        self._attempt(Parked(unique, lambda held: self._give(unique, volume, offset, length, held)))

    def _give(self, unique: int, volume: Volume, offset: int, length: int, held: Held) -> Missing:
        """Answers a read; or returns the chunks that are missing, by blob."""
        view = volume.view
        found = volume.pieces(offset, length)
        with self._blobs.taking(view.map, found, held) as taken:
            if taken.missing:
                return taken.missing
            one = found[0]
            handle, at = self._handle_of(view, one)
            if len(found) == 1 and handle is not None and not taken.held:
                try:
                    self._conveyor().send(protocol.head(unique, length), handle, at, length)
                except FileFailed as error:
                    return self._blobs.failed(view.map, one, error)
                except OSError as error:
                    self._unsent(error)
                return {}
            data = b"".join([self._blobs.content(view.map, piece, held) for piece in found])
        self._answer(unique, data)
        return {}

    def _handle_of(self, view: View, piece: Piece) -> tuple[int | None, int]:
        if piece.overlay is not None:
            return piece.overlay.handle, piece.offset
        if piece.blob >= 0:
            return self._blobs.handle(view.map, piece), piece.at
        return None, 0

    # --- writing ---

    def _write(self, request: Request) -> None:
        volume = self._volume(request)
        if volume is None:
            return
        offset, data = writing.write_in(request.body)
        if offset + len(data) > volume.size:
            self._refuse(request.unique, errno.ENOSPC)
            return
        answer = writing.written_out(len(data))
        if offset % BLOCK_BYTES == 0 and len(data) % BLOCK_BYTES == 0:
            try:
                with volume.gate.shared():
                    volume.view.overlays[0].write(offset, data)
            except OSError as error:
                self._refuse(request.unique, error.errno or errno.EIO)
                return
            self._answer(request.unique, answer)
            return
        unique, copy = request.unique, bytes(data)

        def again(held: Held) -> Missing:
            missing = self._patch(volume, offset, copy, held)
            if not missing:
                self._answer(unique, answer)
            return missing

        self._attempt(Parked(unique, again))

    def _patch(self, volume: Volume, offset: int, data: bytes, held: Held) -> Missing:
        """Writes what does not fill its first and last block; the rest of those is copied first.

        Alone: nobody may mark one of those blocks meanwhile.
        """
        start = offset // BLOCK_BYTES * BLOCK_BYTES
        end = -(-(offset + len(data)) // BLOCK_BYTES) * BLOCK_BYTES
        with volume.gate.alone():
            view = volume.view
            edges = {start, end - BLOCK_BYTES}
            found = [piece for at in sorted(edges) for piece in volume.pieces(at, BLOCK_BYTES)]
            with self._blobs.taking(view.map, found, held) as taken:
                if taken.missing:
                    return taken.missing
                blocks = bytearray(end - start)
                for piece in found:
                    at = piece.offset - start
                    blocks[at : at + piece.length] = self._blobs.content(view.map, piece, held)
            blocks[offset - start : offset - start + len(data)] = data
            view.overlays[0].write(start, memoryview(blocks))
        return {}

    def _fallocate(self, request: Request) -> None:
        volume = self._volume(request)
        if volume is None:
            return
        wish = writing.fallocate_in(request.body)
        if wish is None:
            self._refuse(request.unique, errno.EOPNOTSUPP)
            return
        offset, end = wish.offset, min(wish.offset + wish.length, volume.size)
        first = min(-(-offset // BLOCK_BYTES) * BLOCK_BYTES, end)
        last = max(end // BLOCK_BYTES * BLOCK_BYTES, first)
        edges = [(at, stop) for at, stop in ((offset, first), (last, end)) if at < stop]
        unique = request.unique

        def again(held: Held) -> Missing:
            while edges:
                at, stop = edges[0]
                missing = self._patch(volume, at, bytes(stop - at), held)
                if missing:
                    return missing
                edges.pop(0)
            self._zero(volume, first // BLOCK_BYTES, last // BLOCK_BYTES)
            self._answer(unique)
            return {}

        self._attempt(Parked(unique, again))

    def _zero(self, volume: Volume, first: int, end: int) -> None:
        if first >= end:
            return
        with volume.gate.shared():
            overlay = volume.view.overlays[0]
            for start, stop, ours in list(overlay.runs(first, end)):
                # What is zeros without us needs no mark: mkfs trims the whole of a new disk.
                if ours or not volume.zeros_below(start, stop):
                    overlay.zero(start * BLOCK_BYTES, (stop - start) * BLOCK_BYTES)

    def _fsync(self, request: Request) -> None:
        volume = self._volume(request)
        if volume is not None:
            self._slow.submit(self._flush, request.unique, volume)

    def _flush(self, unique: int, volume: Volume) -> None:
        try:
            volume.flush()
        except OSError as error:
            log.error("flushing %s: %s", volume.state.id, error)  # noqa: TRY400
            self._refuse(unique, error.errno or errno.EIO)
        except Exception:
            log.exception("flushing %s", volume.state.id)
            self._refuse(unique, errno.EIO)
        else:
            self._answer(unique)

    # --- waiting for chunks ---

    def _attempt(self, parked: Parked) -> None:
        """Answers, or waits for what is missing."""
        try:
            missing = parked.again(parked.held)
        except OSError as error:
            self._refuse(parked.unique, error.errno or errno.EIO)
            return
        if not missing:
            return
        parked.tries += 1
        if parked.tries > _TRIES_MAX:
            self._refuse(parked.unique, errno.EIO)
            return
        with self._parking:
            parked.waiters = []
            parked.outstanding = len(missing)
            for blob, chunks in missing.items():
                wanted = range(min(chunks), max(chunks) + 1)
                waiter = Waiter(next(self._numbers), blob, 0, 0, wanted)
                waiter.deadline = parked.deadline
                self._parked[waiter.unique] = parked
                parked.waiters.append(waiter)
        for waiter, chunks in zip(tuple(parked.waiters), missing.values(), strict=True):
            try:
                self._blobs.want(waiter, chunks)
            except OSError:
                self._finish(waiter, errno.EIO)

    def _finish(self, waiter: Waiter, error: int) -> None:
        """One of the things that a parked request waits for is there, or will not be."""
        with self._parking:
            parked = self._parked.pop(waiter.unique, None)
            if parked is None:
                return
            parked.outstanding -= 1
            parked.error = parked.error or error
            parked.deadline = waiter.deadline
            for chunk, content in waiter.held.items():
                parked.held[waiter.blob.name, chunk] = content
            if parked.outstanding:
                return
        if parked.error:
            self._refuse(parked.unique, parked.error)
        else:
            self._attempt(parked)

    def _interrupt(self, request: Request) -> None:
        unique = protocol.interrupt_in(request.body)
        with self._parking:
            numbers = [at for at, parked in self._parked.items() if parked.unique == unique]
        for number in numbers:
            self._blobs.interrupt(number)
