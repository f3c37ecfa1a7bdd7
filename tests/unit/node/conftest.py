"""A node on a fake backend for each test, and its clock."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator

import pytest
from door_world import World
from node_stand import ManualClock, Stand

from skerry.images.objects.directory import DirectoryObjects


@pytest.fixture
def stand() -> Iterator[Stand]:
    with tempfile.TemporaryDirectory(prefix="sk-") as root:
        yield Stand(root)


@pytest.fixture
def shared(tmp_path) -> DirectoryObjects:
    """A store to which trajectories may be shipped."""
    return DirectoryObjects(str(tmp_path / "shared"))


@pytest.fixture
def manual(stand: Stand) -> ManualClock:
    """The stand's clock, moved by the test."""
    stand.clock = ManualClock()
    return stand.clock


@pytest.fixture
def world(manual) -> Callable[..., World]:
    return lambda **limits: World(manual, **limits)
