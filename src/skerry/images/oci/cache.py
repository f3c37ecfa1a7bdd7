"""Blobs that came from registries, kept by digest: what several images share is fetched once.

ROOT/.lock               flock: shared while images are fetched, exclusive while old blobs go
ROOT/blobs/sha256/HEX    as skopeo wrote them; checked whenever they are read
ROOT/skerry-images-*/    work in progress, locked by its process
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager

from skerry.images.scratch import scratch_directory, storage_errors, sweep


class BlobCache:
    """A bounded cache in a local directory, for any number of processes."""

    def __init__(self, root: str, bytes_max: int) -> None:
        self._root = root
        self._bytes_max = bytes_max
        self.blobs = os.path.join(root, "blobs")

    def place(self) -> AbstractContextManager[str]:
        """Gives a scratch directory on the cache's disk."""
        return scratch_directory(self._root)

    @contextlib.contextmanager
    def used(self) -> Iterator[str]:
        """Gives a scratch directory; meanwhile no blob goes, afterwards what is too much does."""
        with storage_errors(f"using the cache {self._root}"):
            os.makedirs(os.path.join(self.blobs, "sha256"), mode=0o700, exist_ok=True)
            lock = os.open(
                os.path.join(self._root, ".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600
            )
        try:
            with storage_errors(f"using the cache {self._root}"):
                fcntl.flock(lock, fcntl.LOCK_SH)
            sweep(self._root)
            with self.place() as place:
                yield place
        finally:
            try:
                self._evict(lock)
            finally:
                os.close(lock)

    def touch(self, path: str) -> None:
        """Says that a blob was of use just now."""
        with contextlib.suppress(FileNotFoundError):
            os.utime(path)

    def drop(self, path: str) -> None:
        """Removes a blob that is not what its name says."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)

    def _evict(self, lock: int) -> None:
        """Removes what was not used for longest; left to the last who uses the cache."""
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        with storage_errors("tidying the cache"):
            with os.scandir(os.path.join(self.blobs, "sha256")) as entries:
                found = [
                    (entry.stat().st_mtime, entry.stat().st_size, entry.path) for entry in entries
                ]
            total = 0
            for _, size, path in sorted(found, reverse=True):
                total += size
                if total > self._bytes_max:
                    os.unlink(path)
