"""A node that is killed and never comes back: what it leaves ends by itself, but for what shall stay."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from live_node import LiveNode
from skerry.backends.shared import proc
from waiting import ended, soon

pytestmark = pytest.mark.root


def timer_runs(pid: int) -> bool:
    """Whether the launcher's one timerfd is armed."""
    for name in os.listdir(f"/proc/{pid}/fdinfo"):
        text = Path(f"/proc/{pid}/fdinfo/{name}").read_text()
        if "it_value:" in text:
            return "it_value: (0, 0)" not in text
    raise AssertionError("the launcher has no timer")


@pytest.fixture
def node(layer_store):
    with LiveNode(layer_store, options="orphan_after_s = 2").running() as made:
        yield made


async def test_undetached_sandboxes_and_the_launcher_end_without_a_node(node):
    async with node.client() as client:
        made = [await client.sandboxes.create() for _ in range(3)]
        await made[0].run("setsid sleep 1000 >/dev/null 2>&1 &")
        await made[1].pause()
    launcher = node.launcher()
    node.kill()
    assert ended(launcher)
    # the launcher took all with it: the census of the fixture would find the rest
    node.start()
    async with node.client() as client:
        infos = [await (await client.sandboxes.get(one.id)).info() for one in made]
        assert [info.state for info in infos] == ["failed"] * 3
        assert all("lost while the node was away" in (info.reason or "") for info in infos)
        await client.sandboxes.destroy_many(made)
        async with await client.sandboxes.create() as fresh:
            assert (await fresh.run("true")).ok


async def test_detached_sandbox_stays_and_is_taken_over(node):
    async with node.client() as client:
        stays = await client.sandboxes.create(detached=True)
        goes = await client.sandboxes.create()
        await stays.run("echo kept > /root/file")
    launcher = node.launcher()
    node.kill()
    await asyncio.sleep(5)
    assert proc.runs(launcher)
    node.start()
    async with node.client() as client:
        again = await client.sandboxes.get(stays.id)
        assert await again.files.read("/root/file") == b"kept\n"
        assert (await (await client.sandboxes.get(goes.id)).info()).state == "failed"
        await client.sandboxes.destroy_many([stays, goes])


async def test_node_that_comes_back_in_time_finds_everything(layer_store):
    """The launcher's timer runs exactly while no node is connected."""
    node = LiveNode(layer_store, options="orphan_after_s = 600").start()
    try:
        async with node.client() as client:
            sandbox = await client.sandboxes.create()
        assert not timer_runs(node.launcher())
        node.kill()
        assert soon(lambda: timer_runs(node.launcher()))
        await asyncio.to_thread(node.start)
        assert not timer_runs(node.launcher())
        async with node.client() as client:
            again = await client.sandboxes.get(sandbox.id)
            assert (await again.run("true")).ok
            await again.destroy()
    finally:
        left = node.stop()
    assert not left


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
async def test_signal_that_asks_for_the_end_gets_an_orderly_one(layer_store, number):
    with LiveNode(layer_store).running() as node:
        async with node.client() as client:
            await client.sandboxes.create()
        launcher = node.launcher()
        os.kill(node.pid, number)
        assert await asyncio.to_thread(node._process.wait, 30) == 0
        assert not proc.runs(launcher)


async def test_node_under_nohup_outlives_its_terminal(layer_store):
    with LiveNode(
        layer_store, program=("nohup", sys.executable, "-m", "skerry.cli.main")
    ).running() as node:
        os.kill(node.pid, signal.SIGHUP)
        async with node.client() as client, await client.sandboxes.create() as sandbox:
            assert (await sandbox.run("true")).ok
        assert node._process.poll() is None


async def test_second_signal_ends_a_node_that_is_held_up(layer_store):
    """The launcher stands still, so nothing can be destroyed: the end is bounded, a second faster."""
    node = LiveNode(layer_store, options="end_within_s = 3600").start()
    launcher = node.launcher()
    try:
        async with node.client() as client:
            await client.sandboxes.create()
        os.kill(launcher, signal.SIGSTOP)
        os.kill(node.pid, signal.SIGTERM)
        await asyncio.sleep(1.5)
        assert node._process.poll() is None
        os.kill(node.pid, signal.SIGTERM)
        node._process.wait(20)
    finally:
        os.kill(launcher, signal.SIGCONT)
        node.start()  # takes over what was left, and ends it in order
        left = node.stop()
    assert not left
