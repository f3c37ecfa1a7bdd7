"""Where the kernel finds the blobs of layers: in the store, or at hand on this node, checked."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from skerry.errors import InvalidRequest, LayerDamaged, NotFound, SkerryError, Unavailable
from skerry.images.format.chunks import Codec
from skerry.images.scratch import storage_errors
from skerry.images.store.local import LocalLayers
from skerry.images.store.reads import at_once
from skerry.images.store.relist import relist
from skerry.images.store.store import LayerStore
from skerry.images.store.suspects import Suspects
from skerry.spec.layers import LayerFile, LayerManifest, MountMode, RootfsPlan
from skerry.spec.limits import MOUNTS_MAX

_COPIED_BYTES_MAX: Final = 4 << 20  # a larger layer of one blob is read in place
log = logging.getLogger("skerry.images")


class Mounting:
    """The part of the library that has layers mounted."""

    store: LayerStore
    suspects: Suspects
    _local: LocalLayers | None
    _verified: bool

    def plan(self, manifests: Sequence[LayerManifest]) -> RootfsPlan:
        """Returns where the blobs are; of equal blobs only the topmost stays.

        Raises InvalidRequest for more than MOUNTS_MAX layers with their parts, LayerDamaged for one
        that is known to be damaged, and where a blob is gone.
        """
        topmost: dict[str, LayerManifest] = {}
        for layer in reversed([layer for manifest in manifests for layer in manifest.layers()]):
            topmost.setdefault(layer.digest, layer)
        if len(topmost) > MOUNTS_MAX:
            raise InvalidRequest(
                f"{len(topmost)} layers with all their parts, at most {MOUNTS_MAX}: collapse some that "
                "go together (skerry image collapse)"
            )
        self.suspects.refuse(manifests)
        layers = tuple(reversed(topmost.values()))
        self._bring(layers)
        return RootfsPlan(tuple(map(self._layer_file, layers)))

    def _bring(self, layers: Sequence[LayerManifest]) -> None:
        """Puts here at once, not one after the other, what the mounts need of a store far away."""
        local = self._local
        if local is None or self.store.has_files:
            return
        needed: list[Callable[[], object]] = []
        for one in layers:
            if not local.has(one.digest):
                needed.append(partial(self._metadata, one))
            if one.data_digest is not None and not local.has_list(one.data_digest):
                needed.append(partial(self._chunk_list, local, one.data_digest))
                needed.append(partial(self._profile, local, one.data_digest))
        at_once(needed)

    def _layer_file(self, manifest: LayerManifest) -> LayerFile:
        identifier = manifest.digest.removeprefix("sha256:")[:32]
        path = self._metadata(manifest)
        if manifest.data_digest is not None and self._verified and self._local is not None:
            lazy = self._lazy_device(self._local, manifest.data_digest)
            return LayerFile(f"{identifier}-v", manifest.digest, path, lazy, MountMode.VERIFIED)
        device = self._device(manifest) if manifest.data_digest is not None else None
        return LayerFile(identifier, manifest.digest, path, device, MountMode.TRUSTED)

    def _lazy_device(self, local: LocalLayers, digest: str) -> str:
        """Puts here what its mount needs; returns where the launcher sees the data blob."""
        self._chunk_list(local, digest)
        self._profile(local, digest)
        return f"/blobs/{digest.removeprefix('sha256:')}"

    def _profile(self, local: LocalLayers, digest: str) -> None:
        local.profile(digest, lambda: self.store.profile(digest))

    def _chunk_list(self, local: LocalLayers, digest: str) -> None:
        local.chunk_list(
            digest,
            lambda: self.store.chunk_list(digest),
            lambda: relist(self.store, digest).encode(),
        )

    def check_lists(self) -> None:
        """Makes this node's damaged chunk lists again, before a process begins to serve by them."""
        local = self._local
        if local is None:
            return
        for digest in local.recheck():
            try:
                self._chunk_list(local, digest)
            except SkerryError as error:
                log.warning("the chunk list of %s: %s", digest, error)

    def add_profile(self, digest: str, data: bytes) -> None:
        """Keeps what a first run of a data blob touched, for all nodes and for this one."""
        self.store.put_profile(digest, data)
        if self._local is not None:
            self._local.put_profile(digest, data)

    def _device(self, manifest: LayerManifest) -> str:
        """Returns the data blob's path; LayerDamaged if it is gone or cut off."""
        digest = str(manifest.data_digest)
        if manifest.data_codec != Codec.NONE:
            text = (
                f"{manifest.name}: its data is stored as {manifest.data_codec}, for verified mounts"
            )
            raise Unavailable(text, digest=digest)
        try:
            path = self.store.path(digest)
        except NotFound as error:
            text = f"{manifest.name}: its data blob {digest} is gone from the store"
            raise LayerDamaged(text, digest=digest) from error
        with storage_errors(f"looking at {path}"):
            found = os.stat(path).st_size
        if found != manifest.data_bytes:
            # Told now: the kernel would tell a program that reads there, by killing it.
            text = f"{manifest.name}: its data blob has {found} of {manifest.data_bytes} bytes"
            raise LayerDamaged(text, digest=digest)
        return path

    def _metadata(self, manifest: LayerManifest) -> str:
        in_place = manifest.data_digest is None and manifest.size_bytes > _COPIED_BYTES_MAX
        # Layers of before data blobs stay where a launcher of before may mount them.
        in_place = in_place or manifest.version < 2
        if self._local is None or (in_place and self.store.has_files):
            return self.store.path(manifest.digest)
        digest, size = manifest.digest, manifest.size_bytes
        return self._local.metadata(manifest, lambda: self.store.pieces(digest, size))
