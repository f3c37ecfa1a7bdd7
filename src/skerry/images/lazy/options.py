"""What an operator may choose about lazily read blobs: the table `lazy` of a node's configuration."""

from __future__ import annotations

from dataclasses import dataclass, field

from skerry.errors import InvalidRequest
from skerry.images.lazy.cache import MAX_BYTES_MIN
from skerry.images.lazy.fetch import FetchConfig
from skerry.images.lazy.profiles import ProfileConfig
from skerry.images.lazy.server import ServerConfig


@dataclass(frozen=True, kw_only=True)
class LazyOptions:
    """Sizes, bounds, and what is fetched ahead."""

    cache_bytes: int = 20 << 30
    disk_free_min_bytes: int = 1 << 30  # with less left on the disk nothing is added to the cache
    fetch: FetchConfig = field(default_factory=FetchConfig)
    server: ServerConfig = field(default_factory=ServerConfig)
    profile: ProfileConfig = field(default_factory=ProfileConfig)

    def check(self) -> LazyOptions:
        """Returns itself if it makes sense; raises InvalidRequest."""
        if self.cache_bytes < MAX_BYTES_MIN:
            raise InvalidRequest(f"lazy.cache_bytes: at least {MAX_BYTES_MIN >> 20} MiB")
        self.fetch.check()
        self.server.check()
        self.profile.check()
        timeout = self.server.request_timeout_s
        if timeout and timeout < 2 * self.fetch.wait_s:
            raise InvalidRequest(
                "lazy.server.request_timeout_s: at least twice lazy.fetch.wait_s, or reads that only "
                "wait would end the session of all"
            )
        return self
