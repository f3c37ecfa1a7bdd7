"""A node that ends or is killed, and the one that comes after it."""

from __future__ import annotations

import asyncio
import os

import pytest
from node_stand import Api, Stand, settle

from skerry.backends.api import Exit
from skerry.errors import OutcomeUnknown, SandboxFailed, SkerryError, StorageFailed
from skerry.lifecycle.table import Event
from skerry.node import ledger
from skerry.node.commands import command
from skerry.node.main import _end_parts
from skerry.node.node import Node
from skerry.node.recovery import recover
from skerry.spec.command import CommandSpec
from skerry.spec.sandbox import SandboxSpec, State

OP = "0123456789abcdef" * 2


async def kill(node: Node) -> None:
    """What SIGKILL does to a node: nothing of it goes on, nothing is written any more."""
    node.timers.close()
    await node.tasks.close()
    for sandbox in node.sandboxes:
        if sandbox.link is not None and sandbox.link._client is not None:
            sandbox.link._error = SandboxFailed("killed")
            await sandbox.link._client.close()
        for op in sandbox.under_way():
            op.sink.detach()
    node.ledger.close()
    node.identity.release()


async def begin(node: Node, sandbox, shell: str, op: str = OP, **more) -> None:
    await node.operations.view(sandbox, op, CommandSpec(shell=shell, **more))
    await settle(60)


@pytest.fixture(params=["ended", "killed"])
def restart(request, stand: Stand):
    """Ends a node in order, or as SIGKILL does; the next one is then built on the same stand."""

    async def first() -> Node:
        node = stand.build()
        await stand.backend.start()
        await recover(node)
        return node

    async def end(node: Node) -> None:
        if request.param == "killed":
            await kill(node)
        else:
            await _end_parts(node, ["container"])

    return first, end


async def test_live_sandbox_and_its_running_command_are_adopted(stand, restart) -> None:
    first, end = restart
    node = await first()
    sandbox = await node.lives.create(SandboxSpec(key="k", labels={"a": "b"}))
    await begin(node, sandbox, "echo a; sleep 0.3; echo b")
    await end(node)
    async with stand.alive() as again:
        adopted = again.sandboxes.get(sandbox.id)
        assert adopted.state is State.RUNNING
        assert adopted.spec == sandbox.spec
        assert again.sandboxes.by_key["k"] is adopted
        assert adopted.running == 1
        spec = CommandSpec(shell="echo a; sleep 0.3; echo b")
        result = await again.operations.run(adopted, OP, spec)  # joins
        assert result.stdout == b"a\nb\n"
        assert stand.world.instances[sandbox.id]._operations == 1
        assert (await again.operations.run(adopted, None, CommandSpec(argv=("true",)))).ok
        await again.lives.delete(adopted)
    assert stand.world.instances == {}


async def test_long_output_survives_byte_for_byte(stand, restart) -> None:
    first, end = restart
    node = await first()
    sandbox = await node.lives.create(SandboxSpec())
    await begin(node, sandbox, "flood 200000 a; sleep 0.3; flood 200000 b")
    await asyncio.sleep(0.1)
    await end(node)
    async with stand.alive() as again:
        status = await again.operations.status(again.sandboxes.get(sandbox.id), OP, 5)
        assert status.result is not None
        assert len(status.result.stdout) == 400_000
        assert status.result.stdout[:200_000] == status.result.stdout[:1] * 200_000
        assert not status.result.truncated
        assert os.listdir(f"{stand.root}/state/spool") == []


async def test_command_that_ended_meanwhile_gets_its_answer(stand, restart) -> None:
    first, end = restart
    node = await first()
    sandbox = await node.lives.create(SandboxSpec())
    await begin(node, sandbox, "sleep 0.05; echo done; exit 4")
    await end(node)
    await asyncio.sleep(0.15)
    async with stand.alive() as again:
        status = await again.operations.status(again.sandboxes.get(sandbox.id), OP, 5)
        assert status.result is not None
        assert (status.result.exit_code, status.result.stdout) == (4, b"done\n")


