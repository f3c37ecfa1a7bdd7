"""Collections on one node while another one makes sandboxes in bursts, on layers that come and go."""

from __future__ import annotations

import asyncio
import io
import tarfile
import time
from pathlib import Path

import pytest

from live_node import LiveNode
from skerry.errors import LayerDamaged, NotFound, SkerryError, StorageFailed
from skerry.images.sources import debian
from skerry.testing import rootfs

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(bool(rootfs.container_reason()), reason=str(rootfs.container_reason())),
]

SECONDS = 30.0  # three rounds of a collector: each waits for ten
AT_ONCE = 6
NAMES = 4


def archive(name: str, version: int) -> io.BytesIO:
    """A workspace that says which it is, in a file large enough to be data of its own."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        content = f"{name} {version}\n".encode() * 2000
        info = tarfile.TarInfo("which")
        info.size = len(content)
        tar.addfile(info, io.BytesIO(content))
    out.seek(0)
    return out


@pytest.mark.slow
async def test_burst_of_creates_beside_collections_gets_whole_layers_or_says_why(
    tmp_path: Path,
) -> None:
    store = str(tmp_path / "store")
    # One collects and changes names, the other one makes sandboxes.
    one, two = LiveNode(store), LiveNode(store)
    try:
        one.start()
        two.start()
        base = debian.root_tar("bookworm", (), rootfs.CACHE, lambda _line: None)
        end = time.monotonic() + SECONDS
        made, told, collected = [], [], []
        async with one.client() as here, two.client() as there:
            await here.images.import_tar("base/debian:12", base)

            async def change(at: int) -> None:
                """One name stands for ever new layers, and now and then for none."""
                version = 0
                while time.monotonic() < end:
                    version += 1
                    name = f"workspace/w{at}"
                    await here.images.import_tar(name, archive(name, version))
                    await asyncio.sleep(0.4)
                    if version % 3 == 0:
                        await here.images.remove(name)
                        await asyncio.sleep(0.2)

            async def collect() -> None:
                while time.monotonic() < end:
                    collected.extend((await here.images.collect()).removed)

            async def create(at: int) -> None:
                while time.monotonic() < end:
                    name = f"workspace/w{at % NAMES}"
                    try:
                        sandbox = await there.sandboxes.create("container", layers=[name])
                    except SkerryError as error:
                        told.append(error)
                        await asyncio.sleep(0.1)
                        continue
                    result = await sandbox.run("sort -u /which; wc -l < /which")
                    made.append((name, result.exit_code, result.text.split()))
                    await sandbox.destroy()

            async with asyncio.TaskGroup() as group:
                group.create_task(collect())
                for at in range(NAMES):
                    group.create_task(change(at))
                for at in range(AT_ONCE):
                    group.create_task(create(at))
            assert len(made) > 20
            assert collected, "collections had something to remove"
            for name, status, words in made:
                assert status == 0
                assert (words[0], words[2]) == (name, "2000"), words
            # A name that is gone, or a layer that is just being collected: never a damaged one.
            assert not [error for error in told if isinstance(error, LayerDamaged)], told
            assert {type(error) for error in told} <= {NotFound, StorageFailed}, told
    finally:
        left = two.stop() + one.stop()
    assert not left
