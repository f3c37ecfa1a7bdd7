"""A node on a fake backend for each test, and its clock."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator

import pytest
from node_stand import ManualClock, Stand


@pytest.fixture
def stand() -> Iterator[Stand]:
    with tempfile.TemporaryDirectory(prefix="sk-") as root:
        yield Stand(root)


@pytest.fixture
def manual(stand: Stand) -> ManualClock:
    """The stand's clock, moved by the test."""
    stand.clock = ManualClock()
    return stand.clock
