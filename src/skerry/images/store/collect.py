"""Garbage collection: what no name, pin, sandbox or lease needs is condemned, then removed.

Any number of collectors may work at once, beside those who add, use and remove. The order of steps,
and why nothing that is needed is lost, stands in `store.leases`. A collector that is killed
leaves at most a round, which is void after a few minutes, and blobs whose manifests are gone: the
next one removes both. What cannot be read (a damaged tag, lease or pin) stops a collection: it
might name anything.
"""

from __future__ import annotations

import contextlib
import errno
import secrets
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import msgspec

from skerry.errors import StorageFailed
from skerry.images.store import keys
from skerry.images.store.leases import Timing, boot_time, read_leases
from skerry.images.store.records import Round, encode
from skerry.images.store.store import LayerStore
from skerry.spec.layers import Collected, CollectReport, LayerManifest

# Layers of single steps of recipes, which builds would make again.
BUILD_CACHE_KEPT_S = 14 * 86_400.0
TORN_AFTER_S = 3600.0  # an upload that nobody has written to for that long is broken off
RESERVE_BYTES = 256 << 10
ROUND_MAX_WHEN_FULL = 1000  # digests that the reserve has room for
DELETES_AT_ONCE = 8

Reasons = dict[str, set[str]]


class _Found(NamedTuple):
    """What lies in the store and why it stays."""

    sizes: dict[str, int]  # by digest, with what lies beside; 0: only a manifest is left
    names: dict[str, set[str]]  # keys of manifests, by digest
    reasons: Reasons


