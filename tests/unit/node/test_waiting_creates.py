"""Creates that wait for room, one at a time and many; and what the node tells meanwhile."""

from __future__ import annotations

import asyncio

import pytest
from node_stand import FREE, nothing_left, sandboxes_of, settle

from skerry.errors import (
    NotFound,
    Overloaded,
    SandboxFailed,
    Unavailable,
)
from skerry.node.config import Limits
from skerry.node.gauges.readings import Readings
from skerry.spec.command import CommandSpec
from skerry.spec.sandbox import SandboxSpec
from waiting import until


async def test_create_waits_for_room_and_comes_in_when_there_is_some(stand) -> None:
    """(reports 71, 72)"""
    limits = Limits(sandboxes_max=1, **FREE)
    async with stand.serving(limits=limits) as (node, _), sandboxes_of(node) as sandboxes:
        first = await sandboxes.create()
        second = asyncio.create_task(sandboxes.create(wait=30))
        await until(lambda: node.admission.waiting == 1)
        await first.destroy()
        assert (await second).created_as.state == "running"


async def test_full_node_answers_at_once_and_by_name_if_nobody_waits(stand) -> None:
    """(report 71)"""
    limits = Limits(sandboxes_max=1, **FREE)
    async with stand.serving(limits=limits) as (node, _), sandboxes_of(node) as sandboxes:
        await sandboxes.create(labels={"job": "sphinx"})
        with pytest.raises(Overloaded) as caught:
            await sandboxes.create(wait=0)
        assert caught.value.fields["limit"] == "sandboxes"
        assert caught.value.fields["holders"][0] == {"who": "job sphinx", "sandboxes": 1}
        assert caught.value.fields["retry_after_s"] > 0
        assert sum(node.admission.refused.values()) == 1


async def test_client_asks_again_no_sooner_than_it_was_told(stand, monkeypatch) -> None:
    limits = Limits(sandboxes_max=1, **FREE)
    async with stand.serving(limits=limits) as (node, _), sandboxes_of(node) as sandboxes:
        await sandboxes.create()
        slept: list[float] = []

        async def sleep(seconds: float) -> None:
            slept.append(seconds)
            node.admission.limits.__dict__["sandboxes_max"] = 1 + (len(slept) == 2)

        monkeypatch.setattr("skerry.sdk.making.SERVER_WAIT_S", 0.0)
        monkeypatch.setattr("skerry.sdk.patience.asyncio.sleep", sleep)
        await sandboxes.create(wait=100)
        assert len(slept) == 2
        assert all(seconds >= 4.0 for seconds in slept)


async def test_client_that_stops_waiting_leaves_the_queue_and_no_sandbox(stand) -> None:
    limits = Limits(sandboxes_max=1, **FREE)
    async with stand.serving(limits=limits) as (node, _), sandboxes_of(node) as sandboxes:
        first = await sandboxes.create()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await sandboxes.create(wait=60)
        await until(lambda: node.admission.waiting == 0)
        assert len(node.sandboxes) == 1
        await first.destroy()
        assert nothing_left(stand, node)


async def test_second_request_of_a_key_goes_on_when_the_first_stops_waiting(stand) -> None:
    async with stand.alive(limits=Limits(sandboxes_max=1, **FREE)) as node:
        first = await node.lives.create(SandboxSpec())
        left = asyncio.Event()

        async def gone() -> None:
            await left.wait()

        spec = SandboxSpec(key="k")
        tasks = [
            asyncio.create_task(node.lives.create(spec, wait_s=60, gone=gone)),
            asyncio.create_task(node.lives.create(spec, wait_s=60)),
        ]
        await settle()
        left.set()
        await settle()
        assert not tasks[1].done()
        await node.lives.delete(first)
        made = await tasks[1]
        with pytest.raises(Unavailable, match="went away"):
            await tasks[0]
        await node.lives.delete(made)


async def test_sandbox_that_is_deleted_while_it_waits_is_never_made(stand) -> None:
    async with stand.alive(limits=Limits(sandboxes_max=1, **FREE)) as node:
        first = await node.lives.create(SandboxSpec())
        task = asyncio.create_task(node.lives.create(SandboxSpec(key="k"), wait_s=60))
        await settle()
        await node.lives.delete(node.sandboxes.by_key["k"])
        with pytest.raises(SandboxFailed, match="deleted while it waited"):
            await task
        await node.lives.delete(first)
        assert (stand.world.created, node.admission.waiting, len(node.sandboxes)) == (1, 0, 0)


