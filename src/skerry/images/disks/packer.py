"""Getting snapshots packed, one after the other, and putting what came of it below their disks."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from typing import Final

from skerry.errors import SkerryError
from skerry.images.disks import state
from skerry.images.disks.blobs import Blobs
from skerry.images.disks.local import read_map
from skerry.images.disks.server import DiskServer
from skerry.images.disks.state import Frozen, PackJob, PackResult
from skerry.images.disks.volume import View, Volume, pieces
from skerry.images.format.chunks import CHUNK_BYTES
from skerry.images.format.diskmap import DiskMap
from skerry.images.store import keys
from skerry.spec.layers import LayerManifest

log = logging.getLogger("skerry.disks")

_POLL_S: Final = 0.05
_PAUSE_S, _PAUSE_MAX_S = 1.0, 30.0
_FINAL: Final = {"layer_damaged", "invalid_request", "image_broken"}  # no later try would do better


class Packer:
    """A thread. A snapshot that the store cannot take now is tried again for as long as it takes."""

    def __init__(self, root: str, server: DiskServer, blobs: Blobs) -> None:
        self._root, self._server, self._blobs = root, server, blobs
        self._wake = threading.Event()
        self._wake.set()  # something may be left of an earlier process
        self._thread = threading.Thread(target=self._run, name="pack", daemon=True)

    def start(self) -> None:
        """Begins."""
        self._thread.start()

    def wake(self) -> None:
        """There is a new snapshot."""
        self._wake.set()

    def _run(self) -> None:
        pause = 0.0
        while not self._server.ended.is_set():
            self._wake.wait(pause or None)
            self._wake.clear()
            failed = False
            for volume in self._server.volumes():
                while volume.state.frozen and not volume.closed:
                    if not self._try(volume, volume.state.frozen[0]):
                        failed = True
                        break
            pause = min(max(_PAUSE_S, pause * 2), _PAUSE_MAX_S) if failed else 0.0

    def _try(self, volume: Volume, frozen: Frozen) -> bool:
        try:
            return self._pack(volume, frozen)
        except (SkerryError, OSError) as error:
            log.error("packing a snapshot of %s: %s", volume.state.id, error)  # noqa: TRY400
        except Exception:
            log.exception("packing a snapshot of %s", volume.state.id)
        return False

    def _pack(self, volume: Volume, frozen: Frozen) -> bool:
        """Packs the oldest snapshot of a disk; False: it has to be tried again."""
        volume.make_safe()
        job = PackJob(
            disk=volume.state.id,
            overlays=tuple(at for at in volume.state.overlays if at <= frozen.overlay),
            base=volume.state.manifest,
            name=frozen.name,
        )
        path = os.path.join(self._root, "jobs", f"{job.disk}.{frozen.overlay}")
        result = self._have_packed(path, job)
        if result is None:
            return False
        try:
            return volume.closed or self._take(volume, frozen, result)
        finally:
            for one in (f"{path}.done", path):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(one)

    def _take(self, volume: Volume, frozen: Frozen, result: PackResult) -> bool:
        """Puts a snapshot below its disk; False: it has to be packed again."""
        if result.manifest is None:
            code, message = result.error or ("unavailable", "it ended by itself")
            log.error("the snapshot %s of %s: %s", frozen.name, volume.state.id, message)
            if code in _FINAL:
                volume.give_up(frozen, message)
            return code in _FINAL
        base = read_map(self._root, result.manifest.digest)
        self._blobs.use(base)
        if result.manifest.digest != volume.state.manifest.digest:
            self._keep_warm(volume, frozen, result.manifest, base)
        volume.rebase(frozen, result.manifest, base)
        self._blobs.keep(one.view.map for one in self._server.volumes())
        log.info("packed the snapshot %s of %s", frozen.name, volume.state.id)
        return True

    def _have_packed(self, path: str, job: PackJob) -> PackResult | None:
        """Asks for it, and waits; None at the end of this process."""
        done = f"{path}.done"
        if not os.path.exists(done):
            state.save(path, job)
            os.write(1, f"{path}\n".encode())
        while not os.path.exists(done):
            if self._server.ended.wait(_POLL_S):
                return None
        return state.load(done, PackResult)

    def _keep_warm(
        self, volume: Volume, frozen: Frozen, manifest: LayerManifest, new: DiskMap
    ) -> None:
        """Puts the chunks of the snapshot's own blob into the cache, where they are here anyway."""
        old = volume.view
        below = View(old.map, tuple(one for one in old.overlays if one.number <= frozen.overlay))
        for chunk, place in new.places():
            digest = new.blobs[place.blob].digest
            if digest != manifest.data_digest or self._server.ended.is_set():
                continue
            found = pieces(below, chunk * CHUNK_BYTES, CHUNK_BYTES)
            with self._blobs.taking(old.map, found, {}, ahead=False) as taken:
                if taken.missing:
                    continue
                content = b"".join([self._blobs.content(old.map, piece, {}) for piece in found])
            self._blobs.fill(keys.hex_of(digest), place.chunk, content)