class Collector:
    """Collects in one store. Calls block: the grace period too."""

    def __init__(
        self,
        store: LayerStore,
        *,
        now: Callable[[], float] = boot_time,
        sleep: Callable[[float], None] = time.sleep,
        deletes_at_once: int = DELETES_AT_ONCE,
    ) -> None:
        self._store = store
        self._deletes_at_once = deletes_at_once
        self._objects = store.objects
        self._now = now
        self._sleep = sleep

    def look(self) -> CollectReport:
        """Returns what a collection would remove now, and why the rest stays; changes nothing."""
        now = self._store.leases.renew()
        found = self._find(now)
        return _report(found, set(found.sizes) - set(found.reasons), dry_run=True)

    def collect(self, log: Callable[[str], None] = lambda _line: None) -> CollectReport:
        """Removes what nothing needs, at the beginning and still after the grace period.

        What there was no time for is left to the next collection. Raises StorageFailed, LayerDamaged
        if a record cannot be read; then less is removed, never more.
        """
        now = self._begin()
        self._tidy(now)
        torn = self._objects.sweep(TORN_AFTER_S)
        found = self._find(now)
        condemned = set(found.sizes) - set(found.reasons)
        removed: set[str] = set()
        if condemned:
            log(f"condemned {len(condemned)} blobs; waiting {self._timing.grace_s:.0f} s")
            key, condemned, marked = self._condemn(condemned)
            began, now = self._wait(marked)
            found = self._find(now)
            doomed = condemned - set(found.reasons)
            until = began + (marked + self._timing.grace_s + self._timing.window_s - now)
            removed = self._remove(found, doomed, until)
            self._end_round(key)
        self._objects.put_bytes(keys.COLLECTED, b"", replace=True)
        with contextlib.suppress(StorageFailed):
            self._objects.put_bytes(keys.RESERVE, bytes(RESERVE_BYTES), replace=False)
        report = _report(found, removed, dry_run=False)
        return msgspec.structs.replace(report, torn_uploads=torn)

    def collected_ago_s(self) -> float | None:
        """Returns how long ago anybody ended a collection, by the store's clock; None: never."""
        found = self._objects.stat(keys.COLLECTED)
        return None if found is None else self._store.leases.renew() - found.modified

    # --- inner parts ---

    @property
    def _timing(self) -> Timing:
        """The terms as agreed by now; they only ever get longer."""
        return self._store.leases.timing

    def _begin(self) -> float:
        """Returns the store's time, by a lease of our own."""
        try:
            return self._store.leases.renew()
        except StorageFailed as error:
            self._make_room(error)
            return self._store.leases.renew()

    def _make_room(self, error: StorageFailed) -> None:
        """Gives the reserve up for what a collection has to write; raises the error if it is another."""
        if error.fields.get("errno") not in {errno.ENOSPC, errno.EDQUOT}:
            raise error
        self._objects.delete(keys.RESERVE)

    def _find(self, now: float) -> _Found:
        """Reads why things stay, then what there is: leases first, then pins and tags."""
        reasons: Reasons = defaultdict(set)
        self._leased(now, reasons)
        for pin in self._store.pins():
            why = "pin" if pin.why == "user" else f"pin {pin.why}"
            for digest in {pin.digest, *pin.blobs}:
                reasons[digest].add(why)
        chains = {chain.id: chain for chain in self._store.chains()}
        for manifest in self._store.catalogue():
            for digest in _needed(manifest, chains):
                reasons[digest].add(f"tag {manifest.name}")
        for chain in chains.values():
            for digest in chain.blobs() if chain.id in reasons else ():
                reasons[digest] |= reasons[chain.id]
        sizes: dict[str, int] = defaultdict(int)
        for blob in self._store.list():
            sizes[blob.digest] += blob.size_bytes
        names: dict[str, set[str]] = defaultdict(set)
        for digest, key in self._store.manifest_keys():
            names[digest].add(key)
            sizes[digest] += 0
        for chain in chains.values():
            names[chain.id].add(keys.chain(chain.id))
            sizes[chain.id] += 0
        return _Found(dict(sizes), names, dict(reasons))

    def _leased(self, now: float, reasons: Reasons) -> None:
        timing = self._timing
        times = {key: stat.modified for key, stat in self._objects.list(keys.LEASES)}
        for key, lease in read_leases(self._objects):
            # One that came after the listing is new; one renewed just now may be seen as it was.
            age = now - times.get(key, now)
            if age > lease.ttl_s + timing.margin_s + timing.lag_s:
                continue
            for use in lease.uses:
                why = f"sandbox on {lease.holder}" if use.live else f"lease of {lease.holder}"
                blobs = {use.digest, *use.blobs}
                if len(blobs) == 1:  # a node that was started anew may know no more of it
                    for manifest in self._store.manifests(use.digest):
                        blobs |= manifest.blobs()
                for digest in blobs:
                    reasons[digest].add(why)

    def _condemn(self, digests: Collection[str]) -> tuple[str, set[str], float]:
        """Writes the round down; returns its key, what is in it, and when it was written."""
        key = f"{keys.ROUNDS}{self._store.leases.holder}!{secrets.token_hex(8)}"
        chosen = sorted(digests)
        try:
            self._put_round(key, chosen)
        except StorageFailed as error:
            self._make_room(error)
            chosen = chosen[:ROUND_MAX_WHEN_FULL]
            self._put_round(key, chosen)
        found = self._objects.stat(key)
        if found is None:
            raise StorageFailed(f"{key} vanished from {self._objects.where}")
        return key, set(chosen), found.modified

    def _put_round(self, key: str, digests: list[str]) -> None:
        data = encode(Round(self._store.leases.holder, tuple(digests)))
        self._objects.put_bytes(key, data, replace=False)

    def _end_round(self, key: str) -> None:
        """Tells holders that nothing more is removed, so that they wait no longer than they must."""
        if self._timing.lag_s == 0:
            self._objects.delete(key)
        else:
            self._objects.put_bytes(key + keys.DONE, b"", replace=False)

    def _wait(self, marked: float) -> tuple[float, float]:
        """Returns when the grace period is over by the store's clock: boot time, then store time."""
        while True:
            began = self._now()
            now = self._store.leases.renew()
            left = marked + self._timing.grace_s - now
            if left <= 0:
                return began, now
            self._sleep(left)

    def _remove(self, found: _Found, doomed: set[str], until: float) -> set[str]:
        """Removes manifests, then blobs, while there is time; returns what is gone."""

        def remove(digest: str) -> str | None:
            for key in (*sorted(found.names.get(digest, ())), *keys.blobs(digest)):
                # Never beyond: from then on holders rely on what they find.
                if self._now() >= until:
                    return None
                self._objects.delete(key)
            return digest

        ordered = sorted(doomed)
        if self._deletes_at_once == 1:
            return {digest for digest in map(remove, ordered) if digest is not None}
        with ThreadPoolExecutor(self._deletes_at_once, "collect") as threads:
            return {digest for digest in threads.map(remove, ordered) if digest is not None}

    def _tidy(self, now: float) -> None:
        """Removes rounds that are void, leases that ran out, and names of old steps of recipes."""
        for key, found in list(self._objects.list(keys.ROUNDS)):
            if now - found.modified > self._timing.void_s:
                self._objects.delete(key)
        times = {key: stat.modified for key, stat in self._objects.list(keys.LEASES)}
        for key, lease in list(read_leases(self._objects)):
            over = lease.ttl_s + self._timing.margin_s + self._timing.lag_s
            if now - times.get(key, now) > over:
                self._objects.delete(key)
        for key, found in list(self._objects.list(keys.TAGS)):
            if key.startswith(keys.BUILD_CACHE) and now - found.modified > BUILD_CACHE_KEPT_S:
                self._objects.delete(key)


def _needed(manifest: LayerManifest, chains: Collection[str]) -> set[str]:
    """Returns what a name needs: of a chain that a shorter one stands for only its end, and that."""
    if manifest.chain_id is None or manifest.chain_id not in chains:
        return manifest.blobs()
    return manifest.alone().blobs() | {manifest.chain_id}


def _report(found: _Found, gone: set[str], *, dry_run: bool) -> CollectReport:
    def entries(digests: Collection[str]) -> Iterator[Collected]:
        for digest in sorted(digests):
            why = tuple(sorted(found.reasons.get(digest, ())))
            yield Collected(digest, found.sizes.get(digest, 0), why)

    kept = set(found.sizes) - gone
    return CollectReport(
        dry_run=dry_run,
        removed=tuple(entries(gone)),
        kept=tuple(entries(kept)),
        freed_bytes=sum(found.sizes.get(digest, 0) for digest in gone),
        kept_bytes=sum(found.sizes.get(digest, 0) for digest in kept),
    )
