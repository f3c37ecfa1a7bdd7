"""From a tree that was read to a layer in the store: the last step of everything that makes layers."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from skerry.images.commits.packing import Packed
from skerry.images.format.chunks import Codec
from skerry.images.format.erofs import Log, Tools
from skerry.images.format.pair import BuiltLayer, build_layer
from skerry.images.scratch import Spool, storage_errors
from skerry.images.store.records import rfc3339
from skerry.images.store.restoring import COMMIT, FLATTEN
from skerry.images.store.store import LayerStore
from skerry.images.tree.entry import BELOW, Tree
from skerry.images.tree.notes import Notes
from skerry.spec.layers import ImageConfig, LayerManifest, LayerName
from skerry.spec.residue import Scrubbed


class Made(NamedTuple):
    """A layer that is read but not yet an image; one of several parts has the others in `lower`."""

    name: LayerName
    creator: str
    recipe: dict[str, str]
    tree: Tree
    spool: Spool
    notes: Notes
    config: ImageConfig | None = None
    lower: Sequence[Tree] = ()  # lowest first
    scrubbed: tuple[Scrubbed, ...] = ()


class Publisher:
    """Makes blobs and stores them; one for a library."""

    def __init__(
        self,
        store: LayerStore,
        tools: Tools,
        compression: str,
        codec: Codec,
        clock: Callable[[], float],
    ) -> None:
        self._store = store
        self._tools = tools
        self.compression = compression
        self.codec = codec
        self._clock = clock

    def publish(self, made: Made, scratch: str, log: Log) -> LayerManifest:
        """Returns the manifest of a layer that is stored and has its name.

        Parts below are no layers of their own: the manifest holds theirs, and its digest stands for
        them too. On an error nothing has the name.
        """
        notes = made.notes.lines()
        for line in notes:
            log(f"note: {line}")
        built: list[BuiltLayer] = []
        parts: list[LayerManifest] = []
        for number, tree in enumerate((*made.lower, made.tree)):
            if parts:
                tree.root.xattrs[BELOW] = _below(parts)
            place = os.path.join(scratch, f"part{number}")
            with storage_errors("making a layer"):
                os.mkdir(place)
            built.append(
                build_layer(
                    tree,
                    made.spool,
                    place,
                    tools=self._tools,
                    compression=self.compression,
                    codec=self.codec,
                    log=log,
                )
            )
            parts.append(self._manifest(str(made.name), made.creator, tree.count(), built[-1]))
        manifest = msgspec.structs.replace(
            parts.pop(),
            recipe=made.recipe | ({"notes": "\n".join(notes)} if notes else {}),
            config=made.config,
            parts=tuple(parts),
            scrubbed=made.scrubbed,
        )
        self._publish(manifest, built)
        size = manifest.total_bytes >> 20
        log(f"{made.name}: {manifest.files} files, {size} MiB, {manifest.digest}")
        return manifest

    def keep(
        self,
        name: LayerName,
        packed: Packed,
        recipe: dict[str, str],
        parents: tuple[str, ...],
        log: Log,
        *,
        below: tuple[LayerManifest, ...],
    ) -> LayerManifest:
        """Returns the manifest of a commit whose blobs are made; then it is stored and has its name."""
        for line in packed.notes:
            log(f"note: {line}")
        built = packed.built()
        log(f"storing {packed.files} files")
        notes = {"notes": "\n".join(packed.notes)} if packed.notes else {}
        manifest = msgspec.structs.replace(
            self._manifest(str(name), COMMIT, packed.files, built),
            recipe=recipe | notes,
            parents=parents,
            scrubbed=packed.scrubbed,
            below=below,
        )
        self._publish(manifest, [built])
        log(f"{name}: {packed.files} files, {manifest.total_bytes >> 20} MiB, {manifest.digest}")
        return manifest

    def merged(self, packed: Packed, config: ImageConfig) -> LayerManifest:
        """Returns the manifest of what commits of a chain were merged to. No tag stands for it."""
        built = packed.built()
        name = f"workspace/flattened:{built.digest.removeprefix('sha256:')[:16]}"
        manifest = self._manifest(name, FLATTEN, packed.files, built)
        return (
            manifest
            if config == ImageConfig()
            else msgspec.structs.replace(manifest, config=config)
        )

    def put(self, built: Sequence[BuiltLayer]) -> None:
        """Stores blobs, which are held."""
        for one in built:
            if one.data is not None and one.chunks is not None:
                self._store.put_data(one.data, one.chunks)
            self._store.put(one.path, one.digest)

    def _publish(self, manifest: LayerManifest, built: Sequence[BuiltLayer]) -> None:
        with self._store.adding(*manifest.needs()):
            self.put(built)
            self._store.publish(manifest)

    def _manifest(self, name: str, creator: str, files: int, built: BuiltLayer) -> LayerManifest:
        manifest = LayerManifest(
            name=name,
            digest=built.digest,
            size_bytes=built.size_bytes,
            created=rfc3339(self._clock()),
            creator=creator,
            compression=self.compression,
            files=files,
            version=2,
        )
        if built.chunks is None:
            return manifest
        return msgspec.structs.replace(
            manifest,
            data_digest=built.chunks.content_digest,
            data_bytes=built.chunks.size,
            data_codec=built.chunks.codec.value,
            stored_bytes=built.chunks.stored_bytes,
        )


def _below(parts: Sequence[LayerManifest]) -> bytes:
    """Returns what makes a layer's digest depend on the parts below it."""
    return hashlib.sha256(" ".join(part.digest for part in parts).encode()).hexdigest().encode()
