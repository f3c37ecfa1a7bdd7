"""A node that is being drained, and one that is told to end while others hold it up."""

from __future__ import annotations

import asyncio

import pytest

from skerry.errors import Unavailable
from skerry.sdk.client import connect
from skerry.spec.command import CommandSpec
from skerry.spec.sandbox import SandboxSpec, State
from skerry.wire.control import DrainBody


async def test_draining_is_refused_to_newcomers_and_visible_everywhere(stand) -> None:
    """Report 50: a claim on a draining node does not look as if all were well."""
    async with stand.serving() as (_, api):
        sid = await api.create(key="k")
        ended = await api.create()
        await api.call("POST", f"/v1/sandboxes/{ended}/stop")
        state = await api.call("POST", "/v1/node/drain", {"grace_s": 600})
        assert (state["draining"], state["live"]) == (True, 1)
        async with api.session.post("/v1/sandboxes", json={}) as answer:
            assert answer.status == 503
            assert int(answer.headers["retry-after"]) >= 1
            error = await answer.json()
        assert (error["code"], error["fields"]["reason"]) == ("unavailable", "draining")
        batch = {"spec": {}, "count": 2}
        await api.call("POST", "/v1/sandboxes/batch", batch, status=503)
        info = await api.call("GET", f"/v1/sandboxes/{sid}")
        assert info["draining"] is True
        assert info["drain_deadline"] == state["deadline"]
        assert "draining" not in await api.call("GET", f"/v1/sandboxes/{ended}")
        health = await api.call("GET", "/v1/health")
        assert (health["draining"], health["live"]) == (True, 1)
        # what lives is not disturbed, and a repeat of its create finds it
        ran = await api.call("POST", f"/v1/sandboxes/{sid}/run", {"argv": ["true"]})
        assert ran["exit_code"] == 0
        assert await api.create(key="k") == sid
        state = await api.call("DELETE", "/v1/node/drain")
        assert state["draining"] is False
        assert "draining" not in await api.call("GET", f"/v1/sandboxes/{sid}")
        await api.create()


async def test_what_lives_is_stopped_after_the_grace_busy_or_paused(stand, manual) -> None:
    async with stand.alive() as node:
        busy = await node.lives.create(SandboxSpec())
        paused = await node.lives.create(SandboxSpec())
        await node.control.pause(paused)
        run = asyncio.create_task(
            node.operations.run(busy, None, CommandSpec(argv=("sleep", "1000")))
        )
        node.drain.begin(DrainBody(grace_s=60))
        await manual.advance(59)
        assert (busy.state, paused.state) == (State.RUNNING, State.PAUSED)
        await manual.advance(2)
        assert [one.state for one in (busy, paused)] == [State.STOPPED] * 2
        assert busy.reason == "its node was drained"
        assert stand.world.instances == {}
        assert node.drain.state().live == 0
        await asyncio.wait((run,))
        assert run.exception() is not None


async def test_drain_without_grace_waits_for_ever_and_can_be_sharpened(stand, manual) -> None:
    async with stand.alive() as node:
        sandbox = await node.lives.create(SandboxSpec())
        assert node.drain.begin(DrainBody()).deadline is None
        await manual.advance(100_000)
        assert sandbox.state is State.RUNNING
        node.drain.begin(DrainBody(grace_s=0))
        await manual.advance(1)
        assert sandbox.state is State.STOPPED


async def test_drain_taken_back_stops_nothing(stand, manual) -> None:
    async with stand.alive() as node:
        sandbox = await node.lives.create(SandboxSpec())
        node.drain.begin(DrainBody(grace_s=10))
        node.drain.end()
        await manual.advance(100)
        assert sandbox.state is State.RUNNING
        await node.lives.create(SandboxSpec())


async def test_restart_ends_the_drain(stand) -> None:
    async with stand.alive() as node:
        await node.lives.create(SandboxSpec())
        node.drain.begin(DrainBody())
        with pytest.raises(Unavailable, match="drained"):
            await node.lives.create(SandboxSpec())
    async with stand.alive() as again:
        assert not again.drain.on
        await again.lives.create(SandboxSpec())
        for sandbox in again.sandboxes:
            await again.lives.delete(sandbox)


async def test_client_is_told_of_the_drain_at_once(stand, monkeypatch) -> None:
    """It does not ask again for a minute, as it does while a node restarts."""

    async def no_pause(_seconds) -> None:
        raise AssertionError("it waits to ask again")

    async with stand.serving() as (node, _):
        node.drain.begin(DrainBody())
        async with connect(f"unix://{node.config.socket_path}") as client:
            monkeypatch.setattr("skerry.sdk.transport.asyncio", _Pauseless(no_pause))
            with pytest.raises(Unavailable, match="drained") as caught:
                await client.sandboxes.create()
    assert caught.value.fields["reason"] == "draining"


class _Pauseless:
    """The module asyncio with another sleep, for one module only."""

    def __init__(self, sleep) -> None:
        self.sleep = sleep

    def __getattr__(self, name: str):
        return getattr(asyncio, name)
