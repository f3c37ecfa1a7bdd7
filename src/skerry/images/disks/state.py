"""What a node keeps of the disks that are open on it.

    ROOT/lists/HEX.chunks     chunk lists of data blobs (`format/chunks.py`)
    ROOT/maps/HEX             maps of snapshots (`format/diskmap.py`)
    ROOT/chunks/              the chunk cache (`lazy/cache.py`)
    ROOT/open/ID/disk.json    DiskState: what the disk ID is made of
    ROOT/open/ID/N.*          its overlays (`overlay.py`)
    ROOT/open/ID/opens        how many have it open, as far as is known
    ROOT/jobs/ID.N            a PackJob under way; ID.N.done: its PackResult
    ROOT/mount/ID             the disk itself
    ROOT/control, log         the service's socket, and what it has to say

`disk.json` is replaced as a whole, and is on the disk before anything relies on it.
"""

from __future__ import annotations

import os
import re
from typing import Final, TypeVar

import msgspec

from skerry.errors import InvalidRequest, StorageFailed
from skerry.images.scratch import storage_errors
from skerry.spec.layers import LayerManifest

_ID: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")
_T = TypeVar("_T")


class Frozen(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot that was taken and is not in the store yet."""

    name: str  # disk/NAME:TAG that it shall have
    overlay: int  # it and those before it are in the snapshot
    safe: bool = False  # they are on the disk: it survives the host


class DiskState(msgspec.Struct, frozen=True, kw_only=True):
    """A disk that is open. The newest overlay, the last, is written to; the others are frozen."""

    id: str
    node: int  # its number in the file system; never another's
    manifest: LayerManifest  # of the snapshot below the overlays
    boot: str  # of the host, when it was written
    overlays: tuple[int, ...]
    frozen: tuple[Frozen, ...] = ()  # oldest first
    version: int = 1


class PackJob(msgspec.Struct, frozen=True, kw_only=True):
    """What shall be packed: overlays that do not change any more, over a snapshot."""

    disk: str
    overlays: tuple[int, ...]  # oldest first
    base: LayerManifest
    name: str  # that the snapshot shall have


class PackResult(msgspec.Struct, frozen=True, kw_only=True):
    """What came of it: the snapshot, or why there is none."""

    manifest: LayerManifest | None = None
    error: tuple[str, str] | None = None  # code and message


def check_id(text: str) -> str:
    """Returns the text if an open disk may be called so; raises InvalidRequest."""
    if _ID.fullmatch(text) is None or ".." in text:
        raise InvalidRequest(f"{text!r} is no name of an open disk: a-z, 0-9, and ._- between")
    return text


def boot_id() -> str:
    """Returns what differs each time that the host starts."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return file.read().strip()


def save(path: str, record: msgspec.Struct) -> None:
    """Replaces a record; it is on the disk afterwards. Raises StorageFailed."""
    beside = f"{path}.new"
    with storage_errors(f"writing {path}"):
        handle = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with open(handle, "wb") as file:
            file.write(msgspec.json.encode(record))
            file.flush()
            os.fsync(file.fileno())
        os.rename(beside, path)
        sync_directory(os.path.dirname(path))


def sync_directory(path: str) -> None:
    """Puts the names in a directory on the disk."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def load(path: str, kind: type[_T]) -> _T:
    """Returns a record; raises StorageFailed, FileNotFoundError if it is not there."""
    with open(path, "rb") as file:
        data = file.read()
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.DecodeError as error:
        raise StorageFailed(f"{path} is damaged: {error}") from error
