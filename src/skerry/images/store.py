"""Where layers are kept: the seam for stores, and the one that is a directory.

A blob is an immutable file. A layer's metadata blob is named by its sha256, its data blob by its
content digest (`skerry.images.chunks`), beside its chunk list. A manifest says what a blob is; it is
kept for each blob and name, so a digest that something pins stays known when its tag has moved on. A
tag says which digest a name stands for now.

    ROOT/
      version                          "1": readers refuse what they do not know
      lock                             flock: shared while adding, exclusive while collecting
      blobs/sha256/aa/HEX              a metadata or plain data blob; aa: the first two digits
      blobs/sha256/aa/HEX.zst          a data blob as zstd frames, instead
      blobs/sha256/aa/HEX.chunks       its chunk list, stored after it; it says which of both there is
      manifests/HEX/KIND/NAME/:TAG.json    LayerManifest
      tags/KIND/NAME/:TAG.json         {"version": 1, "digest": "sha256:HEX"}
      tmp/skerry-images-*/             work in progress, locked by its process

NAME may have several parts, which are directories; ":" keeps a tag apart from them. All files
appear whole: they are written in tmp, synced, and renamed. A crash leaves only what `sweep`
removes: directories in tmp, and blobs without a manifest (removed by `collect`).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import NamedTuple, Protocol, TypeVar

import msgspec

from skerry.errors import ImageBroken, NotFound, StorageFailed
from skerry.images.chunks import ChunkList, Codec
from skerry.images.scratch import CHUNK_BYTES, scratch_directory, storage_errors, sweep
from skerry.spec.layers import LayerManifest, LayerName, parse_layer_name

_VERSION = "1"
_LIST = ".chunks"
_SUFFIXES = {Codec.NONE: "", Codec.ZSTD: ".zst"}
_T = TypeVar("_T")


class Blob(NamedTuple):
    """One blob of a listing."""

    digest: str
    size_bytes: int


class BlobStore(Protocol):
    """Immutable files by digest. All calls may block; StorageFailed where the store fails.

    `data` means data blobs, which come with their chunk lists.
    """

    def put(self, source: str, digest: str) -> None:
        """Takes over the file `source`, whose sha256 the caller computed; there already: no change."""

    def path(self, digest: str) -> str:
        """Returns a local path that can be mounted; raises NotFound."""

    def has(self, digest: str) -> bool:
        """Says whether it is there."""

    def pieces(self, digest: str) -> Iterator[bytes]:
        """Gives the bytes of a metadata blob; raises NotFound."""

    def put_data(self, stored: str, chunks: ChunkList) -> None:
        """Takes over a data blob as it is to be stored; there already: no change."""

    def chunk_list(self, digest: str) -> Iterator[bytes]:
        """Gives a data blob's chunk list, not checked; raises NotFound."""

    def read_data(self, digest: str, codec: Codec, offset: int, length: int) -> bytes:
        """Returns bytes of a data blob as stored, fewer only at its end; raises NotFound."""

    def delete(self, digest: str) -> None:
        """Removes it, with its chunk list; nothing happens if it is not there."""

    def list(self) -> Iterator[Blob]:
        """Gives all blobs, by digest."""


class Catalogue(Protocol):
    """What the blobs are. A manifest is found by name and digest, a tag by name."""

    def put_manifest(self, manifest: LayerManifest) -> None:
        """Records what a blob is under the manifest's name."""

    def manifest(self, name: LayerName, digest: str) -> LayerManifest | None:
        """Returns the manifest of that name and digest."""

    def manifests(self, digest: str | None = None) -> Iterator[LayerManifest]:
        """Gives all manifests (of one digest), tagged or not."""

    def delete_manifest(self, name: LayerName, digest: str) -> None:
        """Removes it; nothing happens if it is not there."""

    def set_tag(self, name: LayerName, digest: str) -> None:
        """Makes the name stand for the digest from now on."""

    def tag(self, name: LayerName) -> str | None:
        """Returns the digest that the name stands for."""

    def tags(self) -> Iterator[tuple[LayerName, str]]:
        """Gives all names with their digests, sorted."""

    def delete_tag(self, name: LayerName) -> None:
        """Removes the name; nothing happens if it is not there."""


class LayerStore(BlobStore, Catalogue, Protocol):
    """A whole store. What is put or set is so within `adding`, what is deleted within `collecting`."""

    def adding(self) -> AbstractContextManager[None]:
        """Within it no blob is collected, so one just put or found stays until it is named."""

    def collecting(self) -> AbstractContextManager[None]:
        """Within it nobody else adds or collects."""


class _Tag(msgspec.Struct):
    digest: str
    version: int = 1


