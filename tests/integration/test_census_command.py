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
        assert os.path.exists(f"/proc/{launcher}")
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
        assert not os.path.exists(f"/proc/{launcher}")
        assert census("--node", name) == (0, [])
    finally:
        left = node.stop()
    assert not left
