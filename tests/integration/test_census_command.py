"""`skerry census` against real nodes: whose things are whose, and what `--clean` takes and leaves."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from live_node import LiveNode
from skerry.backends.shared import proc
from skerry.density import zram
from waiting import ended

pytestmark = pytest.mark.root


def census(*words: str) -> tuple[int, list[dict]]:
    done = subprocess.run(
        [sys.executable, "-m", "skerry.cli.main", "census", "--json", *words],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode in (0, 1), done.stderr
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()]


async def test_things_are_found_and_only_orphans_are_removed(layer_store):
    lost, lives = LiveNode(layer_store), LiveNode(layer_store)
    try:
        lost.start()
        lives.start()
        names = {}
        for node in (lost, lives):
            async with node.client() as client:
                names[node] = (await client.health()).node
                sandbox = await client.sandboxes.create()
                await sandbox.run("echo x > /root/file; setsid sleep 1000 >/dev/null 2>&1 &")
        for node in (lost, lives):
            status, things = census("--node", names[node])
            kinds = {thing["kind"] for thing in things}
            assert status == 0
            assert kinds >= {
                "node", "launcher", "agent", "process in a sandbox", "control groups",
                "network namespaces", "mounts", "pinned mount namespace", "loop device", "socket",
                "memory file", "upper", "layer mount", "run directory", "registry entry",
            }  # fmt: skip
            assert not any(thing["orphan"] for thing in things)
        # killed, but its state is there: it waits for its next start, and nothing is touched
        launcher = lost.launcher()
        lost.kill()
        assert census("--node", names[lost])[0] == 0
        status, (said,) = census("--clean", "--node", names[lost])
        assert (status, said["cleaned"]) == (0, [])
        assert proc.runs(launcher)
        # without its state nobody can ever take it over; the launcher dies too, so that agents stay
        os.kill(launcher, signal.SIGKILL)
        Path(lost.state, "name").unlink()
        status, things = census("--node", names[lost])
        assert status == 1
        assert {"agent", "process in a sandbox", "control groups", "pinned mount namespace"} <= {
            thing["kind"] for thing in things if thing["orphan"]
        }
        status, (said,) = census("--clean", "--node", names[lost])
        assert (status, said) == (0, {"cleaned": [names[lost]], "trouble": []})
        assert census("--node", names[lost])[1] == []
        # the other one has lost nothing
        async with lives.client() as client:
            (info,) = await client.sandboxes.list()
            again = await client.sandboxes.get(info.id)
            assert await again.files.read("/root/file") == b"x\n"
            assert b"sleep" in (await again.run("cat /proc/[0-9]*/comm")).stdout
            await again.destroy()
    finally:
        left = lives.stop()
        left += lost.stop()
        shutil.rmtree(lost.state, ignore_errors=True)
    assert not left


@pytest.mark.parametrize("reachable", [True, False], ids=["asked", "killed"])
async def test_launcher_without_node_and_state_ends(layer_store, reachable):
    node = LiveNode(layer_store).start()
    try:
        async with node.client() as client:
            name = (await client.health()).node
            await client.sandboxes.create()
        launcher = node.launcher()
        node.kill()
        Path(node.state, "name").unlink()
        if not reachable:
            Path(node.run, "container/spawn.sock").unlink()
        status, (said,) = census("--clean", "--node", name)
        assert (status, said) == (0, {"cleaned": [name], "trouble": []})
        assert ended(launcher)
        assert census("--node", name) == (0, [])
    finally:
        left = node.stop()
    assert not left


def in_place_of(other: LiveNode, layer_store: str, options: str = "") -> LiveNode:
    """A node with a state of its own in the run directory of another one."""
    node = LiveNode(layer_store, options=options)
    os.rmdir(node.run)
    node._argv = [other.run if word == node.run else word for word in node._argv]
    node.run = other.run
    return node


def refused(node: LiveNode) -> str:
    """Starts a node that must not start; returns what it says."""
    done = subprocess.run(node._argv, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 75, done.stderr
    return done.stderr


async def made(node: LiveNode) -> str:
    async with node.client() as client:
        return (await client.sandboxes.create(detached=True)).id


async def still_works(node: LiveNode, sandbox: str) -> None:
    async with node.client() as client:
        assert (await (await client.sandboxes.get(sandbox)).run("echo here")).stdout == b"here\n"


async def test_run_directory_of_another_node_is_refused_and_nobody_is_disturbed(layer_store):
    first = LiveNode(layer_store)
    try:
        first.start()
        sandbox, launcher = await made(first), first.launcher()
        second = in_place_of(first, layer_store)
        try:
            said = refused(second)
            assert f"belongs to a running node (pid={first.pid} state={first.state})" in said
            await still_works(first, sandbox)
            assert first.launcher() == launcher
            assert "was lost" not in first.tail()
            first.kill()
            said = refused(second)  # the launcher and the sandbox are still the first one's
            assert f"launcher {launcher}" in said
            assert first.state in said
            first.start()
            await still_works(first, sandbox)
            assert first.launcher() == launcher
        finally:
            shutil.rmtree(second.state)
    finally:
        left = first.stop()
    assert not left


async def test_node_in_the_place_of_a_lost_one_survives_a_clean(layer_store):
    lost = LiveNode(layer_store)
    lives = None
    try:
        lost.start()
        async with lost.client() as client:
            name = (await client.health()).node
        await made(lost)
        launcher = lost.launcher()
        lost.kill()
        os.kill(launcher, signal.SIGKILL)
        shutil.rmtree(lost.state)
        lives = in_place_of(lost, layer_store).start()
        sandbox, its = await made(lives), lives.launcher()
        status, (said,) = census("--clean", "--node", name)
        assert (status, said) == (0, {"cleaned": [name], "trouble": []})
        assert ended(launcher)
        assert proc.runs(its)
        await still_works(lives, sandbox)
        lives.kill()
        lives.start()  # what adoption needs is still there too
        await still_works(lives, sandbox)
    finally:
        left = lives.stop() if lives else []
        Path(lost.state).mkdir(exist_ok=True)
        Path(lost.log).touch()
        left += lost.stop()
    assert not left


async def test_compressed_swap_of_a_lost_node_is_an_orphan(layer_store):
    if not zram.offered():
        pytest.skip("this kernel has no zram")
    lost = LiveNode(layer_store, options='zram = "64MiB"').start()
    async with lost.client() as client:
        name = (await client.health()).node
    (number,) = zram.Zram(name).found()
    launcher = lost.launcher()
    lost.kill()
    os.kill(launcher, signal.SIGKILL)
    _, things = census("--node", name)
    assert [t["what"] for t in things if t["kind"] == "compressed swap"] == [f"/dev/zram{number}"]
    assert not any(thing["orphan"] for thing in things)
    Path(lost.state, "name").unlink()
    status, (said,) = census("--clean", "--node", name)
    assert (status, said) == (0, {"cleaned": [name], "trouble": []})
    assert not zram.Zram(name).found()
    assert not lost.stop()
