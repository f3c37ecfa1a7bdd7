"""One process of a crowd that works in one layer store until it is killed; and the crowd's judge.

    python store_chaos.py STORE NOTES HOLDER ROLE SEED SPEED LAG

Time runs SPEED times as fast: terms of minutes pass in seconds. What a node's live sandboxes have
mounted it notes in NOTES/HOLDER before it lets go, so that its next life knows, as a node does from its
journal; what it misses it notes in NOTES/wrong.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Iterator

from skerry.errors import LayerDamaged, SkerryError
from skerry.images.objects.api import Stat
from skerry.images.objects.directory import DirectoryObjects
from skerry.images.store.collect import Collector
from skerry.images.store.leases import Leases, Timing, boot_time
from skerry.images.store.store import LayerStore
from skerry.spec.layers import LayerManifest, parse_layer_name

NAMES = [f"workspace/n{number}:latest" for number in range(4)]
LAYERS = 60


class FastObjects(DirectoryObjects):
    """A directory whose clock runs fast."""

    def __init__(self, root: str, speed: float, lag_s: float) -> None:
        super().__init__(root, lag_s=lag_s)
        self.speed = speed

    def stat(self, key: str) -> Stat | None:
        found = super().stat(key)
        return None if found is None else self._fast(found)

    def list(self, prefix: str) -> Iterator[tuple[str, Stat]]:
        for key, found in super().list(prefix):
            yield key, self._fast(found)

    def sweep(self, older_than_s: float) -> int:
        return super().sweep(older_than_s / self.speed)

    def _fast(self, found: Stat) -> Stat:
        return found._replace(modified=found.modified * self.speed)


def opened(root: str, holder: str, speed: float, lag_s: float) -> LayerStore:
    objects = FastObjects(root, speed, lag_s)
    leases = Leases(
        objects,
        holder,
        Timing(lag_s=lag_s, margin_s=15.0, window_s=60.0, ttl_s=1e6, renew_s=1e6),
        now=lambda: boot_time() * speed,
        sleep=lambda seconds: time.sleep(seconds / speed),
    )
    return LayerStore(objects, leases)


def collector_of(store: LayerStore, speed: float) -> Collector:
    return Collector(
        store,
        now=lambda: boot_time() * speed,
        sleep=lambda seconds: time.sleep(seconds / speed),
    )


def contents(number: int) -> dict[str, bytes]:
    """Returns the blobs of one layer by digest."""
    found = {}
    for kind in ("metadata", "data"):
        content = f"{kind} {number} ".encode() * (2000 + number * 100)
        found[f"sha256:{hashlib.sha256(content).hexdigest()}"] = content
    return found


class Node:
    """Adds, removes and uses layers."""

    def __init__(self, store: LayerStore, notes: str, holder: str) -> None:
        self.store, self.notes, self.holder = store, notes, holder
        self.live: dict[str, list[str]] = {}
        with contextlib.suppress(FileNotFoundError), open(f"{notes}/{holder}") as file:
            self.live = json.load(file)

    def note_live(self) -> None:
        """Puts down what is mounted, whole or not at all."""
        with open(f"{self.notes}/{self.holder}.new", "w") as file:
            json.dump(self.live, file)
        os.rename(f"{self.notes}/{self.holder}.new", f"{self.notes}/{self.holder}")

    def wrong(self, text: str) -> None:
        with open(f"{self.notes}/wrong", "a") as file:
            file.write(f"{self.holder}: {text}\n")

    def count(self, what: str) -> None:
        with open(f"{self.notes}/done", "a") as file:
            file.write(f"{what}\n")

    def start(self) -> None:
        self.store.leases.recall()
        self.store.leases.settle(self.live)

    def add(self) -> None:
        blobs = contents(random.randrange(LAYERS))
        digest, data = blobs
        manifest = LayerManifest(
            random.choice(NAMES), digest, 4, "", "import", data_digest=data, version=2
        )
        place = tempfile.TemporaryDirectory(dir=self.notes)
        with place as top, self.store.adding(digest, data):
            for part in ((data, ""), (data, ".chunks"), (digest, "")):
                with open(f"{top}/blob", "wb") as file:
                    file.write(b"list" if part[1] else blobs[part[0]])
                self.store.put(f"{top}/blob", *part)
                os.unlink(f"{top}/blob")
            self.store.publish(manifest)
        self.count("added")

    def create(self) -> None:
        manifest = self.store.tagged(parse_layer_name(random.choice(NAMES)))
        if manifest is None:
            return
        self.store.hold([manifest])
        paths = [self.store.path(blob) for blob in sorted(manifest.blobs())]
        self.live[manifest.digest] = paths
        self.note_live()
        self.count("created")

    def use(self) -> None:
        for digest, paths in self.live.items():
            for path in paths:
                try:
                    with open(path, "rb") as file:
                        content = file.read()
                except OSError as error:
                    self.wrong(f"{digest} is mounted, and {path}: {error}")
                    continue
                if hashlib.sha256(content).hexdigest() != os.path.basename(path):
                    self.wrong(f"{path} is torn")

    def end_one(self) -> None:
        if self.live:
            del self.live[random.choice(list(self.live))]
            self.note_live()

    def remove(self) -> None:
        name = parse_layer_name(random.choice(NAMES))
        self.store.delete_tag(name)
        for manifest in list(self.store.manifests()):
            if manifest.name == str(name):
                self.store.delete_manifest(name, manifest.digest)
        self.count("removed")

    def work(self) -> None:
        self.start()
        todo = (self.add, self.create, self.use, self.end_one, self.remove)
        while True:
            with contextlib.suppress(SkerryError):
                random.choices(todo, (3, 4, 6, 4, 2))[0]()
                self.store.leases.renew(self.live)
            time.sleep(random.random() * 0.1)


def misnamed(root: str) -> list[str]:
    """Returns the names of a store that stand for what is not there; `root` is looked at directly."""
    store = LayerStore(DirectoryObjects(root, lag_s=0.0))
    wrong = []
    for name in map(parse_layer_name, NAMES):
        with contextlib.suppress(LayerDamaged):
            manifest = store.tagged(name)
            needed = manifest.blobs() if manifest else set()
            gone = [digest for digest in needed if not store.has(digest)]
            if gone and store.tagged(name) == manifest:
                wrong.append(f"{name} needs {gone}")
    return wrong


def main() -> None:
    root, notes, holder, role, seed, speed, lag_s = sys.argv[1:]
    random.seed(seed)
    store = opened(root, holder, float(speed), float(lag_s))
    node = Node(store, notes, holder)
    if role == "node":
        node.work()
    while True:
        with contextlib.suppress(SkerryError):
            report = collector_of(store, float(speed)).collect()
            for _ in report.removed:
                node.count("collected")
        time.sleep(random.random() * 0.3)


if __name__ == "__main__":
    main()
