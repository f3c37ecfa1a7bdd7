"""From trees to an OCI layout that other engines take: plain tar layers with OCI whiteouts."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator

import msgspec

from skerry.errors import ImageBroken
from skerry.images.archives.tarwrite import write_tar
from skerry.images.oci.config import write_config
from skerry.images.oci.model import (
    CONFIG_TYPE,
    LAYER_TYPE,
    MANIFEST_TYPE,
    REF_NAME,
    Descriptor,
    Index,
    Manifest,
    Platform,
    blob_name,
)
from skerry.images.scratch import Spool, storage_errors
from skerry.images.tree.entry import OPAQUE, Entry, Node, Tree, show
from skerry.spec.files import FileType
from skerry.spec.layers import ImageConfig

_WHITEOUT = b".wh."
_OPAQUE_NAME = b".wh..wh..opq"


def oci_entries(entries: Iterable[Entry]) -> Iterator[Entry]:
    """Gives a layer's files as an OCI layer has them: its marks are names.

    Raises ImageBroken for a file whose own name would be taken for such a mark.
    """
    for entry in entries:
        node = entry.node
        above, slash, name = entry.path.rpartition(b"/")
        if node.type is FileType.CHARACTER:
            yield Entry(above + slash + _WHITEOUT + name, Node(FileType.FILE, 0o644))
            continue
        if name.startswith(_WHITEOUT):
            raise ImageBroken(f"{show(entry.path)}: an OCI image cannot hold a file of such a name")
        opaque = node.xattrs.get(OPAQUE) == b"y"
        kept = {key: value for key, value in node.xattrs.items() if not _is_ours(key)}
        plain = Node(node.type, node.mode, node.uid, node.gid, node.mtime_ns, node.target)
        plain.xattrs = kept
        yield Entry(entry.path, plain, entry.size, entry.hard_link, entry.data)
        if opaque:
            mark = entry.path + b"/" + _OPAQUE_NAME if entry.path else _OPAQUE_NAME
            yield Entry(mark, Node(FileType.FILE, 0o644))


def _is_ours(key: bytes) -> bool:
    return key.startswith(b"trusted.")


class LayoutWriter:
    """Writes a layout of one image into an empty directory, layer by layer, lowest first."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._layers: list[Descriptor] = []
        with storage_errors("writing an image"):
            os.makedirs(os.path.join(directory, "blobs", "sha256"))

    def add(self, tree: Tree, spool: Spool) -> None:
        """Writes a layer; the tree and its contents are not needed afterwards."""
        part = os.path.join(self._directory, "part")
        digest, size = hashlib.sha256(), 0
        with storage_errors("writing an image"), open(part, "xb") as file:
            for piece in write_tar(oci_entries(tree.entries(spool))):
                digest.update(piece)
                size += len(piece)
                file.write(piece)
        descriptor = Descriptor(LAYER_TYPE, f"sha256:{digest.hexdigest()}", size)
        with storage_errors("writing an image"):
            os.rename(part, os.path.join(self._directory, blob_name(descriptor.digest)))
        self._layers.append(descriptor)

    def finish(self, config: ImageConfig, platform: Platform, tag: str = "image") -> str:
        """Writes the rest; returns the digest of the manifest."""
        diff_ids = [layer.digest for layer in self._layers]
        about = self._put(
            CONFIG_TYPE, msgspec.json.encode(write_config(config, platform, diff_ids))
        )
        manifest = self._put(MANIFEST_TYPE, msgspec.json.encode(Manifest(about, self._layers)))
        manifest.annotations = {REF_NAME: tag}
        self._write("index.json", msgspec.json.encode(Index([manifest])))
        self._write("oci-layout", b'{"imageLayoutVersion":"1.0.0"}')
        return manifest.digest

    def _put(self, kind: str, content: bytes) -> Descriptor:
        digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
        self._write(blob_name(digest), content)
        return Descriptor(kind, digest, len(content))

    def _write(self, name: str, content: bytes) -> None:
        path = os.path.join(self._directory, name)
        with storage_errors("writing an image"), open(path, "wb") as file:
            file.write(content)
