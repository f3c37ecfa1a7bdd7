"""The lease protocol in a world where everything is late, stalls, and is killed."""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Callable

import pytest
from store_world import Killed, Process, World

from skerry.errors import SkerryError
from skerry.images.store import keys
from skerry.images.store.collect import BUILD_CACHE_KEPT_S, Collector
from skerry.images.store.leases import Leases, Timing
from skerry.images.store.records import Chain
from skerry.images.store.restoring import Restoring
from skerry.images.store.store import LayerStore
from skerry.spec.layers import LayerManifest, parse_layer_name

MARGIN_S = 15.0
NAMES = [f"workspace/n{number}:latest" for number in range(3)]
LAYERS = 10  # few, so that they are made, dropped and made again all the time
LONG_S = 6 * 3600.0


def digests(number: int) -> tuple[str, str]:
    return f"sha256:{number:064x}", f"sha256:{0xD000 + number:064x}"


def opened(process: Process, holder: str, **options: float) -> LayerStore:
    timing = Timing(lag_s=process.lag_s, margin_s=MARGIN_S, window_s=60.0, **options)
    leases = Leases(process, holder, timing, now=process.clock, sleep=process.sleep)
    return LayerStore(process, leases, reads_at_once=1)


class Actors:
    """What the inhabitants do, each until the world is old enough."""

    def __init__(self, world: World, until_s: float, commits: float) -> None:
        self.commits = commits  # how many of those who add commit what lies on others
        self.world, self.random = world, world.random
        self.until = world.now + until_s
        self.done = {
            "published": 0,
            "committed": 0,
            "shortened": 0,
            "restored": 0,
            "created": 0,
            "removed": 0,
            "collected": 0,
            "killed": 0,
        }
        self._names = 0

    def process(self, kind: str) -> Process:
        self._names += 1
        made = Process(
            self.world, f"{kind}{self._names}", self.random.uniform(-1, 1) * MARGIN_S / 6
        )
        made.calls_left = self.random.randrange(20, 1500)
        return made

    def living(
        self, kind: str, every_s: float, work: Callable[[Process], None]
    ) -> Callable[[], None]:
        """An actor that is started again whenever it is killed."""

        def act() -> None:
            while self.world.now < self.until:
                process = self.process(kind)
                try:
                    while self.world.now < self.until:
                        work(process)
                        process.sleep(self.random.expovariate(1 / every_s))
                except Killed:
                    self.done["killed"] += 1
                    self.world.wait(self.random.random() * 120)

        return act

    def add(self, process: Process) -> None:
        store = opened(process, process.name, ttl_s=900.0)
        name, (digest, data) = self.random.choice(NAMES), digests(self.random.randrange(LAYERS))
        below = self.below(store) if self.random.random() < self.commits else ()
        manifest = LayerManifest(
            name, digest, 4, "", "commit", data_digest=data, version=2, below=below
        )
        try:
            with store.adding(*manifest.needs()):
                store.put("data", data)
                store.put("list", data, ".chunks")
                store.put("blob", digest)
                store.publish(manifest)
        except SkerryError:
            return
        self.done["committed"] += bool(below)
        self.done["published"] += 1

    def below(self, store: LayerStore) -> tuple[LayerManifest, ...]:
        """What a sandbox was made of when it was committed: maybe gone by now."""
        found = store.tagged(parse_layer_name(self.random.choice(NAMES)))
        return tuple(one.alone() for one in found.chain()[-1:]) if found is not None else ()

    def shorten(self, process: Process) -> None:
        """Merges a chain, whatever becomes of its name meanwhile."""
        store = opened(process, process.name, ttl_s=900.0)
        found = store.tagged(parse_layer_name(self.random.choice(NAMES)))
        if found is None or found.chain_id is None:
            return
        # Few of them too, so that they are let go of and made again.
        digest, data = digests(LAYERS + int(found.chain_id[-1], 16) % 4)
        name = "workspace/flattened:x"
        merged = LayerManifest(name, digest, 4, "", "flatten", data_digest=data, version=2)
        try:
            with store.adding(*merged.blobs()):
                process.sleep(self.random.random() * 100)
                store.put("data", data)
                store.put("list", data, ".chunks")
                store.put("blob", digest)
                store.put_manifest(merged)
                chain = tuple(one.digest for one in found.chain())
                store.put_chain(Chain(found.chain_id, chain, (merged,)))
        except SkerryError:
            return
        self.done["shortened"] += 1

    def remove(self, process: Process) -> None:
        store = opened(process, process.name)
        name = parse_layer_name(self.random.choice(NAMES))
        for manifest in [*store.manifests()]:
            if manifest.name == str(name):
                store.delete_manifest(name, manifest.digest)
        store.delete_tag(name)
        self.done["removed"] += 1

    def collect(self, process: Process) -> None:
        store = opened(process, process.name)
        collector = Collector(store, now=process.clock, sleep=process.sleep, deletes_at_once=1)
        try:
            removed = len(collector.collect().removed)
        except SkerryError:
            return  # it slept so long that another one has tidied its round away
        self.done["collected"] += removed

    def node(self, holder: str) -> Callable[[], None]:
        """A node: its sandboxes outlive it, and it is there again soon."""
        lives: dict[int, tuple[float, dict[str, set[str]]]] = {}
        self.world.live[holder] = set()

        def sync() -> set[str]:
            ended = [at for at, (end, _) in lives.items() if end < self.world.now]
            for at in ended:
                del lives[at]
            used = [one for _, layers in lives.values() for one in layers.values()]
            self.world.live[holder] = set().union(*used)
            return {digest for _, layers in lives.values() for digest in layers}

        def run(process: Process) -> None:
            store = opened(process, holder, ttl_s=7 * 86_400.0)
            store.leases.recall()
            store.leases.settle(sync())
            while self.world.now < self.until:
                for _ in range(3):
                    self.create(store, lives)
                    sync()
                    process.sleep(self.random.random() * 100)
                store.leases.renew(sync())

        def act() -> None:
            while self.world.now < self.until:
                try:
                    run(self.process(holder))
                except Killed:
                    self.done["killed"] += 1
                    self.world.wait(self.random.random() * 600)
            self.world.live[holder] = set()

        return act

    def create(
        self, store: LayerStore, lives: dict[int, tuple[float, dict[str, set[str]]]]
    ) -> None:
        manifest = store.tagged(parse_layer_name(self.random.choice(NAMES)))
        if manifest is None:
            return
        restoring = Restoring()
        restoring.store = store
        layers = restoring.short(manifest.chain())
        self.done["restored"] += bool(layers)
        try:
            layers = layers or manifest.chain()
            store.hold([one.alone() for one in layers])
            blobs = {blob for one in layers for blob in one.blobs()}
            for blob in sorted(blobs):
                store.path(blob)
        except SkerryError:
            return
        ends = self.world.now + self.random.expovariate(1 / 300)
        lives[self.done["created"]] = (ends, {one.digest: one.blobs() for one in layers})
        self.done["created"] += 1


