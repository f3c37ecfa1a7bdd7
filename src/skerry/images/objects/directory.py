"""Objects in a directory: a local disk, or any POSIX file system that several hosts share.

It keeps to what 3FS, NFS, CephFS, Lustre, JuiceFS and SeaweedFS all have: a temporary file in the
directory of its target, fsync, then link() (which refuses an existing name, on the server) or
rename() (which replaces at once). No locks, no renameat2, no extended attributes, no holes, no
device nodes. Directories are made when needed and never removed: on a shared file system nobody
could tell that an empty one is not about to be used.

    ROOT/PART/.../NAME           an object
    ROOT/PART/.../.part-RANDOM   an upload under way, or broken off; never listed
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from skerry.errors import ImageBroken, NotFound, ObjectDamaged, StorageFailed
from skerry.images.objects.api import Stat, check_key, check_prefix, is_part
from skerry.images.objects.mounts import file_system, is_local, is_named
from skerry.images.scratch import storage_errors
from skerry.images.sparse import CHUNK_BYTES

_T = TypeVar("_T")
_READS_MAX = 10
_PART = ".part-"
SHARED_LAG_S = 30.0  # 3FS caches entries and attributes that long, NFS does up to 60 by default
NFS_LAG_S = 60.0
_GONE = {errno.ENOENT, errno.ESTALE, errno.ENOTDIR}
_NO_DIRECTORY_SYNC = {errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EBADF}
_WORDS = {
    stat.S_IFDIR: "a directory",
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
}
_NO_LINKS = {errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP}
# Another file system, too many names, or a source that we may read but not link.
_NOT_LINKED = _NO_LINKS | {errno.EXDEV, errno.EMLINK, errno.EACCES}


class DirectoryObjects:
    """Objects below `root`, which is made if it is not there.

    Raises StorageFailed if the directory cannot be used. Calls raise ObjectDamaged where something
    else than a file stands in an object's place; listings and `stat` leave it out.
    """

    def __init__(self, root: str, *, lag_s: float | None = None) -> None:
        self.root = root
        self.where = root
        with storage_errors(f"opening the store {root}"):
            os.makedirs(root, mode=0o755, exist_ok=True)
        self.lag_s = _lag_of(root) if lag_s is None else lag_s

    def put_file(self, key: str, path: str) -> bool:
        """Links the file in if it lies on the same file system, else copies it."""
        target = self._path(key)
        with self._errors("storing", key):
            os.chmod(path, 0o444)
            _sync(path)
            try:
                return _into(target, lambda: _link(path, target))
            except OSError as error:
                if error.errno not in _NOT_LINKED:
                    raise
            return self._write(target, _pieces(path), 0o444, replace=False)

    def put_bytes(self, key: str, data: bytes, *, replace: bool) -> bool:
        """Writes a temporary file and gives it its name."""
        with self._errors("storing", key):
            return self._write(self._path(key), iter((data,)), 0o644, replace=replace)

    def get(self, key: str, max_bytes: int) -> bytes | None:
        """Reads a small file."""
        directory, name = os.path.split(check_key(key))
        for _ in range(_READS_MAX):
            with self._errors("reading", key):
                data = self._get(key, max_bytes)
            if data is not None or self.lag_s == 0:
                break
            # Removed, or replaced by another client and the entry that we remember leads nowhere. A
            # listing says which, and makes the kernel forget that entry.
            if all(entry.name != name for entry in self._entries(directory)):
                return None
        else:
            raise StorageFailed(f"{key} in {self.root} is replaced faster than it can be read")
        if data is None:
            return None
        if len(data) > max_bytes:
            raise ImageBroken(f"{key} in {self.root} is larger than {max_bytes} bytes")
        return data

    def _get(self, key: str, max_bytes: int) -> bytes | None:
        """Reads a file if the server says, before and after, that it still has its name.

        Before: its length may be remembered from when it was being written.
        """
        try:
            with open(self._path(key), "rb", buffering=0, opener=_regular) as file:
                if self.lag_s > 0 and not is_named(file.fileno()):
                    return None
                data = _pread(file.fileno(), 0, max_bytes + 1)
                return data if self.lag_s == 0 or is_named(file.fileno()) else None
        except OSError as error:
            if error.errno in _GONE:
                return None
            raise

    def read(self, key: str, offset: int, length: int) -> bytes:
        """Reads a part of a file."""
        with self._errors("reading", key):
            try:
                with open(self._path(key), "rb", buffering=0, opener=_regular) as file:
                    return _pread(file.fileno(), offset, length)
            except OSError as error:
                if error.errno in _GONE:
                    raise NotFound(f"there is no {key} in {self.root}") from error
                raise

    def stat(self, key: str) -> Stat | None:
        """Asks for one file."""
        with self._errors("looking at", key):
            try:
                return _stat(os.stat(self._path(key), follow_symlinks=False))
            except OSError as error:
                if error.errno in _GONE:
                    return None
                raise

    def list(self, prefix: str) -> Iterator[tuple[str, Stat]]:
        """Walks the directories."""
        check_prefix(prefix)
        pending = [prefix]
        while pending:
            below = pending.pop()
            for entry in self._entries(below):
                if not is_part(entry.name):
                    continue
                if entry.is_dir(follow_symlinks=False):
                    pending.append(f"{below}{entry.name}/")
                elif (found := self._seen(entry)) is not None:
                    yield below + entry.name, found

    def delete(self, key: str) -> None:
        """Unlinks the file; on a local disk a mount of it keeps working."""
        with self._errors("removing", key):
            try:
                os.unlink(self._path(key))
            except OSError as error:
                if error.errno not in _GONE:
                    raise

    def local_path(self, key: str) -> str | None:
        """Returns where the file lies."""
        return self._path(key)

    def sweep(self, older_than_s: float) -> int:
        """Removes temporary files that nobody has written to for that long, by the store's clock."""
        swept, pending = 0, [""]
        now = self._now()
        while pending:
            below = pending.pop()
            for entry in self._entries(below):
                if entry.is_dir(follow_symlinks=False):
                    pending.append(f"{below}{entry.name}/")
                elif entry.name.startswith(_PART):
                    found = self._seen(entry)
                    if found is not None and now - found.modified > older_than_s:
                        with contextlib.suppress(FileNotFoundError), storage_errors("sweeping"):
                            os.unlink(entry.path)
                        swept += 1
        return swept

    # --- inner parts ---

    @contextlib.contextmanager
    def _errors(self, doing: str, key: str) -> Iterator[None]:
        """Turns every OSError into StorageFailed; ObjectDamaged if no file stands in that place."""
        try:
            yield
        except OSError as error:
            found = _other(self._path(key))
            if found is None:
                text = f"{doing} {key} in {self.root}: {error.strerror}"
                raise StorageFailed(text, errno=error.errno) from error
            raise ObjectDamaged(
                f"{key} in {self.root} is damaged: {found} stands in its place",
                key=key,
                found=found,
                errno=error.errno,
            ) from error

    def _path(self, key: str) -> str:
        return os.path.join(self.root, check_key(key))

    def _entries(self, below: str) -> Sequence[os.DirEntry[str]]:
        with storage_errors(f"listing {self.root}/{below}"):
            try:
                with os.scandir(os.path.join(self.root, below)) as entries:
                    return list(entries)
            except OSError as error:
                if error.errno in _GONE:
                    return []
                raise

    def _seen(self, entry: os.DirEntry[str]) -> Stat | None:
        with storage_errors(f"looking at {entry.path}"):
            try:
                return _stat(entry.stat(follow_symlinks=False))
            except OSError as error:
                if error.errno in _GONE:
                    return None
                raise

    def _now(self) -> float:
        """Returns the time by the clock that stamps this directory's files."""
        with storage_errors(f"writing to {self.root}"):
            part = os.path.join(self.root, f"{_PART}{secrets.token_hex(8)}")
            fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            try:
                return os.fstat(fd).st_mtime
            finally:
                os.close(fd)
                os.unlink(part)

    def _write(self, target: str, pieces: Iterator[bytes], mode: int, *, replace: bool) -> bool:
        part = os.path.join(os.path.dirname(target), f"{_PART}{secrets.token_hex(8)}")

        def make() -> int:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
            return os.open(part, flags, mode)

        fd = _into(target, make)
        try:
            try:
                for piece in pieces:
                    _write_all(fd, piece)
                os.fsync(fd)
            finally:
                os.close(fd)  # a network file system may report a full disk only here
            if not replace:
                return self._link_part(part, target)
            os.rename(part, target)
            _sync_directory(os.path.dirname(target))
            return True
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(part)

    def _link_part(self, part: str, target: str) -> bool:
        try:
            return _link(part, target)
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            raise StorageFailed(
                f"the store {self.root} lies on a file system without hard links "
                f"({file_system(self.root).kind}): it needs them",
                errno=error.errno,
            ) from error


