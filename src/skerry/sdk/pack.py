"""A local tree as a tar, in constant memory: whatever a file system can hold goes in, or into a note.

The tree is walked by descriptors: paths of any length, no link followed, nothing read twice. A file
that changes while it is read keeps the size that its header told; that is noted.
"""

from __future__ import annotations

import contextlib
import os
import stat
import tarfile
from collections.abc import Callable, Iterator
from typing import NamedTuple

from skerry.sdk import holes

CHUNK = 1 << 20
LINKS_MAX = 1 << 16  # files of several names that are remembered; later ones go as copies
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
Keep = Callable[[str], tuple[bool, bool]]
_KINDS = {stat.S_IFIFO: "a FIFO", stat.S_IFSOCK: "a socket"}


def _all(_path: str) -> tuple[bool, bool]:
    return True, True


def pack(root: int, prefix: str, notes: list[str]) -> Iterator[bytes]:
    """Yields a tar of what is below the directory `root`, names beneath `prefix`; large pieces.

    Members belong to root: ids of this host mean nothing elsewhere. FIFOs, sockets and devices are
    left out with a note. Raises OSError for what cannot be read.
    """
    packer = Packer(notes)
    place = ""
    for part in prefix.strip("/").split("/") if prefix.strip("/") else ():
        place = f"{place}{part}/"
        packer.add(tarfile.TarInfo(place), tarfile.DIRTYPE, 0o755)
    yield from packer.below(root, place)
    yield packer.end()


def changed(before: os.stat_result, now: os.stat_result) -> bool:
    """Returns whether a file was written to in between."""
    return (now.st_mtime_ns, now.st_size) != (before.st_mtime_ns, before.st_size)


class Look(NamedTuple):
    """What members get instead of their own. Without times, equal trees give equal bytes."""

    uid: int = 0
    gid: int = 0
    mode: int | None = None
    times: bool = True


