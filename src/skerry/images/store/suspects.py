"""Layers that are known to be damaged: noted where the damage is seen, refused until they are mended.

The note lies in the store, so that every node knows. It ends when a scrub finds the layer whole, and
stops to count at once when a damaged object is written anew: made again, or copied back.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from typing import Final

from skerry.errors import LayerDamaged, SkerryError
from skerry.images.store import keys
from skerry.images.store.listed import RECORD_BYTES_MAX
from skerry.images.store.records import Checked, Suspect, decode, encode, rfc3339
from skerry.images.store.store import LayerStore
from skerry.spec.layers import Damage, LayerCheck, LayerManifest, parse_layer_name

FRESH_S: Final = 10.0  # what another node found is known here after at most that long
log = logging.getLogger("skerry.images")


class Suspects:
    """What scrubs found in one store. Safe for threads; calls block."""

    def __init__(self, store: LayerStore, *, now: Callable[[], float] = time.monotonic) -> None:
        self._store, self._now = store, now
        self._lock = threading.Lock()
        self._looked = float("-inf")
        self._known: dict[str, Suspect] = {}

    def record(self, check: LayerCheck) -> None:
        """Keeps what a scrub of one layer, without its parts, found; StorageFailed."""
        objects, holder = self._store.objects, self._store.leases.holder
        checked = Checked(
            check.digest, check.name, holder, check.bytes_read, check.damage, check.mended
        )
        key = keys.scrub(keys.DAMAGED, check.digest)
        if check.damage:
            versions: dict[str, str] = {}
            for damage in check.damage:
                for at in _objects(damage, check.name):
                    found = objects.stat(at)
                    versions[at] = found.version if found else ""
            suspect = Suspect(check.digest, check.name, holder, check.damage, versions)
            objects.put_bytes(key, encode(suspect), replace=True)
        else:
            objects.delete(key)
        at = keys.scrub(keys.CHECKED, check.digest)
        objects.put_bytes(at, encode(checked), replace=True)
        with self._lock:
            self._looked = float("-inf")

    def last(self, manifest: LayerManifest) -> LayerCheck:
        """Returns what the last scrubs of a layer and its parts found; `checked`: the oldest of them."""
        found: list[Checked] = []
        times: list[float] = []
        for layer in manifest.layers():
            key = keys.scrub(keys.CHECKED, layer.digest)
            stat = self._store.objects.stat(key)
            data = self._store.objects.get(key, RECORD_BYTES_MAX) if stat else None
            if stat is None or data is None:
                continue
            try:
                found.append(decode(data, Checked, f"{key} in {self._store.objects.where}"))
            except LayerDamaged as error:
                log.warning("%s", error.message)  # as if it had not been checked: it is again
                continue
            times.append(stat.modified)
        whole = len(found) == len(manifest.layers())
        return LayerCheck(
            manifest.name,
            manifest.digest,
            sum(one.bytes_read for one in found),
            tuple(damage for one in found for damage in one.damage),
            mended=tuple(damage for one in found for damage in one.mended),
            checked=rfc3339(min(times)) if whole else "",
        )

    def known(self) -> dict[str, Suspect]:
        """Returns the damaged layers by digest, looked up at most every `FRESH_S`.

        While the store does not answer, what was known last.
        """
        with self._lock:
            if self._now() - self._looked >= FRESH_S:
                self._looked = self._now()
                try:
                    self._known = self._read()
                except SkerryError as error:
                    log.warning("it is not known which layers are damaged: %s", error)
            return self._known

    def refuse(self, manifests: Iterable[LayerManifest]) -> None:
        """Raises LayerDamaged if one of these layers, or a part of one, is known to be damaged."""
        known = self.known()
        if not known:
            return
        for manifest in manifests:
            for layer in manifest.layers():
                suspect = known.get(layer.digest)
                if suspect is not None and not self.is_mended(suspect):
                    raise LayerDamaged(
                        f"{manifest.name}: {suspect.damage[0].part} of {layer.digest}: "
                        f"{suspect.damage[0].problem} (skerry image verify --last {manifest.name})",
                        digest=layer.digest,
                    )

    def mended(self) -> set[str]:
        """Returns the layers to be looked at again: written anew since, or the note is damaged."""
        noted = self._noted().items()
        return {digest for digest, one in noted if not one.objects or self.is_mended(one)}

    def _read(self) -> dict[str, Suspect]:
        return {digest: one for digest, one in self._noted().items() if not self.is_mended(one)}

    def _noted(self) -> dict[str, Suspect]:
        found = {}
        for key, _ in self._store.objects.list(keys.DAMAGED):
            data = self._store.objects.get(key, RECORD_BYTES_MAX)
            if data is not None:
                digest = keys.digest_of(key)
                try:
                    found[digest] = decode(data, Suspect, f"{key} in {self._store.objects.where}")
                except LayerDamaged as error:
                    # That something was wrong is known all the same, until the next check.
                    damage = Damage(digest, "note of damage", error.message)
                    found[digest] = Suspect(digest, "", "", (damage,), {})
        return found

    def is_mended(self, suspect: Suspect) -> bool:
        """Says whether all that was damaged was written anew; whether it is right, a scrub says."""
        return bool(suspect.objects) and all(
            any(
                self._version(key) != suspect.objects[key] for key in _objects(damage, suspect.name)
            )
            for damage in suspect.damage
        )

    def _version(self, key: str) -> str:
        found = self._store.objects.stat(key)
        return found.version if found else ""


def _objects(damage: Damage, name: str) -> tuple[str, ...]:
    """Returns the keys of which one is written anew when this is mended."""
    if damage.part == "manifest":
        return (keys.manifest(parse_layer_name(name), damage.digest),)
    parts = {"data": ("", ".zst"), "chunk list": (".chunks", "", ".zst")}.get(damage.part, ("",))
    return tuple(keys.blob(damage.digest, part) for part in parts)
