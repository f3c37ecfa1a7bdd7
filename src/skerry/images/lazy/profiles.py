"""What first runs touch: recorded once a blob, written down for the node, used at later mounts.

LAYERS/HEX.profile   of earlier runs, from the store; put there by the node before the mount
CACHE/HEX.profile    of the first run here; the node takes it to the store
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterable
from dataclasses import dataclass

from skerry.errors import InvalidRequest
from skerry.images.format.chunks import ChunkList
from skerry.images.format.profile import PROFILE, decode_profile, profile_bytes_max
from skerry.images.lazy.habits import Habits
from skerry.images.lazy.server import Mounted

log = logging.getLogger("skerry.blobs")


@dataclass(frozen=True, kw_only=True)
class ProfileConfig:
    """Whether first runs are recorded, and earlier ones used."""

    prefetch: bool = True
    record_s: float = 30.0  # from the first read of a blob on; 0: nothing is recorded

    def check(self) -> ProfileConfig:
        """Returns itself; InvalidRequest."""
        if not 0 <= self.record_s <= 3600:
            raise InvalidRequest("record_s: at most an hour")
        return self


class ProfileFiles:
    """Profiles in the two directories. Nothing here is trusted: at worst useless chunks are fetched."""

    def __init__(
        self,
        layers: int,
        cache: int,
        config: ProfileConfig,
        *,
        range_bytes: int,
        ahead_bytes: int,
    ) -> None:
        self._layers, self._cache, self._config = layers, cache, config.check()
        self._range_bytes, self._ahead_bytes = range_bytes, ahead_bytes

    def habits(self, name: str, chunks: ChunkList) -> Habits:
        """Returns habits that are recorded unless an earlier run's are known."""
        known = _is_there(name, self._layers) or _is_there(name, self._cache)
        return Habits(
            chunks.count,
            first=max(1, self._range_bytes // chunks.chunk_bytes),
            longest=self._ahead_bytes // chunks.chunk_bytes,
            record_s=0.0 if known else self._config.record_s,
        )

    def earlier(self, name: str, chunks: ChunkList) -> list[int]:
        """Returns what an earlier run touched; [] if that is not known or not wanted."""
        if not self._config.prefetch:
            return []
        for directory in (self._layers, self._cache):
            with contextlib.suppress(OSError):
                data = _read(name, directory)
                return decode_profile(data, chunks.count)
        return []

    def save(self, mounted: Iterable[Mounted]) -> None:
        """Writes down what is complete."""
        for blob in mounted:
            data = blob.habits.recorded()
            if data is None:
                continue
            fresh = f".new-{blob.name}{PROFILE}"
            try:
                handle = os.open(
                    fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600, dir_fd=self._cache
                )
                with open(handle, "wb") as file:
                    file.write(data)
                os.rename(
                    fresh, blob.name + PROFILE, src_dir_fd=self._cache, dst_dir_fd=self._cache
                )
            except OSError as error:
                log.warning("the profile of %s is lost: %s", blob.name, error)


def _is_there(name: str, directory: int) -> bool:
    try:
        os.stat(name + PROFILE, dir_fd=directory)
    except OSError:
        return False
    return True


def _read(name: str, directory: int) -> bytes:
    handle = os.open(name + PROFILE, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=directory)
    with open(handle, "rb") as file:
        return file.read(profile_bytes_max() + 1)
