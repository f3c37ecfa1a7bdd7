"""A file system with the profile of 3FS, to try a layer store on: what 3FS refuses, it refuses.

    python -m skerry.testing.shim_3fs BACKING MOUNTPOINT SECONDS

Two mounts over one backing directory are two clients of one cluster. As with 3FS (`FuseOps.cc`):

- entries and attributes are cached for SECONDS (30 there), missing names for a sixth of it;
- a file opened for reading is looked up nowhere: with a cached entry that succeeds also when another
  client has removed or replaced the file, and what is read then are zeros;
- a file's length and bytes are seen by others after fsync or close;
- renameat2 with flags, extended attributes, device nodes, fallocate, copy_file_range, SEEK_HOLE and
  locks between clients are not there; rename, link, O_EXCL and mkdir decide on the server.

One thread, for tests. It ends when it is unmounted.
"""

# ruff: noqa: D102 - methods are named for the requests of the kernel that they answer

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import stat
import struct
import sys
from collections.abc import Callable
from dataclasses import dataclass, field

_IN = struct.Struct("<IIQQIIII")
_OUT = struct.Struct("<IiQ")
_ATTR = struct.Struct("<QQQQQQIIIIIIIIII")
_ENTRY = struct.Struct("<QQQQII")
_ATTR_OUT = struct.Struct("<QII")
_OPEN_OUT = struct.Struct("<QII")
_DIRENT = struct.Struct("<QQII")
_SETATTR = struct.Struct("<IIQQQQQQIIIIIIII")
_IO = struct.Struct("<QQIIQII")
_STATFS = struct.Struct("<QQQQQIIII24x")
_MAX_WRITE = 128 << 10
_ROOT = 1
_SET_MODE, _SET_SIZE, _SET_TIMES = 1, 8, 16 | 32 | 128 | 256


@dataclass
class _Node:
    """An inode that the kernel knows; `fd` is O_PATH, so it keeps its number."""

    fd: int
    lookups: int = 0


@dataclass
class _File:
    """An open file. What is written waits here until fsync or close."""

    fd: int
    size: int
    waiting: list[tuple[int, bytes]] = field(default_factory=list)


