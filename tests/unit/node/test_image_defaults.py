"""What an image says of environment, directory and user holds where nobody says otherwise."""

from __future__ import annotations

import msgspec
import pytest
from node_stand import Stand

from skerry.node.node import Node
from skerry.spec.command import CommandSpec
from skerry.spec.layers import ImageConfig
from skerry.spec.sandbox import SandboxSpec

CONFIG = ImageConfig(env={"PATH": "/opt/bin:/bin", "LEVEL": "image"}, workdir="/root", user="1000")


def with_config(stand: Stand, config: ImageConfig, name: str = "base/app:1") -> None:
    made = stand.library.add(name)
    stand.library.layers[made.name] = msgspec.structs.replace(made, config=config)


async def seen(node: Node, sandbox, shell: str, **spec) -> str:
    result = await node.operations.run(sandbox, None, CommandSpec(shell=shell, **spec))
    assert result.start_error is None, result
    return result.stdout.decode()


async def test_image_config_is_the_default_of_commands(stand: Stand) -> None:
    with_config(stand, CONFIG)
    async with stand.alive() as node:
        sandbox = await node.lives.create(SandboxSpec(image="app:1"))
        env = await seen(node, sandbox, "env")
        assert "PATH=/opt/bin:/bin\n" in env
        assert "LEVEL=image\n" in env
        assert await seen(node, sandbox, "pwd") == "/root\n"
        assert "1000" in await seen(node, sandbox, "id")
        assert sandbox.info().spec.user is None  # what was asked for stays what it was
        await node.lives.delete(sandbox)


async def test_spec_and_command_win_over_the_image(stand: Stand) -> None:
    with_config(stand, CONFIG)
    async with stand.alive() as node:
        spec = SandboxSpec(image="app:1", env={"LEVEL": "spec"}, workdir="/tmp", user="root")
        sandbox = await node.lives.create(spec)
        assert "LEVEL=spec\n" in await seen(node, sandbox, "env")
        assert await seen(node, sandbox, "pwd") == "/tmp\n"
        assert "1000" not in await seen(node, sandbox, "id")
        assert "LEVEL=command\n" in await seen(node, sandbox, "env", env={"LEVEL": "command"})
        await node.lives.delete(sandbox)


async def test_upper_layers_win_and_an_adopted_sandbox_keeps_them(stand: Stand) -> None:
    with_config(stand, CONFIG)
    with_config(stand, ImageConfig(env={"LEVEL": "toolkit"}, workdir="/tmp"), "toolkit/t:latest")
    async with stand.alive() as node:
        sandbox = await node.lives.create(SandboxSpec(image="app:1", layers=("toolkit/t",)))
        assert "LEVEL=toolkit\n" in await seen(node, sandbox, "env")
    with_config(stand, ImageConfig(), "base/app:1")  # the name stands for another image now
    async with stand.alive() as node:
        adopted = node.sandboxes.get(sandbox.id)
        env = await seen(node, adopted, "env")
        assert "LEVEL=toolkit\n" in env
        assert "PATH=/opt/bin:/bin\n" in env
        assert await seen(node, adopted, "pwd") == "/tmp\n"
        await node.lives.delete(adopted)


@pytest.mark.parametrize(
    ("upper", "below", "cmd"),
    [
        (ImageConfig(cmd=("a",)), ImageConfig(cmd=("b",)), ("a",)),
        (ImageConfig(), ImageConfig(cmd=("b",)), ("b",)),
        (ImageConfig(entrypoint=("e",)), ImageConfig(cmd=("b",)), ()),
    ],
)
def test_command_of_below_goes_with_its_entry_point(
    upper: ImageConfig, below: ImageConfig, cmd: tuple[str, ...]
) -> None:
    assert upper.over(below).cmd == cmd