class DirectoryStore:
    """A store in a directory, for any number of processes on hosts that share its flock.

    Raises StorageFailed if the disk is full or cannot be read, and for a store of another version.
    """

    def __init__(self, root: str) -> None:
        self.root = root
        with storage_errors(f"opening the layer store {root}"):
            for part in ("blobs/sha256", "manifests", "tags", "tmp"):
                os.makedirs(os.path.join(root, part), mode=0o755, exist_ok=True)
            self._check_version()
        sweep(os.path.join(root, "tmp"))

    def _check_version(self) -> None:
        path = os.path.join(self.root, "version")
        try:
            with open(path, encoding="utf-8") as file:
                found = file.read().strip()
        except FileNotFoundError:
            self._write(path, f"{_VERSION}\n".encode())
            return
        if found != _VERSION:
            raise StorageFailed(
                f"the layer store {self.root} has version {found!r}, not {_VERSION}"
            )

    # --- locks ---

    def adding(self) -> AbstractContextManager[None]:
        """Within it no blob is collected."""
        return self._locked(fcntl.LOCK_SH)

    def collecting(self) -> AbstractContextManager[None]:
        """Within it nobody else adds or collects."""
        return self._locked(fcntl.LOCK_EX)

    @contextlib.contextmanager
    def _locked(self, kind: int) -> Iterator[None]:
        with storage_errors(f"locking the layer store {self.root}"):
            fd = os.open(
                os.path.join(self.root, "lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644
            )
        try:
            with storage_errors(f"locking the layer store {self.root}"):
                fcntl.flock(fd, kind)
            yield
        finally:
            os.close(fd)

    # --- blobs ---

    def put(self, source: str, digest: str) -> None:
        """Takes over the file; a copy is made if it lies on another file system."""
        target = self._blob(digest)
        with storage_errors("storing a layer"):
            if self.has(digest):
                os.unlink(source)  # the one in place may be mounted: it stays
                return
            self._take(source, target)

    def _take(self, source: str, target: str) -> None:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        os.chmod(source, 0o444)
        try:
            _sync_file(source)
            os.rename(source, target)
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            self._copy(source, target)
            os.unlink(source)
        _sync_file(os.path.dirname(target))

    def _copy(self, source: str, target: str) -> None:
        with scratch_directory(os.path.join(self.root, "tmp")) as directory:
            part = os.path.join(directory, "blob")
            with open(source, "rb") as old, open(part, "wb") as new:
                shutil.copyfileobj(old, new, CHUNK_BYTES)
            os.chmod(part, 0o444)
            _sync_file(part)
            os.rename(part, target)

    def path(self, digest: str) -> str:
        """Returns where the blob lies."""
        if not self.has(digest):
            raise NotFound(f"no layer with digest {digest} in {self.root}")
        return self._blob(digest)

    def has(self, digest: str) -> bool:
        """Says whether the blob is there."""
        return os.path.exists(self._blob(digest))

    def delete(self, digest: str) -> None:
        """Removes the blob; a mount of it keeps working."""
        # The list first: without it the data blob is not there.
        for suffix in (_LIST, *_SUFFIXES.values()):
            with storage_errors("removing a layer"), contextlib.suppress(FileNotFoundError):
                os.unlink(self._blob(digest) + suffix)

    def list(self) -> Iterator[Blob]:
        """Gives all blobs, each with the size of all that is kept under its digest."""
        top = os.path.join(self.root, "blobs", "sha256")
        for part in sorted(os.listdir(top)):
            sizes: dict[str, int] = {}
            for name in sorted(os.listdir(os.path.join(top, part))):
                digest = name.partition(".")[0]
                with contextlib.suppress(FileNotFoundError):
                    size = os.stat(os.path.join(top, part, name)).st_size
                    sizes[digest] = sizes.get(digest, 0) + size
            for digest, size in sizes.items():
                yield Blob(f"sha256:{digest}", size)

    def _blob(self, digest: str) -> str:
        return os.path.join(self.root, "blobs", "sha256", _hex(digest)[:2], _hex(digest))

    def pieces(self, digest: str) -> Iterator[bytes]:
        """Gives the bytes of a metadata blob."""
        yield from _pieces(self.path(digest))

    # --- data blobs ---

    def put_data(self, stored: str, chunks: ChunkList) -> None:
        """Takes over the file; it counts as there once its chunk list, stored after it, is."""
        digest = chunks.content_digest
        path = self._blob(digest)
        with storage_errors("storing a layer's data"):
            if os.path.exists(path + _LIST):
                os.unlink(stored)  # the one in place may be mounted: it stays
                return
            self._take(stored, path + _SUFFIXES[chunks.codec])
        self._write(path + _LIST, chunks.encode(), mode=0o444)

    def chunk_list(self, digest: str) -> Iterator[bytes]:
        """Gives a chunk list."""
        path = self._blob(digest) + _LIST
        if not os.path.exists(path):
            raise NotFound(f"no chunk list of data blob {digest} in {self.root}")
        yield from _pieces(path)

    def read_data(self, digest: str, codec: Codec, offset: int, length: int) -> bytes:
        """Returns bytes of a data blob as stored."""
        path = self._blob(digest) + _SUFFIXES[codec]
        try:
            with storage_errors(f"reading data blob {digest}"), open(path, "rb") as file:
                return os.pread(file.fileno(), length, offset)
        except StorageFailed as error:
            if error.fields["errno"] != errno.ENOENT:
                raise
            raise NotFound(f"no data blob {digest} in {self.root}") from error

    # --- manifests and tags ---

    def put_manifest(self, manifest: LayerManifest) -> None:
        """Records a manifest."""
        name = parse_layer_name(manifest.name)
        self._write(self._manifest_path(name, manifest.digest), msgspec.json.encode(manifest))

    def manifest(self, name: LayerName, digest: str) -> LayerManifest | None:
        """Returns the manifest; raises ImageBroken if its file is damaged."""
        return _read(self._manifest_path(name, digest), LayerManifest)

    def manifests(self, digest: str | None = None) -> Iterator[LayerManifest]:
        """Gives all manifests (of one digest)."""
        top = os.path.join(self.root, "manifests", _hex(digest) if digest else "")
        for path in _json_files(top):
            manifest = _read(path, LayerManifest)
            if manifest is not None:
                yield manifest

    def delete_manifest(self, name: LayerName, digest: str) -> None:
        """Removes a manifest."""
        _unlink_up(self._manifest_path(name, digest), os.path.join(self.root, "manifests"))

    def set_tag(self, name: LayerName, digest: str) -> None:
        """Sets a tag; the last one to set it wins."""
        self._write(self._tag_path(name), msgspec.json.encode(_Tag(digest)))

    def tag(self, name: LayerName) -> str | None:
        """Returns a tag's digest."""
        tag = _read(self._tag_path(name), _Tag)
        return tag.digest if tag else None

    def tags(self) -> Iterator[tuple[LayerName, str]]:
        """Gives all tags."""
        top = os.path.join(self.root, "tags")
        for path in _json_files(top):
            tag = _read(path, _Tag)
            directory, file = os.path.split(os.path.relpath(path, top))
            if tag is not None:
                yield parse_layer_name(f"{directory}{file.removesuffix('.json')}"), tag.digest

    def delete_tag(self, name: LayerName) -> None:
        """Removes a tag."""
        _unlink_up(self._tag_path(name), os.path.join(self.root, "tags"))

    def _manifest_path(self, name: LayerName, digest: str) -> str:
        return os.path.join(self.root, "manifests", _hex(digest), _file(name))

    def _tag_path(self, name: LayerName) -> str:
        return os.path.join(self.root, "tags", _file(name))

    def _write(self, target: str, content: bytes, mode: int = 0o644) -> None:
        """Replaces a small file as a whole."""
        what = f"writing to the layer store {self.root}"
        with storage_errors(what), scratch_directory(os.path.join(self.root, "tmp")) as directory:
            part = os.path.join(directory, "part")
            with open(part, "wb") as file:
                file.write(content)
                file.flush()
                os.fchmod(file.fileno(), mode)
                os.fsync(file.fileno())
            os.makedirs(os.path.dirname(target), exist_ok=True)
            os.rename(part, target)
            _sync_file(os.path.dirname(target))


def _pieces(path: str) -> Iterator[bytes]:
    with storage_errors(f"reading {path}"), open(path, "rb") as file:
        while piece := file.read(CHUNK_BYTES):
            yield piece


def _hex(digest: str) -> str:
    return digest.removeprefix("sha256:")


def _file(name: LayerName) -> str:
    return os.path.join(name.kind, name.name, f":{name.tag}.json")


def _read(path: str, kind: type[_T]) -> _T | None:
    try:
        with storage_errors(f"reading {path}"):
            content = _content(path)
        return msgspec.json.decode(content, type=kind) if content is not None else None
    except msgspec.DecodeError as error:
        raise ImageBroken(f"{path} is damaged: {error}") from error


def _content(path: str) -> bytes | None:
    try:
        with open(path, "rb") as file:
            return file.read()
    except FileNotFoundError:
        return None


def _json_files(top: str) -> Iterator[str]:
    for directory, names, files in os.walk(top):
        names.sort()
        for file in sorted(files):
            if file.endswith(".json"):
                yield os.path.join(directory, file)


def _unlink_up(path: str, top: str) -> None:
    """Removes a file and the directories that became empty by it."""
    with storage_errors(f"removing {path}"), contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    directory = os.path.dirname(path)
    while directory != top:
        try:
            os.rmdir(directory)
        except OSError:
            return
        directory = os.path.dirname(directory)


def _sync_file(path: str) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