async def test_eighty_six_creates_at_once_all_come_through(stand) -> None:
    """(report 72)"""
    limits = Limits(creates_in_flight_max=4, **FREE)
    async with stand.serving(limits=limits) as (node, _), sandboxes_of(node) as sandboxes:
        made = await asyncio.gather(*(sandboxes.create() for _ in range(86)))
        assert len({one.id for one in made}) == 86
        await sandboxes.destroy_many(made)
        assert nothing_left(stand, node)


async def test_gauges_tell_what_is_in_and_what_was_refused(stand) -> None:
    async with stand.alive(limits=Limits(sandboxes_max=1, **FREE)) as node:
        sandbox = await node.lives.create(SandboxSpec(memory_bytes=1 << 30))
        with pytest.raises(Overloaded):
            await node.lives.create(SandboxSpec())
        gauges = node.gauges()
        assert gauges["sandboxes"] == gauges["refused_total"] == 1
        assert gauges["sandboxes_memory_bytes"] == 1 << 30
        await node.lives.delete(sandbox)
        assert node.gauges()["ended_total"] == 1
        assert all(isinstance(value, int | float) for value in gauges.values())


async def test_beginning_of_an_id_finds_the_one_sandbox_that_has_it(stand) -> None:
    async with stand.serving() as (node, _), sandboxes_of(node) as sandboxes:
        one, two = [await sandboxes.create() for _ in range(2)]
        differ = next(at for at in range(21) if one.id[at] != two.id[at])
        assert (await sandboxes.get(one.id[: differ + 1])).id == one.id
        assert (await sandboxes.get(two.id)).id == two.id
        for beginning, told in (
            (one.id[:differ], "ids of 2 sandboxes"),
            ("nope", "no sandbox"),
            ("", "no sandbox"),
        ):
            with pytest.raises(NotFound, match=told):
                await sandboxes.get(beginning)


# -- a node that is full -------------------------------------------------------------------------


async def test_full_node_answers_which_limit_and_when_to_come_back(stand) -> None:
    async with stand.serving(limits=Limits(sandboxes_max=2, **FREE)) as (_, api):
        for _ in range(2):
            await api.create()
        async with api.session.post(
            "/v1/sandboxes", data=b"{}", headers={"content-type": "application/json"}
        ) as answer:
            assert answer.status == 429
            assert 4 <= int(answer.headers["retry-after"]) <= 7
            body = await answer.json()
        assert body["code"] == "overloaded"
        assert body["fields"]["limit"] == "sandboxes"
        assert body["fields"]["used"] == 2


async def test_creates_wait_in_a_bounded_queue(stand) -> None:
    limits = Limits(creates_in_flight_max=1, creates_waiting_max=2, **FREE)
    async with stand.serving(limits=limits) as (node, _api):
        stand.backend.knobs.slow_create_s = 0.05
        calls = [node.lives.create(SandboxSpec()) for _ in range(6)]
        results = await asyncio.gather(*calls, return_exceptions=True)
        refused = [one for one in results if isinstance(one, Overloaded)]
        assert len(refused) == 3
        assert {one.fields["limit"] for one in refused} == {"creates_waiting"}
        assert node.admission.creating == 0
        assert len(node.sandboxes) == 3


async def test_short_memory_refuses_creates_until_it_is_back(stand, manual) -> None:
    async with stand.alive(
        limits=Limits(memory_free_min_bytes=1 << 60, disk_free_min_bytes=0)
    ) as node:
        with pytest.raises(Overloaded) as caught:
            await node.lives.create(SandboxSpec())
        assert caught.value.fields["limit"] == "memory_free"
        node.admission.shortages._host = Readings
        with pytest.raises(Overloaded):
            await node.lives.create(SandboxSpec())
        await manual.advance(1)
        await node.lives.create(SandboxSpec())


async def test_too_many_commands_are_refused(stand) -> None:
    limits = Limits(operations_per_sandbox_max=2, operations_max=3, **FREE)
    async with stand.serving(limits=limits) as (node, _api):
        sandboxes = [await node.lives.create(SandboxSpec()) for _ in range(3)]
        slow = CommandSpec(argv=("sleep", "60"))
        for sandbox in (sandboxes[0], sandboxes[0], sandboxes[1]):
            await node.operations.view(sandbox, None, slow)
        for sandbox, limit in ((sandboxes[1], "operations"), (sandboxes[0], "operations")):
            with pytest.raises(Overloaded) as caught:
                await node.operations.run(sandbox, None, slow)
            assert caught.value.fields["limit"] == limit
        await node.lives.delete(sandboxes[1])
        with pytest.raises(Overloaded) as caught:
            await node.operations.run(sandboxes[0], None, slow)
        assert caught.value.fields["limit"] == "operations_per_sandbox"
