"""A stand for misbehaviour: programs, the small task's environment, and a neighbour."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from greeting import environment_of
from stand import Stand, programs

from skerry.worker import Downloads


class World:
    """What all the rows share: programs, a cache, the environment, what was graded already."""

    def __init__(self, place: Path) -> None:
        self.programs = programs(place)
        self.cache = place / "cache"
        self.environment = None
        self.graded = {}


@pytest.fixture(scope="session")
def world(tmp_path_factory):
    return World(tmp_path_factory.mktemp("misbehaviour"))


@pytest.fixture
async def stand(world, node_client, weak_nodes):
    """A stand with a neighbour."""
    if world.environment is None:
        ordinary = Downloads(Path(os.environ.get("SKERRY_CACHE", "/var/cache/skerry")), os.environ)
        world.environment = await environment_of(node_client, world.cache, ordinary)
    made = Stand(node_client, world.environment, world.programs, weak_nodes, world.graded)
    async with made.neighbour():
        yield made