def run_world(
    seed: int,
    lag_s: float,
    hours: float,
    *,
    removals_stall_s: float = MARGIN_S / 2,
    commits: float = 0.35,
) -> tuple[World, Actors]:
    world = World(seed, lag_s, 300.0, removals_stall_s)
    world.stalls_of_removals = 0.1
    actors = Actors(world, hours * 3600, commits)
    world.run(
        [
            *(actors.living("adder", 200, actors.add) for _ in range(3)),
            *(actors.living("collector", 60, actors.collect) for _ in range(2)),
            actors.living("remover", 100, actors.remove),
            *(actors.living("shortener", 40, actors.shorten) for _ in range(2 if commits else 0)),
            actors.node("nodea"),
            actors.node("nodeb"),
        ]
    )
    return world, actors


def clean_up(world: World) -> None:
    """All names go, all leases run out; some collections later nothing may be left."""

    def act() -> None:
        world.wait(LONG_S)
        process = Process(world, "last")
        store = opened(process, "last")
        for name in NAMES:
            store.delete_tag(parse_layer_name(name))
        for key in [key for key in world.history if key.startswith(f"{keys.LEASES}node")]:
            process.delete(key)
        for _ in range(6):  # some sleep through their window
            process.sleep(LONG_S)
            Collector(store, now=process.clock, sleep=process.sleep, deletes_at_once=1).collect()

        store.leases.drop()

    world.run([act])


@pytest.fixture(autouse=True)
def counted_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names of leases and rounds are counted, so that a seed gives the same world again."""
    numbers = itertools.count()
    monkeypatch.setattr(secrets, "token_hex", lambda _bytes=0: f"{next(numbers):016x}")


@pytest.mark.parametrize("lag_s", [0.0, 30.0])
@pytest.mark.parametrize("seed", range(4))
def test_nothing_needed_is_lost_and_nothing_else_stays(seed: int, lag_s: float) -> None:
    world, actors = run_world(seed, lag_s, hours=4)
    assert world.wrong == []
    least = {"restored": 3}
    assert all(count >= least.get(name, 11) for name, count in actors.done.items()), actors.done
    clean_up(world)
    left = [key for key in world.history if world.truth(key) is not None]
    assert [key for key in left if key.startswith((keys.BLOBS, keys.MANIFESTS, keys.TAGS))] == []
    assert [key for key in left if key.startswith(keys.LEASES)] == []
    assert len([key for key in left if key.startswith(keys.ROUNDS)]) <= 1  # the last one's


def test_old_steps_of_recipes_lose_their_names_and_others_keep_theirs() -> None:
    world = World(1, 0.0, 0.0, 0.0)
    left: list[str] = []

    def act() -> None:
        process = Process(world, "one")
        store = opened(process, "one", ttl_s=900.0)
        step = "workspace/build-cache/"
        for number, name in enumerate((f"{step}old", "workspace/old", f"{step}new")):
            if name.endswith("new"):
                process.sleep(BUILD_CACHE_KEPT_S)
            digest, data = digests(number)
            manifest = LayerManifest(name, digest, 4, "", "import", data_digest=data, version=2)
            with store.adding(*manifest.blobs()):
                store.put("data", data)
                store.put("list", data, ".chunks")
                store.put("blob", digest)
                store.publish(manifest)
        process.sleep(LONG_S)
        Collector(store, now=process.clock, sleep=process.sleep, deletes_at_once=1).collect()
        left.extend(manifest.name for manifest in store.catalogue())

    world.run([act])
    assert world.wrong == []
    assert left == ["workspace/build-cache/new", "workspace/old"]


def test_a_collector_that_stalls_beyond_the_margin_is_noticed() -> None:
    """The control: where removals may begin minutes late, the world does see blobs lost."""
    # Commits keep much that would be lost else: here there are none.
    worlds = (
        run_world(seed, 30.0, hours=4, removals_stall_s=600.0, commits=0.0)[0] for seed in range(24)
    )
    assert any(world.wrong for world in worlds)
