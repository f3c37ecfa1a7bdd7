"""Giving a sandbox's memory back takes no page of a layer from the page cache that others share."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from live_node import LiveNode
from skerry.density.zram import offered

pytestmark = pytest.mark.root

HERE = Path(__file__).parent
# A program of the layer, large enough, that only this process has mapped.
LINE = "setsid perl -e '$x = \"a\" x 9000000; $| = 1; print $$; sleep 1000' > /tmp/pid 2>&1 &"
READY = "until grep -q . /tmp/pid; do sleep 0.05; done; grep RssFile /proc/$(cat /tmp/pid)/status"


async def mapped_kib(sandbox) -> int:
    return int((await sandbox.run(READY)).text.split()[1])


async def before_and_after_a_pause(node) -> tuple[int, int]:
    async with node.client() as client, await client.sandboxes.create() as sandbox:
        await sandbox.run(LINE)
        before = await mapped_kib(sandbox)
        info = await sandbox.pause()
        assert info.pause_freed_bytes > 4 << 20
        await sandbox.resume()
        return before, await mapped_kib(sandbox)


@pytest.fixture
def swap_node(layer_store):
    """Makes nodes with compressed swap."""
    if not offered():
        pytest.skip("this kernel has no zram")
    nodes = []

    def make(**more):
        nodes.append(LiveNode(layer_store, options='zram = "64MiB"', **more).start())
        return nodes[-1]

    yield make
    left = [line for node in nodes for line in node.stop()]
    assert not left


async def test_mapped_pages_of_layers_stay(swap_node):
    before, after = await before_and_after_a_pause(swap_node())
    assert before > 1000
    assert after > before * 0.9


async def test_control_with_one_more_capability_they_are_pushed_out(swap_node, weak_pair, tmp_path):
    program = tmp_path / "skerry-spawn"
    program.write_text(f'#!/bin/sh\nSKERRY_WEAK=layers exec {weak_pair}/skerry-spawn "$@"\n')
    program.chmod(0o755)
    (tmp_path / "skerry-init").symlink_to(weak_pair / "skerry-init")
    node = swap_node(program=(sys.executable, str(HERE / "weak_node.py"), str(tmp_path)))
    before, after = await before_and_after_a_pause(node)
    assert after < before * 0.7
