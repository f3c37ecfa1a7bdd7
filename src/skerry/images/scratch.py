"""Room for work in progress: private directories that vanish, and a spool for file contents.

A scratch directory is locked (flock) by the process that made it for as long as it is used, so a
sweep can tell what a killed process left behind from what is in use, also on a shared disk.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator
from typing import NamedTuple, Protocol

from skerry.errors import StorageFailed
from skerry.images.sparse import CHUNK_BYTES, ZEROS, EndsEarly, read_around_holes

_PREFIX = "skerry-images-"
_YOUNG_S = 60.0  # a directory this young may not be locked yet


@contextlib.contextmanager
def storage_errors(what: str) -> Iterator[None]:
    """Turns every OSError of the block into StorageFailed, which names `what` was being done."""
    try:
        yield
    except OSError as error:
        raise StorageFailed(f"{what}: {error.strerror}", errno=error.errno) from error


class Content(NamedTuple):
    """Where one file's bytes lie in a spool, and their sha256; empty where they were not read."""

    offset: int
    size: int
    sha256: bytes


class Contents(Protocol):
    """Where the contents of a tree's files are."""

    def read(self, content: Content, /) -> Iterator[bytes]:
        """Gives the bytes of one file."""


class Spool:
    """One unnamed file that holds the contents of many; it is gone with the process.

    Zeros take no room on the disk. Raises StorageFailed when that is full.
    """

    def __init__(self, directory: str) -> None:
        with storage_errors(f"making a spool file in {directory}"):
            self._file = tempfile.TemporaryFile(dir=directory, buffering=0)  # noqa: SIM115
        self._end = 0

    def add(self, chunks: Iterable[bytes]) -> Content:
        """Stores the bytes of one file and returns where they are."""
        digest = hashlib.sha256()
        start = self._end
        fd = self._file.fileno()
        hole = False
        for chunk in chunks:
            digest.update(chunk)
            hole = _is_zero(chunk)
            if hole:
                self._end += len(chunk)
                continue
            rest = memoryview(chunk)
            with storage_errors("writing to the scratch directory"):
                while rest:
                    written = os.pwrite(fd, rest, self._end)
                    self._end += written
                    rest = rest[written:]
        if hole:
            with storage_errors("writing to the scratch directory"):
                os.ftruncate(fd, self._end)
        return Content(start, self._end - start, digest.digest())

    def read(self, content: Content) -> Iterator[bytes]:
        """Gives the bytes of one file back, its holes as `skerry.images.sparse` says."""
        found = read_around_holes(self._file.fileno(), content.offset, content.size)
        while True:
            try:
                with storage_errors("reading from the scratch directory"):
                    chunk = next(found, b"")
            except EndsEarly:
                text = "the spool file in the scratch directory was cut off"
                raise StorageFailed(text) from None
            if not chunk:
                return
            yield chunk

    def close(self) -> None:
        """Frees the space."""
        self._file.close()


def _is_zero(chunk: bytes) -> bool:
    """Says whether a piece of some size is all zeros; most others are seen by their first byte."""
    if len(chunk) < 4096 or chunk[0]:
        return False
    return chunk == (ZEROS if len(chunk) == CHUNK_BYTES else bytes(len(chunk)))


@contextlib.contextmanager
def scratch_directory(parent: str) -> Iterator[str]:
    """Gives a private directory below `parent`, and removes it with all that is in it."""
    with storage_errors(f"making a scratch directory in {parent}"):
        os.makedirs(parent, mode=0o700, exist_ok=True)
        path = tempfile.mkdtemp(prefix=_PREFIX, dir=parent)
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        fcntl.flock(fd, fcntl.LOCK_EX)
    try:
        yield path
    finally:
        try:
            remove_tree(path)
        finally:
            os.close(fd)


def remove_tree(path: str) -> None:
    """Removes a tree however deep it is; nothing happens if it is not there."""
    with contextlib.suppress(OSError):
        os.rmdir(path)  # mostly it is empty
        return
    # rm(1) needs neither recursion nor descriptors in proportion to the depth.
    done = subprocess.run(["rm", "-rf", "--", path], stderr=subprocess.PIPE, check=False)
    if done.returncode != 0:
        raise StorageFailed(f"cannot remove {path}: {os.fsdecode(done.stderr).strip()}")


def sweep(parent: str) -> list[str]:
    """Removes the scratch directories whose process is gone; returns their names."""
    swept = []
    with contextlib.suppress(FileNotFoundError):
        for name in sorted(os.listdir(parent)):
            path = os.path.join(parent, name)
            if name.startswith(_PREFIX) and _is_abandoned(path):
                remove_tree(path)
                swept.append(name)
    return swept


def _is_abandoned(path: str) -> bool:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        if abs(time.time() - os.fstat(fd).st_mtime) < _YOUNG_S:
            return False
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(fd)
    return True
