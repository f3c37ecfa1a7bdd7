"""Two real nodes that share one directory of layers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from live_node import LiveNode
from skerry.images.sources import debian
from skerry.testing import rootfs
from waiting import until

pytestmark = pytest.mark.root


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[tuple[LiveNode, LiveNode]]:
    if reason := rootfs.container_reason():
        pytest.skip(reason)
    store = str(tmp_path / "store")
    made = LiveNode(store), LiveNode(store)
    try:
        for node in made:
            node.start()
        yield made
    finally:
        for node in made:
            node.stop()


@pytest.mark.slow
async def test_layer_of_another_nodes_paused_sandbox_outlives_its_name(
    nodes: tuple[LiveNode, LiveNode],
) -> None:
    one, two = nodes
    tar = debian.root_tar("bookworm", (), rootfs.CACHE, lambda _line: None)
    async with one.client() as here:
        made = await here.images.import_tar("base/debian:12", tar)
        async with two.client() as there:
            sandbox = await there.sandboxes.create(image="debian:12", detached=True)
            await sandbox.pause()
        await here.images.remove("debian:12")
        assert (await here.images.collect()).removed == ()
        two.kill()
        assert (await here.images.collect()).removed == ()
        two.start()
        again = await here.images.collect()
        assert again.removed == ()
        assert any(why.startswith("sandbox on") for one in again.kept for why in one.why)
        async with two.client() as there:
            sandbox = await there.sandboxes.get(sandbox.id)
            await sandbox.resume()
            # Bytes that nobody has read yet: they come from the store.
            result = await sandbox.run("cat /usr/bin/* /usr/lib/*/*.so* | wc -c")
            assert result.ok, result
            await sandbox.destroy()
            gone: set[str] = set()

            async def collected() -> bool:
                nonlocal gone
                gone |= {one.digest for one in (await there.images.collect()).removed}
                return gone == made.blobs()

            # The lease names what was in use a moment ago.
            await until(collected, within_s=90, pause_s=3)
