"""A sandbox that was ended from outside: its commands are told that nobody inside is to blame."""

from __future__ import annotations

import asyncio

import pytest

from skerry.errors import Fault, OutcomeUnknown, SandboxFailed, SkerryError
from skerry.node.main import _destroy_doomed
from skerry.spec.command import CommandSpec
from skerry.spec.sandbox import SandboxSpec
from skerry.wire.control import DrainBody
from skerry.worker.lives import is_lost

COMMAND = CommandSpec(argv=("sleep", "1000"))
WITHIN_S = 10.0  # only a failure takes as long


async def run_until(node, sandbox, end) -> SkerryError:
    """Returns what a command is told whose sandbox was ended while it ran."""
    run = asyncio.create_task(node.operations.run(sandbox, None, COMMAND))
    async with asyncio.timeout(WITHIN_S):
        while not sandbox.running:  # noqa: ASYNC110 - no event tells of it
            await asyncio.sleep(0)
    ending = asyncio.create_task(end())
    with pytest.raises(SkerryError) as told:
        await asyncio.wait_for(run, WITHIN_S)
    await asyncio.wait_for(ending, WITHIN_S)
    return told.value


@pytest.mark.parametrize("how", ["delete", "stop"])
async def test_end_that_somebody_asked_for_is_not_blamed_on_the_inside(stand, how) -> None:
    async with stand.alive() as node:
        sandbox = await node.lives.create(SandboxSpec())
        ends = {"delete": node.lives.delete, "stop": node.control.stop}
        told = await run_until(node, sandbox, lambda: ends[how](sandbox))
        assert isinstance(told, SandboxFailed)
        assert is_lost(told)
        with pytest.raises(SandboxFailed) as late:
            await node.operations.run(sandbox, None, COMMAND)
        assert is_lost(late.value)


async def test_drain_is_the_platforms_doing(stand, manual) -> None:
    async with stand.alive() as node:
        sandbox = await node.lives.create(SandboxSpec())

        async def drain() -> None:
            node.drain.begin(DrainBody(grace_s=1))
            await manual.advance(2)

        told = await run_until(node, sandbox, drain)
        assert isinstance(told, OutcomeUnknown)
        assert told.fault is Fault.PLATFORM
        assert "its node was drained" in told.message


async def test_end_of_a_node_that_keeps_nothing_is_the_platforms_doing(stand) -> None:
    async with stand.alive(keep_on_exit=False) as node:
        sandbox = await node.lives.create(SandboxSpec())
        told = await run_until(node, sandbox, lambda: _destroy_doomed(node))
        assert isinstance(told, OutcomeUnknown)
        assert "its node has ended" in told.message


@pytest.mark.parametrize("how", ["host", "drain", "inside"])
async def test_who_is_to_blame_is_remembered_over_restarts(stand, how) -> None:
    """A request that comes late must not find the platform's fault turned into the sandbox's."""
    async with stand.alive() as node:
        sandbox = await node.lives.create(SandboxSpec())
        if how == "drain":
            node.lives.withdrawn(sandbox, "its node was drained")
            await node.control.stop(sandbox, "its node was drained")
        else:
            kind = OutcomeUnknown if how == "host" else SandboxFailed
            node.lives.fail(sandbox, "it died", kind("it died"))
            async with asyncio.timeout(WITHIN_S):
                while sandbox.has_instance:  # noqa: ASYNC110 - no event tells of it
                    await asyncio.sleep(0)
    for _ in range(2):
        async with stand.alive() as again:
            kept = again.sandboxes.get(sandbox.id)
            with pytest.raises(SandboxFailed) as late:
                await again.operations.run(kept, None, COMMAND)
            assert is_lost(late.value) is (how != "inside")


async def test_sandbox_that_broke_by_itself_is_to_blame(stand) -> None:
    async with stand.alive() as node:
        sandbox = await node.lives.create(SandboxSpec())

        async def broke() -> None:
            error = SandboxFailed("the guest agent broke the protocol")
            node.lives.fail(sandbox, error.message, error)

        told = await run_until(node, sandbox, broke)
        assert isinstance(told, SandboxFailed)
        assert not is_lost(told)
