"""The layer store: blobs by digest, manifests, names, pins, on any store of whole objects.

A blob is immutable and named by its digest; beside the blob of a layer's data lies its chunk list.
A manifest says what a blob is; it is kept for each blob and name, so a digest that something pins
stays known when its tag has moved on. A tag says what a name stands for now, and holds the manifest.
`skerry.images.store.keys` draws where they lie.

Any number of processes on any number of hosts may add, use, remove and collect at once. Nothing is
locked: `skerry.images.store.leases` says why nothing is lost. What only a name refers to disappears in
the next collection after the name (`skerry.images.store.collect`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import msgspec

from skerry.errors import LayerDamaged, NotFound, StorageFailed
from skerry.images.format.chunks import ChunkList, Codec
from skerry.images.format.profile import PROFILE, profile_bytes_max
from skerry.images.objects.api import Objects, Patient
from skerry.images.objects.directory import DirectoryObjects
from skerry.images.store import keys
from skerry.images.store.leases import Leases
from skerry.images.store.listed import Records
from skerry.images.store.older import convert_version_1
from skerry.images.store.reads import pieces
from skerry.images.store.records import Chain, Pin, Tag, encode
from skerry.spec.layers import LayerManifest, LayerName, parse_layer_name

VERSION = "2"
LIST = ".chunks"
SUFFIXES = {Codec.NONE: "", Codec.ZSTD: ".zst"}
READS_AT_ONCE = 16


class Blob(NamedTuple):
    """One digest of a listing."""

    digest: str
    size_bytes: int


class LayerStore:
    """Layers in a store. All calls may block, from any thread; StorageFailed where the store fails.

    Raises StorageFailed for a store of a version that this program does not know, or which fails.
    """

    def __init__(
        self,
        objects: Objects,
        leases: Leases | None = None,
        *,
        reads_at_once: int = READS_AT_ONCE,
    ) -> None:
        self._objects = objects
        self.leases = leases or Leases(objects)
        self._records = Records(objects, reads_at_once=reads_at_once)
        self._known = False
        if self.has_files:
            self._check_version()

    @property
    def objects(self) -> Objects:
        """The store, once it is known that its version is ours.

        A store that is reached over a network is asked at the first use: a node has to be able to
        start, and to look after its sandboxes, while its store is away.
        """
        if not self._known:
            self._check_version()
        return self._objects

    def hurry(self) -> None:
        """The process is to end: a store that does not answer is not waited for any more."""
        if isinstance(self._objects, Patient):
            self._objects.hurry()

    def counts(self) -> dict[str, int]:
        """Returns what there is to count of a store that is reached over a network."""
        if not isinstance(self._objects, Patient):
            return {}
        return {
            "store_repeats_total": self._objects.repeats,
            "store_failures_total": self._objects.failures,
        }

    def _check_version(self) -> None:
        objects = self._objects
        found = objects.get(keys.VERSION, 64)
        if found is None:
            objects.put_bytes(keys.VERSION, f"{VERSION}\n".encode(), replace=False)
            # Another client may have made it just now, and be seen only later.
            found = objects.get(keys.VERSION, 64) or VERSION.encode()
        version = found.decode(errors="replace").strip()
        if version != VERSION:
            raise StorageFailed(
                f"the layer store {objects.where} has version {version[:20]!r}, not {VERSION}"
            )
        self._known = True

    # --- adding ---

    @contextlib.contextmanager
    def adding(self, *blobs: str) -> Iterator[None]:
        """Within it, and a while longer, these blobs stay: those put, found, or still to be put.

        What is held needs no name yet; `set_tag` or `publish` has to come within. May wait for a
        collector that is just removing one of them: minutes at most.
        """
        with self.leases.holding({blob: (blob,) for blob in blobs}):
            yield

    def put(self, source: str, digest: str, part: str = "") -> None:
        """Stores a file whose digest the caller computed; there already: no change.

        The file may be the stored one afterwards: nobody writes to it any more.
        """
        with self.adding(digest):
            key = keys.blob(digest, part)
            if self.objects.stat(key) is None:
                self.objects.put_file(key, source)

    def put_data(self, stored: str, chunks: ChunkList) -> None:
        """Stores a data blob as it is to be stored, then its chunk list; then it counts as there."""
        digest = chunks.content_digest
        key, list_key = keys.blob(digest, SUFFIXES[chunks.codec]), keys.blob(digest, LIST)
        with self.adding(digest):
            if self.objects.stat(list_key) is not None:
                return
            if not self.objects.put_file(key, stored):
                found = self.objects.stat(key)
                if found is not None and found.size != chunks.stored_bytes:
                    # Frames of another zstd, which this list does not describe.
                    raise StorageFailed(
                        f"the data blob {digest} is just being stored by another node: try again"
                    )
            self.objects.put_bytes(list_key, chunks.encode(), replace=False)

    def publish(self, manifest: LayerManifest) -> None:
        """Makes the manifest's name stand for it. All its blobs are there, and were put in `adding`."""
        name = parse_layer_name(manifest.name)
        blobs = manifest.needs()
        with self.leases.holding({blob: (blob,) for blob in blobs}):
            for one in manifest.chain():
                for layer in one.layers():
                    self._require(layer)
            self.put_manifest(manifest)
            self.leases.check(blobs)
            self._put(keys.tag(name), Tag(manifest.digest, manifest))

    def hold(self, manifests: Iterable[LayerManifest]) -> None:
        """Makes the blobs of layers stay for a minute at least; then `leases.renew` has to name them.

        Raises StorageFailed if a collector is about to remove one, NotFound if one is gone.
        """
        needs = {one.digest: one.blobs() for one in manifests}
        self.leases.hold(needs, wait=False)
        self.leases.release(needs)

    # --- blobs ---

    def path(self, digest: str, part: str = "") -> str:
        """Returns a local path that can be mounted; raises NotFound, or StorageFailed if none can."""
        key = keys.blob(digest, part)
        path = self.objects.local_path(key)
        if path is None:
            raise StorageFailed(f"{self.objects.where} has no files that could be mounted in place")
        if not self.has(digest, part):
            raise NotFound(f"no layer with digest {digest} in {self.objects.where}")
        return path

    @property
    def has_files(self) -> bool:
        """Whether blobs are files that the kernel may mount in place."""
        return self._objects.local_path(keys.VERSION) is not None

    def has(self, digest: str, part: str = "") -> bool:
        """Says whether it is there."""
        return self.objects.stat(keys.blob(digest, part)) is not None

    def pieces(self, digest: str, size: int | None = None) -> Iterator[bytes]:
        """Gives the bytes of a metadata blob, not checked; raises NotFound (see `reads.pieces`)."""
        return pieces(self.objects, keys.blob(digest), size)

    def chunk_list(self, digest: str) -> Iterator[bytes]:
        """Gives a data blob's chunk list, not checked; raises NotFound."""
        return pieces(self.objects, keys.blob(digest, LIST))

    def profile(self, digest: str) -> bytes | None:
        """Returns which chunks of a data blob a first run touched, if that is known; not checked."""
        return self.objects.get(keys.blob(digest, PROFILE), profile_bytes_max())

    def put_profile(self, digest: str, data: bytes) -> bool:
        """Keeps the first such profile beside a data blob that is here; returns whether it was."""
        if not self.has(digest, LIST):
            return False
        return self.objects.put_bytes(keys.blob(digest, PROFILE), data, replace=False)

    def read_data(self, digest: str, codec: Codec, offset: int, length: int) -> bytes:
        """Returns bytes of a data blob as stored, fewer only at its end; raises NotFound."""
        return self.objects.read(keys.blob(digest, SUFFIXES[codec]), offset, length)

    def delete(self, digest: str) -> None:
        """Removes a blob and all that lies beside it; for the collector, who knows who needs it."""
        for key in keys.blobs(digest):
            self.objects.delete(key)

    def list(self) -> Iterator[Blob]:
        """Gives all blobs, each with the size of all that is kept under its digest."""
        sizes: dict[str, int] = {}
        for key, found in self.objects.list(keys.BLOBS):
            digest = keys.read_blob(key)
            if digest is not None:
                sizes[digest] = sizes.get(digest, 0) + found.size
        return (Blob(digest, size) for digest, size in sizes.items())

    def _require(self, layer: LayerManifest) -> None:
        data = layer.data_digest
        # The list comes last: a data blob without one is not there.
        if not self.has(layer.digest) or (data is not None and not self.has(data, LIST)):
            raise StorageFailed(f"{layer.name}: its blobs vanished from {self.objects.where}")

    # --- manifests ---

    def put_manifest(self, manifest: LayerManifest) -> None:
        """Records what a digest is called."""
        name = parse_layer_name(manifest.name)
        self._put(keys.manifest(name, manifest.digest), manifest)

    def manifest(self, name: LayerName, digest: str) -> LayerManifest | None:
        """Returns the manifest of that name and digest; raises LayerDamaged if it is damaged."""
        manifest = self._records.get(keys.manifest(name, digest), LayerManifest)
        return _named(manifest, name) if manifest else None

    def manifests(
        self, digest: str | None = None, *, damaged: Callable[[str], None] | None = None
    ) -> Iterator[LayerManifest]:
        """Gives all manifests (of one digest), tagged or not.

        What is damaged raises LayerDamaged, or is told to `damaged` and left out.
        """
        prefix = keys.manifests(digest) if digest else keys.MANIFESTS
        for manifest in self._records.below(prefix, LayerManifest, damaged):
            if digest is None or manifest.digest == digest:
                yield manifest

    def manifest_keys(self) -> Iterator[tuple[str, str]]:
        """Gives each manifest's digest and key, without reading one."""
        for key, _ in self.objects.list(keys.MANIFESTS):
            yield keys.digest_of(key), key

    def delete_manifest(self, name: LayerName, digest: str) -> None:
        """Removes it; nothing happens if it is not there."""
        self.objects.delete(keys.manifest(name, digest))

    # --- names ---

    def set_tag(self, name: LayerName, digest: str) -> None:
        """Makes the name stand for a digest that has a manifest of that name; the last one wins."""
        manifest = self.manifest(name, digest)
        if manifest is None:
            raise NotFound(f"{name} has no manifest with digest {digest}")
        self._put(keys.tag(name), Tag(digest, manifest))

    def tag(self, name: LayerName) -> str | None:
        """Returns the digest that the name stands for."""
        tag = self.tagged(name)
        return tag.digest if tag else None

    def tagged(self, name: LayerName) -> LayerManifest | None:
        """Returns the manifest that the name stands for now."""
        tag = self._records.get(keys.tag(name), Tag)
        return _named(tag.manifest, name) if tag else None

    def tags(self) -> Iterator[tuple[LayerName, str]]:
        """Gives all names with their digests, sorted."""
        for manifest in self.catalogue():
            yield parse_layer_name(manifest.name), manifest.digest

    def catalogue(self, *, damaged: Callable[[str], None] | None = None) -> Iterable[LayerManifest]:
        """Returns what each name stands for now, sorted; reads only what changed since the last.

        What is damaged raises LayerDamaged, or is told to `damaged` and left out.
        """
        tags = self._records.below(keys.TAGS, Tag, damaged)
        return sorted((tag.manifest for tag in tags), key=lambda manifest: manifest.name)

    def delete_tag(self, name: LayerName) -> None:
        """Removes the name; nothing happens if it is not there."""
        self.objects.delete(keys.tag(name))

    # --- chains ---

    def chain(self, chain_id: str) -> Chain | None:
        """Returns what a chain of commits may be mounted as instead; LayerDamaged if that is damaged."""
        return self._records.get(keys.chain(chain_id), Chain)

    def put_chain(self, chain: Chain) -> None:
        """Lets a shorter chain stand for another; the last one wins. All its blobs are there."""
        blobs = chain.blobs() | {chain.id}
        with self.leases.holding({blob: (blob,) for blob in blobs}):
            for one in chain.layers:
                for layer in one.layers():
                    self._require(layer)
            self.leases.check(blobs)
            self._put(keys.chain(chain.id), chain)

    def chains(self) -> Iterator[Chain]:
        """Gives all of them."""
        return self._records.below(keys.CHAINS, Chain)

    # --- pins ---

    def pin(self, manifest: LayerManifest, why: str = "user") -> None:
        """Makes a layer stay until it is unpinned for the same reason, whatever its names do."""
        blobs = tuple(sorted(manifest.needs()))
        pin = Pin(manifest.digest, blobs, manifest.name, why)
        with self.leases.holding({blob: (blob,) for blob in blobs}):
            for layer in manifest.layers():
                self._require(layer)
            self.leases.check(blobs)
            self._put(keys.pin(manifest.digest, why), pin)

    def unpin(self, digest: str, why: str = "user") -> bool:
        """Takes a pin back; returns whether there was one."""
        key = keys.pin(digest, why)
        there = self.objects.stat(key) is not None
        self.objects.delete(key)
        return there

    def pins(self) -> Iterator[Pin]:
        """Gives all pins."""
        return self._records.below(keys.PINS, Pin)

    # --- inner parts ---

    def _put(self, key: str, record: msgspec.Struct) -> None:
        self.objects.put_bytes(key, encode(record), replace=True)


def _named(manifest: LayerManifest, name: LayerName) -> LayerManifest:
    """Returns it if it is that name's; raises LayerDamaged: it was put, or copied, elsewhere."""
    wanted = f"{name.kind}/{name.name}:{name.tag}"
    if manifest.name != wanted:
        raise LayerDamaged(f"the record of {wanted} is that of {manifest.name}")
    return manifest


class DirectoryStore(LayerStore):
    """A layer store in a directory; one of version 1 is converted, which nodes of then cannot read.

    Raises StorageFailed if the disk is full or cannot be read, and for a store of another version.
    """

    def __init__(
        self,
        root: str,
        *,
        lag_s: float | None = None,
        leases: Callable[[Objects], Leases] | None = None,
    ) -> None:
        self.root = root
        convert_version_1(root)
        objects = DirectoryObjects(root, lag_s=lag_s)
        super().__init__(objects, leases(objects) if leases else None)
