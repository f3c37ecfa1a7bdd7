"""Owner connections: leases, orderly ends, and the daemon that ends with its last owner."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import msgspec
import pytest
from node_stand import settle

from skerry.errors import Conflict, InvalidRequest, Overloaded, Unavailable
from skerry.node.life.owners import Exit
from skerry.node.timers import Timers
from skerry.spec.sandbox import SandboxSpec, State

OWNER = "owner-0123456789abcdef"


async def gone(stand, sid: str) -> None:
    for _ in range(300):
        if sid not in stand.world.instances:
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"{sid} is still there")


@asynccontextmanager
async def owner(api, name: str | None = None):
    query = f"?owner={name}" if name else ""
    async with api.session.ws_connect(f"/v1/connection{query}") as socket:
        yield socket, msgspec.msgpack.decode((await socket.receive(timeout=5)).data)


async def test_orderly_end_of_an_owner_destroys_what_is_not_detached(stand) -> None:
    async with stand.serving(embedded=True) as (_, api):
        async with owner(api, OWNER) as (_socket, welcome):
            assert welcome == {"owner": OWNER, "lease_s": 30.0}
            headers = {"x-skerry-owner": OWNER}
            mine = (await api.call("POST", "/v1/sandboxes", {}, headers=dict(headers)))["id"]
            kept = (
                await api.call("POST", "/v1/sandboxes", {"detached": True}, headers=dict(headers))
            )["id"]
        await gone(stand, mine)
        assert set(stand.world.instances) == {kept}


async def test_lost_owner_keeps_its_sandboxes_for_the_lease(stand, manual) -> None:
    async with stand.alive(embedded=True) as node:
        held = node.owners.connect(OWNER)
        sandbox = await node.lives.create(SandboxSpec(), owner=OWNER)
        node.owners.disconnect(held, orderly=False)
        await manual.advance(29)
        held = node.owners.connect(OWNER)  # it is back
        await manual.advance(100)
        assert sandbox.state is State.RUNNING
        node.owners.disconnect(held, orderly=False)
        await manual.advance(31)
        assert sandbox.gone
        assert stand.world.instances == {}
        with pytest.raises(Conflict):
            await node.lives.create(SandboxSpec(), owner=OWNER)


async def test_owner_with_two_connections_lives_until_the_last(stand, manual) -> None:
    async with stand.alive() as node:
        one, two = node.owners.connect(OWNER), node.owners.connect(OWNER)
        assert one is two
        sandbox = await node.lives.create(SandboxSpec(), owner=OWNER)
        node.owners.disconnect(one, orderly=True)
        await settle()
        assert sandbox.state is State.RUNNING
        node.owners.disconnect(two, orderly=True)
        await settle()
        assert sandbox.gone


async def test_undetached_sandbox_needs_an_owner_in_an_embedded_daemon(stand) -> None:
    async with stand.alive(embedded=True) as node:
        with pytest.raises(InvalidRequest, match="owner"):
            await node.lives.create(SandboxSpec())
        await node.lives.create(SandboxSpec(detached=True))
        with pytest.raises(InvalidRequest):
            node.owners.connect("short")
        assert len(node.owners) == 0


async def test_owners_are_bounded(stand) -> None:
    async with stand.alive() as node:
        node.owners._owners_max = 2
        node.owners.connect(None)
        node.owners.connect(None)
        with pytest.raises(Overloaded):
            node.owners.connect(None)


async def test_owner_has_its_lease_after_a_restart_of_the_node(stand, manual) -> None:
    async with stand.alive() as node:
        node.owners.connect(OWNER)
        sandbox = await node.lives.create(SandboxSpec(), owner=OWNER)
    async with stand.alive() as node:
        await manual.advance(20)
        assert node.sandboxes.get(sandbox.id).state is State.RUNNING
        await manual.advance(11)
        assert len(node.sandboxes) == 0
    assert stand.world.instances == {}


async def test_killed_client_is_noticed_and_its_lease_runs(stand) -> None:
    async with stand.serving(embedded=True, lease_s=0.2) as (node, api):
        async with api.session.ws_connect(f"/v1/connection?owner={OWNER}") as socket:
            await socket.receive(timeout=5)
            headers = {"x-skerry-owner": OWNER}
            sid = (await api.call("POST", "/v1/sandboxes", {}, headers=headers))["id"]
            socket._response.connection.transport.abort()
        await asyncio.sleep(0.05)
        assert sid in stand.world.instances
        await gone(stand, sid)
        assert len(node.owners) == 0


async def test_embedded_daemon_ends_after_its_last_owner_and_sandbox(stand) -> None:
    left = asyncio.Event()
    config = {"embedded": True, "exit_grace_s": 0.05}
    async with stand.serving(leave=left.set, **config) as (_, api):
        async with owner(api, OWNER):
            headers = {"x-skerry-owner": OWNER}
            sid = (await api.call("POST", "/v1/sandboxes", {"detached": True}, headers=headers))[
                "id"
            ]
        await asyncio.sleep(0.2)
        assert not left.is_set()  # a detached sandbox remains
        await api.call("DELETE", f"/v1/sandboxes/{sid}")
        await asyncio.wait_for(left.wait(), 5)


async def test_owner_that_comes_within_the_grace_keeps_the_daemon(manual) -> None:
    timers = Timers(manual)
    state = {"busy": False, "left": 0}

    def leave() -> None:
        state["left"] += 1

    end = Exit(timers, busy=lambda: bool(state["busy"]), leave=leave, grace_s=2, first_owner_s=60)
    await manual.advance(59)
    assert state["left"] == 0
    end.consider()
    state["busy"] = True
    await manual.advance(10)
    assert state["left"] == 0
    state["busy"] = False
    end.consider()
    await manual.advance(1)
    end.consider()
    await manual.advance(1.5)
    assert state["left"] == 0
    await manual.advance(1)
    assert state["left"] == 1


async def test_daemon_that_no_owner_ever_came_to_ends(manual) -> None:
    left: list[int] = []
    Exit(
        Timers(manual),
        busy=lambda: False,
        leave=lambda: left.append(1),
        grace_s=2,
        first_owner_s=60,
    )
    await manual.advance(61)
    assert left == [1]


async def test_sandbox_that_had_ended_goes_with_its_owner_after_a_restart_too(
    stand, manual
) -> None:
    async with stand.alive() as node:
        node.owners.connect(OWNER)
        sandbox = await node.lives.create(SandboxSpec(ttl_s=1.0), owner=OWNER)
        await manual.advance(2)
        assert sandbox.state is State.STOPPED
    async with stand.alive() as again:
        ended = again.sandboxes.get(sandbox.id)
        assert ended.state is State.STOPPED
        await manual.advance(31)  # nobody came back for it
        assert ended.gone
        again.owners.check_invariants()


async def test_create_that_is_faster_than_its_owner_after_a_restart_is_asked_again(
    stand, manual
) -> None:
    async with stand.alive() as node:
        with pytest.raises(Unavailable) as caught:
            await node.lives.create(SandboxSpec(), owner=OWNER)
        assert caught.value.retryable
        assert "retry_after_s" in caught.value.fields  # the SDK asks again by itself
        node.owners.connect(OWNER)
        await node.lives.create(SandboxSpec(), owner=OWNER)
        await manual.advance(31)
        with pytest.raises(Conflict):  # by now it would have come back
            await node.lives.create(SandboxSpec(), owner="another-0123456789")
