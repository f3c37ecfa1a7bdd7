"""Whether a store keeps what the seam promises, tried with one small object: for `skerry doctor`."""

from __future__ import annotations

import contextlib
import secrets
import statistics
import time
from typing import NamedTuple

from skerry.errors import StorageFailed
from skerry.images.objects.api import Objects

_ROUNDS = 5
_ODDLY_OFF_S = 60.0


class Found(NamedTuple):
    """What a usable store is like."""

    read_ms: float  # median of a small read
    write_ms: float  # median of a small write
    clock_off_s: float  # the store's clock less ours

    @property
    def clock_is_off(self) -> bool:
        """Whether the clocks differ so much that a store may refuse requests."""
        return abs(self.clock_off_s) > _ODDLY_OFF_S


def try_out(objects: Objects) -> Found:
    """Puts, gets, lists and deletes an object of a name of its own; nothing of it is left.

    Raises StorageFailed, which names the step that failed and what to do about it.
    """
    key = f"probe/{secrets.token_hex(16)}"
    try:
        return _try_out(objects, key)
    finally:
        # The step that failed has its error already.
        with contextlib.suppress(StorageFailed):
            objects.delete(key)


def _try_out(objects: Objects, key: str) -> Found:
    content = key.encode()
    began = time.time()
    if not objects.put_bytes(key, content, replace=False):
        raise _wrong(objects, "a name that nobody used was taken", "cache")
    if objects.put_bytes(key, b"another", replace=False):
        raise _wrong(objects, "a second write was not refused (If-None-Match)", "conditional")
    reads, writes = [], []
    for _ in range(_ROUNDS):
        start = time.perf_counter()
        got = objects.get(key, 1024)
        middle = time.perf_counter()
        if got != content:
            raise _wrong(objects, "what was written did not come back", "damaged")
        objects.put_bytes(key, content, replace=True)
        reads.append(middle - start)
        writes.append(time.perf_counter() - middle)
    listed = dict(objects.list("probe/"))
    if key not in listed:
        raise _wrong(objects, "what was written is not in a listing", "cache")
    ended = time.time()
    modified = listed[key].modified
    # Some stores count whole seconds.
    off = modified - ended if modified > ended else min(0.0, modified + 1.0 - began)
    objects.delete(key)
    if objects.get(key, 1024) is not None:
        raise _wrong(objects, "what was deleted is still there", "cache")
    return Found(statistics.median(reads) * 1000, statistics.median(writes) * 1000, off)


def _wrong(objects: Objects, what: str, reason: str) -> StorageFailed:
    return StorageFailed(
        f"{objects.where}: {what}: layers cannot be kept safely there; use a store that has strong "
        "consistency and conditional writes",
        reason=reason,
    )
