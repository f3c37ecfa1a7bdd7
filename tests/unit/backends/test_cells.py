"""Groups of cells: planned for both layouts, played on a directory tree, set and read by the node."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest
from msgspec import structs
from test_cgroup import play, v2

from skerry.backends.api import CellLimits, CellUsage
from skerry.backends.container.cells import CellBooks, CellGroup
from skerry.backends.container.remains import Remains
from skerry.backends.container.slots import RESIDUE_UNEXPLAINED_MAX, Slot
from skerry.backends.shared.cgroup import Groups, Layout, groups_of
from skerry.errors import InvalidRequest, Unavailable

MIB = 1 << 20
SMALL, LARGE = CellLimits(64 * MIB, 16), CellLimits(128 * MIB, 16)


def v1(top: Path) -> Layout:
    mounts = {name: str(top / name) for name in ("memory", "pids", "cpu")}
    return Layout("v1", str(top / "u"), mounts, True)


LAYOUTS = {"v1": v1, "v2": lambda top: v2(str(top))}


@pytest.fixture(params=LAYOUTS)
def groups(request, tmp_path) -> Groups:
    groups = groups_of(LAYOUTS[request.param](tmp_path), "abcde")
    for root in groups.roots():
        Path(root).mkdir(parents=True)
    return groups


@pytest.fixture
def slot(groups) -> Slot:
    slot = Slot(3, groups, cells=2)
    # Not ours to give away here: the files below belong to whoever runs the tests.
    play(slot.groups.make)
    return slot


class Kernel:
    """Files of one cell's groups, as the kernel shows them."""

    def __init__(self, slot: Slot, cell: int) -> None:
        self.plan = slot.cell_plans()[cell]
        names = ("usage_in_bytes", "max_usage_in_bytes", "oom_control")
        if not self.plan.v1:
            names = ("current", "peak", "events")
        else:
            for file in ("limit_in_bytes", "memsw.limit_in_bytes"):
                self._write("memory", f"memory.{file}", 1 << 60)
        self.names = dict(zip(("held", "peak", "oom"), names, strict=True))
        self._write("memory", "memory.max", "max")
        self._write("pids", "pids.max", "max")
        self.shows(held=0)

    def _write(self, where: str, file: str, text: object) -> None:
        Path(getattr(self.plan, where), file).write_text(f"{text}\n")

    def shows(self, *, held=0, peak=0, oom=0, cpu=0, refused=0, cache=0) -> None:
        self._write("memory", f"memory.{self.names['held']}", held)
        self._write("memory", f"memory.{self.names['peak']}", peak)
        self._write("memory", f"memory.{self.names['oom']}", f"oom_kill_disable 0\noom_kill {oom}")
        self._write("memory", "memory.stat", f"cache {cache}\nfile {cache}")
        self._write("pids", "pids.events", f"max {refused}")
        self._write("work", "cpu.stat", f"usage_usec {cpu}\nuser_usec 1")

    def limit(self) -> tuple[str, str]:
        file = "memory.limit_in_bytes" if self.plan.v1 else "memory.max"
        memory = Path(self.plan.memory, file).read_text().strip()
        return memory, Path(self.plan.pids, "pids.max").read_text().strip()


@pytest.fixture
def kernel(slot) -> Kernel:
    return Kernel(slot, 0)


@pytest.fixture
def cell(kernel):
    cell = CellGroup(kernel.plan)
    yield cell
    cell.close()


def test_cells_lie_below_the_containers_own_groups_and_go_with_it(groups, slot):
    plan = slot.groups
    assert len(plan.cell_tasks) == 2 * len(plan.tasks)
    for at, path in enumerate(plan.cell_tasks):
        own = plan.tasks[at % len(plan.tasks)]
        assert path == own.replace("/tasks", f"/cell-{at // len(plan.tasks)}/tasks")
    assert sorted(name for name in os.listdir(plan.work) if "cell" in name) == ["cell-0", "cell-1"]
    play(plan.drop)
    left = [name for root in groups.roots() for name in os.listdir(root)]
    assert not any("slot" in name for name in left)


def test_limits_of_cells_stay_roots(slot):
    for step in slot.groups.make:
        verb, path, *rest = step.split()
        if verb == "mkdir" and "/cell-" in path:
            assert rest[1] == (str(slot.owner_uid) if path.startswith(slot.groups.work) else "-1")


def test_slot_without_cells_has_the_plan_of_before(groups):
    slot = Slot(3, groups)
    assert slot.groups == groups.slot(3, slot.owner_uid)
    assert slot.cell_plans() == []
    assert len(CellBooks(slot)) == 0


def test_v2_hands_controllers_down_to_cells(tmp_path):
    slot = Slot(3, groups_of(v2(str(tmp_path)), "n"), cells=1)
    steps = slot.groups.make
    down = f"write {slot.groups.work}/cgroup.subtree_control +memory +pids +cpu"
    assert steps.index(down) < steps.index(f"mkdir {slot.groups.work}/cell-0 0755 {slot.owner_uid}")


