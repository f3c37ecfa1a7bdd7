"""Creation, listing, deadlines, pause, destruction that fails."""

from __future__ import annotations

import asyncio

import pytest
from node_stand import settle

from skerry.backends.api import Reclaimed
from skerry.errors import Conflict, SandboxFailed, Unavailable
from skerry.guest.client import GuestClient
from skerry.lifecycle.table import Event
from skerry.node.config import Limits
from skerry.spec.command import CommandSpec
from skerry.spec.sandbox import OnIdle, SandboxSpec, State
from skerry.testing.fake import FakeInstance


async def test_key_finds_what_was_made_and_joins_what_is_being_made(stand) -> None:
    async with stand.serving() as (_, api):
        stand.backend.knobs.slow_create_s = 0.05
        one, two = await asyncio.gather(api.create(key="k"), api.create(key="k"))
        assert one == two
        page = await api.call("GET", "/v1/sandboxes?key=k")
        assert [item["id"] for item in page["items"]] == [one]
        error = await api.call("POST", "/v1/sandboxes", {"key": "k", "cpu": 2}, status=409)
        assert one in error["message"]
        await api.call("DELETE", f"/v1/sandboxes/{one}")
        assert await api.create(key="k") != one


async def test_create_that_fails_leaves_nothing_and_tells_who_joined(stand) -> None:
    async with stand.serving() as (node, api):
        stand.backend.knobs.slow_create_s = 0.05
        stand.backend.knobs.fail_create_at = "overlay"
        calls = [api.call("POST", "/v1/sandboxes", {"key": "k"}, status=410) for _ in range(3)]
        for error in await asyncio.gather(*calls):
            assert error["code"] == "sandbox_failed"
            assert error["fields"]["step"] == "overlay"
        assert (len(node.sandboxes), node.admission.sandboxes) == (0, 0)
        stand.backend.knobs.fail_create_at = None
        await api.create(key="k")


async def test_instance_whose_agent_does_not_answer_is_destroyed(stand) -> None:
    async with stand.serving() as (node, api):
        stand.backend.knobs.refuse_channel = True
        error = await api.call("POST", "/v1/sandboxes", {}, status=503)
        assert error["retryable"] is True
        assert stand.world.instances == {}
        assert (len(node.sandboxes), node.admission.sandboxes) == (0, 0)


async def test_missing_layer_is_not_found(stand) -> None:
    async with stand.serving() as (node, api):
        error = await api.call("POST", "/v1/sandboxes", {"image": "debian:99"}, status=404)
        assert "base/debian:99" in error["message"]
        assert len(node.sandboxes) == 0


async def test_listing_filters_and_pages_oldest_first(stand) -> None:
    async with stand.serving() as (_, api):
        made = [await api.create(labels={"even": str(n % 2 == 0)}) for n in range(7)]
        seen, cursor = [], ""
        while cursor is not None:
            page = await api.call("GET", f"/v1/sandboxes?limit=3{cursor}")
            seen += [item["id"] for item in page["items"]]
            cursor = "&cursor=" + page["cursor"] if "cursor" in page else None
        assert seen == made
        page = await api.call("GET", "/v1/sandboxes?label=even=True&state=running")
        assert [item["id"] for item in page["items"]] == made[::2]
        assert (await api.call("GET", "/v1/sandboxes?state=paused,failed"))["items"] == []
        assert (await api.call("GET", f"/v1/sandboxes/{made[0]}/usage"))["memory_bytes"] > 0


async def test_wait_answers_at_the_change_or_after_its_timeout(stand) -> None:
    async with stand.serving() as (_, api):
        sid = await api.create()
        info = await api.call("GET", f"/v1/sandboxes/{sid}/wait?state=stopped&timeout=0.01")
        assert info["state"] == "running"
        waiting = asyncio.create_task(
            api.call("GET", f"/v1/sandboxes/{sid}/wait?state=stopped&timeout=60")
        )
        await asyncio.sleep(0.05)
        await api.call("DELETE", f"/v1/sandboxes/{sid}")
        assert (await waiting)["state"] == "stopped"


# -- deadlines, on a clock that the test moves ----------------------------------------------------


