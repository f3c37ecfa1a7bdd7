"""Pause, resume, stop and changes of a live sandbox, as users ask for them."""

from __future__ import annotations

import asyncio

import pytest
from node_stand import settle

from skerry.errors import InvalidRequest, SandboxFailed, StorageFailed, Unavailable
from skerry.node import ledger
from skerry.node.life.sandbox import Sandbox
from skerry.spec.command import CommandSpec
from skerry.spec.sandbox import SandboxSpec, State
from skerry.testing.fake import FakeInstance
from skerry.wire.control import SandboxChange

TRUE = CommandSpec(argv=("true",))


async def test_pause_and_resume_are_idempotent_and_a_request_resumes(stand) -> None:
    async with stand.serving() as (_, api):
        sid = await api.create()
        for _ in range(2):
            assert (await api.call("POST", f"/v1/sandboxes/{sid}/pause"))["state"] == "paused"
        assert (await api.call("GET", f"/v1/sandboxes/{sid}"))["state"] == "paused"
        usage = await api.call("GET", f"/v1/sandboxes/{sid}/usage")
        assert usage["memory_bytes"] == 0  # all of it was given back
        assert (await api.call("GET", f"/v1/sandboxes/{sid}"))["state"] == "paused"
        ran = await api.call("POST", f"/v1/sandboxes/{sid}/run", {"argv": ["true"]})
        assert ran["exit_code"] == 0
        for _ in range(2):
            assert (await api.call("POST", f"/v1/sandboxes/{sid}/resume"))["state"] == "running"


async def test_running_command_stands_still_and_goes_on(stand) -> None:
    async with stand.alive() as node:
        sandbox = await node.lives.create(SandboxSpec())
        await node.control.pause(sandbox)
        assert sandbox.state is State.PAUSED
        run = asyncio.create_task(node.operations.run(sandbox, "0" * 32, TRUE))
        assert (await run).ok
        await node.control.pause(sandbox)
        assert sandbox.info().running_commands == 0
        await node.control.resume(sandbox)
        assert sandbox.state is State.RUNNING


async def test_resume_that_comes_during_a_pause_wins_over_everyone_who_waits(
    stand, monkeypatch
) -> None:
    """Report 44: a resume right after a pause is not lost, and who paused is not left hanging."""
    may_end = asyncio.Event()
    real = FakeInstance.pause

    async def slow(self) -> None:
        await may_end.wait()
        await real(self)

    monkeypatch.setattr(FakeInstance, "pause", slow)
    async with stand.alive() as node:
        sandbox = await node.lives.create(SandboxSpec())
        pauses = [asyncio.create_task(node.control.pause(sandbox)) for _ in range(3)]
        await settle()
        assert sandbox.state is State.PAUSING
        resume = asyncio.create_task(node.control.resume(sandbox))
        await settle()
        may_end.set()
        await asyncio.wait_for(asyncio.gather(*pauses, resume), 5)
        assert sandbox.state is State.RUNNING
        assert (await node.operations.run(sandbox, None, TRUE)).ok


async def test_pause_against_delete_leaks_nothing(stand, monkeypatch) -> None:
    """Report 44."""
    may_end = asyncio.Event()
    real = FakeInstance.pause

    async def slow(self) -> None:
        await may_end.wait()
        await real(self)

    monkeypatch.setattr(FakeInstance, "pause", slow)
    async with stand.alive() as node:
        sandbox = await node.lives.create(SandboxSpec())
        pause = asyncio.create_task(node.control.pause(sandbox))
        await settle()
        delete = asyncio.create_task(node.lives.delete(sandbox))
        await settle()
        may_end.set()
        await asyncio.wait_for(delete, 5)
        with pytest.raises(SandboxFailed):
            await asyncio.wait_for(pause, 5)
        assert stand.world.instances == {}
        assert (node.admission.sandboxes, len(node.sandboxes)) == (0, 0)