class Packer:
    """Headers and small contents gather in `buffer`; large contents pass as they are."""

    def __init__(self, notes: list[str], look: Look | None = None) -> None:
        self.buffer = bytearray()
        self._notes = notes
        self._look = look or Look()
        self._links: dict[tuple[int, int], str] = {}

    def end(self) -> bytes:
        """Returns what is left, and the end of the archive."""
        self.buffer += bytes(2 * tarfile.BLOCKSIZE)
        return self._flush()

    def add(self, info: tarfile.TarInfo, kind: bytes, mode: int, mtime_ns: int = 0) -> None:
        """Puts a header into the buffer."""
        look = self._look
        info.type = kind
        info.mode = mode if look.mode is None or kind == tarfile.SYMTYPE else look.mode
        info.uid, info.gid = look.uid, look.gid
        mtime_ns = mtime_ns if look.times else 0
        seconds, nanoseconds = divmod(mtime_ns, 1_000_000_000)
        if seconds >= 0 and not nanoseconds:
            info.mtime = seconds
        elif seconds >= 0:
            info.pax_headers = {**info.pax_headers, "mtime": f"{seconds}.{nanoseconds:09}"}
        else:  # before 1970 the fraction counts away from it
            text = f"-{-mtime_ns // 1_000_000_000}.{-mtime_ns % 1_000_000_000:09}"
            info.pax_headers = {**info.pax_headers, "mtime": text}
        self.buffer += info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")

    def below(self, root: int, prefix: str, keep: Keep = _all) -> Iterator[bytes]:
        """Yields members; one directory of each level is open at a time.

        `keep` is asked with each path below `root`: whether it goes in, and whether to look into it.
        """
        stack = [(os.dup(root), prefix, iter(sorted(os.listdir(root))))]
        try:
            while stack:
                fd, above, names = stack[-1]
                name = next(names, None)
                if name is None:
                    os.close(stack.pop()[0])
                    continue
                try:
                    status = os.stat(name, dir_fd=fd, follow_symlinks=False)
                    taken, entered = keep((above + name)[len(prefix) :])
                    if stat.S_ISDIR(status.st_mode):
                        if taken:
                            self._add(above + name + "/", tarfile.DIRTYPE, status)
                        if entered:
                            below = os.open(name, _DIRECTORY, dir_fd=fd)
                            inside = iter(sorted(os.listdir(below)))
                            stack.append((below, above + name + "/", inside))
                    elif taken:
                        yield from self.member(fd, name, above + name, status)
                except FileNotFoundError:
                    continue  # gone by now: it was not there
                if len(self.buffer) >= CHUNK // 4:
                    yield self._flush()
        finally:
            for fd, _, _ in stack:
                os.close(fd)

    def _flush(self) -> bytes:
        data = bytes(self.buffer)
        self.buffer.clear()
        return data

    def _add(self, name: str, kind: bytes, status: os.stat_result, link: str = "") -> None:
        info = tarfile.TarInfo(name)
        info.linkname = link
        self.add(info, kind, stat.S_IMODE(status.st_mode), status.st_mtime_ns)

    def member(self, fd: int, name: str, path: str, status: os.stat_result) -> Iterator[bytes]:
        """Yields one file that is no directory, as `path`."""
        if stat.S_ISLNK(status.st_mode):
            self._add(path, tarfile.SYMTYPE, status, os.readlink(name, dir_fd=fd))
        elif not stat.S_ISREG(status.st_mode):
            kind = _KINDS.get(stat.S_IFMT(status.st_mode), "a device")
            self._notes.append(f"skipped {path} ({kind})")
        elif status.st_nlink > 1 and (status.st_dev, status.st_ino) in self._links:
            self._add(path, tarfile.LNKTYPE, status, self._links[status.st_dev, status.st_ino])
        else:
            if status.st_nlink > 1 and len(self._links) < LINKS_MAX:
                self._links[status.st_dev, status.st_ino] = path
            yield from self._file(fd, name, path)

    def _file(self, fd: int, name: str, path: str) -> Iterator[bytes]:
        file = os.open(name, _FILE, dir_fd=fd)
        try:
            status = os.fstat(file)
            if not stat.S_ISREG(status.st_mode):
                self._notes.append(f"changed {path}")
                return
            if holes.may_have_holes(status):
                yield from self._with_holes(file, path, status)
            else:
                info = tarfile.TarInfo(path)
                info.size = status.st_size
                self.add(info, tarfile.REGTYPE, stat.S_IMODE(status.st_mode), status.st_mtime_ns)
                yield from self._content(file, [(0, status.st_size)])
            if changed(status, os.fstat(file)):
                self._notes.append(f"changed {path}")
        finally:
            os.close(file)

    def _with_holes(self, file: int, path: str, status: os.stat_result) -> Iterator[bytes]:
        pieces = holes.find_pieces(file, status.st_size)
        text = holes.encode_map(pieces)
        # Who does not know about holes must not take the map for the file.
        info = tarfile.TarInfo("GNUSparseFile.0/unknown")
        info.size = len(text) + sum(size for _, size in pieces)
        info.pax_headers = {
            "GNU.sparse.major": "1",
            "GNU.sparse.minor": "0",
            "GNU.sparse.name": path,
            "GNU.sparse.realsize": str(status.st_size),
        }
        self.add(info, tarfile.REGTYPE, stat.S_IMODE(status.st_mode), status.st_mtime_ns)
        self.buffer += text
        yield from self._content(file, pieces)

    def _content(self, file: int, pieces: holes.Pieces) -> Iterator[bytes]:
        total = 0
        for data in holes.read_pieces(file, pieces):
            total += len(data)
            if len(data) < CHUNK // 4:
                self.buffer += data
                continue
            if self.buffer:
                yield self._flush()
            yield data
        self.buffer += bytes(-total % tarfile.BLOCKSIZE)


@contextlib.contextmanager
def opened(path: str | os.PathLike[str], flags: int) -> Iterator[int]:
    """The descriptor of a path, for a block."""
    fd = os.open(path, flags | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)