async def test_idle_sandbox_is_stopped_counting_from_its_last_activity(stand, manual) -> None:
    async with stand.alive() as node:
        sandbox = await node.lives.create(SandboxSpec(idle_timeout_s=60))
        await manual.advance(59)
        await node.operations.run(sandbox, None, CommandSpec(argv=("true",)))
        await manual.advance(59)
        assert sandbox.state is State.RUNNING
        await manual.advance(2)
        assert (sandbox.state, sandbox.reason) == (State.STOPPED, "it was idle")
        assert stand.world.instances == {}
        with pytest.raises(SandboxFailed, match="idle"):
            await node.operations.run(sandbox, None, CommandSpec(argv=("true",)))
        await node.lives.delete(sandbox)
        node.check_invariants()


async def test_running_command_is_activity(stand, manual) -> None:
    async with stand.alive() as node:
        sandbox = await node.lives.create(SandboxSpec(idle_timeout_s=10))
        run = asyncio.create_task(
            node.operations.run(sandbox, "0" * 32, CommandSpec(argv=("sleep", "1000")))
        )
        await settle()
        await manual.advance(100)
        assert sandbox.state is State.RUNNING
        node.operations.cancel(sandbox, "0" * 32)
        for _ in range(100):
            await settle()
            if run.done():
                break
        assert (await run).cancelled
        await manual.advance(9)
        assert sandbox.state is State.RUNNING
        await manual.advance(2)
        assert sandbox.state is State.STOPPED


async def test_ttl_stops_even_a_busy_sandbox(stand, manual) -> None:
    async with stand.alive() as node:
        sandbox = await node.lives.create(SandboxSpec(ttl_s=100))
        assert sandbox.info().expires == sandbox.created + 100
        run = asyncio.create_task(
            node.operations.run(sandbox, None, CommandSpec(argv=("sleep", "1000")))
        )
        await settle()
        await manual.advance(101)
        with pytest.raises(SandboxFailed, match="ttl"):
            await run
        await settle()
        assert sandbox.state is State.STOPPED
        node.check_invariants()


async def test_idle_sandbox_may_be_paused_and_any_request_resumes_it(stand, manual) -> None:
    async with stand.alive() as node:
        sandbox = await node.lives.create(SandboxSpec(idle_timeout_s=60, on_idle=OnIdle.PAUSE))
        await manual.advance(61)
        assert sandbox.state is State.PAUSED
        result = await node.operations.run(sandbox, None, CommandSpec(argv=("true",)))
        assert result.ok
        assert sandbox.state is State.RUNNING
        await manual.advance(200)
        assert sandbox.state is State.PAUSED
        await node.lives.delete(sandbox)
        assert stand.world.instances == {}


def opened_by(gate: asyncio.Event):
    """A pause, or a resume, that takes until the gate is open."""

    async def slow(self) -> Reclaimed:
        await gate.wait()
        return Reclaimed(0, 0.0)

    return slow


async def test_delete_during_a_pause_and_a_resume_leaves_nothing(stand, monkeypatch) -> None:
    async with stand.alive() as node:
        for slow, events in (("pause", [Event.PAUSE]), ("resume", [Event.PAUSE, Event.RESUME])):
            gate = asyncio.Event()
            sandbox = await node.lives.create(SandboxSpec())
            for event in events[:-1]:
                await node.lives.drive(sandbox, event)
            monkeypatch.setattr(FakeInstance, slow, opened_by(gate))
            driving = asyncio.create_task(node.lives.drive(sandbox, events[-1]))
            await settle()
            await node.lives.delete(sandbox)
            assert sandbox.gone
            gate.set()
            await driving
            monkeypatch.undo()
            assert stand.world.instances == {}
            node.check_invariants()


async def test_resume_right_after_a_pause_is_not_lost(stand, monkeypatch) -> None:
    async with stand.alive() as node:
        sandbox = await node.lives.create(SandboxSpec())
        gate = asyncio.Event()
        monkeypatch.setattr(FakeInstance, "pause", opened_by(gate))
        pausing = asyncio.create_task(node.lives.drive(sandbox, Event.PAUSE))
        await settle()
        run = asyncio.create_task(node.operations.run(sandbox, None, CommandSpec(argv=("true",))))
        await settle()
        gate.set()
        assert (await run).ok
        await pausing
        assert sandbox.state is State.RUNNING