async def test_pause_that_fails_is_told_and_the_sandbox_runs_on(stand, monkeypatch) -> None:
    async def broken(self) -> None:
        raise Unavailable("the launcher does not answer")

    async with stand.alive() as node:
        sandbox = await node.lives.create(SandboxSpec())
        with monkeypatch.context() as patch:
            patch.setattr(FakeInstance, "pause", broken)
            with pytest.raises(Unavailable, match="does not answer"):
                await node.control.pause(sandbox)
        assert sandbox.state is State.RUNNING
        assert (await node.operations.run(sandbox, None, TRUE)).ok
        await node.control.pause(sandbox)
        assert sandbox.state is State.PAUSED


async def test_pause_that_cannot_be_recorded_leaves_it_running(stand, monkeypatch) -> None:
    """What is not on record would be lost with the node: its processes go on, and the error is told."""
    async with stand.alive() as node:
        sandbox = await node.lives.create(SandboxSpec())
        real = node.ledger.append

        def full(sandbox_id, entry):
            if isinstance(entry, ledger.Stood):
                raise StorageFailed("the disk is full")
            return real(sandbox_id, entry)

        with monkeypatch.context() as patch:
            patch.setattr(node.ledger, "append", full)
            with pytest.raises(StorageFailed):
                await node.control.pause(sandbox)
            assert sandbox.state is State.RUNNING
            assert (await node.operations.run(sandbox, None, TRUE)).ok
        await node.control.pause(sandbox)
        with monkeypatch.context() as patch:
            patch.setattr(node.ledger, "append", full)
            await node.control.resume(sandbox)  # no disk is needed to go on
        assert sandbox.state is State.RUNNING


async def test_stop_keeps_name_and_results_and_is_idempotent(stand) -> None:
    async with stand.serving() as (node, api):
        sid = await api.create(key="k")
        op = "ab" * 16
        await api.call("POST", f"/v1/sandboxes/{sid}/run?op={op}", {"argv": ["echo", "x"]})
        await api.call("POST", f"/v1/sandboxes/{sid}/pause")
        for _ in range(2):
            info = await api.call("POST", f"/v1/sandboxes/{sid}/stop")
            assert (info["state"], info["reason"]) == ("stopped", "a request asked for it")
        assert stand.world.instances == {}
        assert node.admission.sandboxes == 0
        status = await api.call("GET", f"/v1/sandboxes/{sid}/ops/{op}")
        assert status["result"]["exit_code"] == 0
        await api.call("POST", f"/v1/sandboxes/{sid}/pause", status=410)
        await api.call("PATCH", f"/v1/sandboxes/{sid}", {"ttl_s": 5}, status=410)
        await api.call("DELETE", f"/v1/sandboxes/{sid}")


async def test_ttl_of_a_live_sandbox_is_extended_and_shortened(stand, manual) -> None:
    async with stand.alive() as node:
        sandbox = await node.lives.create(SandboxSpec(ttl_s=100, key="k"))
        await manual.advance(60)
        await node.control.change(sandbox, SandboxChange(ttl_s=100))
        assert sandbox.info().expires == pytest.approx(manual.wall() + 100)
        await manual.advance(99)
        assert sandbox.state is State.RUNNING
        # A repeat of the create still finds it, though its ttl is another one by now.
        assert await node.lives.create(SandboxSpec(ttl_s=100, key="k")) is sandbox
        await node.control.change(sandbox, SandboxChange(ttl_s=None))
        await manual.advance(1000)
        assert sandbox.state is State.RUNNING
        assert sandbox.info().expires is None
        await node.control.change(sandbox, SandboxChange(idle_timeout_s=5))
        await manual.advance(6)
        assert (sandbox.state, sandbox.reason) == (State.STOPPED, "it was idle")


