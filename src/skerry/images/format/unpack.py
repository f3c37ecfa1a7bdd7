"""A tree laid out as files, for a mkfs.erofs that reads only directories. Needs root.

The entries come from a `Tree`, so parents precede their children and no path leads through a
link; the directory is private to this process. Even so each step is relative to a directory's
descriptor and follows nothing.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable

from skerry.errors import ImageBroken
from skerry.images.tree.cursor import Cursor
from skerry.images.tree.entry import Entry, show
from skerry.spec.files import FileType


def unpack(entries: Iterable[Entry], top: str) -> None:
    """Creates all entries below the empty directory `top`.

    Raises OSError, and ImageBroken for a hard link whose path is too long for the system.
    """
    times: list[tuple[bytes, int]] = []
    with Cursor(top) as cursor:
        for entry in entries:
            if entry.node.type is FileType.DIRECTORY:
                times.append((entry.path, entry.node.mtime_ns))
            if entry.path:
                parent, _, name = entry.path.rpartition(b"/")
                cursor.move(parent)
                _make(entry, cursor.fd, name, top)
            if entry.node.type is FileType.DIRECTORY:
                cursor.move(entry.path)
                _set_metadata(entry, cursor.fd)
        # Making a file changed its directory's time.
        for path, mtime_ns in reversed(times):
            cursor.move(path)
            os.utime(cursor.fd, ns=(mtime_ns, mtime_ns))


def _make(entry: Entry, parent: int, name: bytes, top: str) -> None:
    node = entry.node
    if entry.hard_link is not None:
        source = os.fsencode(top) + b"/" + entry.hard_link
        if len(source) >= 4096:
            raise ImageBroken(f"hard link to {show(entry.hard_link)}: path too long")
        os.link(source, name, dst_dir_fd=parent, follow_symlinks=False)
    elif node.type is FileType.DIRECTORY:
        os.mkdir(name, 0o700, dir_fd=parent)
    elif node.type is FileType.FILE:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        fd = os.open(name, flags, 0o600, dir_fd=parent)
        try:
            for chunk in entry.data() if entry.data else ():
                rest = memoryview(chunk)
                while rest:
                    rest = rest[os.write(fd, rest) :]
            _set_metadata(entry, fd)
        finally:
            os.close(fd)
    else:
        _make_special(entry, parent, name)


def _make_special(entry: Entry, parent: int, name: bytes) -> None:
    node = entry.node
    if node.type is FileType.SYMLINK:
        os.symlink(node.target, name, dir_fd=parent)
    elif node.type is FileType.CHARACTER:
        os.mknod(name, stat.S_IFCHR, os.makedev(0, 0), dir_fd=parent)
    elif node.type is FileType.FIFO:
        os.mknod(name, stat.S_IFIFO | 0o600, dir_fd=parent)
    else:
        return  # sockets are no part of a layer
    os.chown(name, node.uid, node.gid, dir_fd=parent, follow_symlinks=False)
    if node.type is not FileType.SYMLINK:
        os.chmod(name, node.mode, dir_fd=parent)
    times = (node.mtime_ns, node.mtime_ns)
    os.utime(name, ns=times, dir_fd=parent, follow_symlinks=False)


def _set_metadata(entry: Entry, fd: int) -> None:
    node = entry.node
    os.fchown(fd, node.uid, node.gid)
    os.fchmod(fd, node.mode)
    for key, value in node.xattrs.items():
        os.setxattr(fd, key, value)
    os.utime(fd, ns=(node.mtime_ns, node.mtime_ns))
