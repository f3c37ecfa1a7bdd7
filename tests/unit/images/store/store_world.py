"""A store in which everything that may happen does: a simulated world for the lease protocol.

Actors are threads of which one runs at a time. Before each call of a store an actor lets time pass;
who wakes first goes on. Each client sees changes of others late: of every key on its own, anything
that was true within the last `lag_s` seconds. Clocks of clients differ. An actor can be killed before
any call, as by SIGKILL: from then on nothing of it has an effect.

The world keeps the truth, and fails when a blob is removed that a name or a live sandbox needs,
or when a name is given to what is not there.
"""

from __future__ import annotations

import heapq
import random
import threading
from collections.abc import Callable, Iterator
from typing import NamedTuple

import msgspec

from skerry.errors import ImageBroken, NotFound
from skerry.images.objects.api import Stat, check_key, check_prefix
from skerry.images.store import keys
from skerry.images.store.records import Chain, Tag


class Killed(BaseException):
    """The process is gone."""


class Version(NamedTuple):
    since: float
    data: bytes | None
    modified: float
    number: int
    writer: object


class World:
    """Time, truth, and whose turn it is."""

    def __init__(self, seed: int, lag_s: float, stall_s: float, hasty_s: float) -> None:
        self.stalls_of_removals = 0.01
        self.random = random.Random(seed)
        self.lag_s = lag_s
        self.stall_s = stall_s  # how long a call may take to begin
        self.hasty_s = hasty_s  # the same for removals: what `Timing.margin_s` covers
        self.now = 1_000_000.0
        self.history: dict[str, list[Version]] = {}
        self.live: dict[object, set[str]] = {}  # blobs that live sandboxes have mounted
        self.wrong: list[str] = []
        self.log: list[str] = []
        self._numbers = 0
        self._waiting: list[tuple[float, float, int, threading.Event]] = []
        self._order = 0

    # --- turns ---

    def run(self, actors: list[Callable[[], None]]) -> None:
        """Runs actors to their ends."""
        threads = [threading.Thread(target=self._act, args=(one,), daemon=True) for one in actors]
        self._left = len(threads)
        self._done = threading.Event()
        self._failure: BaseException | None = None
        for thread in threads:
            started = threading.Event()
            self._push(self.now + self.random.random(), started)
            thread.start_event = started  # type: ignore[attr-defined]
            thread.start()
        self._next()
        if not self._done.wait(240):
            raise AssertionError("the world stands still")
        if self._failure is not None:
            raise self._failure

    def _act(self, actor: Callable[[], None]) -> None:
        threading.current_thread().start_event.wait()  # type: ignore[attr-defined]
        try:
            actor()
        except BaseException as error:  # noqa: BLE001 - told to `run`
            self._failure = error
            self._done.set()
            return
        self._left -= 1
        if self._left == 0:
            self._done.set()
        else:
            self._next()

    def wait(self, seconds: float) -> None:
        """Lets others act for that long."""
        mine = threading.Event()
        self._push(self.now + seconds, mine)
        self._next()
        mine.wait()

    def _push(self, at: float, event: threading.Event) -> None:
        self._order += 1
        heapq.heappush(self._waiting, (at, self.random.random(), self._order, event))

    def _next(self) -> None:
        at, _, _, event = heapq.heappop(self._waiting)
        self.now = max(self.now, at)
        event.set()

    # --- truth ---

    def truth(self, key: str) -> Version | None:
        versions = self.history.get(key)
        return versions[-1] if versions and versions[-1].data is not None else None

    def seen(self, key: str, by: object) -> Version | None:
        """What a client may see: its own changes always, those of others up to `lag_s` late."""
        versions = self.history.get(key, [])
        moment = self.now - self.random.choice((0.0, self.random.random(), 1.0)) * self.lag_s
        at = len(versions) - 1
        while at >= 0 and versions[at].since > moment and versions[at].writer is not by:
            at -= 1
        found = versions[at] if at >= 0 else None
        return found if found is not None and found.data is not None else None

    def set(self, key: str, data: bytes | None, clock: float, by: object) -> None:
        self._check(key, data)
        self._numbers += 1
        version = Version(self.now, data, clock, self._numbers, by)
        self.history.setdefault(key, []).append(version)

    def _check(self, key: str, data: bytes | None) -> None:
        if data is None and key.startswith(keys.BLOBS) and self.truth(key) is not None:
            digest = keys.read_blob(key)
            for name, blobs in self.named().items():
                if digest in blobs:
                    self.wrong.append(f"{self.now:.1f}: {key} removed, which {name} needs")
            for holder, blobs in self.live.items():
                if digest in blobs:
                    self.wrong.append(f"{self.now:.1f}: {key} removed, which {holder} has mounted")
        if data is None and key.startswith(keys.CHAINS) and self.truth(key) is not None:
            self._check_left(key)
        if data is not None and key.startswith(keys.CHAINS):
            for digest in msgspec.json.decode(data, type=Chain).blobs():
                if self.truth(keys.blob(digest)) is None:
                    self.wrong.append(f"{self.now:.1f}: {key} set, but {digest} is not there")
        if data is not None and key.startswith(keys.TAGS):
            for digest in msgspec.json.decode(data, type=Tag).manifest.blobs():
                if self.truth(keys.blob(digest)) is None:
                    self.wrong.append(f"{self.now:.1f}: {key} set, but {digest} is not there")

    def _check_left(self, key: str) -> None:
        """Without its short chain a name needs the long one."""
        for name in [name for name in self.history if name.startswith(keys.TAGS)]:
            found = self.truth(name)
            if found is None or found.data is None:
                continue
            manifest = msgspec.json.decode(found.data, type=Tag).manifest
            if manifest.chain_id is not None and keys.chain(manifest.chain_id) == key:
                for digest in manifest.blobs():
                    if self.truth(keys.blob(digest)) is None:
                        self.wrong.append(f"{self.now:.1f}: {key} removed, which {name} needs")

    def named(self) -> dict[str, set[str]]:
        """Returns the blobs that each name needs; to be restored, of the short chain if there is one."""
        named = {}
        for key in self.history:
            found = self.truth(key) if key.startswith(keys.TAGS) else None
            if found is not None and found.data is not None:
                manifest = msgspec.json.decode(found.data, type=Tag).manifest
                chain = self.truth(keys.chain(manifest.chain_id)) if manifest.chain_id else None
                named[key] = manifest.blobs()
                if chain is not None and chain.data is not None:
                    short = msgspec.json.decode(chain.data, type=Chain).blobs()
                    named[key] = manifest.alone().blobs() | short
        return named


