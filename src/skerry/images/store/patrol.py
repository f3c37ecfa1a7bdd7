"""The slow scrub that goes on by itself: every layer of a store now and then, shared by its nodes.

A layer is due when `every_s` has passed since it was last scrubbed, or made (its bytes are checked
at publication). Any node takes any due layer, one at a time, each beginning elsewhere. There are no
locks: a claim in the store says who is at it, and how far; it is renewed, and void when it is not. Two
nodes that take one layer at once scrub it twice, which costs time and nothing else. Who stops lays
his claim down, and the next goes on where he was.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import logging
import secrets
import threading
import time
from collections.abc import Callable
from typing import Final

import msgspec

from skerry.errors import LayerDamaged, SkerryError
from skerry.images.store import keys
from skerry.images.store.records import Claim, decode, encode
from skerry.images.store.scrub import CHUNKS_TOLD_MAX, Progress, Scrub
from skerry.images.store.store import LayerStore
from skerry.images.store.suspects import Suspects
from skerry.spec.layers import LayerCheck, LayerManifest

CLAIM_S: Final = 600.0
RENEW_S: Final = 60.0
_CLAIM_BYTES_MAX: Final = 64 << 10
log = logging.getLogger("skerry.images")


class Stopped(Exception):
    """The patrol is to end; no error."""


class Patrol:
    """Scrubs one layer after the other. Calls block; one thread at a time, but for `stop`."""

    def __init__(
        self,
        store: LayerStore,
        suspects: Suspects,
        *,
        every_s: float,
        bytes_per_s: float,
        claim_s: float = CLAIM_S,
        renew_s: float = RENEW_S,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store, self.suspects = store, suspects
        self.every_s, self._bytes_per_s = every_s, bytes_per_s
        self._claim_s, self._renew_s, self._now = claim_s, renew_s, now
        self._stopping = threading.Event()
        self.bytes_read = 0
        self.layers = 0
        self.mended = 0
        self._unreadable: set[str] = set()  # what is wrong with manifests, told once

    def stop(self) -> None:
        """Lets a scrub that is under way end soon, its claim laid down; from any thread."""
        self._stopping.set()

    def step(self) -> LayerCheck | None:
        """Scrubs one layer that is due; None if there is none, or others are at all of them.

        What it finds is in the store then. Raises StorageFailed if the store fails; how far the layer
        has come is kept, if that can be written.
        """
        now = self._store.leases.renew()
        layers = self._layers()
        try:
            for digest in self._due(layers, now):
                work = self._claim(digest, now)
                if work is not None:
                    return self._scrub(layers[digest], *work)
        except Stopped:
            return None
        self._tidy(layers)
        return None

    # --- what is due ---

    def _layers(self) -> dict[str, LayerManifest]:
        """Returns every layer without its parts, by digest, as far as manifests can be read."""
        unreadable: set[str] = set()
        manifests = self._store.manifests(damaged=unreadable.add)
        layers = {layer.digest: layer for manifest in manifests for layer in manifest.layers()}
        for problem in sorted(unreadable - self._unreadable):
            log.error("platform fault: %s: what it describes is not scrubbed", problem)
        self._unreadable = unreadable
        return layers

    def _due(self, layers: dict[str, LayerManifest], now: float) -> list[str]:
        """Returns digests; each node begins elsewhere, so that they seldom want the same."""
        checked = {
            keys.digest_of(key): found.modified
            for key, found in self._store.objects.list(keys.CHECKED)
        }
        # Of one that was mended nobody knows yet whether it is right.
        mended = self.suspects.mended()
        due = [
            digest
            for digest, layer in layers.items()
            if digest in mended or now - checked.get(digest, _made(layer)) >= self.every_s
        ]
        holder = self._store.leases.holder
        return sorted(due, key=lambda one: hashlib.sha256(f"{holder} {one}".encode()).digest())

    def _tidy(self, layers: dict[str, LayerManifest]) -> None:
        """Removes what scrubs noted of layers that are gone; nothing while that is not sure."""
        if self._unreadable:
            return
        for below in (keys.CHECKED, keys.DAMAGED, keys.CLAIMS):
            for key, _ in self._store.objects.list(below):
                if keys.digest_of(key) not in layers:
                    self._store.objects.delete(key)

    # --- claims ---

    def _claim(self, digest: str, now: float) -> tuple[Claim, Progress] | None:
        """Takes a layer if nobody is at it; returns what another one has done of it already."""
        objects, key = self._store.objects, keys.scrub(keys.CLAIMS, digest)
        mine = Claim(self._store.leases.holder, secrets.token_hex(8), self._claim_s)
        found = objects.stat(key)
        if found is None:
            taken = objects.put_bytes(key, encode(mine), replace=False)
            return (mine, Progress()) if taken else None
        old = self._read(key)
        if old is not None:
            left = found.modified + old.ttl_s - now
            if old.holder not in ("", mine.holder) and left > 0:
                return None
            mine = msgspec.structs.replace(
                mine, next_chunk=old.next_chunk, damaged=old.damaged, bad=old.bad
            )
        objects.put_bytes(key, encode(mine), replace=True)
        self._wait(objects.lag_s)
        seen = self._read(key)
        if seen is None or seen.token != mine.token:
            return None  # another one took it in the same moment
        return mine, Progress(mine.next_chunk, mine.damaged, list(mine.bad))

    def _read(self, key: str) -> Claim | None:
        data = self._store.objects.get(key, _CLAIM_BYTES_MAX)
        try:
            return None if data is None else decode(data, Claim, key)
        except LayerDamaged:
            return None  # it only cost who wrote it some time

    def _write(self, digest: str, claim: Claim, progress: Progress) -> None:
        now = msgspec.structs.replace(
            claim,
            next_chunk=progress.next_chunk,
            damaged=progress.damaged,
            bad=tuple(progress.bad[:CHUNKS_TOLD_MAX]),
        )
        key = keys.scrub(keys.CLAIMS, digest)
        self._store.objects.put_bytes(key, encode(now), replace=True)

    # --- scrubbing ---

    def _scrub(self, layer: LayerManifest, claim: Claim, progress: Progress) -> LayerCheck:
        renewed = self._now()

        def pace(read: int) -> None:
            nonlocal renewed
            self.bytes_read += read
            if self._now() - renewed >= self._renew_s:
                renewed = self._now()
                self._write(layer.digest, claim, progress)
            self._wait(read / self._bytes_per_s)

        try:
            check = Scrub(self._store, pace).layer(layer, progress)
        except (Stopped, SkerryError):
            self._write(layer.digest, msgspec.structs.replace(claim, holder=""), progress)
            raise
        if check.damage and layer.digest not in self._layers():
            check = msgspec.structs.replace(check, damage=())  # it was collected meanwhile
        else:
            self.suspects.record(check)
        self._store.objects.delete(keys.scrub(keys.CLAIMS, layer.digest))
        self.layers += 1
        self.mended += len(check.mended)
        return check

    def _wait(self, seconds: float) -> None:
        if self._stopping.wait(seconds):
            raise Stopped


def _made(layer: LayerManifest) -> float:
    try:
        return dt.datetime.fromisoformat(layer.created).timestamp()
    except ValueError:
        return 0.0  # of an older Skerry or a stranger: it is due
