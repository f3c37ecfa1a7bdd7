"""Fixtures for all tests: the leak census, and one real node for the whole run."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import tempfile

import hypothesis
import pytest

import lanes
from live_node import LiveNode
from skerry.testing import census
from skerry.testing.rootfs import container_reason

pytest_plugins = ["skerry.testing.pytest_plugin"]


# How long an example takes says how busy the machine is, and nothing of the code.
hypothesis.settings.register_profile("skerry", deadline=None)
hypothesis.settings.load_profile("skerry")


def pytest_configure() -> None:
    """Lets what the tests start be interrupted: a shell starts a job behind `&` with SIGINT ignored.

    Programs inherit that, and rightly keep it; a test that interrupts one would wait for ever.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ[census.RUN] = str(os.getpid())


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Several processes at once (`-n`) take a file each."""
    return lanes.scheduler(config, log)


@pytest.fixture(scope="session", autouse=True)
def tests_beside(request, tmp_path_factory):
    """What tests in other processes of this run make lies below their own directories."""
    if workers := lanes.others(request.config):
        top = tmp_path_factory.getbasetemp().parent
        census.Watch.beside = frozenset(str(top / f"popen-{worker}") for worker in workers)


@pytest.fixture(scope="session")
def layer_store():
    """A store of layers for nodes of this run, with base/debian:12 in it."""
    if reason := container_reason():
        pytest.skip(reason)
    place = tempfile.mkdtemp(prefix="skerry-store-", dir="/var/tmp")
    node = LiveNode(f"{place}/store")

    async def fill():
        async with node.client() as client:
            await client.images.debian("debian:12", "bookworm")

    try:
        node.start()
        asyncio.run(fill())
        node.stop()
        yield f"{place}/store"
    finally:
        node.stop()
        shutil.rmtree(place)


@pytest.fixture(scope="session")
def live_node(layer_store):
    """One node for the whole run; tests that use it destroy what they make. The census is its last."""
    with LiveNode(layer_store).running() as node:
        yield node


@pytest.fixture
async def node_client(live_node):
    """A client of that node; afterwards no sandbox is left there."""
    async with live_node.client() as client:
        yield client
        left = [info.id for info in await client.sandboxes.list()]
        await client.sandboxes.destroy_many(left)
        assert not left
