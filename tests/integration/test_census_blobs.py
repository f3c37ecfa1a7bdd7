"""`skerry census` and what reads layers on demand: seen while its node lives, removed after."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

import pytest
from test_census_command import census
from test_lazy_node import OPTIONS, blobs_pid

from live_node import LiveNode
from skerry.testing.rootfs import container_reason
from waiting import ended

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(bool(container_reason()), reason=str(container_reason())),
    pytest.mark.skipif(not os.path.exists("/dev/fuse"), reason="there is no /dev/fuse"),
]

KINDS = {"blobs process", "FUSE mount", "FUSE descriptor"}


def by_kind(things: list[dict]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for thing in things:
        found.setdefault(thing["kind"], []).append(thing["what"])
    return found


async def test_what_reads_on_demand_is_listed_with_what_it_counted(layer_store):
    node = LiveNode(layer_store, options=OPTIONS).start()
    try:
        async with node.client() as client, await client.sandboxes.create() as sandbox:
            assert (await sandbox.run(["python3", "-c", "import json"])).exit_code == 0
            name = (await client.health()).node
            status, things = census("--node", name)
            found = by_kind(things)
            assert status == 0
            assert [int(what.split()[0]) for what in found["blobs process"]] == [blobs_pid(node)]
            (mount,) = found["FUSE mount"]
            assert mount == f"/blobs in the namespace of launcher {node.launcher()}"
            holders = {what.rpartition(" ")[2] for what in found["FUSE descriptor"]}
            assert holders == {str(blobs_pid(node)), str(node.launcher())}
            (cache,) = found["chunk cache"]
            assert cache.startswith(f"{node.state}/chunks: ")
            assert " 0 bytes" not in cache
            assert " 0 misses" not in cache
            assert ", 0 verify failures, 0 reads failed, 1 blobs mounted" in cache
            blobs = (await client.health()).blobs
            assert (blobs.pid, blobs.serving) == (blobs_pid(node), True)
            assert (blobs.verify_failures, blobs.faults) == (0, 0)
    finally:
        left = node.stop()
    assert not left


@pytest.mark.parametrize("hangs", [False, True], ids=["serves", "hangs"])
async def test_leftovers_of_a_lost_node_are_found_and_removed(layer_store, hangs):
    node = LiveNode(layer_store, options=OPTIONS).start()
    try:
        async with node.client() as client:
            name = (await client.health()).node
            sandbox = await client.sandboxes.create()
            await sandbox.run("setsid sleep 1000 >/dev/null 2>&1 &")
        serving = blobs_pid(node)
        launcher = node.launcher()
        node.kill()
        # Its state is there, so all of it waits for the next start.
        assert census("--clean", "--node", name)[1][0]["cleaned"] == []
        assert blobs_pid(node) == serving
        os.kill(launcher, signal.SIGKILL)
        Path(node.state, "name").unlink()
        if hangs:
            os.kill(serving, signal.SIGSTOP)
        status, things = census("--node", name)
        assert status == 1
        assert {thing["kind"] for thing in things if thing["orphan"]} >= KINDS
        # No launcher is left to ask: the mount is seen in the namespace that is pinned.
        assert by_kind(things)["FUSE mount"] == [f"/blobs in {node.run}/container/ns/mnt"]
        status, (said,) = census("--clean", "--node", name)
        assert (status, said) == (0, {"cleaned": [name], "trouble": []})
        assert ended(serving)
        assert census("--node", name) == (0, [])
        assert not Path(node.run).exists()
    finally:
        left = node.stop()
        shutil.rmtree(node.state, ignore_errors=True)
    assert not left
