"""What the disk service of a node is told."""

from __future__ import annotations

import contextlib
import os
import secrets
from dataclasses import dataclass, field
from typing import Final

from skerry.errors import InvalidRequest
from skerry.images.disks.folding import BLOBS_MAX
from skerry.images.format import diskmap
from skerry.images.lazy.options import LazyOptions
from skerry.images.objects.s3_options import S3Options, is_s3
from skerry.images.scratch import storage_errors
from skerry.images.store.removal import DISK_PIN
from skerry.images.store.store import DirectoryStore, LayerStore

HOLDER_BYTES_MAX: Final = 40


@dataclass(frozen=True, kw_only=True)
class ServiceConfig(LazyOptions):
    """One service: a directory of open disks, and the store that their snapshots are in."""

    root: str  # `state.py` draws what lies there
    store: str  # a directory, or s3://bucket/prefix
    s3: S3Options = field(default_factory=S3Options)
    holder: str  # differs among all nodes of the store
    blobs_max: int = BLOBS_MAX  # data blobs that a snapshot names, before it takes some over

    def check(self) -> ServiceConfig:
        """Returns itself if it makes sense; raises InvalidRequest."""
        if not os.path.isabs(self.root) or not (is_s3(self.store) or os.path.isabs(self.store)):
            raise InvalidRequest("the directories of disks and of the store: absolute paths")
        if not 0 < len(self.holder) <= HOLDER_BYTES_MAX or not self.holder.isalnum():
            raise InvalidRequest(f"{self.holder!r} cannot name a node")
        if not 2 <= self.blobs_max <= diskmap.BLOBS_MAX:
            raise InvalidRequest(f"blobs_max: 2 to {diskmap.BLOBS_MAX}")
        if is_s3(self.store):
            self.s3.check()
        super().check()
        return self

    def pin_of(self, disk: str) -> str:
        """Returns why the store keeps what an open disk of this node needs."""
        return f"{DISK_PIN}{self.holder}-{disk}"

    @property
    def socket(self) -> str:
        """Where the service answers."""
        return os.path.join(self.root, "control")

    @property
    def mount(self) -> str:
        """Where the disks are."""
        return os.path.join(self.root, "mount")


def open_store(where: str, s3: S3Options) -> LayerStore:
    """Returns the layer store, to be read and written; raises StorageFailed."""
    if is_s3(where):
        from skerry.images.objects.s3 import S3Objects  # large, and of no use otherwise

        return LayerStore(S3Objects(where, s3))
    return DirectoryStore(where)


def holder_of(root: str) -> str:
    """Returns what a directory of disks is called among all nodes of a store, drawn at the first call.

    Raises StorageFailed.
    """
    path = os.path.join(root, "holder")
    with storage_errors(f"reading {path}"):
        os.makedirs(root, mode=0o700, exist_ok=True)
        with contextlib.suppress(FileExistsError), open(path, "x", encoding="ascii") as file:
            file.write(f"d{secrets.token_hex(6)}")
        with open(path, encoding="ascii") as file:
            return file.read().strip()
