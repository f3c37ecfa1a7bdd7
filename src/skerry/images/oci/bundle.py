"""Where the files of an image come from: a layout's directory, or an archive that was streamed in.

An archive may hold its table of contents last (docker's does), so its files are spooled first.
"""

from __future__ import annotations

import contextlib
import errno
import os
import posixpath
import stat
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Protocol

from skerry.errors import ImageBroken
from skerry.images.archives.tarimport import ImportLimits, clean_path
from skerry.images.archives.tarread import Readable, TarReader
from skerry.images.scratch import Content, Spool, storage_errors
from skerry.images.sparse import CHUNK_BYTES
from skerry.images.tree.entry import show

_MEMBERS_MAX = 100_000
_LINKS_MAX = 8  # old archives of docker name a layer that occurs twice by a link to the first


class Bundle(Protocol):
    """Files by their names in a layout or archive."""

    def open(self, name: str) -> AbstractContextManager[Readable] | None:
        """Returns a file to read, None if there is none of that name."""


class DirectoryBundle:
    """A layout in a directory that may be hostile: no link is followed, only files are opened.

    With `blobs`, a directory of blobs shared between layouts, those are looked for there.
    """

    def __init__(self, path: str, blobs: str | None = None) -> None:
        self._path = path
        self._blobs = blobs

    def path(self, name: str) -> str:
        """Returns where a file would be."""
        if self._blobs is not None and name.startswith("blobs/"):
            return os.path.join(self._blobs, *name.split("/")[1:])
        return os.path.join(self._path, *name.split("/"))

    def open(self, name: str) -> AbstractContextManager[Readable] | None:
        """Opens a file; `name` must be one that a layout has, not one that an image chose."""
        path = self.path(name)
        with storage_errors(f"opening {name} of the image"):
            try:
                fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            except (FileNotFoundError, NotADirectoryError):
                return None
            except OSError as error:
                if error.errno != errno.ELOOP:
                    raise
                raise ImageBroken(f"{name} of the image is a link") from error
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise ImageBroken(f"{name} of the image is no file")
        return open(fd, "rb", buffering=0)


class ArchiveBundle:
    """The files of an archive, kept in a spool."""

    def __init__(self, source: Readable, spool: Spool, limits: ImportLimits) -> None:
        self._spool = spool
        self._files: dict[str, Content] = {}
        self._links: dict[str, str] = {}
        reader = TarReader(source)
        total = words = 0
        for seen, member in enumerate(reader.members(), start=1):
            total += member.size
            words += len(member.name) + len(member.link)
            too_many = seen > _MEMBERS_MAX or words > limits.words_bytes_max
            if too_many or total > limits.bytes_max:
                raise ImageBroken("the archive holds too much for an image", limit="bytes")
            path = clean_path(member.name)
            name = path.decode("utf-8", "surrogateescape")
            if member.kind == b"0":
                self._links.pop(name, None)
                self._files[name] = spool.add(reader.data())
            elif member.kind in b"12":
                target = os.fsdecode(member.link)
                base = "" if member.kind == b"1" else posixpath.dirname(name)
                self._files.pop(name, None)
                self._links[name] = posixpath.normpath(posixpath.join(base, target))
            elif member.kind != b"5":
                raise ImageBroken(f"member {show(path)}: an archive of an image holds only files")

    def names(self) -> list[str]:
        """Returns the names of the files."""
        return sorted(self._files)

    def open(self, name: str) -> AbstractContextManager[Readable] | None:
        """Opens a file; a link leads to a file of the archive or nowhere."""
        name = posixpath.normpath(name)
        for _ in range(_LINKS_MAX):
            content = self._files.get(name)
            if content is not None:
                return contextlib.nullcontext(Chunks(self._spool.read(content)))
            if name not in self._links:
                return None
            name = self._links[name]
        return None


class Chunks:
    """A stream over pieces of any length."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._held = memoryview(b"")

    def read(self, size: int = -1, /) -> bytes:
        """Returns at most `size` bytes, all that is left if it is negative."""
        if size < 0:
            return bytes(self._held) + b"".join(self._pieces)
        while not self._held:
            piece = next(self._pieces, None)
            if piece is None:
                return b""
            self._held = memoryview(piece)
        taken, self._held = self._held[:size], self._held[size:]
        return bytes(taken)


def read_all(bundle: Bundle, name: str, limit: int) -> bytes | None:
    """Returns a small file, None if it is not there; raises ImageBroken if it is larger."""
    opened = bundle.open(name)
    if opened is None:
        return None
    parts = []
    with opened as file, storage_errors(f"reading {name[:200]} of the image"):
        while chunk := file.read(min(CHUNK_BYTES, limit + 1)):
            parts.append(chunk)
            limit -= len(chunk)
            if limit < 0:
                raise ImageBroken(f"{name[:200]} of the image is too large", limit="json")
    return b"".join(parts)
