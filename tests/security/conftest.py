"""Attack programs, and nodes that lack a protection: the positive controls (decision 35)."""

from __future__ import annotations

import subprocess
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from weak_nodes import WeakNodes

from native_build import NATIVE, build

HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def programs(tmp_path_factory):
    """The attack programs, compiled."""
    place = tmp_path_factory.mktemp("programs")
    flags = ["-std=gnu11", "-O2", "-static", "-Wall", "-Wextra", "-Werror", "-D_GNU_SOURCE"]
    bare = ["-nostdlib", "-ffreestanding", "-fno-pie", "-no-pie", "-Wl,-Ttext-segment=0x70000000"]
    for name, extra in (("attacks", ()), ("victim", bare)):
        argv = ["gcc", *flags, *extra, "-o", str(place / name), str(HERE / f"{name}.c")]
        subprocess.run(argv, check=True)
    return place


class Armed:
    """A sandbox with the attack program in it."""

    def __init__(self, sandbox):
        self.sandbox = sandbox

    async def sh(self, line, **fields):
        return await self.sandbox.run(line, **fields)

    async def attack(self, *words, **fields):
        """Returns what each attack of a group came to, by name."""
        done = await self.sandbox.run(["/usr/local/bin/attacks", *words], cwd="/", **fields)
        assert done.ok, (words, done)
        return dict(line.split(" ", 1) for line in done.text.splitlines())


@pytest.fixture
def armed(programs):
    """Makes armed sandboxes: `async with armed(client) as box`."""

    @asynccontextmanager
    async def make(client, **spec):
        async with await client.sandboxes.create(**spec) as sandbox:
            for name in ("attacks", "victim"):
                await sandbox.files.upload(programs / name, f"/usr/local/bin/{name}")
            yield Armed(sandbox)

    return make


@pytest.fixture
async def box(node_client, armed):
    """An armed sandbox, beside a neighbour who must not notice anything."""
    async with await node_client.sandboxes.create() as neighbour:
        await neighbour.run("echo here > /root/mine; setsid sleep 1000 >/dev/null 2>&1 &")
        look = "cat /root/mine; ls -A / /root /tmp; cat /proc/[0-9]*/comm | grep -cx sleep"
        before = (await neighbour.run(look)).text
        async with armed(node_client) as made:
            yield made
            assert (await made.sandbox.run("echo alive")).stdout == b"alive\n"
        assert (await neighbour.run(look)).text == before


@pytest.fixture(scope="session")
def weak_pair():
    """The directory of the weakened native pair."""
    build("weak")
    return NATIVE / "build/weak"


@pytest.fixture(scope="session")
def weak_nodes(layer_store, tmp_path_factory):
    """Nodes without some protections, by their names, each started once."""
    nodes = WeakNodes(layer_store, tmp_path_factory.mktemp("weak"))
    yield nodes.node
    left = nodes.stop()
    assert not left


@pytest.fixture
def weak(weak_nodes, armed):
    """Makes armed sandboxes that lack protections: `async with weak("filter,counters") as box`."""

    @asynccontextmanager
    async def make(words, **spec):
        async with weak_nodes(words).client() as client, armed(client, **spec) as box:
            yield box

    return make
