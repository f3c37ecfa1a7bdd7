"""Several processes in one layer store, killed again and again: nothing needed is lost."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
import store_chaos

from skerry.images.store import keys
from skerry.testing import filesystems

SECONDS = 15.0
SPEED = 10.0


class Crowd:
    """The processes: two nodes, two collectors. Whoever is killed is started again."""

    roles = (("nodea", "node"), ("nodeb", "node"), ("gca", "collector"), ("gcb", "collector"))

    def __init__(
        self, stores: list[str], notes: Path, lag_s: float, collectors_killed: float = 1.0
    ) -> None:
        self.collectors_killed = collectors_killed  # for each kill of a node
        self.stores, self.notes, self.lag_s = stores, notes, lag_s
        self.random = random.Random(7)
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.killed = 0
        for number in range(len(self.roles)):
            self.start(number)

    def start(self, number: int) -> None:
        holder, role = self.roles[number]
        if role == "collector":
            holder += str(self.killed)
        argv = [
            *(sys.executable, store_chaos.__file__, self.stores[number % len(self.stores)]),
            *(str(self.notes), holder, role, str(self.random.random()), str(SPEED)),
            str(self.lag_s),
        ]
        self.processes[str(number)] = subprocess.Popen(argv)

    def kill_one(self) -> None:
        weights = [1.0 if role == "node" else self.collectors_killed for _, role in self.roles]
        [number] = self.random.choices(range(len(self.roles)), weights)
        process = self.processes[str(number)]
        assert process.poll() is None, "it ended by itself"
        process.send_signal(signal.SIGKILL)
        process.wait()
        self.killed += 1
        self.start(number)

    def end(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait()

    def live(self, seconds: float, truth: str, spared_s: float) -> None:
        """Lets them work and be killed for that long; the store's names are looked at meanwhile."""
        end = time.monotonic() + seconds
        try:
            while time.monotonic() < end:
                time.sleep(self.random.random() * spared_s)
                assert store_chaos.misnamed(truth) == []
                self.kill_one()
        finally:
            self.end()

    def judge(self, truth: str) -> Counter[str]:
        """Nothing needed was lost; once nothing is needed nothing stays. Returns what was done."""
        wrong = self.notes / "wrong"
        assert not wrong.exists(), wrong.read_text()
        assert store_chaos.misnamed(truth) == []
        store = store_chaos.opened(truth, "last", SPEED, self.lag_s)
        for name in list(store.tags()):
            store.delete_tag(name[0])
        for key, _ in list(store.objects.list(keys.LEASES)):
            store.objects.delete(key)  # as if they had run out
        report = store_chaos.collector_of(store, SPEED).collect()
        assert report.kept == ()
        store.leases.drop()
        store.objects.sweep(0)
        left = [os.path.join(top, name) for top, _, names in os.walk(truth) for name in names]
        left = [os.path.relpath(path, truth) for path in left]
        expected = ("version", "gc/")
        assert [path for path in left if not path.startswith(expected) or ".part-" in path] == []
        return Counter((self.notes / "done").read_text().split())


@pytest.mark.slow
def test_processes_killed_at_any_moment_lose_nothing_and_leave_nothing(tmp_path: Path) -> None:
    root, notes = str(tmp_path / "store"), tmp_path / "notes"
    notes.mkdir()
    store_chaos.opened(root, "first", SPEED, 0.0)
    crowd = Crowd([root], notes, 0.0)
    crowd.live(SECONDS, root, spared_s=2.0)
    done = crowd.judge(root)
    assert crowd.killed > 6
    assert min(done[what] for what in ("added", "created", "removed", "collected")) > 5, done


@pytest.mark.slow
@pytest.mark.root
def test_two_clients_of_a_late_file_system_lose_nothing(tmp_path: Path) -> None:
    """The same over two mounts with the profile of 3FS, whose caches are late by 30 s of fast time."""
    if reason := filesystems.missing():
        pytest.skip(reason)
    notes = tmp_path / "notes"
    notes.mkdir()
    with filesystems.shim(tmp_path / "3fs", 30.0 / SPEED) as places:
        stores = [f"{place}/store" for place in places]
        truth = str(tmp_path / "3fs" / "backing" / "store")
        store_chaos.opened(stores[0], "first", SPEED, 30.0)
        crowd = Crowd(stores, notes, 30.0, collectors_killed=0.1)
        crowd.live(40.0, truth, spared_s=8.0)
        done = crowd.judge(truth)
    assert crowd.killed > 5
    assert min(done[what] for what in ("added", "created", "removed", "collected")) > 5, done
