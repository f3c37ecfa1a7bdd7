"""A start after a crash: one sandbox that cannot be brought back costs nobody else anything."""

from __future__ import annotations

import asyncio

import pytest
from node_stand import settle

from skerry.errors import Bug, OutcomeUnknown, SandboxFailed, StorageFailed, Unavailable
from skerry.node import ledger, recovery
from skerry.node.main import _end_parts
from skerry.node.recovery import recover
from skerry.spec.command import CommandSpec
from skerry.spec.sandbox import SandboxSpec, State
from skerry.testing.fake import FakeBackend

OP = "0123456789abcdef" * 2
TRUE = CommandSpec(argv=("true",))


async def two(stand):
    """A node that ended with two live sandboxes; the second has a command under way."""
    node = stand.build()
    await stand.backend.start()
    await recover(node)
    good = await node.lives.create(SandboxSpec())
    bad = await node.lives.create(SandboxSpec())
    spec = CommandSpec(shell="sleep 0.2; echo x")
    await node.operations.view(bad, OP, spec)
    await settle(60)
    await _end_parts(node, ["container"])
    return good.id, bad.id


@pytest.mark.parametrize("error", [Bug("no such slot"), ValueError("a record of another shape")])
async def test_sandbox_that_cannot_be_found_is_failed_and_deletable(
    stand, monkeypatch, error
) -> None:
    good, bad = await two(stand)
    real = FakeBackend.recover

    async def recover_one(self, record):
        if record.data["instance"] == bad:
            raise error
        return await real(self, record)

    monkeypatch.setattr(FakeBackend, "recover", recover_one)
    async with stand.alive() as node:
        assert (await node.operations.run(node.sandboxes.get(good), None, TRUE)).ok
        broken = node.sandboxes.get(bad)
        assert broken.state is State.FAILED
        assert str(error) in (broken.reason or "")
        status = await node.operations.status(broken, OP, 0)
        assert (status.state, status.error.code) == ("lost", "outcome_unknown")
        with pytest.raises(SandboxFailed):
            await node.operations.run(broken, None, TRUE)
        await node.lives.delete(broken)
        await node.lives.delete(node.sandboxes.get(good))
        assert node.admission.sandboxes == 0


async def test_platform_fault_while_finding_is_tried_again(stand, monkeypatch) -> None:
    good, bad = await two(stand)
    monkeypatch.setattr(recovery, "FIND_AGAIN_S", (0.0, 0.0))
    real, fails = FakeBackend.recover, [2]

    async def recover_one(self, record):
        if fails[0]:
            fails[0] -= 1
            raise Unavailable("the launcher is being restarted")
        return await real(self, record)

    monkeypatch.setattr(FakeBackend, "recover", recover_one)
    async with stand.alive() as node:
        for sid in (good, bad):
            assert node.sandboxes.get(sid).state is State.RUNNING
            await node.lives.delete(node.sandboxes.get(sid))


async def test_full_disk_at_the_start_stops_no_node_and_loses_no_sandbox(
    stand, monkeypatch
) -> None:
    good, bad = await two(stand)
    await stand.world.instances[bad].destroy()
    real = ledger.Ledger.append

    def full(self, sandbox_id, entry):
        raise StorageFailed("the disk is full")

    monkeypatch.setattr(ledger.Ledger, "append", full)
    async with stand.alive() as node:
        assert node.sandboxes.get(good).state is State.RUNNING
        lost = node.sandboxes.get(bad)
        assert lost.state is State.FAILED
        with pytest.raises(StorageFailed):
            await node.operations.run(node.sandboxes.get(good), None, TRUE)
        with pytest.raises(StorageFailed):
            await node.lives.create(SandboxSpec())
        monkeypatch.setattr(ledger.Ledger, "append", real)
        assert (await node.operations.run(node.sandboxes.get(good), None, TRUE)).ok
        for sid in (good, bad):
            await node.lives.delete(node.sandboxes.get(sid))


async def test_agent_that_is_slow_is_waited_for_while_others_are_served(stand, monkeypatch) -> None:
    good, bad = await two(stand)
    monkeypatch.setattr(recovery, "FIRST_CONNECT_S", 0.05)
    monkeypatch.setattr(recovery, "CONNECT_AGAIN_S", 0.05)
    slow = stand.world.instances[bad]
    real = slow.open_channel

    async def refused(factory):
        raise Unavailable("it cannot be reached")

    slow.open_channel = refused
    async with stand.alive() as node:
        assert (await node.operations.run(node.sandboxes.get(good), None, TRUE)).ok
        late = node.sandboxes.get(bad)
        assert late.state is State.RESUMING
        asked = asyncio.create_task(node.operations.run(late, None, TRUE))
        status = asyncio.create_task(node.operations.status(late, OP, 5))
        await asyncio.sleep(0.15)
        assert not asked.done()
        slow.open_channel = real
        assert (await asyncio.wait_for(asked, 5)).ok
        assert (await asyncio.wait_for(status, 5)).result.stdout == b"x\n"
        for sid in (good, bad):
            await node.lives.delete(node.sandboxes.get(sid))


async def test_agent_that_never_answers_fails_its_sandbox_alone(stand, monkeypatch) -> None:
    good, bad = await two(stand)
    monkeypatch.setattr(recovery, "FIRST_CONNECT_S", 0.05)
    monkeypatch.setattr(recovery, "CONNECT_AGAIN_S", 0.02)
    monkeypatch.setattr(recovery, "RECONNECT_S", 0.1)

    async def refused(factory):
        raise Unavailable("it cannot be reached")

    stand.world.instances[bad].open_channel = refused
    async with stand.alive() as node:
        lost = node.sandboxes.get(bad)
        async with asyncio.timeout(5):
            while lost.state is not State.FAILED:
                await lost.changed()
        status = await node.operations.status(lost, OP, 0)
        assert status.error.code == OutcomeUnknown.code
        assert bad not in stand.world.instances
        assert node.sandboxes.get(good).state is State.RUNNING
        for sid in (good, bad):
            await node.lives.delete(node.sandboxes.get(sid))


async def test_agent_of_another_major_version_fails_its_sandbox_alone(stand) -> None:
    good, bad = await two(stand)
    stand.world.instances[bad].agent.version = b"1.0.0"
    stand.world.instances[good].agent.version = b"0.0.9"
    async with stand.alive() as node:
        lost = node.sandboxes.get(bad)
        async with asyncio.timeout(5):
            while lost.state is not State.FAILED:
                await lost.changed()
        assert "version '1.0.0'" in (lost.reason or "")
        assert (await node.operations.run(node.sandboxes.get(good), None, TRUE)).ok
        for sid in (good, bad):
            await node.lives.delete(node.sandboxes.get(sid))


async def test_record_of_an_unknown_kind_costs_only_itself(stand) -> None:
    """A journal that a newer minor version wrote to: what is not understood is left out."""
    async with stand.alive() as node:
        sandbox = await node.lives.create(SandboxSpec())
        node.ledger._journal.append(sandbox.id, "tomorrow", {"type": "tomorrow", "x": 1})
        node.ledger._journal.append(sandbox.id, "stood", {"type": "stood", "paused": "perhaps"})
    async with stand.alive() as again:
        found = again.sandboxes.get(sandbox.id)
        assert found.state is State.RUNNING
        assert (await again.operations.run(found, None, TRUE)).ok
        await again.lives.delete(found)