class Process:
    """One client of the store: its clock, its view, and whether it still runs."""

    def __init__(self, world: World, name: str, skew_s: float = 0.0) -> None:
        self.world = world
        self.name = self.where = name
        self.lag_s = world.lag_s
        self.skew_s = skew_s
        self.killed = False
        self.calls_left: int | None = None  # then it is killed

    def clock(self) -> float:
        return self.world.now

    def sleep(self, seconds: float) -> None:
        self._begin(seconds + self.world.random.random())

    def _begin(self, seconds: float) -> None:
        self._die()
        self.world.wait(seconds)
        self._die()

    def _die(self) -> None:
        if self.calls_left is not None:
            self.calls_left -= 1
            self.killed = self.killed or self.calls_left <= 0
        if self.killed:
            raise Killed

    def _call(self, *, hasty: bool = False) -> None:
        world = self.world
        worst = world.hasty_s if hasty else world.stall_s
        quick = world.random.random() >= (world.stalls_of_removals if hasty else 0.01)
        self._begin(0.02 * world.random.random() if quick else worst * world.random.random())

    # --- the seam ---

    def put_file(self, key: str, path: str) -> bool:
        return self.put_bytes(key, path.encode(), replace=False)

    def put_bytes(self, key: str, data: bytes, *, replace: bool) -> bool:
        check_key(key)
        self._call()
        if not replace and self.world.truth(key) is not None:
            return False  # the server decides that, no cached entry
        self.world.set(key, data, self.world.now + self.skew_s, self)
        return True

    def get(self, key: str, max_bytes: int) -> bytes | None:
        self._call()
        found = self.world.seen(check_key(key), self)
        data = None if found is None else found.data
        if data is not None and len(data) > max_bytes:
            raise ImageBroken(f"{key} is too large")
        return data

    def read(self, key: str, offset: int, length: int) -> bytes:
        self._call()
        found = self.world.seen(check_key(key), self)
        if found is None or found.data is None:
            raise NotFound(f"no {key}")
        return found.data[offset : offset + length]

    def stat(self, key: str) -> Stat | None:
        self._call()
        return self._stat(self.world.seen(check_key(key), self))

    def list(self, prefix: str) -> Iterator[tuple[str, Stat]]:
        self._call()
        found = []
        for key in sorted(self.world.history):
            if key.startswith(check_prefix(prefix)):
                stat = self._stat(self.world.seen(key, self))
                if stat is not None:
                    found.append((key, stat))
        return iter(found)

    def delete(self, key: str) -> None:
        self._call(hasty=True)
        if self.world.truth(check_key(key)) is not None:
            self.world.set(key, None, 0.0, self)

    def local_path(self, key: str) -> str | None:
        return f"/{check_key(key)}"

    def sweep(self, older_than_s: float) -> int:
        return 0

    def _stat(self, found: Version | None) -> Stat | None:
        if found is None or found.data is None:
            return None
        return Stat(len(found.data), found.modified, str(found.number))
