"""The node's part of idle reclaim, with fake instances and a clock that the test moves."""

from __future__ import annotations

import asyncio

from node_stand import settle

from skerry.density.idle import Host, IdleMarks
from skerry.node.life.control import Control
from skerry.spec.command import CommandSpec
from skerry.spec.sandbox import SandboxSpec

MIB = 1 << 20
MARKS = IdleMarks(idle_s=30, still_s=5, look_s=1)
SHORT = Host(0.05, 0.0, 1 << 30)


def give(node, world, host=SHORT, memory=64 * MIB):
    """Lets the node see that host; its instances have something to give."""
    node.idle._read = lambda: host
    for instance in world.instances.values():
        instance.memory = memory


async def test_idle_sandboxes_give_under_pressure_and_others_do_not(stand, manual) -> None:
    async with stand.alive(idle_reclaim=MARKS) as node:
        cold = await node.lives.create(SandboxSpec())
        used = await node.lives.create(SandboxSpec())
        give(node, stand.world)
        await manual.advance(29)
        assert node.idle.given_bytes == 0
        used.touch(manual.wall(), manual.monotonic())
        await manual.advance(10)
        assert stand.world.instances[cold.id].swapped > 0
        assert stand.world.instances[used.id].swapped == 0


async def test_without_pressure_nobody_is_even_looked_at(stand, manual) -> None:
    async with stand.alive(idle_reclaim=MARKS) as node:
        await node.lives.create(SandboxSpec())
        for host in (Host(0.9, 50.0, 1 << 30), Host(0.01, 50.0, 0)):
            give(node, stand.world, host)
            await manual.advance(100)
        assert node.idle.rounds == 0


async def test_paused_sandboxes_and_transfers_under_way_are_left_alone(stand, manual) -> None:
    async with stand.alive(idle_reclaim=MARKS) as node:
        paused = await node.lives.create(SandboxSpec())
        busy = await node.lives.create(SandboxSpec())
        control: Control = node.control
        await control.pause(paused)
        give(node, stand.world)
        stand.world.instances[paused.id].swapped = 0
        with busy.active_while(node.clock):
            await manual.advance(100)
            assert node.idle.rounds > 0
            assert node.idle.given_bytes == 0


async def test_command_that_only_waits_does_not_protect(stand, manual) -> None:
    async with stand.alive(idle_reclaim=MARKS) as node:
        sandbox = await node.lives.create(SandboxSpec())
        spec = CommandSpec(argv=("sleep", "100000"))
        run = asyncio.create_task(node.operations.run(sandbox, "0" * 32, spec))
        await settle()
        give(node, stand.world)
        await manual.advance(60)
        assert sandbox.running == 1
        assert stand.world.instances[sandbox.id].swapped > 0
        await node.lives.delete(sandbox)
        await asyncio.gather(run, return_exceptions=True)


async def test_failure_of_one_round_is_not_the_end(stand, manual, monkeypatch) -> None:
    async with stand.alive(idle_reclaim=MARKS) as node:
        sandbox = await node.lives.create(SandboxSpec())
        give(node, stand.world)
        instance = stand.world.instances[sandbox.id]

        async def broken(_max_bytes):
            raise RuntimeError("the backend is wrong")

        with monkeypatch.context() as patch:
            patch.setattr(instance, "reclaim", broken)
            await manual.advance(60)
        assert instance.swapped == 0
        await manual.advance(10)
        assert instance.swapped > 0


async def test_switched_off_it_does_nothing(stand, manual) -> None:
    async with stand.alive(idle_reclaim=IdleMarks(when="off", idle_s=1, still_s=1)) as node:
        await node.lives.create(SandboxSpec())
        give(node, stand.world)
        await manual.advance(100)
        assert node.idle.rounds == 0
