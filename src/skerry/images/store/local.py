"""A node's own copies of what has to be at hand to mount a layer: metadata blobs and chunk lists.

    ROOT/HEX             a metadata blob, by its sha256
    ROOT/HEX.chunks      a chunk list, by the content digest of its data blob (for verified mounts)
    ROOT/HEX.profile     which chunks of a data blob a first run touched (for verified mounts)
    ROOT/.new-*          half a copy; a crash leaves it, the next start removes it

A copy is checked against its name before it appears, and again at its first use by each process (a
chunk list now and then): a damaged one is made again. Removing one that is mounted is harmless to
the mount.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Iterator

from skerry.errors import LayerDamaged, NotFound, SkerryError
from skerry.images.format.chunks import ChunkList, decode_list
from skerry.images.format.pair import data_digest_of
from skerry.images.format.profile import PROFILE
from skerry.images.scratch import storage_errors
from skerry.images.sparse import CHUNK_BYTES
from skerry.images.store.blobread import LIST_BYTES_MAX, until_right
from skerry.spec.layers import LayerManifest

UNUSED_S = 3600.0
RECHECK_S = 30.0  # a blob is unmounted a minute after its last use
_NEW = ".new-"
_LIST = ".chunks"


Pieces = Callable[[], Iterator[bytes]]


class LocalLayers:
    """The directory of one node. All methods block and may be called from several threads."""

    def __init__(self, root: str) -> None:
        self.root = root
        self._lock = threading.Lock()
        self._turns: dict[str, threading.Lock] = {}
        self._asked: set[str] = set()  # data blobs whose profile the store was asked for
        self._looked: dict[str, float] = {}  # when chunk lists were last checked
        self._checked: set[str] = set()  # names of files whose bytes this process has seen right
        with storage_errors(f"making {root}"):
            os.makedirs(root, mode=0o700, exist_ok=True)
            for name in os.listdir(root):
                if name.startswith(_NEW):
                    os.unlink(os.path.join(root, name))

    def metadata(self, manifest: LayerManifest, pieces: Pieces) -> str:
        """Returns the path of a layer's metadata blob, read with `pieces` if it is not here.

        Its bytes are those of its digest, and it names the manifest's data blob. Raises LayerDamaged
        if what `pieces` gives does not, StorageFailed if the disk is full or the store fails.
        """

        def check(path: str) -> None:
            _check_sha256(path, manifest.digest)
            named = data_digest_of(path)
            if named != manifest.data_digest:
                text = f"{manifest.name}: its metadata names the data blob {named}, its manifest"
                raise LayerDamaged(f"{text} {manifest.data_digest}", digest=manifest.digest)

        def whole() -> Iterator[bytes]:
            return _at_most(manifest.size_bytes, pieces(), manifest.digest)

        return self._have(_hex(manifest.digest), whole, check)

    def chunk_list(
        self, digest: str, pieces: Pieces, again: Callable[[], bytes] | None = None
    ) -> str:
        """Returns the path of a data blob's chunk list, likewise.

        If the store has lost it or holds it damaged, `again` makes it anew. It is checked again now and
        then: the process that serves the blob reads it whenever the blob is mounted.
        """
        name = _hex(digest) + _LIST
        if time.monotonic() - self._looked.get(name, -RECHECK_S) >= RECHECK_S:
            self._looked[name] = time.monotonic()
            self._checked.discard(name)

        def fetch() -> bytes:
            data = b"".join(_at_most(LIST_BYTES_MAX, pieces(), digest))
            decode_list(data, digest)
            return data

        def whole() -> Iterator[bytes]:
            try:
                return iter((until_right("the layer store", fetch),))
            except (LayerDamaged, NotFound):
                if again is None:
                    raise
                return iter((again(),))

        return self._have(name, whole, lambda path: _check_list(path, digest), tries=False)

    def recheck(self) -> list[str]:
        """Lets every chunk list be checked at its next use; returns the data blobs that have one."""
        self._looked.clear()
        names = (name for name in os.listdir(self.root) if name.endswith(_LIST))
        return [f"sha256:{name.removesuffix(_LIST)}" for name in names if not name.startswith(_NEW)]

    def has(self, digest: str) -> bool:
        """Says whether a metadata blob is here; `metadata` says whether it is right."""
        return os.path.exists(os.path.join(self.root, _hex(digest)))

    def has_list(self, digest: str) -> bool:
        """Says whether a chunk list is here; `chunk_list` says whether it is right."""
        return os.path.exists(os.path.join(self.root, _hex(digest) + _LIST))

    def profile(self, digest: str, ask: Callable[[], bytes | None]) -> None:
        """Puts a data blob's profile here if `ask` knows one; asks once, and fails silently.

        Without it a mount is as good, only slower at first.
        """
        name = _hex(digest) + PROFILE
        if digest in self._asked or os.path.exists(os.path.join(self.root, name)):
            return
        self._asked.add(digest)
        with contextlib.suppress(SkerryError, OSError):
            data = ask()
            if data is not None:
                self.put_profile(digest, data)

    def put_profile(self, digest: str, data: bytes) -> None:
        """Keeps a profile here, for later mounts; OSError."""
        fd, fresh = tempfile.mkstemp(prefix=_NEW, dir=self.root)
        with open(fd, "wb") as file:
            file.write(data)
        os.rename(fresh, os.path.join(self.root, _hex(digest) + PROFILE))

    def tidy(self, keep: Collection[str], older_than_s: float = UNUSED_S) -> list[str]:
        """Removes copies that nobody asked for in that time, but for digests in `keep`."""
        removed = []
        kept = {_hex(digest) for digest in keep}
        limit = time.time() - older_than_s
        for name in sorted(os.listdir(self.root)):
            path = os.path.join(self.root, name)
            with contextlib.suppress(FileNotFoundError):
                if (
                    name.removesuffix(_LIST).removesuffix(PROFILE) in kept
                    or os.stat(path).st_mtime > limit
                ):
                    continue
                with self._turn(name):
                    os.unlink(path)
                    self._checked.discard(name)
                    self._looked.pop(name, None)
                    self._asked.discard(f"sha256:{name.removesuffix(PROFILE)}")
                removed.append(name)
        return removed

    def _have(
        self, name: str, pieces: Pieces, check: Callable[[str], None], *, tries: bool = True
    ) -> str:
        path = os.path.join(self.root, name)
        if name in self._checked and _touch(path):
            return path
        with self._turn(name), storage_errors(f"copying a layer's metadata to {self.root}"):
            if not (name in self._checked and _touch(path)):
                if not _is_right(path, check):
                    if tries:
                        until_right("the layer store", lambda: self._copy(path, pieces, check))
                    else:
                        self._copy(path, pieces, check)
                self._checked.add(name)
        return path

    def _copy(self, path: str, pieces: Pieces, check: Callable[[str], None]) -> None:
        fd, fresh = tempfile.mkstemp(prefix=_NEW, dir=self.root)
        try:
            with open(fd, "wb") as file:
                file.writelines(pieces())
                file.flush()
                os.fsync(file.fileno())
            check(fresh)
            os.chmod(fresh, 0o400)
            os.rename(fresh, path)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(fresh)
            raise
        directory = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)

    @contextlib.contextmanager
    def _turn(self, name: str) -> Iterator[None]:
        """Lets one thread at a time make or remove a file."""
        with self._lock:
            turn = self._turns.setdefault(name, threading.Lock())
        with turn:
            yield


def _at_most(size: int, pieces: Iterator[bytes], digest: str) -> Iterator[bytes]:
    """Gives the pieces; raises LayerDamaged as soon as there are more bytes, before they fill a disk."""
    for piece in pieces:
        size -= len(piece)
        if size < 0:
            raise LayerDamaged(f"the store holds more bytes than {digest} has", digest=digest)
        yield piece


def read_list(path: str, digest: str) -> ChunkList:
    """Returns the chunk list in a file; raises LayerDamaged if it is not that of `digest`."""
    with storage_errors(f"reading {path}"), open(path, "rb") as file:
        return decode_list(file.read(), digest)


def _is_right(path: str, check: Callable[[str], None]) -> bool:
    """Says whether a copy is there and whole; one of an earlier process may have rotted since."""
    if not _touch(path):
        return False
    try:
        check(path)
    except LayerDamaged:
        return False
    return True


def _touch(path: str) -> bool:
    """Notes that a copy is in use; returns whether it is there."""
    try:
        os.utime(path)
    except FileNotFoundError:
        return False
    return True


def _check_sha256(path: str, digest: str) -> None:
    found = hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            found.update(chunk)
    if found.hexdigest() != _hex(digest):
        text = (
            f"the store holds other bytes than metadata blob {digest}: sha256:{found.hexdigest()}"
        )
        raise LayerDamaged(text, digest=digest)


def _check_list(path: str, digest: str) -> None:
    read_list(path, digest)


def _hex(digest: str) -> str:
    return digest.removeprefix("sha256:")
