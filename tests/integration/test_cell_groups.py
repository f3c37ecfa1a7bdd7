"""Limit groups of cells on the real kernel, as one host's layout has them: set, counted, used again."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from skerry.backends.api import CellLimits
from skerry.backends.container import host
from skerry.backends.container.cells import CellBooks
from skerry.backends.container.slots import Slot
from skerry.backends.shared.cgroup import Limits, groups_of
from skerry.node import registry
from skerry.spec.ids import base32
from skerry.testing.census import Watch
from skerry.testing.rootfs import container_reason

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(bool(container_reason()), reason=container_reason()),
]

MIB = 1 << 20
GROUP_S = 10.0
# Enters each group named on its command line, as the agent's child does, then runs the last word.
ENTER = """
import os, sys
for path in sys.argv[1:-1]:
    with open(path, "w") as file:
        file.write("0")
exec(sys.argv[-1])
"""
HOLD = "block = bytearray(b'x') * ({} << 20); sum(block[::4096])"
FORK = """
made = 0
for _ in range({}):
    try:
        child = os.fork()
    except BlockingIOError:
        break
    if not child:
        os.read(0, 1)
        os._exit(0)
    made += 1
print(made, flush=True)
"""
SPIN = "import time\nend = time.process_time() + 0.3\nwhile time.process_time() < end: pass"


def play(steps: tuple[str, ...]) -> None:
    """What the launcher does with STEP texts."""
    for step in steps:
        verb, path, *rest = step.split(" ")
        if verb == "mkdir":
            os.mkdir(path)
        elif verb == "rmdir":
            gone(path)
        else:
            Path(path).write_text(" ".join(rest))


def gone(path: str) -> None:
    """Removes a group; the last of its processes may have been collected just now."""
    end = time.monotonic() + GROUP_S
    while True:
        try:
            os.rmdir(path)
            return
        except FileNotFoundError:
            return
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.01)


class Cells:
    """A slot with two cells, without a container."""

    def __init__(self) -> None:
        node = base32(int.from_bytes(os.urandom(4), "big"), 5)
        # No launcher and no node says whose these groups are: the census of a node of another test,
        # which runs beside this one, would take them for what that has left.
        self._entry = Path(registry.DIRECTORY, node)
        self._entry.parent.mkdir(mode=0o755, exist_ok=True)
        entry = registry.Entry(f"/nowhere/{node}", f"/nowhere/{node}", os.getpid())
        self._entry.write_bytes(msgspec.json.encode(entry))
        self.groups = groups_of(host.layout(), node)
        for root in self.groups.roots():
            os.mkdir(root)
        for path, text in self.groups.prepare():
            Path(path).write_text(text)
        self.slot = Slot(0, self.groups, cells=2)
        play(self.slot.groups.make)
        self.books = CellBooks(self.slot)

    def run(self, cell: int, code: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        plan = self.slot.cell_plans()[cell]
        files = plan.tasks or (f"{plan.work}/cgroup.procs",)
        if plan.tasks:
            files = (*files, f"{plan.work}/cgroup.procs")
        words = [sys.executable, "-I", "-S", "-c", ENTER, *files, code]
        return subprocess.run(words, input=stdin, capture_output=True, timeout=60, check=False)

    def close(self) -> None:
        self.books.close()
        play(self.slot.groups.drop)
        for root in self.groups.roots():
            gone(root)
        self._entry.unlink()


@pytest.fixture
def cells():
    made = Cells()
    yield made
    made.close()  # raises if a group cannot go


def test_memory_beyond_the_limit_ends_what_is_in_the_cell_and_is_counted(cells):
    cell = cells.books.of(0)
    assert cell.open(CellLimits(64 * MIB, 16))
    ended = cells.run(0, HOLD.format(128))
    assert ended.returncode == -9
    used = cell.usage()
    assert used.oom_kills == 1
    assert 56 * MIB <= used.memory_peak_bytes <= 64 * MIB
    # The next call in the same groups begins from nothing, whatever was before.
    assert cell.open(CellLimits(256 * MIB, 16))
    assert cell.usage().memory_peak_bytes < 8 * MIB
    assert cells.run(0, HOLD.format(128)).returncode == 0
    used = cell.usage()
    assert used.oom_kills == 0
    assert 128 * MIB <= used.memory_peak_bytes < 160 * MIB
    assert cell.residue() < 8 * MIB


def test_forks_beyond_the_limit_are_refused_and_counted(cells):
    cell = cells.books.of(0)
    assert cell.open(CellLimits(64 * MIB, 5))
    assert cells.run(0, FORK.format(20)).stdout == b"4\n"
    assert cell.usage().pids_refused == 1
    assert cell.open(CellLimits(64 * MIB, 30))
    assert cells.run(0, FORK.format(20)).stdout == b"20\n"
    assert cell.usage().pids_refused == 0


def test_processor_time_is_that_of_the_cell_since_it_was_opened(cells):
    cell, other = cells.books.of(0), cells.books.of(1)
    for each in (cell, other):
        assert each.open(CellLimits(64 * MIB, 16))
    assert cells.run(0, SPIN).returncode == 0
    assert cell.usage().cpu_us >= 300_000
    assert other.usage().cpu_us == 0
    assert cell.open(CellLimits(64 * MIB, 16))
    assert cell.usage().cpu_us < 100_000


def test_cells_together_are_bounded_by_their_container(cells):
    total = Limits(memory_bytes=96 * MIB, pids=64, cpu=2)
    play(cells.groups.limit(0, None, total))
    cell = cells.books.of(0)
    assert cell.open(CellLimits(512 * MIB, 16))
    assert cells.run(0, HOLD.format(128)).returncode == -9
    assert cell.usage().memory_peak_bytes <= 96 * MIB


def test_lower_limit_than_what_is_cached_in_the_cell_is_not_set(cells, tmp_path):
    cell = cells.books.of(1)
    assert cell.open(CellLimits(256 * MIB, 16))
    content = tmp_path / "content"
    writing = f"open({str(content)!r}, 'wb').write(bytes(40 << 20)); os.sync()"
    assert cells.run(1, writing).returncode == 0
    assert not cell.open(CellLimits(64 * MIB, 16))  # or those pages would be evicted
    assert cell.open(CellLimits(128 * MIB, 16))
    content.unlink()
    assert cell.open(CellLimits(64 * MIB, 16))  # what it held is gone


def test_groups_that_a_test_makes_by_hand_are_no_leak_of_a_node_beside_it(tmp_path):
    """As another process of the run sees them: no skerry process has them."""
    watch = Watch()
    watch.watch(places=(str(tmp_path),))
    made = Cells()
    try:
        assert watch.left(settle_s=0) == []
        made._entry.unlink()
        assert any(made.groups.roots()[0] in line for line in watch.left(settle_s=0))
        made._entry.touch()
    finally:
        made.close()
