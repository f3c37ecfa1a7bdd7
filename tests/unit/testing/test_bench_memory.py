"""What the benchmarks' readings of memory count, from files as a kernel writes them."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import ModuleType

import pytest

BENCH = Path(__file__).parents[3] / "bench"
SLABINFO = """slabinfo - version: 2.1
# name <active_objs> <num_objs> <objsize> <objperslab> <pagesperslab> : tunables ...
kmalloc-1k 33 64 1024 16 4 : tunables 0 0 0 : slabdata 4 4 0
empty 0 30 128 30 1 : tunables 0 0 0 : slabdata 1 1 0
"""
ZONEINFO = (
    "  pages free 9\n    cpu: 0\n              count:    5\n    cpu: 1\n  count: 7\n high: 99\n"
)


@pytest.fixture
def harness(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCH))
    import harness

    monkeypatch.setattr(harness, "PAGE_KIB", 4)
    monkeypatch.delitem(sys.modules, "harness")
    return harness


def test_objects_in_use_count_with_their_share_of_the_slab(harness) -> None:
    assert harness.slab_used_kib(SLABINFO) == 33


def test_free_pages_of_all_processors_are_added_up(harness) -> None:
    assert harness.percpu_free_kib(ZONEINFO) == 12 * 4


@pytest.mark.skipif(not os.access("/proc/slabinfo", os.R_OK), reason="/proc/slabinfo is root's")
def test_reading_of_this_machine_holds_all_kinds(harness) -> None:
    now = harness.memory_kib()
    assert set(now) == {"available", "kernel", "reclaimable"}
    assert min(now.values()) > 0