def _into(target: str, work: Callable[[], _T]) -> _T:
    """Does something in the target's directory, which is made if it is not there."""
    try:
        return work()
    except FileNotFoundError:
        directory = os.path.dirname(target)
        os.makedirs(directory, mode=0o755, exist_ok=True)
        _sync_directory(os.path.dirname(directory))
        return work()


def _link(source: str, target: str) -> bool:
    """Gives a file a second name; False if that is taken. The server decides, no cached entry."""
    try:
        os.link(source, target, follow_symlinks=False)
    except FileExistsError:
        if _other(target) is not None:  # that is no object, and nothing that was stored
            raise
        return False
    _sync_directory(os.path.dirname(target))
    return True


def _regular(path: str, flags: int) -> int:
    """Opens a file; OSError for anything else, which nobody waits for or follows."""
    fd = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    if stat.S_ISREG(os.fstat(fd).st_mode):
        return fd
    os.close(fd)
    raise OSError(errno.EINVAL, "it is no file", path)


def _other(path: str) -> str | None:
    """Returns what stands there if it is no file; None if it is one, or nothing is there."""
    try:
        mode = os.stat(path, follow_symlinks=False).st_mode
    except OSError:
        return None
    return None if stat.S_ISREG(mode) else _WORDS.get(stat.S_IFMT(mode), "something strange")


