"""What the blobs process counts; each counter is changed under one lock only."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(slots=True)
class Stats:
    """Since the start of this process."""

    reads: int = 0  # READs answered, errors too
    hits: int = 0  # of those, at once from the cache
    misses: int = 0  # of those, after a fetch
    read_bytes: int = 0  # handed to the kernel
    fetches: int = 0  # ranges read from the store
    fetched_bytes: int = 0  # as stored
    fetched_chunks: int = 0
    merged: int = 0  # reads that waited for a fetch which was under way
    ahead_chunks: int = 0  # of the chunks, fetched since a reader seemed to go there
    prefetched_chunks: int = 0  # of the chunks, fetched since an earlier run touched them
    retries: int = 0
    store_failures: int = 0
    verify_failures: int = 0  # chunks that came wrong from the store
    faults: int = 0  # reads answered with EIO
    expired: int = 0  # of those, since nothing came in time
    stale_chunks: int = 0  # chunks of an earlier process that were no good
    uncached_chunks: int = 0  # served without being kept: full disk, or no room
    evicted_chunks: int = 0
    evicted_bytes: int = 0
    wait_s: float = 0.0  # of all reads that missed, together

    def as_dict(self) -> dict[str, float]:
        """Returns all of them by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}
