"""A look at all records of a store: which are damaged, what they are of, and what to do about each.

Layers are found by their records, so a damaged one hides what it is of from every check of layers.
What a record is of is told by its key, which no flipped bit of its content reaches.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import msgspec

from skerry.errors import ImageBroken, InvalidRequest, LayerDamaged, StorageFailed
from skerry.images.format.profile import PROFILE, is_profile, profile_bytes_max
from skerry.images.objects.api import Objects
from skerry.images.store import keys
from skerry.images.store.leases import LEASE_BYTES_MAX
from skerry.images.store.listed import RECORD_BYTES_MAX
from skerry.images.store.records import (
    ROUND_BYTES_MAX,
    Agreed,
    Chain,
    Checked,
    Claim,
    Lease,
    Pin,
    Round,
    Suspect,
    Tag,
    read_record,
)
from skerry.images.store.store import READS_AT_ONCE, LayerStore
from skerry.spec.layers import LayerManifest, RecordProblem, RecordsCheck, parse_layer_name

_KINDS: Final[dict[str, tuple[str, type[msgspec.Struct], int]]] = {
    keys.TAGS: ("name", Tag, RECORD_BYTES_MAX),
    keys.MANIFESTS: ("manifest", LayerManifest, RECORD_BYTES_MAX),
    keys.CHAINS: ("chain", Chain, RECORD_BYTES_MAX),
    keys.PINS: ("pin", Pin, RECORD_BYTES_MAX),
    keys.LEASES: ("lease", Lease, LEASE_BYTES_MAX),
    keys.ROUNDS: ("collection", Round, ROUND_BYTES_MAX),
    keys.AGREED: ("terms of collections", Agreed, RECORD_BYTES_MAX),
    keys.CHECKED: ("last check", Checked, RECORD_BYTES_MAX),
    keys.DAMAGED: ("note of damage", Suspect, RECORD_BYTES_MAX),
    keys.CLAIMS: ("claim of a check", Claim, RECORD_BYTES_MAX),
}

log = logging.getLogger("skerry.images")


class RecordCheck:
    """One look at one store. Calls block; StorageFailed if the store cannot be read."""

    def __init__(self, store: LayerStore) -> None:
        self._store, self._objects = store, store.objects
        self._read = 0
        self._tagged: dict[str, LayerManifest] = {}  # by the key of the manifest that is its twin
        self._names: dict[str, list[str]] = defaultdict(list)  # of whole manifests, by digest
        self._digests: dict[str, list[str]] = defaultdict(list)  # the same, by name

    def check(self) -> RecordsCheck:
        """Reads every record from the store and returns what is wrong.

        A manifest that is damaged while its name is whole is written anew: the name holds the same.
        """
        problems: list[RecordProblem] = []
        mended: list[RecordProblem] = []
        bad: list[tuple[str, str, str]] = []
        for prefix in _KINDS:
            bad += ((prefix, key, said) for key, said in self._damaged(prefix))
        for prefix, key, said in bad:
            twin = self._tagged.get(key)
            if twin is not None and self._written(twin):
                mended.append(RecordProblem(key, "manifest", f"{twin.name}@{twin.digest}", said))
            else:
                problems.append(self._problem(prefix, key, said))
        problems += self._profiles()
        return RecordsCheck(self._read, tuple(problems), tuple(mended))

    def _damaged(self, prefix: str) -> Iterator[tuple[str, str]]:
        """Gives the key of each record that is not what it should be, and what is wrong."""
        _, kind, bytes_max = _KINDS[prefix]
        found = [key for key, _ in self._objects.list(prefix)] if prefix.endswith("/") else [prefix]

        def read(key: str) -> msgspec.Struct | LayerDamaged | None:
            _forget(self._objects, key)
            try:
                return read_record(self._objects, key, kind, bytes_max)
            except LayerDamaged as error:
                return error

        wanted = [key for key in found if not key.endswith(keys.DONE)]
        with ThreadPoolExecutor(READS_AT_ONCE, "records") as threads:
            for key, record in zip(wanted, threads.map(read, wanted), strict=True):
                try:
                    if isinstance(record, LayerDamaged):
                        raise record
                    if record is not None:
                        self._take(key, record)
                        self._read += 1
                except LayerDamaged as error:
                    yield key, error.message

    def _written(self, manifest: LayerManifest) -> bool:
        try:
            self._store.put_manifest(manifest)
        except StorageFailed as error:  # a full store can be read all the same
            log.warning("%s is not written anew: %s", manifest.name, error)
            return False
        return True

    def _take(self, key: str, record: msgspec.Struct) -> None:
        """Takes note of a whole record; raises LayerDamaged if it lies where another one belongs."""
        if isinstance(record, Tag):
            name = parse_layer_name(record.manifest.name)
            self._at(key, keys.tag(name), record.manifest.name)
            self._tagged[keys.manifest(name, record.digest)] = record.manifest
        elif isinstance(record, LayerManifest):
            at = keys.manifest(parse_layer_name(record.name), record.digest)
            self._at(key, at, f"{record.name}@{record.digest}")
            self._names[record.digest].append(record.name)
            self._digests[record.name].append(record.digest)
        elif isinstance(record, Pin):
            with contextlib.suppress(InvalidRequest):
                parse_layer_name(record.name)  # one of no layer keeps its blobs all the same
            self._at(key, keys.pin(record.digest, record.why), record.digest)
        elif isinstance(record, Chain):
            self._at(key, keys.chain(record.id), record.id)
        elif isinstance(record, Checked | Suspect):
            below = keys.CHECKED if isinstance(record, Checked) else keys.DAMAGED
            self._at(key, keys.scrub(below, record.digest), record.digest)

    def _at(self, key: str, wanted: str, whose: str) -> None:
        if key != wanted:
            raise LayerDamaged(f"{key} in {self._objects.where} is damaged: it is that of {whose}")

    def _problem(self, prefix: str, key: str, said: str) -> RecordProblem:
        kind = _KINDS[prefix][0]
        if prefix == keys.TAGS:
            name = keys.name_of(key.removeprefix(keys.TAGS))
            return RecordProblem(key, kind, name, said, self._of_name(key, name))
        if prefix == keys.MANIFESTS:
            digest, (_, _, rest) = keys.digest_of(key), key.rpartition("/")[2].partition("!")
            named = keys.name_of(rest.replace("!", "/", 1))
            name = f"{named}@{digest}" if named else digest
            return RecordProblem(key, kind, name, said, self._of_manifest(key, named))
        if prefix == keys.PINS:
            return self._of_pin(key, said)
        rest = key.removeprefix(prefix)
        if prefix in (keys.CHECKED, keys.DAMAGED):
            digest = keys.digest_of(key)
            layer = next(iter(self._names.get(digest, ())), "")
            advice = f"skerry image verify {layer}@{digest}, which writes it anew"
            name = f"{layer}@{digest}" if layer else digest
            return RecordProblem(key, kind, name, said, advice if layer else self._by_hand(key))
        return RecordProblem(key, kind, rest or key, said, self._of_other(prefix, key))

    def _of_name(self, key: str, name: str) -> str:
        if not name:
            return f"make the layer again, or: {self._by_hand(key)}"
        again = f"make {name} again, or give it up: skerry image rm {name}"
        known = sorted(f"{name}@{digest}" for digest in self._digests.get(name, ()))
        if known:
            again += f"; until then it can be used by digest: {', '.join(known[:3])}"
        return f"{again}. Collections stop until then"

    def _of_manifest(self, key: str, name: str) -> str:
        if not name:
            return f"make the layer again, or: {self._by_hand(key)}"
        return f"make {name} again, or give it up: skerry image rm {name}"

    def _of_pin(self, key: str, said: str) -> RecordProblem:
        digest = keys.digest_of(key)
        why = key.rpartition("/")[2].partition("!")[2]
        layer = next(iter(self._names.get(digest, ())), "")
        name = f"{layer}@{digest}" if layer else digest
        if why != "user":
            advice = "take a snapshot of that open disk on its node, and close the disk when it is "
            advice += f"done with. If the node is gone for good: {self._by_hand(key)}"
            name = f"{name} ({why})"
        elif layer:
            advice = f"skerry image pin {name}, or skerry image unpin {name}"
        else:
            advice = self._by_hand(key)
        return RecordProblem(key, "pin", name, said, f"{advice}. Collections stop until then")

    def _of_other(self, prefix: str, key: str) -> str:
        by_hand = self._by_hand(key)
        return {
            keys.CHAINS: f"{by_hand}; it is a shortcut that nodes make again",
            keys.LEASES: "its node writes it anew within a minute; if that is gone for good: "
            f"{by_hand}. Collections stop until then",
            keys.ROUNDS: "the next skerry image gc removes it once its time is over, some minutes "
            "after it was written",
            keys.AGREED: f"while no collection is under way, {by_hand}; nodes write it anew within "
            "a minute",
            keys.CLAIMS: "nothing: the next check takes its place",
        }[prefix]

    def _by_hand(self, key: str) -> str:
        return f"remove {key} from {self._objects.where}"

    def _profiles(self) -> Iterator[RecordProblem]:
        for key, _ in self._objects.list(keys.BLOBS):
            if not key.endswith(PROFILE) or keys.read_blob(key) is None:
                continue
            self._read += 1
            try:
                data = self._objects.get(key, profile_bytes_max())
            except ImageBroken:
                data = b""
            if data is not None and not is_profile(data):
                yield RecordProblem(
                    key,
                    "profile",
                    str(keys.read_blob(key)),
                    f"{key} in {self._objects.where} is damaged: it is no list of chunks",
                    f"{self._by_hand(key)}; without it nothing is fetched ahead, and the next "
                    "first run records it",
                )


def _forget(objects: Objects, key: str) -> None:
    """Lets the next read ask the disk."""
    path = objects.local_path(key)
    if path is not None:
        with contextlib.suppress(OSError), open(path, "rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
