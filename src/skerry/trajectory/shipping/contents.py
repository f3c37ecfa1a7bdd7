"""Contents of requests and results: short ones stand in the record, long ones once, by digest.

    STATE/trajectory/blobs/SHA256        until every segment that mentions it has been shipped
    STATE/trajectory/blobs/.new-RANDOM   being written; removed at the next start
    STORE/trajectories/blobs/SHA256      from then on (skerry.trajectory.shipping.shipper)

A content in a record is one of

    b"..."                                               up to `inline_bytes`
    {"blob": SHA256, "bytes": N}                         kept by its digest
    {"dropped": true, "sha256": SHA256, "bytes": N}      above `bytes_max`: only its digest is kept

A blob is there, whole, before a record that mentions it is written.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import secrets
import threading
from collections import Counter
from typing import Any, Final, TypeAlias

from skerry.errors import StorageFailed
from skerry.trajectory.format.index import blobs_in

Content: TypeAlias = bytes | dict[str, Any]

_NAME: Final = re.compile(r"[0-9a-f]{64}")
_PART: Final = ".new-"


class Contents:
    """The contents of one node that are not in a store yet. `mention` and `take` are for one thread."""

    def __init__(self, directory: str, *, inline_bytes: int, bytes_max: int) -> None:
        """Raises StorageFailed if the directory cannot be used."""
        self.directory = directory
        self.inline_bytes, self.bytes_max = inline_bytes, bytes_max
        self.bytes = 0  # of blobs that are here
        self._segments: dict[str, int] = {}  # of each blob: the last segment that mentions it
        self._feeds: list[dict[str, None]] = []
        self._lock = threading.Lock()
        self._pinned: Counter[str] = Counter()  # ended, and their records are not written yet
        try:
            os.makedirs(directory, mode=0o700, exist_ok=True)
            for entry in os.scandir(directory):
                if entry.name.startswith(_PART):
                    os.unlink(entry.path)
                elif _NAME.fullmatch(entry.name):
                    self._segments[entry.name] = 0
                    self.bytes += entry.stat().st_size
        except OSError as error:
            raise _failed(error) from error

    def claim(self, number: int) -> None:
        """What earlier processes left may be mentioned in any segment up to this one."""
        for digest, last in self._segments.items():
            self._segments[digest] = max(last, number)

    def writer(self) -> Writer:
        """Returns what takes one content, piece by piece; `drop` it once its record is written."""
        return Writer(self)

    def mention(self, number: int, content: object) -> None:
        """A record in that segment names these contents, wherever in the value they stand."""
        for digest in blobs_in(content):
            if digest not in self._segments:
                try:
                    self.bytes += os.stat(self.path(digest)).st_size
                except OSError:
                    continue  # somebody's own words, and no content of ours
            self._segments[digest] = max(number, self._segments.get(digest, 0))
            for feed in self._feeds:
                feed[digest] = None

    def feed(self) -> dict[str, None]:
        """Returns a dict to which every blob is added as it is mentioned; its reader empties it."""
        self._feeds.append({})
        return self._feeds[-1]

    def upto(self, number: int) -> list[str]:
        """Returns the blobs that no later segment mentions."""
        with self._lock:
            pinned = set(self._pinned)
        return [
            digest
            for digest, last in self._segments.items()
            if last <= number and digest not in pinned
        ]

    def take(self, number: int) -> None:
        """All segments up to this one are elsewhere, or given up: what only they mention goes."""
        for digest in self.upto(number):
            path = os.path.join(self.directory, digest)
            with contextlib.suppress(OSError):
                self.bytes -= os.path.getsize(path)
                os.unlink(path)
            del self._segments[digest]
            for feed in self._feeds:
                feed.pop(digest, None)

    def path(self, digest: str) -> str:
        """Returns where a blob lies while it is here."""
        return os.path.join(self.directory, digest)

    def pin(self, digest: str) -> None:
        """It stays until `unpin`, whatever is shipped meanwhile; from any thread."""
        with self._lock:
            self._pinned[digest] += 1

    def unpin(self, digest: str) -> None:
        """Takes a `pin` back."""
        with self._lock:
            self._pinned[digest] -= 1
            if self._pinned[digest] <= 0:
                del self._pinned[digest]

    def sync(self, digests: list[str]) -> None:
        """These blobs survive the loss of the host. Blocks, in any thread; raises StorageFailed."""
        try:
            for digest in digests:
                with contextlib.suppress(FileNotFoundError):  # in the store by now
                    _sync(os.path.join(self.directory, digest))
            if digests:
                _sync(self.directory)
        except OSError as error:
            raise _failed(error) from error


class Writer:
    """One content on its way; blocks where it writes, in any one thread at a time."""

    def __init__(self, contents: Contents) -> None:
        self._contents = contents
        self._sha256 = hashlib.sha256()
        self._short = bytearray()
        self._part = self._pinned = ""
        self._fd = -1
        self.bytes = 0

    @property
    def digest(self) -> str:
        """SHA-256 of what has come so far."""
        return self._sha256.hexdigest()

    def add(self, data: bytes) -> None:
        """Takes the next piece; StorageFailed, after which only `drop` makes sense."""
        self._sha256.update(data)
        self.bytes += len(data)
        if self.bytes > self._contents.bytes_max:
            self.drop()
            self._short.clear()
            return
        if self._fd < 0:
            self._short += data
            if len(self._short) <= self._contents.inline_bytes:
                return
            data = bytes(self._short)
            self._short.clear()
        try:
            if self._fd < 0:
                self._part = os.path.join(
                    self._contents.directory, f"{_PART}{secrets.token_hex(8)}"
                )
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
                self._fd = os.open(self._part, flags, 0o600)
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(self._fd, rest) :]
        except OSError as error:
            self.drop()
            raise _failed(error) from error

    def end(self) -> Content:
        """Returns the content, kept; raises StorageFailed."""
        if self.bytes > self._contents.bytes_max:
            return {"dropped": True, "sha256": self.digest, "bytes": self.bytes}
        if self._fd < 0:
            return bytes(self._short)
        try:
            os.close(self._fd)
            self._fd = -1
            self._pinned = self.digest
            self._contents.pin(self._pinned)
            os.rename(self._part, self._contents.path(self._pinned))
        except OSError as error:
            raise _failed(error) from error
        self._part = ""
        return {"blob": self._pinned, "bytes": self.bytes}

    def drop(self) -> None:
        """Lets go of it: nothing stays of one that was not ended; idempotent."""
        if self._pinned:
            self._contents.unpin(self._pinned)
            self._pinned = ""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        if self._part:
            with contextlib.suppress(OSError):
                os.unlink(self._part)
            self._part = ""


def _sync(path: str) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _failed(error: OSError) -> StorageFailed:
    return StorageFailed(
        f"cannot keep a content of the record: {error.strerror}", errno=error.errno
    )