def _pieces(path: str) -> Iterator[bytes]:
    with open(path, "rb", buffering=0) as file:
        while piece := file.read(CHUNK_BYTES):
            yield piece


def _write_all(fd: int, piece: bytes) -> None:
    rest = memoryview(piece)
    while rest:
        rest = rest[os.write(fd, rest) :]


def _pread(fd: int, offset: int, length: int) -> bytes:
    parts = []
    while length and (part := os.pread(fd, length, offset)):
        parts.append(part)
        offset += len(part)
        length -= len(part)
    return b"".join(parts)


def _stat(found: os.stat_result) -> Stat | None:
    if not stat.S_ISREG(found.st_mode):
        return None
    version = f"{found.st_ino:x}-{found.st_mtime_ns:x}-{found.st_size:x}"
    return Stat(found.st_size, found.st_mtime, version)


def _sync(path: str) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _sync_directory(path: str) -> None:
    """Makes names durable; a file system that has no such call does so by itself."""
    try:
        _sync(path)
    except OSError as error:
        if error.errno not in _NO_DIRECTORY_SYNC:
            raise


def _lag_of(root: str) -> float:
    kind = file_system(root).kind
    if is_local(kind):
        return 0.0
    return NFS_LAG_S if kind.startswith("nfs") else SHARED_LAG_S
