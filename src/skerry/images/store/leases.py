"""Leases: who needs which blobs, so that no collector removes them, on stores that have no locks.

Whoever adds blobs or uses them names them first in a lease, an object of his own in the store, and
renews it. A collector (`skerry.images.store.collect`) reads the leases twice: before it writes down what
it is about to remove (a round), and again after a grace period. With the terms of `Timing`:

    holder                                   collector
    1 writes the lease                       1 reads leases, then tags: what is needed
    2 looks for rounds that name the blobs   2 writes a round: the rest is condemned
    3 none, or only young ones: goes on      3 waits for the grace period
      else waits until they are void         4 reads leases, then tags again
    4 adds or mounts; sets the tag           5 removes what is still not needed, within the window
    5 keeps the lease a while longer

Why that is safe. Another client's change is seen after `lag` at most. A holder that sees no round,
or one younger than lag + margin, has written its lease so early that step 4 of every collector
sees it: that comes at 2 (lag + margin) after the round. A holder that sees an older round cannot
know, and waits until its collector has stopped removing. Step 5 of the holder keeps the lease until
others see the tag; that is why collectors read leases first. `margin` is for what no protocol on such
stores can exclude: a process that sleeps between its last look at the clock and the removal, and
clocks that differ. All times are the store's own (`Stat.modified` of what was just written), and
between two of them the host's clock that also counts while it is suspended.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace

from skerry.errors import StorageFailed
from skerry.images.objects.api import Objects
from skerry.images.store import keys
from skerry.images.store.records import (
    ROUND_BYTES_MAX,
    Agreed,
    Lease,
    Round,
    Use,
    encode,
    read_record,
)

LEASE_BYTES_MAX = 64 << 20


def boot_time() -> float:
    """Returns seconds that also pass while the host is suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@dataclass(frozen=True, kw_only=True)
class Timing:
    """How long things take at most, in seconds.

    Lag, margin and window are those of the client who needs the longest: a store on a disk of one
    host is local to that host and late for those who mount it over the network.
    """

    lag_s: float  # until another client's change is seen
    margin_s: float  # a stall, and how far clocks are apart
    window_s: float  # a collector removes for that long
    ttl_s: float = 3600.0  # of a lease that is not renewed
    renew_s: float = 60.0
    keep_s: float = 10.0  # what was held stays named for that long: it may be needed again

    @classmethod
    def of(cls, objects: Objects, *, ttl_s: float = 3600.0, renew_s: float = 60.0) -> Timing:
        """Returns what suits a store; a local one sees everything at once."""
        margin, window = (5.0, 30.0) if objects.lag_s == 0 else (15.0, 60.0)
        return cls(
            lag_s=objects.lag_s, margin_s=margin, window_s=window, ttl_s=ttl_s, renew_s=renew_s
        )

    def with_others(self, agreed: Agreed) -> Timing:
        """Returns what holds for all clients of the store: the longest of each."""
        return replace(
            self,
            lag_s=max(self.lag_s, agreed.lag_s),
            margin_s=max(self.margin_s, agreed.margin_s),
            window_s=max(self.window_s, agreed.window_s),
        )

    @property
    def grace_s(self) -> float:
        """Between condemning and removing."""
        return 2 * (self.lag_s + self.margin_s)

    @property
    def young_s(self) -> float:
        """A round younger than that will still see a lease written now."""
        return self.lag_s + self.margin_s

    @property
    def void_s(self) -> float:
        """A round older than that removes nothing any more, and all it removed is seen to be gone."""
        return self.grace_s + self.window_s + self.margin_s + self.lag_s

    @property
    def linger_s(self) -> float:
        """A lease names what was released for that long."""
        return self.lag_s + self.margin_s + self.keep_s


@dataclass
class _Held:
    """One digest of ours. Invariant: `covered` only while the lease in the store names it so."""

    blobs: frozenset[str]
    holders: int = 0
    released: float = 0.0
    covered: bool = False
    safe_at: float = 0.0  # when no collector can be about to remove it any more


@dataclass
class _Written:
    """The lease as it lies in the store."""

    key: str
    at: float = float("-inf")  # boot time just before it was written
    names: frozenset[str] = field(default_factory=frozenset)


