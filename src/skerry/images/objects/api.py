"""The seam below the layer store: whole objects by key, on a directory or an object store.

Keys are relative paths, "tags/base/debian!!12": parts of A-Z a-z 0-9 . _ ! = - that do not begin
with a dot, with "/" between them. `check_key` refuses all others, so no key leaves the store.

What every implementation guarantees, and what the layer store builds upon:

- An object appears whole or not at all, for every reader on every host, also after a crash or a
  power cut: once `put_*` has returned, it is durable.
- `put_bytes(replace=True)` swaps old for new at once; of several writers one wins as a whole.
- `put_*` without replace never changes an object that is there. Of several at once exactly one
  returns True.
- What another client did may stay unseen for `lag_s` seconds (a deleted object may still be seen,
  a new one not yet, of a replaced one the old content). What this client did is seen at once.
- An object that is deleted while it is read may fail the read: nobody but the collector deletes
  blobs, and it asks first who needs them (`skerry.images.store.collect`).
- There are no locks, and nothing may need them.

All calls block, and may be made from several threads. They raise StorageFailed (with `errno` where
the system gave one) if the store fails, is full or cannot be reached; then the call may be made again.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple, Protocol, runtime_checkable

from skerry.errors import Bug

_PART = re.compile(r"[A-Za-z0-9_!=-][A-Za-z0-9._!=-]*")
_KEY = re.compile(rf"{_PART.pattern}(?:/{_PART.pattern})*")
KEY_BYTES_MAX = 900  # object stores allow 1,024 with the prefix
PART_BYTES_MAX = 200  # a file name has 255, of which a temporary name needs some


class Stat(NamedTuple):
    """What is known of an object without reading it."""

    size: int
    modified: float  # when its bytes were written; seconds since 1970 by the store's own clock
    version: str  # differs whenever key or content differ; compare it, never parse it


class Objects(Protocol):
    """Whole objects by key; the module says what is guaranteed."""

    lag_s: float  # how long another client's change may stay unseen
    where: str  # the store as its operator wrote it, for messages

    def put_file(self, key: str, path: str) -> bool:
        """Stores a local file's bytes; returns False, and changes nothing, if the key was there.

        The store may keep the very file: the caller does not write to it any more, and removes its
        own name for it when it likes.
        """

    def put_bytes(self, key: str, data: bytes, *, replace: bool) -> bool:
        """Stores bytes; returns False, and changes nothing, if the key was there and not `replace`."""

    def get(self, key: str, max_bytes: int) -> bytes | None:
        """Returns a small object, or None if it is not there; ImageBroken if it is larger."""

    def read(self, key: str, offset: int, length: int) -> bytes:
        """Returns a part of an object; less only at its end; NotFound if it is not there."""

    def stat(self, key: str) -> Stat | None:
        """Returns what is known of an object, or None if it is not there."""

    def list(self, prefix: str) -> Iterator[tuple[str, Stat]]:
        """Gives the objects below a prefix ("" or ending in "/"), in no order.

        Those that come or go meanwhile may be given or not. Torn uploads are never given.
        """

    def delete(self, key: str) -> None:
        """Removes an object; nothing happens if it is not there."""

    def local_path(self, key: str) -> str | None:
        """Returns the path of a file that the kernel may mount; None if the store has no files."""

    def sweep(self, older_than_s: float) -> int:
        """Removes what broken-off uploads left, older than that; returns how many there were."""


@runtime_checkable
class Patient(Protocol):
    """A store that waits for a network, counts how often, and can be told not to."""

    @property
    def repeats(self) -> int:
        """How many requests were made again."""

    @property
    def failures(self) -> int:
        """How many calls failed all the same."""

    def hurry(self) -> None:
        """The process is to end: from now on no call is repeated."""


def check_key(key: str) -> str:
    """Returns the key if it is one; raises Bug: keys are made by Skerry, never by its callers."""
    if (
        _KEY.fullmatch(key) is None
        or len(key) > KEY_BYTES_MAX
        or any(len(part) > PART_BYTES_MAX for part in key.split("/"))
    ):
        raise Bug(f"{key[:80]!r} is no key of a store")
    return key


def is_part(name: str) -> bool:
    """Says whether a key may hold that between slashes; whatever else lies in a store is not ours."""
    return len(name) <= PART_BYTES_MAX and _PART.fullmatch(name) is not None


def check_prefix(prefix: str) -> str:
    """Returns the prefix if it is "" or a key and a slash; raises Bug."""
    if prefix:
        if not prefix.endswith("/"):
            raise Bug(f"{prefix[:80]!r} is no prefix of a store: it ends without a slash")
        check_key(prefix[:-1])
    return prefix