async def test_recorded_answers_are_given_again(stand, restart) -> None:
    first, end = restart
    node = await first()
    sandbox = await node.lives.create(SandboxSpec())
    spec = CommandSpec(argv=("echo", "once"))
    before = await node.operations.run(sandbox, OP, spec)
    await end(node)
    async with stand.alive() as again:
        adopted = again.sandboxes.get(sandbox.id)
        assert await again.operations.run(adopted, OP, spec) == before
        assert stand.world.instances[sandbox.id]._operations == 1
        (listed,) = again.operations.list_all(adopted)
        assert (listed.state, listed.command) == ("done", "echo once")


async def test_handles_are_never_used_again(stand, restart) -> None:
    first, end = restart
    node = await first()
    sandbox = await node.lives.create(SandboxSpec())
    used = {node.lives.handles.new(sandbox) for _ in range(1500)}
    await end(node)
    async with stand.alive() as again:
        adopted = again.sandboxes.get(sandbox.id)
        more = {again.lives.handles.new(adopted) for _ in range(1500)}
        assert not used & more
        adopted.check_invariants()


async def test_instance_that_is_gone_leaves_failed_and_outcome_unknown(stand, restart) -> None:
    first, end = restart
    node = await first()
    sandbox = await node.lives.create(SandboxSpec())
    await begin(node, sandbox, "sleep 60")
    await end(node)
    stand.world.instances[sandbox.id].die(Exit(signal=9))
    async with stand.alive() as again:
        lost = again.sandboxes.get(sandbox.id)
        assert lost.state is State.FAILED
        assert again.admission.sandboxes == 0
        status = await again.operations.status(lost, OP, 0)
        assert status.state == "lost"
        with pytest.raises(OutcomeUnknown):
            await again.operations.run(lost, OP, CommandSpec(shell="sleep 60"))
        with pytest.raises(SandboxFailed) as caught:
            await again.operations.run(lost, None, CommandSpec(argv=("true",)))
        assert caught.value.fields["lost"] == "yes"
        await again.lives.delete(lost)
    async with stand.alive() as third:
        assert len(third.sandboxes) == 0


async def test_command_that_never_left_is_known_not_to_have_run(stand, restart) -> None:
    first, end = restart
    node = await first()
    sandbox = await node.lives.create(SandboxSpec())
    spec = CommandSpec(argv=("write", "/tmp/x", "1"))
    raw = bytes.fromhex(OP)
    node.ledger.append(sandbox.id, ledger.Asked(raw, 77, raw, command.fingerprint(spec), spec, 1.0))
    await end(node)
    async with stand.alive() as again:
        adopted = again.sandboxes.get(sandbox.id)
        assert adopted.ops == {}
        assert (await again.operations.run(adopted, OP, spec)).ok
        assert stand.world.instances[sandbox.id]._operations == 1


async def test_half_made_sandbox_is_forgotten_and_a_half_destroyed_one_destroyed(
    stand, restart
) -> None:
    first, end = restart
    node = await first()
    half = node.identity.sandbox_id()
    node.ledger.append(half, ledger.Began(SandboxSpec(), (), 1.0))
    deleted = await node.lives.create(SandboxSpec())
    node.ledger.append(deleted.id, ledger.Ending(State.STOPPED, "deleted", delete=True))
    stopped = await node.lives.create(SandboxSpec())
    node.ledger.append(stopped.id, ledger.Ending(State.STOPPED, "it was idle"))
    await end(node)
    async with stand.alive() as again:
        assert set(again.sandboxes.by_id) == {stopped.id}
        kept = again.sandboxes.get(stopped.id)
        assert (kept.state, kept.reason) == (State.STOPPED, "it was idle")
        assert stand.world.instances == {}
        assert again.admission.sandboxes == 0
        await again.lives.delete(kept)
    async with stand.alive() as third:
        assert len(third.sandboxes) == 0


