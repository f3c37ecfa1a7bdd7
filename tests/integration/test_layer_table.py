"""More layers than a launcher can have mounted: in turn they make room, at once some must wait."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from test_container_backend import Places, said

from skerry.backends.container import build_backend
from skerry.errors import Overloaded
from skerry.images.format.erofs import Tools
from skerry.spec.layers import LayerFile, RootfsPlan
from skerry.testing import rootfs as rootfs_module
from skerry.testing.conformance import Conformance
from skerry.testing.rootfs import container_reason

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(bool(container_reason()), reason=str(container_reason())),
]

TABLE = 512  # LAYER_TABLE_MAX in native/spawn/launcher.h


@pytest.fixture
async def places(census):
    made = Places()
    census.watch(places=(made.state, made.run))
    yield made
    os.rmdir(made.run)
    os.rmdir(made.state)


@pytest.fixture
async def backend(places, tmp_path):
    made = build_backend(
        state_dir=places.state,
        run_dir=places.run,
        node=places.node,
        layer_dirs=(str(rootfs_module.directory()), str(tmp_path)),
    )
    await made.start()
    yield made
    await made.close(keep_instances=False)


@pytest.fixture
def workspace(tmp_path: Path):
    """Makes small layers, each a file of its own."""
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "workspace").write_text("here\n")
    first = tmp_path / "first.erofs"
    subprocess.run([Tools().mkfs().path, str(first), str(tree)], check=True, capture_output=True)

    def make(number: int) -> LayerFile:
        path = tmp_path / f"{number}.erofs"
        if not path.exists():
            shutil.copyfile(first, path)
        return LayerFile(f"{number:032x}", f"sha256:{number:064x}", str(path))

    return make


def on(layer: LayerFile):
    return Conformance.request_for(RootfsPlan((*rootfs_module.plan().layers, layer)))


def mounted(backend) -> int:
    return len(os.listdir(Path(backend.parts.launcher_root()) / "layers"))


async def test_a_thousand_workspaces_are_used_in_turn(backend, workspace):
    layers = backend.parts.layers
    for number in range(1000):
        layer = workspace(number)
        if number % 50 == 0:
            instance = await backend.create(on(layer))
            assert await said(instance, "cat /workspace") == "here"
            await instance.destroy()
        else:
            await layers.acquire((layer,))
            layers.release((layer.id,))
        assert len(layers) <= TABLE
    assert mounted(backend) == len(layers) > TABLE - 32


async def test_more_in_use_at_once_than_there_is_room_is_an_overload_that_passes(
    backend, workspace
):
    layers = backend.parts.layers
    wanted = [workspace(number) for number in range(600)]
    instance = await backend.create(on(wanted[0]))
    answers = await asyncio.gather(
        *(layers.acquire((layer,)) for layer in wanted[1:]), return_exceptions=True
    )
    refused = [one for one in answers if one is not None]
    assert len(refused) == 600 - (TABLE - len(rootfs_module.plan().layers))
    assert all(isinstance(one, Overloaded) for one in refused), refused[0]
    # A sandbox on a layer that there is no room for is told, one on mounted layers is made.
    late = wanted[1 + answers.index(refused[0])]
    with pytest.raises(Overloaded) as told:
        await backend.create(on(late))
    assert told.value.fields["limit"] == "layers_mounted"
    await (await backend.create(on(wanted[0]))).destroy()
    assert await said(instance, "cat /workspace") == "here"
    # Once somebody has ended there is room.
    held = [one for one, answer in zip(wanted[1:], answers, strict=True) if answer is None]
    layers.release((held[0].id,))
    again = await backend.create(on(late))
    assert await said(again, "cat /workspace") == "here"
    await again.destroy()
    await instance.destroy()
    layers.release(tuple(layer.id for layer in held[1:]))
    await layers.unmount_unused(0.0)
    assert mounted(backend) == 0