class Leases:
    """What this process needs. Safe for threads; calls block.

    `holder` is unique among all that share the store (a node's name). Calls raise StorageFailed.
    """

    def __init__(
        self,
        objects: Objects,
        holder: str | None = None,
        timing: Timing | None = None,
        *,
        now: Callable[[], float] = boot_time,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.holder = holder or f"x{secrets.token_hex(8)}"
        self.timing = timing or Timing.of(objects)
        self._objects = objects
        self._now = now
        self._sleep = sleep
        self._fields = threading.Lock()
        self._turn = threading.Lock()  # of the one who writes
        self._held: dict[str, _Held] = {}
        self._live: frozenset[str] = frozenset()
        self._recalled: list[str] = []
        self._lease = self._new()

    # --- holding ---

    def hold(self, needs: Mapping[str, Collection[str]], *, wait: bool) -> None:
        """Afterwards no collector removes these blobs until they are released, and a while longer.

        `needs` are digests of layers, each with all blobs that it needs. Where a collector may be
        about to remove one: waits until it is known, or without `wait` raises StorageFailed.
        Whether they are there is to be looked at only afterwards.
        """
        self._count(needs, 1)
        try:
            self._cover(needs)
            self._until_safe(needs, wait=wait)
        except BaseException:
            self.release(needs)
            raise

    def release(self, digests: Collection[str]) -> None:
        """They are needed no longer, or named by a tag; each as often as it was held."""
        with self._fields:
            for digest in digests:
                held = self._held.get(digest)
                if held is not None:
                    held.holders -= 1
                    held.released = self._now()

    @contextlib.contextmanager
    def holding(self, needs: Mapping[str, Collection[str]]) -> Iterator[None]:
        """Holds within the block, and renews however long that takes; waits for collectors."""
        self.hold(needs, wait=True)
        done = threading.Event()
        renewing = threading.Thread(target=self._renew_until, args=(done,), daemon=True)
        renewing.start()
        try:
            yield
        finally:
            done.set()
            renewing.join()
            self.release(needs)

    def check(self, digests: Collection[str]) -> None:
        """Raises StorageFailed if the lease may have run out since they were held: they may be gone."""
        with self._fields:
            held = [self._held.get(digest) for digest in digests]
            valid = self._valid() and all(one is not None and one.covered for one in held)
        if not valid:
            raise StorageFailed(
                f"the lease on {self._objects.where} could not be renewed in time: begin again"
            )

    # --- renewing ---

    def renew(self, live: Collection[str] | None = None) -> float:
        """Writes the lease anew and returns the store's time; `live`: layers of live sandboxes.

        Those stay named until a later call leaves them out. What was released long ago goes.
        """
        with self._turn:
            with self._fields:
                if live is not None:
                    self._live = frozenset(live)
                self._let_go()
            return self._write()

    def recall(self) -> None:
        """Takes over what earlier processes of the same holder named, until `settle`."""
        for key, lease in read_leases(self._objects):
            if lease.holder == self.holder and key != self._lease.key:
                needs = {use.digest: use.blobs for use in lease.uses}
                self._count(needs, 1)
                self._recalled.extend(needs)
                self._cover(needs)

    def settle(self, live: Collection[str]) -> None:
        """Earlier processes' leases end; of what they named only `live` stays."""
        self.release(self._recalled)
        self._recalled.clear()
        self.renew(live)
        for key, lease in read_leases(self._objects):
            if lease.holder == self.holder and key != self._lease.key:
                self._objects.delete(key)

    def drop(self) -> None:
        """Ends the lease, unless something is still held; what was just released stays a while."""
        with self._turn:
            with self._fields:
                if self._live or any(held.holders > 0 for held in self._held.values()):
                    return
                self._let_go()
                lease, lingers = self._lease, bool(self._held)
            if lingers:  # others may not yet see the tags that it stands for
                self._write(ttl_s=self.timing.linger_s)
            with self._fields:
                self._held.clear()
                self._lease = self._new()
            if not lingers:
                self._objects.delete(lease.key)

    # --- inner parts ---

    def _new(self) -> _Written:
        return _Written(f"{keys.LEASES}{self.holder}!{secrets.token_hex(8)}")

    def _valid(self) -> bool:
        return self._now() - self._lease.at < self.timing.ttl_s - self.timing.margin_s

    def _count(self, needs: Mapping[str, Collection[str]], by: int) -> None:
        with self._fields:
            for digest, blobs in needs.items():
                held = self._held.setdefault(digest, _Held(frozenset()))
                held.holders += by
                if not held.blobs >= set(blobs):
                    held.blobs |= set(blobs)
                    held.covered = False

    def _cover(self, needs: Mapping[str, Collection[str]]) -> None:
        with self._fields:
            if self._valid() and all(self._held[digest].covered for digest in needs):
                return
        with self._turn:  # who waited here finds that another has written for it
            with self._fields:
                if not self._valid():
                    self._lapse()  # then all have to be looked at again
                new = {digest for digest, held in self._held.items() if not held.covered}
            if not new:
                return
            written = self._write()
            waits = self._waits(written)
            with self._fields:
                now = self._now()
                for digest in new & self._lease.names:
                    held = self._held[digest]
                    held.covered = True
                    held.safe_at = now + max((waits.get(b, 0.0) for b in held.blobs), default=0.0)

    def _lapse(self) -> None:
        """The old lease may have been removed, or be about to be: nobody renews it any more."""
        self._lease = self._new()
        for held in self._held.values():
            held.covered = False

    def _write(self, *, ttl_s: float | None = None) -> float:
        """Writes all that is held, and returns the store's time."""
        self._agree()
        with self._fields:
            if not self._valid():
                self._lapse()
            uses = tuple(
                Use(digest, tuple(sorted(held.blobs)), live=digest in self._live)
                for digest, held in sorted(self._held.items())
            )
            known = {use.digest for use in uses}
            uses += tuple(Use(digest, (digest,), live=True) for digest in self._live - known)
            lease, at = self._lease, self._now()
        data = encode(Lease(self.holder, ttl_s or self.timing.ttl_s, uses))
        self._objects.put_bytes(lease.key, data, replace=True)
        found = self._objects.stat(lease.key)
        if found is None:
            raise StorageFailed(f"{lease.key} vanished from {self._objects.where}")
        with self._fields:
            lease.at = at
            lease.names = frozenset(use.digest for use in uses)
        return found.modified

    def _agree(self) -> None:
        """Takes the terms of the slowest client, and makes ours known if that is us."""
        agreed = read_record(self._objects, keys.AGREED, Agreed, 4096) or Agreed(0.0, 0.0, 0.0)
        timing = self.timing.with_others(agreed)
        needed = Agreed(timing.lag_s, timing.margin_s, timing.window_s)
        if needed != agreed:
            self._objects.put_bytes(keys.AGREED, encode(needed), replace=True)
        self.timing = timing

    def _let_go(self) -> None:
        since = self._now() - self.timing.linger_s
        gone = [
            digest
            for digest, held in self._held.items()
            if held.holders <= 0 and held.released < since and digest not in self._live
        ]
        for digest in gone:
            del self._held[digest]

    def _waits(self, now: float) -> dict[str, float]:
        """Returns how long it takes until a condemned blob is removed or safe, for each in doubt."""
        waits: dict[str, float] = {}
        for condemned, modified, done in read_rounds(self._objects):
            age = now - modified
            if age < self.timing.young_s:
                continue
            left = self.timing.void_s - age
            if done is not None:  # what it removed is seen to be gone after that
                left = min(left, self.timing.young_s - (now - done))
            if left > 0:
                for digest in condemned.digests:
                    waits[digest] = max(left, waits.get(digest, 0.0))
        return waits

    def _until_safe(self, needs: Collection[str], *, wait: bool) -> None:
        while True:
            with self._fields:
                safe_at = max((self._held[digest].safe_at for digest in needs), default=0.0)
                left = safe_at - self._now()
            if left <= 0:
                return
            if not wait:
                raise StorageFailed(
                    "a layer is just being collected, and may be gone: try again in "
                    f"{left:.0f} s, or import it again",
                    retry_after_s=round(left, 1),
                )
            self._sleep(left)

    def _renew_until(self, done: threading.Event) -> None:
        while not done.wait(self.timing.renew_s):
            # It is renewed again in a while; if that never works, `check` says so.
            with contextlib.suppress(StorageFailed):
                self.renew()


def read_leases(objects: Objects) -> Iterator[tuple[str, Lease]]:
    """Gives every lease of a store, run out or not."""
    for key, _ in objects.list(keys.LEASES):
        lease = read_record(objects, key, Lease, LEASE_BYTES_MAX)
        if lease is not None:
            yield key, lease


def read_rounds(objects: Objects) -> Iterator[tuple[Round, float, float | None]]:
    """Gives what collectors have condemned, when, and since when they remove nothing any more."""
    times = {key: found.modified for key, found in objects.list(keys.ROUNDS)}
    for key, modified in times.items():
        if key.endswith(keys.DONE):
            continue
        record = read_record(objects, key, Round, ROUND_BYTES_MAX)
        if record is not None:
            yield record, modified, times.get(key + keys.DONE)
