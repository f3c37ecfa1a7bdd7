"""Stores of version 1, as nodes before leases wrote them, and what becomes of them.

    ROOT/
      lock                                 flock: shared while adding, exclusive while collecting
      manifests/HEX/KIND/NAME/:TAG.json    LayerManifest
      tags/KIND/NAME/:TAG.json             {"version": 1, "digest": "sha256:HEX"}
      tmp/, scratch/                       work in progress

Blobs lie where they lie now. Manifests and tags are written under their new keys, then the old files
go, then the version changes; a conversion that is cut off is done again. Only local disks carried
version 1 well (it locked), so only directories are converted.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator

import msgspec

from skerry.errors import LayerDamaged
from skerry.images.objects.directory import DirectoryObjects
from skerry.images.scratch import remove_tree, storage_errors
from skerry.images.store import keys
from skerry.images.store.records import Tag, decode, encode
from skerry.spec.layers import LayerManifest, parse_layer_name

_BYTES_MAX = 4 << 20


class _OldTag(msgspec.Struct):
    digest: str


def convert_version_1(root: str) -> bool:
    """Makes a version 1 store one of version 2, while no node of then works in it; else does nothing.

    Several may convert at once. Raises StorageFailed, LayerDamaged for a damaged manifest or tag.
    """
    if _version(root) != "1":
        return False
    with _locked(root):
        if _version(root) != "1":
            return True
        objects = DirectoryObjects(root)
        with storage_errors(f"converting the layer store {root}"):
            for path in _old_files(os.path.join(root, "manifests")):
                manifest = decode(_content(path), LayerManifest, path)
                key = keys.manifest(parse_layer_name(manifest.name), manifest.digest)
                objects.put_bytes(key, encode(manifest), replace=False)
            for path in _old_files(os.path.join(root, "tags")):
                _convert_tag(root, path, objects)
            _clean(root)
            objects.put_bytes(keys.VERSION, b"2\n", replace=True)
    return True


def _version(root: str) -> str:
    try:
        with open(os.path.join(root, keys.VERSION), encoding="utf-8", errors="replace") as file:
            return file.read(64).strip()
    except OSError:
        return ""


def _convert_tag(root: str, path: str, objects: DirectoryObjects) -> None:
    directory, file = os.path.split(os.path.relpath(path, os.path.join(root, "tags")))
    name = parse_layer_name(f"{directory}{file.removesuffix('.json')}")
    digest = decode(_content(path), _OldTag, path).digest
    data = objects.get(keys.manifest(name, digest), _BYTES_MAX)
    if data is None:
        raise LayerDamaged(f"{path} names {digest}, which has no manifest: remove the file")
    tag = Tag(digest, decode(data, LayerManifest, path))
    objects.put_bytes(keys.tag(name), encode(tag), replace=False)


def _clean(root: str) -> None:
    """Removes what only version 1 knew: directories of names and of digests, locks, scratch."""
    for kind in _entries(os.path.join(root, "tags")):
        for entry in _entries(kind):
            if os.path.isdir(entry):
                remove_tree(entry)
    for entry in _entries(os.path.join(root, "manifests")):
        if len(os.path.basename(entry)) == 64:
            remove_tree(entry)
    for name in ("tmp", "scratch"):
        remove_tree(os.path.join(root, name))
    with contextlib.suppress(FileNotFoundError):
        os.unlink(os.path.join(root, "lock"))


@contextlib.contextmanager
def _locked(root: str) -> Iterator[None]:
    with storage_errors(f"locking the layer store {root}"):
        fd = os.open(os.path.join(root, "lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        with storage_errors(f"locking the layer store {root}"):
            fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def _old_files(top: str) -> Iterator[str]:
    for directory, _, files in os.walk(top):
        for file in sorted(files):
            if file.endswith(".json") and file.startswith(":"):
                yield os.path.join(directory, file)


def _entries(directory: str) -> list[str]:
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        return [os.path.join(directory, name) for name in os.listdir(directory)]
    return []


def _content(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read(_BYTES_MAX)
