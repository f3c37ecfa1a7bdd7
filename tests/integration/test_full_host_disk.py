"""The disk below the pool of uppers is full for a while: what was written is lost, and nothing else."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

from live_node import LiveNode
from skerry.backends.container.backing import FIXED, metadata
from soak.host import Disk

pytestmark = pytest.mark.root

WRITE = """
for i in $(seq 300); do echo $i > /root/f$i; done 2>/dev/null
dd if=/dev/zero of=/root/big bs=1M count=20 2>/dev/null
sync; true
"""


@pytest.fixture
def disk():
    made = Disk()
    yield made
    made.close()


async def test_pool_outlives_a_full_disk_and_goes_on_when_there_is_room(layer_store, disk):
    with LiveNode(layer_store, below=disk.root).running() as node:
        async with node.client() as client:
            boxes = [await client.sandboxes.create() for _ in range(4)]
            await asyncio.gather(*(box.run("echo kept > /root/kept; sync") for box in boxes))
            disk.fill(0)
            for _ in range(3):
                await asyncio.gather(*(box.run(WRITE, timeout=60) for box in boxes))
            mounts = Path(f"/proc/{node.launcher()}/mountinfo").read_text()
            assert re.search(r" /upper rw.* - btrfs .* rw", mounts)
            disk.free()
            for box in boxes:
                ran = await box.run("cat /root/kept; echo y > /root/new && cat /root/new")
                assert ran.text == "kept\ny\n"
            # an error that nobody has heard of yet would keep new overlays from being mounted
            async with await client.sandboxes.create() as fresh:
                assert (await fresh.run("echo x > /root/x && cat /root/x")).text == "x\n"
            await client.sandboxes.destroy_many(boxes)


async def test_metadata_of_the_pool_has_blocks_of_its_own(layer_store):
    with LiveNode(layer_store).running() as node:
        chunks = metadata(f"/proc/{node.launcher()}/root/upper")
        image = Path(node.state, "container/uppers.btrfs")
        size = image.stat().st_size
        assert len(chunks) >= 2
        assert all(0 < offset < offset + length <= size for offset, length in chunks)
        held = sum(length for _, length in (*chunks, *FIXED))
        assert image.stat().st_blocks * 512 >= held * 0.9
        assert image.stat().st_blocks * 512 < size / 10  # it is sparse, beside that
