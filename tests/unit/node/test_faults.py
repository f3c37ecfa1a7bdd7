"""What a full disk, a slow reader, a restart and a sandbox of long life do not do to a node."""

from __future__ import annotations

import asyncio
import os

import pytest

from skerry.errors import Bug, SandboxFailed, StorageFailed, Unavailable
from skerry.node.config import Limits
from skerry.node.main import _end_parts
from skerry.node.recovery import recover
from skerry.sdk.sandboxes import AsyncSandboxes
from skerry.sdk.transport import Transport
from skerry.spec.command import CommandSpec, RunResult
from skerry.spec.sandbox import SandboxSpec, State

OP = "0123456789abcdef" * 2


async def settle(rounds: int = 60) -> None:
    for _ in range(rounds):
        await asyncio.sleep(0)


async def test_full_disk_keeps_no_sandbox_alive(stand, manual, monkeypatch) -> None:
    async with stand.alive() as node:
        sandbox = await node.lives.create(SandboxSpec())

        def full(*_: object) -> None:
            raise StorageFailed("the disk is full")

        with monkeypatch.context() as patch:
            patch.setattr(node.ledger._journal, "append", full)
            await asyncio.wait_for(node.lives.delete(sandbox), 5)
            assert stand.world.instances == {}
            assert (node.admission.sandboxes, len(node.sandboxes)) == (0, 0)
        await manual.advance(31)
        assert list(node.ledger.replay()) == []


async def test_reader_that_stands_still_does_not_take_the_sandbox_down(stand, manual) -> None:
    async with stand.alive() as node:
        sandbox = await node.lives.create(SandboxSpec())
        spec = CommandSpec(argv=("flood", str(2 << 20)), timeout_s=10)
        view = await node.operations.view(sandbox, OP, spec)
        await asyncio.sleep(0.1)
        assert sandbox.running == 1  # held up by its reader
        await manual.advance(15.1)
        result = await asyncio.wait_for(view.result(), 5)
        assert result.stdout_total == 2 << 20
        await manual.advance(20)
        assert sandbox.state is State.RUNNING
        with pytest.raises(Unavailable, match="too slow"):
            _ = [event async for event in view]


async def test_adopted_command_that_outlives_its_timeout_ends_too(stand, manual) -> None:
    node = stand.build()
    await stand.backend.start()
    await recover(node)
    sandbox = await node.lives.create(SandboxSpec())
    # The fake agent lives on the machine's clock: on this one it never keeps the timeout.
    await node.operations.view(sandbox, OP, CommandSpec(argv=("sleep", "1000"), timeout_s=2000))
    await settle()
    await _end_parts(node, ["container"])
    async with stand.alive() as again:
        await settle()
        assert again.sandboxes.get(sandbox.id).running == 1
        await manual.advance(2016)
        status = await again.operations.status(again.sandboxes.get(sandbox.id), OP, 5)
        assert status.error is not None
        assert again.sandboxes.get(sandbox.id).state is State.FAILED


async def test_repeatable_request_outlasts_an_orderly_restart(stand, monkeypatch) -> None:
    monkeypatch.setattr("skerry.node.server.listen.DRAIN_S", 0.1)
    async with stand.serving() as (node, api):
        sid = await api.create()
        transport = Transport("http://node", socket_path=node.config.socket_path)
        spec = CommandSpec(shell="sleep 1; echo x")
        call = asyncio.create_task(
            transport.call(
                "POST", f"/v1/sandboxes/{sid}/run?op={OP}", RunResult, body=spec, repeatable=True
            )
        )
        await asyncio.sleep(0.2)
    async with stand.serving():
        assert (await asyncio.wait_for(call, 5)).stdout == b"x\n"
        assert stand.world.instances[sid]._operations == 1
        await transport.close()