class Shim:
    """Serves one mount until it is unmounted."""

    def __init__(self, backing: str, mountpoint: str, seconds: float) -> None:
        self.seconds = seconds
        self.nodes = {_ROOT: _Node(os.open(backing, os.O_PATH | os.O_DIRECTORY), 1)}
        self.files: dict[int, _File] = {}
        self.listings: dict[int, list[str]] = {}
        self.handles = 0
        self.device = os.open("/dev/fuse", os.O_RDWR)
        options = f"fd={self.device},rootmode=40000,user_id=0,group_id=0,default_permissions"
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.mount(b"shim3fs", os.fsencode(mountpoint), b"fuse.3fs", 6, options.encode()):
            raise OSError(ctypes.get_errno(), "cannot mount", mountpoint)
        self.calls: dict[int, Callable[[int, bytes], bytes | None]] = {
            1: self.lookup, 3: self.getattr, 4: self.setattr, 9: self.mkdir, 10: self.unlink,
            11: self.rmdir, 12: self.rename, 13: self.link, 14: self.open, 15: self.read,
            16: self.write, 17: self.statfs, 18: self.release, 20: self.fsync, 25: self.fsync,
            27: self.opendir, 28: self.readdir, 29: self.releasedir, 35: self.create,
            44: self.readdirplus, 45: self.rename2,
        }  # fmt: skip

    def serve(self) -> None:
        """Answers until the mount is gone."""
        while True:
            try:
                request = os.read(self.device, _MAX_WRITE + 4096)
            except OSError as error:
                if error.errno in {errno.EINTR, errno.ENOENT, errno.EAGAIN}:
                    continue
                return  # ENODEV: unmounted
            length, code, unique, node = _IN.unpack_from(request)[:4]
            body = request[_IN.size : length]
            if code == 26:
                answer: bytes | None = self.init(body)
                status = 0
            elif code in {2, 42, 36}:
                self.forget(code, node, body)
                continue
            else:
                status, answer = self.call(code, node, body)
            data = answer or b""
            with contextlib.suppress(OSError):  # ENOENT: the asker has gone
                os.writev(self.device, [_OUT.pack(_OUT.size + len(data), -status, unique), data])

    def call(self, code: int, node: int, body: bytes) -> tuple[int, bytes | None]:
        """Returns the errno and the answer of one request."""
        try:
            return 0, self.calls[code](node, body)
        except KeyError as error:
            return errno.ENOSYS if error.args == (code,) else errno.ESTALE, None
        except OSError as error:
            return error.errno or errno.EIO, None

    def init(self, body: bytes) -> bytes:
        """Agrees on the protocol; takes readdirplus, large writes and many pages."""
        readahead = struct.unpack_from("<III", body)[2]
        flags = 1 << 0 | 1 << 3 | 1 << 5 | 1 << 12 | 1 << 13
        return struct.pack(
            "<IIIIHHIIHHII24x", 7, 31, readahead, flags, 32, 24, _MAX_WRITE, 1, 0, 0, 0, 0
        )

    def forget(self, code: int, node: int, body: bytes) -> None:
        """The kernel knows an inode no more."""
        gone = [(node, struct.unpack_from("<Q", body)[0])] if code == 2 else []
        if code == 42:
            count = struct.unpack_from("<II", body)[0]
            gone = [struct.unpack_from("<QQ", body, 8 + 16 * at) for at in range(count)]
        for number, lookups in gone:
            known = self.nodes.get(number)
            if known is not None and number != _ROOT:
                known.lookups -= lookups
                if known.lookups <= 0:
                    os.close(known.fd)
                    del self.nodes[number]

    # --- names ---

    def lookup(self, node: int, body: bytes) -> bytes:
        """A name that is not there is remembered too."""
        try:
            return self.entry(node, _name(body))
        except FileNotFoundError:
            valid = _times(self.seconds / 6)
            return _ENTRY.pack(0, 0, valid[0], 0, valid[1], 0) + bytes(_ATTR.size)

    def entry(self, node: int, name: str) -> bytes:
        """Returns what the kernel is to remember of a name."""
        fd = os.open(name, os.O_PATH | os.O_NOFOLLOW, dir_fd=self.nodes[node].fd)
        found = os.fstat(fd)
        number = found.st_ino + _ROOT  # never the root's number: inode 0 is none
        if number in self.nodes:
            os.close(fd)
        else:
            self.nodes[number] = _Node(fd)
        self.nodes[number].lookups += 1
        seconds, rest = _times(self.seconds)
        head = _ENTRY.pack(number, 0, seconds, seconds, rest, rest)
        return head + self.attributes(number, found)

    def mkdir(self, node: int, body: bytes) -> bytes:
        mode = struct.unpack_from("<II", body)[0]
        os.mkdir(_name(body[8:]), mode & 0o7777, dir_fd=self.nodes[node].fd)
        return self.entry(node, _name(body[8:]))

    def unlink(self, node: int, body: bytes) -> None:
        os.unlink(_name(body), dir_fd=self.nodes[node].fd)

    def rmdir(self, node: int, body: bytes) -> None:
        os.rmdir(_name(body), dir_fd=self.nodes[node].fd)

    def rename(self, node: int, body: bytes) -> None:
        (target,) = struct.unpack_from("<Q", body)
        self.move(node, target, body[8:])

    def rename2(self, node: int, body: bytes) -> None:
        target, flags, _ = struct.unpack_from("<QII", body)
        if flags:
            raise OSError(errno.ENOSYS, "renameat2 has no flags here")
        self.move(node, target, body[16:])

    def move(self, node: int, target: int, names: bytes) -> None:
        """Renames, also over what is there."""
        old, new = names.split(b"\0")[:2]
        os.rename(
            os.fsdecode(old),
            os.fsdecode(new),
            src_dir_fd=self.nodes[node].fd,
            dst_dir_fd=self.nodes[target].fd,
        )

    def link(self, node: int, body: bytes) -> bytes:
        (source,) = struct.unpack_from("<Q", body)
        path = f"/proc/self/fd/{self.nodes[source].fd}"
        os.link(path, _name(body[8:]), dst_dir_fd=self.nodes[node].fd, follow_symlinks=True)
        return self.entry(node, _name(body[8:]))

    # --- attributes ---

    def attributes(self, number: int, found: os.stat_result) -> bytes:
        """Packs attributes; what this client has written and not synced counts for itself."""
        size = max([found.st_size, *(one.size for one in self.files.values() if _is(one, found))])
        return _ATTR.pack(
            *(number, size, (size + 511) // 512),
            *(int(found.st_atime), int(found.st_mtime), int(found.st_ctime)),
            *(found.st_atime_ns % 10**9, found.st_mtime_ns % 10**9, found.st_ctime_ns % 10**9),
            *(found.st_mode, found.st_nlink, found.st_uid, found.st_gid, 0, 4096, 0),
        )

    def getattr(self, node: int, _body: bytes) -> bytes:
        found = os.fstat(self.nodes[node].fd)
        if found.st_nlink == 0:
            raise FileNotFoundError(errno.ENOENT, "the server knows it no more")
        seconds, rest = _times(self.seconds)
        return _ATTR_OUT.pack(seconds, rest, 0) + self.attributes(node, found)

    def setattr(self, node: int, body: bytes) -> bytes:
        fields = _SETATTR.unpack_from(body)
        path = f"/proc/self/fd/{self.nodes[node].fd}"
        if fields[0] & _SET_MODE:
            os.chmod(path, fields[11] & 0o7777)
        if fields[0] & _SET_SIZE:
            os.truncate(path, fields[3])
        if fields[0] & _SET_TIMES:
            os.utime(path)
        return self.getattr(node, body)

    def statfs(self, node: int, _body: bytes) -> bytes:
        found = os.statvfs(f"/proc/self/fd/{self.nodes[node].fd}")
        return _STATFS.pack(
            *(found.f_blocks, found.f_bfree, found.f_bavail, found.f_files, found.f_ffree),
            *(found.f_bsize, found.f_namemax, found.f_frsize, 0),
        )

    # --- files ---

    def open(self, node: int, body: bytes) -> bytes:
        flags = struct.unpack_from("<II", body)[0]
        if flags & os.O_ACCMODE != os.O_RDONLY:
            self.getattr(node, body)  # only who writes asks the server
        keep = os.O_ACCMODE | os.O_TRUNC
        return self.opened(os.open(f"/proc/self/fd/{self.nodes[node].fd}", flags & keep))

    def create(self, node: int, body: bytes) -> bytes:
        flags, mode = struct.unpack_from("<IIII", body)[:2]
        flags = flags & (os.O_EXCL | os.O_TRUNC) | os.O_CREAT | os.O_RDWR
        fd = os.open(_name(body[16:]), flags, mode & 0o7777, dir_fd=self.nodes[node].fd)
        return self.entry(node, _name(body[16:])) + self.opened(fd)

    def opened(self, fd: int) -> bytes:
        """Returns a new handle."""
        self.handles += 1
        self.files[self.handles] = _File(fd, os.fstat(fd).st_size)
        return _OPEN_OUT.pack(self.handles, 0, 0)

    def read(self, _node: int, body: bytes) -> bytes:
        handle, offset, size = _IO.unpack_from(body)[:3]
        file = self.files[handle]
        self.put(file)
        content = os.pread(file.fd, size, offset)
        # Its chunks are collected: holes read as zeros.
        return content if os.fstat(file.fd).st_nlink else bytes(len(content))

    def write(self, _node: int, body: bytes) -> bytes:
        handle, offset, size = _IO.unpack_from(body)[:3]
        file = self.files[handle]
        file.waiting.append((offset, body[_IO.size : _IO.size + size]))
        file.size = max(file.size, offset + size)
        return struct.pack("<II", size, 0)

    def put(self, file: _File) -> None:
        """Others see it now."""
        waiting, file.waiting = file.waiting, []
        for offset, data in waiting:
            done = 0
            while done < len(data):
                done += os.pwrite(file.fd, data[done:], offset + done)

    def fsync(self, _node: int, body: bytes) -> None:
        file = self.files[struct.unpack_from("<Q", body)[0]]
        if file.waiting:
            self.put(file)
            os.fsync(file.fd)

    def release(self, _node: int, body: bytes) -> None:
        file = self.files.pop(struct.unpack_from("<Q", body)[0])
        try:
            self.put(file)
        finally:
            os.close(file.fd)

    # --- directories ---

    def opendir(self, node: int, _body: bytes) -> bytes:
        self.handles += 1
        self.listings[self.handles] = sorted(os.listdir(f"/proc/self/fd/{self.nodes[node].fd}"))
        return _OPEN_OUT.pack(self.handles, 0, 0)

    def readdir(self, node: int, body: bytes) -> bytes:
        return self.listed(node, body, plus=False)

    def readdirplus(self, node: int, body: bytes) -> bytes:
        return self.listed(node, body, plus=True)

    def listed(self, node: int, body: bytes, *, plus: bool) -> bytes:
        """Returns as many entries as fit; those that went meanwhile are left out."""
        handle, offset, size = _IO.unpack_from(body)[:3]
        parts, room = [], size
        for at, name in enumerate(self.listings[handle][offset:], offset + 1):
            raw = os.fsencode(name)
            padded = raw + bytes(-len(raw) % 8)
            need = _DIRENT.size + len(padded) + (_ENTRY.size + _ATTR.size if plus else 0)
            if need > room:
                break
            try:
                found = os.lstat(name, dir_fd=self.nodes[node].fd)
                head = self.entry(node, name) if plus else b""
            except FileNotFoundError:
                continue
            kind = stat.S_IFMT(found.st_mode) >> 12
            parts.append(head + _DIRENT.pack(found.st_ino + _ROOT, at, len(raw), kind) + padded)
            room -= need
        return b"".join(parts)

    def releasedir(self, _node: int, body: bytes) -> None:
        del self.listings[struct.unpack_from("<Q", body)[0]]


def _is(file: _File, found: os.stat_result) -> bool:
    return bool(file.waiting) and os.path.samestat(os.fstat(file.fd), found)


def _name(body: bytes) -> str:
    return os.fsdecode(body.split(b"\0", 1)[0])


def _times(seconds: float) -> tuple[int, int]:
    return int(seconds), int(seconds % 1 * 1e9)


if __name__ == "__main__":
    Shim(sys.argv[1], sys.argv[2], float(sys.argv[3])).serve()
