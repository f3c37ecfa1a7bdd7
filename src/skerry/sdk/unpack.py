"""Unpacking a tree that a sandbox sent, on this machine: nothing lands outside the target.

tarfile's own extraction decides by path strings, which a tree with links can be built to fool (and
it refuses every link to an absolute path, which honest trees hold). Here each member is reached from
the target's descriptor one name at a time, no link is ever followed, and what stands in the way is
replaced, never written through.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, cast

from skerry.errors import SandboxFailed

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def unpack(stream: object, target: Path) -> None:
    """Unpacks a tar from a file-like object beneath `target`, an existing directory.

    Files, directories, links and their modes are kept, without setuid, setgid and sticky bits.
    Raises SandboxFailed for members that climb, for devices and FIFOs, and for damaged streams.
    """
    root = os.open(target, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    modes: list[tuple[list[str], int]] = []
    try:
        with tarfile.open(fileobj=cast("BinaryIO", stream), mode="r|") as tar:
            for member in tar:
                parts = _parts(member.name)
                if parts:
                    _put(root, parts, member, tar)
                if member.isdir():
                    modes.append((parts, member.mode & 0o777))
        # Last, and children first: a directory closed to its owner must still be filled.
        for parts, mode in reversed(modes):
            with _directory(root, parts) as place:
                os.fchmod(place, mode)
    except tarfile.TarError as error:
        raise SandboxFailed(f"the sandbox sent a tree that is damaged: {error}") from error
    finally:
        os.close(root)


def _parts(name: str) -> list[str]:
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise SandboxFailed(f"the sandbox sent a tree with a name that climbs: {name[:200]!r}")
    return parts


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


def _put(root: int, parts: list[str], member: tarfile.TarInfo, tar: tarfile.TarFile) -> None:
    if member.isdir():
        with _directory(root, parts, make=True):
            return
    name = parts[-1]
    with _directory(root, parts[:-1], make=True) as place:
        with contextlib.suppress(FileNotFoundError, IsADirectoryError):
            os.unlink(name, dir_fd=place)
        if member.issym():
            os.symlink(member.linkname, name, dir_fd=place)
        elif member.islnk():
            source = _parts(member.linkname)
            with _directory(root, source[:-1]) as other:
                os.link(source[-1], name, src_dir_fd=other, dst_dir_fd=place, follow_symlinks=False)
        elif member.isreg():
            _write(place, name, member, tar)
        else:
            raise SandboxFailed(f"the sandbox sent a device or FIFO: {member.name[:200]!r}")


def _write(place: int, name: str, member: tarfile.TarInfo, tar: tarfile.TarFile) -> None:
    content = tar.extractfile(member)
    with os.fdopen(os.open(name, _NEW_FILE, 0o600, dir_fd=place), "wb") as file:
        if content is not None:
            shutil.copyfileobj(content, file, 256 * 1024)
        os.fchmod(file.fileno(), member.mode & 0o777)
        os.utime(file.fileno(), (member.mtime, member.mtime))
