"""How layers go: names removed, pins, and the collection of what nothing needs any more."""

from __future__ import annotations

import logging
from collections.abc import Collection

import msgspec

from skerry.errors import Conflict, LayerDamaged, NotFound, StorageFailed
from skerry.images.format.erofs import Log
from skerry.images.store import keys
from skerry.images.store.collect import Collector
from skerry.images.store.recordcheck import RecordCheck
from skerry.images.store.scrub import Scrub
from skerry.images.store.store import LayerStore
from skerry.images.store.suspects import Suspects
from skerry.spec.layers import (
    CollectReport,
    LayerCheck,
    LayerKind,
    LayerManifest,
    LayerName,
    RecordsCheck,
    parse_layer_name,
)

log = logging.getLogger("skerry.images")
DISK_PIN = "disk-"  # a pin for what an open disk needs: then the node and the disk


class Removal:
    """The part of the library that lets layers go. It needs `find`, which raises NotFound."""

    store: LayerStore
    suspects: Suspects

    def find(self, name: LayerName) -> LayerManifest:
        """Returns what a name stands for, or the digest that it is pinned to."""
        raise NotImplementedError

    def remove(self, name: str, in_use: Collection[str] = ()) -> None:
        """Removes a name with all that it ever stood for, or one digest of it if pinned by digest.

        Blobs go in the next `collect`, when nothing else refers to them. A name whose records are
        damaged goes too. Raises NotFound, and Conflict while `in_use` holds one of the digests, or
        `pin` does.
        """
        wanted = parse_layer_name(name, LayerKind.BASE)
        tagged = LayerName(wanted.kind, wanted.name, wanted.tag)
        damaged = False
        if wanted.digest:
            gone = {self.find(wanted).digest}
        else:
            gone = {
                digest
                for digest, key in self.store.manifest_keys()
                if key == keys.manifest(tagged, digest)
            }
            try:
                tag = self.store.tag(tagged)
            except LayerDamaged:
                damaged = True  # what it named has a manifest, which is found by its key
            else:
                if tag is None and not gone:
                    self.find(wanted)
                gone |= {tag} if tag else set()  # a removal that was cut off took its own manifest
        pinned = {pin.digest: pin.why for pin in self.store.pins()}
        for digest in gone:
            if digest in in_use:
                raise Conflict(f"{tagged} is in use by a sandbox or a function call", digest=digest)
            if pinned.get(digest, "").startswith(DISK_PIN):
                node = pinned[digest].removeprefix(DISK_PIN)
                raise Conflict(f"{tagged} is open on a node, as {node}: skerry disk close")
            if digest in pinned:
                raise Conflict(f"{tagged} is pinned: skerry image unpin {tagged}@{digest}")
        if damaged:
            self.store.delete_tag(tagged)
        for digest in gone:
            self._forget(tagged, digest)

    def look(self) -> CollectReport:
        """Returns what `collect` would remove, and why the rest stays."""
        return Collector(self.store).look()

    def collect(self, log: Log = lambda _line: None) -> CollectReport:
        """Removes what no name, pin, sandbox or lease needs; takes the store's grace period.

        Others may add, use, remove and collect meanwhile, from any host that shares the store.
        """
        return Collector(self.store).collect(log)

    def collected_ago_s(self) -> float | None:
        """Returns how long ago anybody ended a `collect` on this store; None: never."""
        return Collector(self.store).collected_ago_s()

    def verify(self, name: str, *, remove_damaged: bool = False) -> LayerCheck:
        """Reads all bytes of a layer again and says what is damaged (`skerry.images.store.scrub`).

        With `remove_damaged` damaged blobs go: nobody can mount the layer then, until it is made
        again, which stores them anew; a mount that is there keeps what it has. Raises NotFound,
        StorageFailed.
        """
        manifest = self.manifest_of(name)
        scrub = Scrub(self.store)
        check = scrub.check(manifest)
        for layer in manifest.layers():
            try:
                self.suspects.record(scrub.layer(layer))
            except StorageFailed as error:  # a full store can be read all the same
                log.warning("what a scrub found is not kept: %s", error)
        if check.damage and remove_damaged:
            for damage in check.damage:
                if damage.part != "manifest":  # the blob itself is right
                    self.store.delete(damage.digest)
            check = msgspec.structs.replace(check, removed=True)
        return check

    def verify_records(self) -> RecordsCheck:
        """Reads all records of the store and says which are damaged, by name, and what to do.

        A manifest whose name is whole is written anew. Raises StorageFailed.
        """
        return RecordCheck(self.store).check()

    def last_check(self, name: str) -> LayerCheck:
        """Returns what the last scrub of a layer and its parts found, whoever did it; NotFound."""
        return self.suspects.last(self.manifest_of(name))

    def manifest_of(self, name: str) -> LayerManifest:
        """Returns what a name stands for, also if its blobs are gone; raises NotFound."""
        wanted = parse_layer_name(name, LayerKind.BASE)
        try:
            return self.find(wanted)
        except LayerDamaged:
            pin = wanted.digest
            found = self.store.manifest(wanted, pin) if pin else self.store.tagged(wanted)
            if found is None:
                raise
            return found

    def pin(self, name: str) -> LayerManifest:
        """Makes what the name stands for now stay, whatever the name does; NotFound."""
        manifest = self.find(parse_layer_name(name, LayerKind.BASE))
        self.store.pin(manifest)
        return manifest

    def unpin(self, name: str) -> LayerManifest:
        """Takes a pin back. Raises NotFound, also if there is none."""
        manifest = self.find(parse_layer_name(name, LayerKind.BASE))
        if not self.store.unpin(manifest.digest):
            raise NotFound(f"{name} is not pinned")
        return manifest

    def _forget(self, name: LayerName, digest: str) -> None:
        if self.store.tag(name) == digest:
            self.store.delete_tag(name)
        self.store.delete_manifest(name, digest)