async def test_long_output_whose_file_is_gone_is_an_error_and_not_empty(stand) -> None:
    async with stand.alive() as node:
        sandbox = await node.lives.create(SandboxSpec())
        spec = CommandSpec(argv=("flood", str(3 << 20)), output_limit=3 << 20)
        await node.operations.run(sandbox, OP, spec)
        node.results.drop(sandbox.id, OP)
        for entry in os.scandir(f"{stand.root}/state/spool"):
            os.unlink(entry.path)
        with pytest.raises(StorageFailed, match="stdout"):
            await node.operations.run(sandbox, OP, spec)
        await node.lives.delete(sandbox)


async def test_long_life_takes_a_bounded_part_of_the_disk(stand, monkeypatch) -> None:
    monkeypatch.setattr("skerry.node.ledger.CHAPTER_BYTES", 64 << 10)
    limits = Limits(
        memory_free_min_bytes=0, disk_free_min_bytes=0, results_per_sandbox_bytes_max=200 << 10
    )
    shout = CommandSpec(argv=("flood", "30000"))
    async with stand.alive(limits=limits) as node:
        sandbox = await node.lives.create(SandboxSpec())
        await node.operations.view(sandbox, OP, CommandSpec(shell="sleep 2; echo daemon"))
        for number in range(100):
            await node.operations.run(sandbox, f"{number:032x}", shout)
        journal = node.ledger._journal
        kept = sum(journal.size(subject) for subject in journal.subjects())
        assert kept < 500 << 10
        assert len(sandbox.ops) < 10
        assert (await node.operations.run(sandbox, f"{99:032x}", shout)).stdout_total == 30000
        sandbox.check_invariants()
    async with stand.alive(limits=limits) as again:
        sandbox = again.sandboxes.get(sandbox.id)
        sandbox.check_invariants()
        assert (await again.operations.run(sandbox, f"{98:032x}", shout)).stdout_total == 30000
        daemon = CommandSpec(shell="sleep 2; echo daemon")  # its first record was let go of
        assert (await again.operations.run(sandbox, OP, daemon)).stdout == b"daemon\n"
        assert stand.world.instances[sandbox.id]._operations == 101
        await again.lives.delete(sandbox)
        assert again.ledger._journal.subjects() == []


async def test_create_that_is_cancelled_leaves_no_sandbox(stand) -> None:
    async with stand.serving() as (node, _):
        stand.backend.knobs.slow_create_s = 0.2
        transport = Transport("http://node", socket_path=node.config.socket_path)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await AsyncSandboxes(transport).create()
        assert len(node.sandboxes) == 0
        assert stand.world.instances == {}
        await transport.close()


async def test_command_that_ends_after_its_sandbox_was_forgotten_is_answered(stand) -> None:
    async with stand.alive() as node:
        sandbox = await node.lives.create(SandboxSpec())
        run = asyncio.create_task(
            node.operations.run(sandbox, OP, CommandSpec(argv=("sleep", "60")))
        )
        await settle()
        link, instance = sandbox.link, sandbox.instance
        node.lives.forget(sandbox)  # as when it did not settle in time
        await link.end(SandboxFailed("it was deleted"))
        with pytest.raises(SandboxFailed, match="deleted"):
            await asyncio.wait_for(run, 5)
        assert node.ledger._journal.subjects() == []
        await instance.destroy()
        node.admission.release(sandbox.id)


async def test_fault_of_the_node_under_a_command_is_an_answer_to_everyone(
    stand, monkeypatch
) -> None:
    """Whoever repeats the command gets the recorded error, and does not wait for ever."""
    async with stand.alive() as node:
        sandbox = await node.lives.create(SandboxSpec())

        async def broken(*_: object) -> None:
            raise RuntimeError("a fault")

        with monkeypatch.context() as patch:
            patch.setattr(node.execution, "_with_shell", broken)
            with pytest.raises(Bug, match="a fault"):
                await node.operations.run(sandbox, "ab" * 16, CommandSpec(argv=("true",)))
        async with asyncio.timeout(10):
            assert (await node.operations.run(sandbox, "ab" * 16, CommandSpec(argv=("true",)))).ok
        node.check_invariants()
