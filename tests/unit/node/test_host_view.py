"""What the host has left, read from files as a kernel writes them."""

from __future__ import annotations

from pathlib import Path

import pytest

from skerry.node.gauges.host import host_view, percpu_free_bytes
from skerry.node.life.idle import read_host

PAGE = 4096
ZONES = """Node 0, zone   Normal
  pages free     3840
        protection: (0, 3019)
      nr_free_pages 3840
  pagesets
    cpu: 0
              count:    62694
              high:     63841
              batch:    63
  vm stats threshold: 4
    cpu: 1
              count:    19046
              high:     81039
  node_unreclaimable:  0
Node 0, zone  Movable
  pages free     0
"""


@pytest.fixture(autouse=True)
def pages_of_4_kib(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sysconf", lambda name: {"SC_PAGE_SIZE": PAGE}[name])


def proc(path: Path, *, zones: str | None) -> str:
    (path / "meminfo").write_text("MemTotal: 1000 kB\nMemAvailable: 100 kB\nSwapFree: 7 kB\n")
    if zones is not None:
        (path / "zoneinfo").write_text(zones)
    return str(path)


def test_available_memory_free_pages_on_lists_of_processors_count(tmp_path) -> None:
    view = host_view(proc(tmp_path, zones=ZONES))
    assert view.memory_total_bytes == 1000 << 10
    assert view.memory_available_bytes == (100 << 10) + (62694 + 19046) * PAGE
    assert view.swap_free_bytes == 7 << 10


def test_available_memory_without_zoneinfo_is_that_of_meminfo(tmp_path) -> None:
    assert host_view(proc(tmp_path, zones=None)).memory_available_bytes == 100 << 10


@pytest.mark.parametrize("text", ["", "count", "count:", "   count: many\n", "high_count: 7\n"])
def test_zoneinfo_with_odd_lines_counts_nothing(text: str) -> None:
    assert percpu_free_bytes(text) == 0


def test_share_of_this_host_is_one_of_all_its_memory() -> None:
    assert 0 < read_host().available_share <= 1
