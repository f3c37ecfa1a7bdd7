"""The connection to an agent: whoever waits for it gets it, or hears why there is none."""

from __future__ import annotations

import asyncio

import pytest

from skerry.errors import SkerryError
from skerry.guest.api import Operation
from skerry.guest.output import MemorySink
from skerry.node.clock import SystemClock
from skerry.node.life.link import Link
from skerry.spec.command import CommandSpec
from skerry.spec.sandbox import SandboxSpec, State

ANSWER_S = 10.0  # only a failure takes as long


async def test_connection_that_is_made_first_is_given_to_who_waits_already(stand) -> None:
    """As after a restart of the node, while its agent is slow to answer."""
    async with stand.alive() as node:
        sandbox = await node.lives.create(SandboxSpec())
        link = Link(sandbox.instance, SystemClock(), node.tasks.spawn, print, lambda: 1, wanted=set)
        waits = asyncio.create_task(link.ready())
        await asyncio.sleep(0)
        client = await link.connect()
        assert await asyncio.wait_for(waits, ANSWER_S) is client
        await link.end(SkerryError("over"))


async def test_connection_that_cannot_be_made_again_ends_the_sandbox_and_who_waits(
    stand, monkeypatch
) -> None:
    async with stand.alive() as node:
        sandbox = await node.lives.create(SandboxSpec())

        async def broken(_factory: object) -> None:
            raise RuntimeError("a fault")

        with monkeypatch.context() as patch:
            patch.setattr(type(sandbox.instance), "open_channel", lambda _self, made: broken(made))
            work = asyncio.create_task(
                node.operations.run(sandbox, "ab" * 16, CommandSpec(shell="sleep 1000"))
            )
            await asyncio.sleep(0.01)
            await (await sandbox.link.ready()).close()
            with pytest.raises(SkerryError, match="cannot be reached"):
                await asyncio.wait_for(work, ANSWER_S)
        assert sandbox.state is State.FAILED
        node.check_invariants()


async def test_what_nobody_asks_for_is_let_go_of_when_the_connection_is_made_again(stand) -> None:
    """A file's transfer that ended with its connection, and a command whose ACK was lost."""
    async with stand.alive() as node:
        sandbox = await node.lives.create(SandboxSpec())
        agent = sandbox.instance.agent
        wanted = asyncio.create_task(
            node.operations.run(sandbox, "ab" * 16, CommandSpec(shell="sleep 1000"))
        )
        client = await sandbox.link.ready()
        sink = MemorySink(0)
        answered = client.start(_operation(1000, "true"), sink)
        client.start(_operation(1001, "sleep", "1000"), sink)
        await answered.wait()
        assert len(agent.operations) == 3
        await client.close()
        for _ in range(1000):
            if len(agent.operations) == 1:
                break
            await asyncio.sleep(0.01)
        assert not set(agent.operations) & {1000, 1001}
        node.operations.cancel(sandbox, "ab" * 16)
        assert (await asyncio.wait_for(wanted, ANSWER_S)).cancelled


def _operation(handle: int, *argv: str) -> Operation:
    words = tuple(word.encode() for word in argv)
    return Operation(handle=handle, op_id=handle.to_bytes(16, "big"), argv=words)