async def test_delete_during_creation_waits_for_it_and_leaves_nothing(stand, monkeypatch) -> None:
    async with stand.alive() as node:
        stand.backend.knobs.slow_create_s = 0.05
        making = asyncio.create_task(node.lives.create(SandboxSpec()))
        await settle()
        (sandbox,) = node.sandboxes
        assert sandbox.state is State.CREATING
        await node.lives.delete(sandbox)
        await making
        assert sandbox.gone
        assert stand.world.instances == {}
        node.check_invariants()


async def test_destruction_that_fails_is_told_and_tried_again(stand, manual, monkeypatch) -> None:
    async with stand.alive() as node:
        sandbox = await node.lives.create(SandboxSpec())

        async def broken(_self) -> None:
            raise Unavailable("the launcher is away")

        monkeypatch.setattr(FakeInstance, "destroy", broken)
        with pytest.raises(Unavailable):
            await node.lives.delete(sandbox)
        assert sandbox.state is State.STOPPING
        assert node.admission.sandboxes == 1
        monkeypatch.undo()
        await manual.advance(1.1)
        assert sandbox.gone
        assert (node.admission.sandboxes, len(node.sandboxes)) == (0, 0)


async def test_only_the_newest_ended_sandboxes_are_kept(stand, manual) -> None:
    async with stand.alive(limits=Limits(ended_max=2)) as node:
        for _ in range(4):
            await node.lives.create(SandboxSpec(ttl_s=1))
        await manual.advance(2)
        assert len(node.sandboxes) == 2
        assert {sandbox.state for sandbox in node.sandboxes} == {State.STOPPED}


async def test_command_that_outlives_its_timeout_takes_its_sandbox_down(stand, manual) -> None:
    async with stand.alive() as node:
        sandbox = await node.lives.create(SandboxSpec())
        # The fake agent lives on the machine's clock: on this one it never keeps the timeout.
        spec = CommandSpec(argv=("sleep", "1000"), timeout_s=2000)
        run = asyncio.create_task(node.operations.run(sandbox, "0" * 32, spec))
        await settle()
        await manual.advance(2014)
        assert sandbox.state is State.RUNNING
        await manual.advance(2)
        with pytest.raises(SandboxFailed, match="15 s over its timeout"):
            await asyncio.wait_for(run, 5)
        await settle()
        assert sandbox.state is State.FAILED
        assert stand.world.instances == {}
        status = await node.operations.status(sandbox, "0" * 32, 0)
        assert status.error is not None
        assert status.error.fault == "sandbox"


async def test_agent_that_answers_no_ping_is_connected_to_anew(stand, manual, monkeypatch) -> None:
    async with stand.alive() as node:
        sandbox = await node.lives.create(SandboxSpec())
        spec = CommandSpec(argv=("sleep", "1000"), timeout_s=10)
        run = asyncio.create_task(node.operations.run(sandbox, "0" * 32, spec))
        await settle()

        async def silence(_client) -> None:
            await asyncio.Event().wait()

        monkeypatch.setattr(GuestClient, "ping", silence)
        before = sandbox.link._client
        await manual.advance(15.1)
        await manual.advance(5.1)
        await manual.advance(0.1)
        for _ in range(50):
            await settle()
            if sandbox.link._client is not before:
                break
            await asyncio.sleep(0.01)
        assert sandbox.link._client is not before
        assert not run.done()
        node.operations.cancel(sandbox, "0" * 32)
        assert (await asyncio.wait_for(run, 5)).cancelled
        assert stand.world.instances[sandbox.id]._operations == 1


async def test_second_daemon_says_who_holds_the_state(stand) -> None:
    async with stand.alive() as node:
        with pytest.raises(Conflict, match=r"pid=\d+ socket="):
            stand.build()
    async with stand.alive() as again:
        assert again.identity.name == node.identity.name
        assert again.identity.epoch == node.identity.epoch + 1


async def test_thousand_lives_leave_no_timer_task_or_record(stand) -> None:
    async with stand.alive() as node:
        spec = SandboxSpec(idle_timeout_s=300, ttl_s=3600)
        for _ in range(1000):
            sandbox = await node.lives.create(spec)
            await node.operations.run(sandbox, None, CommandSpec(argv=("true",), timeout_s=60))
            await node.lives.delete(sandbox)
        assert (len(node.timers), len(node.tasks), len(node.sandboxes)) == (0, 0, 0)
        assert node.results.bytes == 0
        assert len(node.timers._heap) < 4096
