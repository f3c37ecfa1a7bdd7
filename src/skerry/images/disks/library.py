"""Disks as their user sees them: made, opened on this node, snapshotted, closed.

What is called here is done by the caller's process, as root: names, pins and copies of maps. The
service (`service.py`) serves what is open; it is started when it is needed.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import msgspec

from skerry.errors import Conflict, InvalidRequest, NotFound, StorageFailed, Unavailable
from skerry.images.disks import state
from skerry.images.disks.config import ServiceConfig, open_store
from skerry.images.disks.control import DiskView, Request, ServiceView, ask
from skerry.images.disks.local import bring, fetch_map, tidy
from skerry.images.disks.snapshot import file_changes, make_and_publish
from skerry.images.disks.state import DiskState
from skerry.images.format.chunks import CHUNK_BYTES
from skerry.images.format.diskmap import DiskMap, check_size
from skerry.images.lazy.privilege import BLOBS_UID
from skerry.images.scratch import remove_tree, storage_errors, sweep
from skerry.spec.layers import LayerManifest, disk_name

_POLL_S = 0.1
_STARTING_S = 5.0
_FREEZE, _THAW = 0xC004_5877, 0xC004_5878  # FIFREEZE, FITHAW
_FLATTENED_BLOBS = 2


class Disks:
    """The disks of one store, and those that are open below `config.root`. Calls block; need root."""

    def __init__(self, config: ServiceConfig) -> None:
        self.config = config.check()
        self.store = open_store(config.store, config.s3)

    def close_store(self) -> None:
        """Ends the lease on the store; idempotent."""
        self.store.leases.drop()

    # --- in the store ---

    def find(self, name: str) -> LayerManifest:
        """Returns the manifest of a disk, whose name may be pinned by digest; raises NotFound."""
        wanted = disk_name(name)
        pin = wanted.digest
        found = self.store.manifest(wanted, pin) if pin else self.store.tagged(wanted)
        if found is None:
            raise NotFound(f"there is no disk {wanted}: skerry disk create makes one")
        return found

    def list(self) -> list[LayerManifest]:
        """Returns the disks that have names, sorted."""
        return [one for one in self.store.catalogue() if one.disk_bytes]

    def map_of(self, manifest: LayerManifest) -> DiskMap:
        """Returns the map of a disk; raises LayerDamaged, StorageFailed."""
        return fetch_map(self.store, manifest.digest)

    def create(self, name: str, size: int = 0, *, source: str | None = None) -> LayerManifest:
        """Makes a disk of zeros, or of a raw image, which may be shorter than `size`.

        The size is rounded up to whole chunks of 256 KiB. Raises InvalidRequest, Conflict if the
        name is taken, StorageFailed.
        """
        wanted = disk_name(name)
        if wanted.digest:
            raise InvalidRequest(f"{name!r}: the digest of a new disk is not chosen")
        if self.store.tagged(wanted) is not None:
            raise Conflict(f"{wanted} is there already")
        if source is not None:
            with storage_errors(f"looking at {source}"):
                size = max(size, os.stat(source).st_size)
        disk = DiskMap(check_size(-(-size // CHUNK_BYTES) * CHUNK_BYTES))
        changes = file_changes(source) if source is not None else ()
        return make_and_publish(
            self.store,
            wanted,
            (None, disk),
            changes,
            scratch=self._scratch(),
            creator="disk",
            blobs_max=self.config.blobs_max,
        )

    def flatten(self, name: str) -> LayerManifest:
        """Makes a disk's chunks lie in one or two data blobs; what is read of it stays the same.

        The name then stands for the new form, unless it was given to another snapshot meanwhile:
        Conflict. Snapshots do this by themselves above `blobs_max`.
        """
        manifest = self.find(name)
        wanted = disk_name(manifest.name)
        disk = self.map_of(manifest)
        if len(disk.blobs) <= 1:
            return manifest
        with self.store.adding(*manifest.blobs()):
            flat = disk_name(f"{wanted.name}:flat-{secrets.token_hex(4)}")
            made = make_and_publish(
                self.store,
                flat,
                (manifest, disk),
                (),
                scratch=self._scratch(),
                creator="flatten",
                blobs_max=_FLATTENED_BLOBS,
            )
            try:
                if self.store.tag(wanted) != manifest.digest:
                    raise Conflict(f"{wanted} stands for another snapshot now")
                made = msgspec.structs.replace(made, name=str(wanted))
                self.store.publish(made)
            finally:
                self.store.delete_tag(flat)
                self.store.delete_manifest(flat, made.digest)
        return made

    # --- on this node ---

    def start(self) -> ServiceView:
        """Returns how the service stands, which runs afterwards; raises Unavailable."""
        with contextlib.suppress(Unavailable):
            return self.status()
        heard, told = os.pipe()
        os.write(told, msgspec.json.encode(self.config))
        os.close(told)
        arguments = (str(heard), "--root", self.config.root)
        try:
            done = subprocess.run(
                [sys.executable, "-m", "skerry.images.disks.keeper", *arguments],
                pass_fds=(heard,),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                check=False,
                cwd="/",
            )
        finally:
            os.close(heard)
        if done.returncode != 0:
            with contextlib.suppress(Unavailable):
                return self._wait_for_other()
            why = done.stderr.decode(errors="replace").strip()[-400:]
            raise Unavailable(f"the disk service does not start: {why}; see {self.config.root}/log")
        return self.status()

    def _wait_for_other(self) -> ServiceView:
        """Returns how the service stands that somebody else is just starting; Unavailable."""
        until = time.monotonic() + _STARTING_S
        while True:
            try:
                return self.status()
            except Unavailable:
                if time.monotonic() > until:
                    raise
            time.sleep(_POLL_S)

    def status(self) -> ServiceView:
        """Returns how the service and its disks stand; Unavailable if it does not run."""
        return self._ask(Request(do="status"))

    def open(self, name: str, disk: str | None = None) -> DiskView:
        """Makes a disk appear as a file on this node, to be read and written; returns where.

        `disk` is what it is called here, by default the last part of its name. Nothing of its data
        is fetched. The store keeps what it needs until it is closed. Raises NotFound, Conflict if
        one of that name is open, LayerDamaged, StorageFailed.
        """
        manifest = self.find(name)
        called = state.check_id(disk or disk_name(name).name.rpartition("/")[2])
        self.start()
        directory = os.path.join(self.config.root, "open", called)
        if os.path.exists(directory):
            raise Conflict(f"a disk {called!r} is open here already")
        pin = self.config.pin_of(called)
        self.store.pin(manifest, pin)
        try:
            bring(self.store, self.config.root, manifest.digest)
            self._make(directory, called, manifest)
            self._ask(Request(do="attach", id=called))
            # Who packed for an earlier disk of that name may have taken the pin for that one's.
            self.store.pin(manifest, pin)
        except BaseException:
            remove_tree(directory)
            self.store.unpin(manifest.digest, pin)
            raise
        return self.view(called)

    def view(self, disk: str) -> DiskView:
        """Returns how an open disk stands; raises NotFound."""
        return _find(self.status(), disk)

    def snapshot(
        self, disk: str, name: str, *, frozen: str | None = None, wait_s: float | None = None
    ) -> LayerManifest | None:
        """Takes a snapshot, which is in the store under `name` a while later.

        Returns at once: everything answered before is in it, nothing answered later. With `frozen`,
        where the disk's file system is mounted, that is at rest meanwhile, with all its writes on
        the disk. With `wait_s` returns what it is in the store, or raises Unavailable; then it comes
        later. Raises Conflict, StorageFailed, LayerDamaged.
        """
        wanted = disk_name(name)
        if wanted.digest:
            raise InvalidRequest(f"{name!r}: the digest of a snapshot is not chosen")
        self.start()
        with _at_rest(frozen) if frozen else contextlib.nullcontext():
            self._ask(Request(do="snapshot", id=disk, name=str(wanted)))
        return None if wait_s is None else self.wait(disk, str(wanted), wait_s)

    def wait(self, disk: str, name: str, wait_s: float) -> LayerManifest:
        """Returns a snapshot once it is in the store; raises Unavailable, StorageFailed if it failed."""
        wanted = str(disk_name(name))

        def packed() -> bool:
            view = self.view(disk)
            if wanted in view.failed:
                raise StorageFailed(f"the snapshot {wanted} failed: {view.failed[wanted]}")
            return wanted not in view.packing

        until = time.monotonic() + wait_s
        while not packed():
            if time.monotonic() > until:
                raise Unavailable(f"the snapshot {wanted} is not packed after {wait_s:g} s")
            time.sleep(_POLL_S)
        return self.find(wanted)

    def close(self, disk: str, *, discard: bool = False, force: bool = False) -> None:
        """Takes a disk away from this node. Raises NotFound, and Conflict while it is in use.

        Conflict too if it has changes that are in no snapshot, unless they are to be discarded.
        """
        self.start()
        self._ask(Request(do="close", id=disk, discard=discard, force=force))
        pin = self.config.pin_of(disk)
        for one in list(self.store.pins()):
            if one.why == pin:
                self.store.unpin(one.digest, pin)
        tidy(self.config.root, {one.digest for one in self.status().disks})

    def stop(self, *, force: bool = False, wait_s: float = 30.0) -> None:
        """Ends the service; what is open is served again by the next one. Conflict while it is used."""
        with contextlib.suppress(Unavailable):
            self._ask(Request(do="stop", force=force))
        _until(lambda: not os.path.exists(self.config.socket), wait_s, "the disk service")

    # --- inner parts ---

    def _ask(self, request: Request) -> ServiceView:
        return ask(self.config.socket, request)

    def _scratch(self) -> str:
        path = os.path.join(self.config.root, "scratch")
        sweep(path)
        return path

    def _make(self, directory: str, called: str, manifest: LayerManifest) -> None:
        """Makes the directory of an open disk, whole or not at all."""
        beside = os.path.join(self.config.root, f"{called}.{secrets.token_hex(4)}.new")
        disk = DiskState(
            id=called,
            node=2 + secrets.randbits(60),
            manifest=manifest,
            boot=state.boot_id(),
            overlays=(0,),
        )
        with storage_errors(f"making {directory}"):
            os.mkdir(beside, 0o700)
            try:
                state.save(os.path.join(beside, "disk.json"), disk)
                for path in (beside, os.path.join(beside, "disk.json")):
                    os.chown(path, BLOBS_UID, BLOBS_UID)
                os.rename(beside, directory)
            finally:
                shutil.rmtree(beside, ignore_errors=True)
            state.sync_directory(os.path.dirname(directory))


def _find(view: ServiceView, disk: str) -> DiskView:
    for one in view.disks:
        if one.id == disk:
            return one
    raise NotFound(f"no disk {disk!r} is open here")


def _until(holds: Callable[[], bool], wait_s: float, what: str) -> None:
    until = time.monotonic() + wait_s
    while not holds():
        if time.monotonic() > until:
            raise Unavailable(f"{what} did not end within {wait_s:g} s")
        time.sleep(_POLL_S)


@contextlib.contextmanager
def _at_rest(mounted: str) -> Iterator[None]:
    """Within it the file system there takes no writes, and all its writes are on its device."""
    with storage_errors(f"freezing {mounted}"):
        handle = os.open(mounted, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with storage_errors(f"freezing {mounted}"):
            fcntl.ioctl(handle, _FREEZE, 0)
        try:
            yield
        finally:
            with storage_errors(f"thawing {mounted}"):
                fcntl.ioctl(handle, _THAW, 0)
    finally:
        os.close(handle)
