"""Unpacking a tree that a sandbox sent, on this machine: nothing lands outside the target.

tarfile's own extraction decides by path strings, which a tree with links can be built to fool (and
it refuses every link to an absolute path, which honest trees hold). Here each member is reached from
the target's descriptor one name at a time, no link is ever followed, and what stands in the way is
replaced, never written through.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from skerry.errors import SandboxFailed
from skerry.sdk import holes
from skerry.sdk.tarstream import Member, Readable, TarStream, damaged

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_TIME_NS_MAX = 1 << 63


class Unpacked:
    """What was done: `files` came, `notes` tell what did not, or changed while it was read."""

    def __init__(self) -> None:
        self.files = 0
        self.notes: list[str] = []


def unpack(stream: Readable, target: Path) -> Unpacked:
    """Unpacks a tar from a file-like object beneath `target`, an existing directory.

    Files, directories, links, times and modes are kept, without setuid, setgid and sticky bits; holes
    stay holes; FIFOs are left out with a note. Raises SandboxFailed for members that climb, for
    devices, and for damaged streams.
    """
    tree = _Tree(os.open(target, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC), TarStream(stream))
    try:
        for member in tree.tar:
            tree.take(member)
        tree.finish()
    finally:
        tree.close()
    return tree.done


def _parts(name: str) -> list[str]:
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise SandboxFailed(f"the sandbox sent a tree with a name that climbs: {name[:200]!r}")
    return parts


class _Tree:
    """The target, and the directory in it that was used last: members come in runs."""

    def __init__(self, root: int, tar: TarStream) -> None:
        self.tar = tar
        self.done = Unpacked()
        self._root = root
        self._last: list[str] = []
        self._place = os.dup(root)
        self._directories: list[tuple[list[str], int, int]] = []

    def close(self) -> None:
        os.close(self._place)
        os.close(self._root)

    def take(self, member: Member) -> None:
        """Makes one member."""
        self.done.notes += [line for line in member.comment.split("\n") if line]
        parts = _parts(member.name)
        if not parts:
            return  # the tree itself keeps what it has
        if member.kind == b"5":
            self._enter(parts, make=True)
            self._directories.append((parts, member.mode & 0o777, member.mtime_ns))
            return
        if member.kind == b"6":
            self.done.notes.append(f"skipped {member.name} (a FIFO)")
            return
        if member.kind not in b"012":
            raise SandboxFailed(f"the sandbox sent a device or FIFO: {member.name[:200]!r}")
        place, name = self._enter(parts[:-1], make=True), parts[-1]
        with contextlib.suppress(FileNotFoundError, IsADirectoryError):
            os.unlink(name, dir_fd=place)
        if member.kind == b"2":
            os.symlink(member.link, name, dir_fd=place)
            if abs(member.mtime_ns) < _TIME_NS_MAX:
                times = (member.mtime_ns, member.mtime_ns)
                os.utime(name, ns=times, dir_fd=place, follow_symlinks=False)
        elif member.kind == b"1":
            source = _parts(member.link)
            if not source:
                raise damaged("a hard link to the tree itself")
            with _directory(self._root, source[:-1]) as other:
                os.link(source[-1], name, src_dir_fd=other, dst_dir_fd=place, follow_symlinks=False)
        else:
            self._write(place, name, member)
        self.done.files += 1

    def finish(self) -> None:
        """Sets modes and times of directories.

        Last, and children first: a directory closed to its owner must still be filled.
        """
        for parts, mode, mtime_ns in reversed(self._directories):
            with _directory(self._root, parts) as place:
                os.fchmod(place, mode)
                _set_time(place, mtime_ns)

    def _enter(self, parts: list[str], *, make: bool) -> int:
        if parts != self._last:
            with _directory(self._root, parts, make=make) as place:
                os.close(self._place)
                self._place, self._last = os.dup(place), parts
        return self._place

    def _write(self, place: int, name: str, member: Member) -> None:
        fd = os.open(name, _NEW_FILE, 0o600, dir_fd=place)
        try:
            if member.real_size is not None:
                self._write_pieces(fd, member.real_size)
            else:
                for data in self.tar.chunks():
                    write_all(fd, data)
            os.fchmod(fd, member.mode & 0o777)
            _set_time(fd, member.mtime_ns)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(name, dir_fd=place)  # no half file stays
            raise
        finally:
            os.close(fd)

    def _write_pieces(self, fd: int, real_size: int) -> None:
        pieces, _ = holes.decode_map(self.tar.content, real_size)
        write_pieces(fd, pieces, real_size, self.tar.content)


def write_all(fd: int, data: bytes) -> None:
    """Writes all of the bytes."""
    done = os.write(fd, data)
    while done < len(data):
        done += os.write(fd, memoryview(data)[done:])


def write_pieces(fd: int, pieces: holes.Pieces, size: int, read: holes.Reader) -> None:
    """Makes a file of that size out of pieces; `read` gives exactly as many bytes as asked for."""
    try:
        os.ftruncate(fd, size)
    except (OSError, OverflowError) as error:
        raise damaged(f"a file of {size} bytes: {error}") from error
    for offset, length in pieces:
        left = length
        while left:
            data = read(min(holes.CHUNK, left))
            os.lseek(fd, offset + length - left, os.SEEK_SET)
            write_all(fd, data)
            left -= len(data)


def _set_time(fd: int, mtime_ns: int) -> None:
    if abs(mtime_ns) < _TIME_NS_MAX:
        os.utime(fd, ns=(mtime_ns, mtime_ns))


@contextlib.contextmanager
def _directory(root: int, parts: list[str], *, make: bool = False) -> Iterator[int]:
    """The descriptor of a directory beneath the root; a link on the way is refused."""
    place = os.dup(root)
    try:
        for part in parts:
            if make:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(part, 0o755, dir_fd=place)
            try:
                below = os.open(part, _DIRECTORY, dir_fd=place)
            except (NotADirectoryError, OSError) as error:
                name = "/".join(parts)[:200]
                raise SandboxFailed(
                    f"the sandbox sent a tree that goes through {part[:80]!r}, which is no "
                    f"directory of it: {name!r}"
                ) from error
            os.close(place)
            place = below
        yield place
    finally:
        os.close(place)