def test_opened_cell_has_the_limits_and_counts_from_there(cell, kernel):
    kernel.shows(held=MIB, peak=50 * MIB, oom=2, cpu=700, refused=4)
    assert cell.open(SMALL)
    assert kernel.limit() == (str(64 * MIB), "16")
    kernel.shows(held=3 * MIB, peak=40 * MIB, oom=3, cpu=1000, refused=9)
    assert cell.usage() == CellUsage(
        memory_bytes=2 * MIB,
        memory_peak_bytes=39 * MIB,
        cpu_us=300,
        oom_kills=1,
        pids_refused=5,
    )


def test_peak_of_a_call_that_drove_out_what_was_left_before_is_all_its_own(cell, kernel):
    kernel.shows(held=20 * MIB, cache=20 * MIB)
    cell.open(SMALL)
    kernel.shows(held=2 * MIB, peak=64 * MIB)
    assert cell.usage().memory_peak_bytes == 62 * MIB
    assert cell.usage().memory_bytes == 0


def test_peak_begins_anew(cell, kernel):
    kernel.shows(held=MIB, peak=9 * MIB)
    cell.open(SMALL)
    peak = Path(kernel.plan.memory, f"memory.{kernel.names['peak']}")
    assert peak.read_text().startswith("0")  # what the kernel takes for a restart


def test_limits_are_written_only_where_they_change(cell, kernel, monkeypatch):
    written = []
    write = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: written.append(data) or write(fd, data))
    cell.open(SMALL)
    assert len(written) >= 2
    written.clear()
    cell.open(SMALL)
    assert written == []
    cell.open(structs.replace(SMALL, pids=8))
    assert written == [b"8"]


def test_v1_memsw_is_never_the_lower_one(tmp_path, monkeypatch):
    groups = groups_of(v1(tmp_path), "n")
    for root in groups.roots():
        Path(root).mkdir(parents=True)
    slot = Slot(1, groups, cells=1)
    play(slot.groups.make)
    kernel = Kernel(slot, 0)
    cell = CellGroup(kernel.plan)
    seen: list[str] = []
    module = "skerry.backends.container.cells._write"
    monkeypatch.setattr(module, lambda path, _value: seen.append(path.rsplit("/", 1)[1]))
    cell.open(SMALL)
    assert seen[:2] == ["memory.memsw.limit_in_bytes", "memory.limit_in_bytes"]
    seen.clear()
    cell.open(LARGE)
    assert seen == ["memory.memsw.limit_in_bytes", "memory.limit_in_bytes"]
    seen.clear()
    cell.open(SMALL)
    assert seen == ["memory.limit_in_bytes", "memory.memsw.limit_in_bytes"]
    cell.close()


def test_limit_is_not_set_near_the_residue(cell, kernel):
    kernel.shows(held=40 * MIB, cache=40 * MIB)
    assert not cell.open(SMALL)
    assert kernel.limit()[1] == "max"  # nothing was written
    assert cell.open(LARGE)


def test_cell_with_residue_that_nothing_explains_is_not_opened(cell, kernel):
    kernel.shows(held=20 * MIB, cache=20 * MIB - RESIDUE_UNEXPLAINED_MAX - 1)
    assert not cell.open(LARGE)
    assert cell.residue() == RESIDUE_UNEXPLAINED_MAX + 1
    kernel.shows(held=20 * MIB, cache=12 * MIB)
    assert cell.open(LARGE)


def test_groups_that_are_gone_count_as_nothing_and_cannot_be_set(slot, cell, kernel):
    cell.open(SMALL)
    play(slot.groups.drop)
    used = cell.usage()
    assert (used.memory_bytes, used.cpu_us, used.oom_kills) == (0, 0, 0)
    with pytest.raises(Unavailable, match="limits of a cell"):
        cell.open(LARGE)
    assert cell.limits is None  # whatever comes next writes all of them


def test_closed_cell_holds_no_descriptor_and_opens_none(cell, kernel):
    before = len(os.listdir("/proc/self/fd"))
    kernel.shows(cpu=5)
    cell.open(SMALL)
    kernel.shows(cpu=9)
    assert cell.usage().cpu_us == 4
    assert len(os.listdir("/proc/self/fd")) == before + 5
    cell.close()
    assert cell.usage().cpu_us == 0
    assert len(os.listdir("/proc/self/fd")) == before


def test_failed_write_leaves_the_limits_unknown(cell, kernel, monkeypatch):
    cell.open(SMALL)

    def busy(_path, _value):
        raise OSError(16, "busy")

    monkeypatch.setattr("skerry.backends.container.cells._write", busy)
    with pytest.raises(Unavailable):
        cell.open(LARGE)
    monkeypatch.undo()
    cell.open(SMALL)
    assert kernel.limit() == (str(64 * MIB), "16")


@pytest.mark.parametrize("number", [-1, 2])
def test_cell_that_is_not_there_is_refused(slot, number):
    with pytest.raises(InvalidRequest):
        CellBooks(slot).of(number)


def test_cells_of_an_earlier_node_are_found_by_their_groups(groups, slot):
    async def ask(_request):
        raise AssertionError

    remains = Remains(groups, "/nowhere", ask, logging.getLogger("test"))
    assert remains.cells(3) == 2
    assert remains.cells(4) == 0