async def test_labels_are_set_changed_and_removed_one_by_one(stand) -> None:
    async with stand.serving() as (_, api):
        sid = await api.create(labels={"a": "1", "b": "2"})
        change = {"labels": {"a": None, "b": "3", "c": "4"}}
        info = await api.call("PATCH", f"/v1/sandboxes/{sid}", change)
        assert info["spec"]["labels"] == {"b": "3", "c": "4"}
        found = await api.call("GET", "/v1/sandboxes?label=c=4")
        assert [item["id"] for item in found["items"]] == [sid]
        for wrong in ({"ttl_s": -1}, {"ttl_s": "x"}, {"cpu": 2}, {"labels": {"": "x"}}):
            await api.call("PATCH", f"/v1/sandboxes/{sid}", wrong, status=422)


async def test_change_survives_a_restart(stand) -> None:
    async with stand.alive() as node:
        sandbox = await node.lives.create(SandboxSpec(key="k"))
        await node.control.change(sandbox, SandboxChange(ttl_s=900, labels={"a": "b"}))
        expires = sandbox.info().expires
    async with stand.alive() as again:
        found = again.sandboxes.get(sandbox.id)
        assert found.info().expires == expires
        assert found.spec.labels == {"a": "b"}
        assert await again.lives.create(SandboxSpec(key="k")) is found
        await again.lives.delete(found)


async def test_backend_that_cannot_pause_says_so(stand, monkeypatch) -> None:
    async with stand.alive() as node:
        sandbox = await node.lives.create(SandboxSpec())
        monkeypatch.setattr(Sandbox, "pausable", None)
        with pytest.raises(InvalidRequest, match="cannot pause"):
            await node.control.pause(sandbox)
        assert sandbox.state is State.RUNNING


async def test_usage_of_all_live_sandboxes_comes_in_one_answer(stand) -> None:
    async with stand.serving() as (_, api):
        made = [await api.create(labels={"even": str(n % 2 == 0)}) for n in range(4)]
        await api.call("POST", f"/v1/sandboxes/{made[1]}/pause")
        await api.call("POST", f"/v1/sandboxes/{made[3]}/stop")
        table = await api.call("GET", "/v1/usage")
        assert [row["id"] for row in table["items"]] == made[:3]
        assert [row["state"] for row in table["items"]] == ["running", "paused", "running"]
        assert table["items"][0]["usage"]["memory_bytes"] > 0
        assert table["memory_total_bytes"] > table["memory_available_bytes"] > 0
        some = await api.call("GET", "/v1/usage?label=even=True")
        assert [row["id"] for row in some["items"]] == made[:3:2]


async def test_idle_time_of_one_sandbox_is_no_other_ones(stand, manual) -> None:
    """Report 52: not even that of an earlier one with the same key."""
    async with stand.alive() as node:
        first = await node.lives.create(SandboxSpec(idle_timeout_s=10, key="k"))
        busy = await node.lives.create(SandboxSpec(idle_timeout_s=10))
        await manual.advance(9)
        await node.lives.delete(first)
        second = await node.lives.create(SandboxSpec(idle_timeout_s=10, key="k"))
        await node.operations.run(busy, None, TRUE)
        await manual.advance(9)
        assert (second.state, busy.state) == (State.RUNNING, State.RUNNING)
        await manual.advance(2)
        assert (second.state, busy.state) == (State.STOPPED, State.STOPPED)


async def test_clock_that_is_set_moves_no_ttl(stand, manual, monkeypatch) -> None:
    spec = SandboxSpec(ttl_s=1000)
    async with stand.alive() as node:
        sandbox = await node.lives.create(spec)
        await manual.advance(400)
        monkeypatch.setattr(type(manual), "wall", lambda self: 4e9 + self.now)  # a far future
        await node.control.change(sandbox, SandboxChange(labels={"a": "b"}))
        await manual.advance(100)
        assert sandbox.state is State.RUNNING
    await manual.advance(100)
    async with stand.alive() as node:
        sandbox = node.sandboxes.get(sandbox.id)
        await manual.advance(390)
        assert sandbox.state is State.RUNNING
        await node.control.change(sandbox, SandboxChange(ttl_s=100))
        await manual.advance(99)
        assert sandbox.state is State.RUNNING
        await manual.advance(2)
        assert sandbox.state is State.STOPPED