async def test_transfer_of_an_earlier_node_is_ended_inside(stand, restart) -> None:
    first, end = restart
    node = await first()
    sandbox = await node.lives.create(SandboxSpec())

    async def endless():
        while True:
            yield b"x" * 1000
            await asyncio.sleep(0.01)

    writing = asyncio.create_task(
        node.files.write(
            sandbox,
            "/tmp/f",
            None,
            endless(),
            mode=0o644,
            parents=False,
            append=False,
            exclusive=False,
        )
    )
    await asyncio.sleep(0.05)
    await end(node)
    writing.cancel()
    await asyncio.wait([writing])
    async with stand.alive() as again:
        await asyncio.sleep(0.05)
        agent = stand.world.instances[sandbox.id].agent
        assert [op for op in agent.operations.values() if op.done is None] == []
        await again.lives.delete(again.sandboxes.get(sandbox.id))


async def test_paused_sandbox_stays_paused_and_a_request_resumes_it(stand, restart) -> None:
    first, end = restart
    node = await first()
    sandbox = await node.lives.create(SandboxSpec())
    await node.lives.drive(sandbox, Event.PAUSE)
    resumed = await node.lives.create(SandboxSpec())
    await node.lives.drive(resumed, Event.PAUSE)
    await node.lives.drive(resumed, Event.RESUME)
    await end(node)
    async with stand.alive() as again:
        adopted = again.sandboxes.get(sandbox.id)
        assert adopted.state is State.PAUSED
        assert again.sandboxes.get(resumed.id).state is State.RUNNING
        assert (await again.operations.run(adopted, None, CommandSpec(argv=("true",)))).ok


async def test_node_that_keeps_nothing_leaves_nothing(stand) -> None:
    async with stand.serving(keep_on_exit=False) as (node, api):
        sid = await api.create()
        client = Api(node.config.socket_path)
        call = asyncio.create_task(
            client.call("POST", f"/v1/sandboxes/{sid}/run", {"argv": ["sleep", "60"]}, status=502)
        )
        await asyncio.sleep(0.1)
    assert (await call)["code"] == "outcome_unknown"
    await client.session.close()
    assert stand.world.instances == {}
    async with stand.alive() as again:
        assert len(again.sandboxes) == 0


async def test_orderly_end_cuts_waiting_clients_and_keeps_their_commands(
    stand, monkeypatch
) -> None:
    monkeypatch.setattr("skerry.node.server.listen.DRAIN_S", 0.1)
    spec = {"shell": "sleep 1; echo x"}
    async with stand.serving() as (node, api):
        sid = await api.create()
        client = Api(node.config.socket_path)
        call = asyncio.create_task(
            client.call("POST", f"/v1/sandboxes/{sid}/run?op={OP}", spec, status=503)
        )
        await asyncio.sleep(0.1)
        late = asyncio.create_task(
            client.call("POST", f"/v1/sandboxes/{sid}/run", {"argv": ["sleep", "9"]}, status=502)
        )
        await asyncio.sleep(0.1)
    assert (await call)["code"] == "unavailable"
    assert (await late)["code"] == "outcome_unknown"  # it has no id by which to ask again
    await client.session.close()
    async with stand.serving() as (_, api):
        result = await api.call("POST", f"/v1/sandboxes/{sid}/run?op={OP}", spec)
        assert result["exit_code"] == 0
        assert stand.world.instances[sid]._operations == 2


async def test_failing_journal_answers_an_error_and_never_a_result(stand, monkeypatch) -> None:
    async with stand.alive() as node:
        sandbox = await node.lives.create(SandboxSpec())
        real = node.ledger._journal.append

        def broken(subject, kind, data):
            if kind == "answered":
                raise StorageFailed("the disk is full")
            return real(subject, kind, data)

        monkeypatch.setattr(node.ledger._journal, "append", broken)
        with pytest.raises(SkerryError, match="disk is full"):
            await node.operations.run(sandbox, OP, CommandSpec(argv=("true",)))
        monkeypatch.undo()
        with pytest.raises(OutcomeUnknown):  # the agent remembers that it ran
            await node.operations.run(sandbox, OP, CommandSpec(argv=("true",)))
        await node.lives.delete(sandbox)
