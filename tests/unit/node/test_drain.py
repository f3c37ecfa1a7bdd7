"""A node that is being drained, and one that is told to end while others hold it up."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from skerry.backends.shared import proc
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


async def test_drain_goes_on_after_a_restart_of_the_node_until_it_is_taken_back(
    stand, manual
) -> None:
    async with stand.alive() as node:
        sandbox = await node.lives.create(SandboxSpec())
        node.drain.begin(DrainBody(grace_s=100))
        await manual.advance(30)
    async with stand.alive() as node:
        state = node.drain.state()
        assert (state.draining, state.deadline) == (True, manual.wall() + 70)
        sandbox = node.sandboxes.get(sandbox.id)
        assert sandbox.info().draining
        with pytest.raises(Unavailable):
            await node.lives.create(SandboxSpec())
        await manual.advance(60)
        assert sandbox.state is State.RUNNING
        await manual.advance(11)
        while sandbox.state is not State.STOPPED:
            await sandbox.changed()
        node.drain.end()
    async with stand.alive() as node:
        assert not node.drain.on
        await node.lives.delete(await node.lives.create(SandboxSpec()))


async def test_grace_that_passed_while_no_node_ran_is_over_at_once(stand, manual) -> None:
    async with stand.alive() as node:
        sandbox = await node.lives.create(SandboxSpec())
        node.drain.begin(DrainBody(grace_s=10))
    await manual.advance(60)
    async with stand.alive() as node:
        sandbox = node.sandboxes.get(sandbox.id)
        await manual.advance(1)
        while sandbox.state is not State.STOPPED:
            await sandbox.changed()


@pytest.mark.parametrize("line", ["another-boot 99999999999.0", "BOOT", "BOOT soon", "\udcff", ""])
async def test_drain_of_another_start_of_the_host_or_nonsense_is_none(stand, line) -> None:
    line = line.replace("BOOT", proc.boot_id())
    state = Path(stand.config().state_dir)
    state.mkdir(exist_ok=True)
    (state / "drain").write_text(line, errors="surrogateescape")
    async with stand.alive() as node:
        assert not node.drain.on


async def test_drain_without_a_deadline_is_kept_too_but_not_by_an_embedded_node(stand) -> None:
    async with stand.alive() as node:
        node.drain.begin(DrainBody())
    async with stand.alive() as node:
        assert (node.drain.on, node.drain.state().deadline) == (True, None)
        node.drain.end()
    async with stand.alive(embedded=True) as node:
        node.drain.begin(DrainBody())
    async with stand.alive() as node:
        assert not node.drain.on


async def test_drain_on_a_full_disk_is_one_nevertheless(stand, monkeypatch, caplog) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("skerry.node.life.drain.write_line", full)
    async with stand.alive() as node:
        assert node.drain.begin(DrainBody()).draining
        assert "will not know" in caplog.text
        assert not node.drain.end().draining
