"""A node that scrubs its store by itself: damage under live sandboxes is told, refused, and mended."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from test_layers_live import layer, library  # noqa: F401 - a fixture
from test_lazy_node import counted

from live_node import LiveNode
from skerry.errors import Fault, LayerDamaged
from skerry.images.store import keys
from skerry.images.store.store import DirectoryStore
from skerry.spec.layers import parse_layer_name
from skerry.testing.rootfs import container_reason

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(bool(container_reason()), reason=str(container_reason())),
]

# Every 20 s: nodes look for what is due once a second then.
OPTIONS = """
scrub_every_s = 20
scrub_bytes_per_s = 1073741824
"""
NAME = "toolkit/rots"
CONTENT = os.urandom(700_000)


def image(node: LiveNode, *words: str) -> tuple[int, str]:
    argv = [sys.executable, "-m", "skerry.cli.main", "--url", f"unix://{node.run}/node.sock"]
    done = subprocess.run([*argv, "image", *words], capture_output=True, text=True, check=False)
    return done.returncode, done.stdout


def last(node: LiveNode) -> tuple[int, str]:
    return image(node, "verify", "--last", NAME)


def flip(path: Path, at: int) -> None:
    os.chmod(path, 0o644)
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)
        file.seek(at)
        file.write(bytes([byte[0] ^ 0x40]))


async def flagged(sandbox, digest: str, value: bool) -> None:
    """Returns once the sandbox's mount of that layer is said to be damaged, or not."""
    end = time.monotonic() + 120
    while True:
        info = await sandbox.info()
        (mount,) = (one for one in info.mounts if one.digest == digest)
        if mount.damaged is value:
            assert not any(one.damaged for one in info.mounts if one.digest != digest)
            return
        assert time.monotonic() < end, "nobody told"
        await asyncio.sleep(0.2)


async def test_flipped_bit_under_a_live_sandbox_is_told_and_new_ones_are_refused(
    layer_store,
    library,  # noqa: F811
):
    manifest = layer(library, NAME, {"file": CONTENT})
    path = Path(DirectoryStore(layer_store).path(str(manifest.data_digest)))
    whole = path.read_bytes()
    node = LiveNode(layer_store, options=OPTIONS).start()
    try:
        async with node.client() as client:
            sandbox = await client.sandboxes.create(layers=[NAME])
            other = await client.sandboxes.create()
            assert last(node)[0] == 0
            flip(path, 600_000)
            await flagged(sandbox, manifest.digest, value=True)
            assert not any(one.damaged for one in (await other.info()).mounts)
            with pytest.raises(LayerDamaged, match="1 of 3 chunks are damaged") as refused:
                await client.sandboxes.create(layers=[NAME])
            assert refused.value.fault is Fault.PLATFORM
            await (await client.sandboxes.create()).destroy()  # without it all is well
            check = await client.images.last_check(NAME)
            assert (check.damage[0].chunks, check.damage[0].files) == ((2,), ("/file",))
            status, said = last(node)
            assert status == 1
            assert "DAMAGED" in said
            assert "files /file" in said
            log = Path(node.log).read_text()
            assert f"platform fault: layer {NAME}:latest ({manifest.digest}) is damaged" in log
            assert f"read it in place: {sandbox.id}" in log
            assert await counted_store(node, "damaged_layers") == 1
            assert await counted_store(node, "damaged_mounts") == 1
            assert await counted_store(node, "scrubbed_bytes_total") > manifest.total_bytes
            # Over a restart it is still known.
            node.kill()
            node.start()
            await flagged(await client.sandboxes.get(sandbox.id), manifest.digest, value=True)
            path.write_bytes(whole)  # copied back
            sandbox = await client.sandboxes.get(sandbox.id)
            await flagged(sandbox, manifest.digest, value=False)
            async with await client.sandboxes.create(layers=[NAME]) as again:
                assert await again.files.read("/file") == CONTENT
            for one in (sandbox, other):
                await one.destroy()
    finally:
        path.write_bytes(whole)
        left = node.stop()
    assert not left


async def counted_store(node: LiveNode, name: str) -> float:
    return await counted(node, name, prefix="store")


async def test_damaged_name_is_told_by_verify_and_can_be_removed(
    layer_store,
    library,  # noqa: F811
):
    made = layer(library, NAME, {"file": b"x"})
    store = DirectoryStore(layer_store)
    node = LiveNode(layer_store).start()
    try:
        assert image(node, "verify", "--all")[0] == 0
        path = Path(layer_store, keys.tag(parse_layer_name(NAME)))
        flip(path, 30)
        status, said = image(node, "verify", "--all")
        assert status == 1
        assert f"{NAME}:latest  DAMAGED name" in said
        assert f"what to do: make {NAME}:latest again" in said
        assert "base/debian:12  good" in said  # it hides no other
        async with node.client() as client:
            assert f"{NAME}:latest" not in [one.name for one in await client.images.list()]
            # As the advice says: it can be used by digest meanwhile.
            async with await client.sandboxes.create(layers=[f"{NAME}@{made.digest}"]) as sandbox:
                assert await sandbox.files.read("/file") == b"x"
        assert image(node, "rm", NAME)[0] == 0
        assert image(node, "verify", "--all")[0] == 0
        assert store.tag(parse_layer_name(NAME)) is None
    finally:
        left = node.stop()
    assert left == []
