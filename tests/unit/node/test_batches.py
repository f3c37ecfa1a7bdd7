"""Batches: streamed, waiting, undone, repeated, fair; and the client's side of waiting."""

from __future__ import annotations

import asyncio
import contextlib
import struct

import msgspec
import pytest
from node_stand import FREE, nothing_left, sandboxes_of, settle

from skerry.errors import (
    InvalidRequest,
    Overloaded,
    SkerryError,
    Unavailable,
)
from skerry.node.config import Limits
from skerry.spec.sandbox import SandboxSpec
from skerry.wire.batch import BatchCreate, BatchEvent
from waiting import until

# -- streams --------------------------------------------------------------------------------------


async def test_members_are_told_as_they_come_and_the_end_counts_them(stand) -> None:
    async with stand.serving() as (_, api):
        stand.backend.knobs.fail_creates_after = 3
        events, body = [], {"spec": {"key": "k"}, "count": 5}
        async with api.session.post(
            "/v1/sandboxes/batch?stream=1",
            data=msgspec.json.encode(body),
            headers={"content-type": "application/json"},
        ) as answer:
            assert answer.headers["content-type"] == "application/x-skerry-stream"
            data = await answer.read()
        while data:
            (length,) = struct.unpack_from("<I", data)
            events.append(msgspec.msgpack.decode(data[4 : 4 + length], type=BatchEvent))
            data = data[4 + length :]
        assert sorted(event.index for event in events[:-1]) == [0, 1, 2, 3, 4]
        assert (events[-1].end.made, events[-1].end.failed) == (3, 2)
        failed = [event.item.error for event in events[:-1] if event.item.error is not None]
        assert [error.code for error in failed] == ["unavailable"] * 2


async def test_first_member_is_in_use_while_others_are_being_made(stand) -> None:
    limits = Limits(creates_in_flight_max=1, **FREE)
    async with stand.serving(limits=limits) as (node, _), sandboxes_of(node) as sandboxes:
        stand.backend.knobs.slow_create_s = 0.02
        seen = 0
        async for sandbox in sandboxes.create_each(SandboxSpec(), 6):
            if not seen:
                assert (await sandbox.run(["true"])).ok
                assert stand.world.created < 6
            seen += 1
            await sandbox.destroy()
        assert seen == 6
        assert nothing_left(stand, node)


async def test_leaving_a_stream_early_undoes_what_was_not_handed_out(stand) -> None:
    limits = Limits(creates_in_flight_max=2, **FREE)
    async with stand.serving(limits=limits) as (node, _), sandboxes_of(node) as sandboxes:
        stand.backend.knobs.slow_create_s = 0.01
        mine = []
        stream = sandboxes.create_each(SandboxSpec(), 200)
        async for sandbox in stream:
            mine.append(sandbox)
            if len(mine) == 3:
                break
        await stream.aclose()
        await until(lambda: len(node.batches) == 0)
        assert {sandbox.id for sandbox in mine} == {one.id for one in node.sandboxes}
        for sandbox in mine:
            await sandbox.destroy()
        assert nothing_left(stand, node)


async def test_batch_goes_on_after_an_orderly_restart_of_the_node(stand) -> None:
    """Members that were not made are made by the next start: they have not failed."""
    limits = Limits(creates_in_flight_max=2, **FREE)
    async with contextlib.AsyncExitStack() as first:
        node, _ = await first.enter_async_context(stand.serving(limits=limits))
        stand.backend.knobs.slow_create_s = 0.01
        async with sandboxes_of(node) as sandboxes:
            stream = sandboxes.create_each(SandboxSpec(), 30, wait=60)
            made = [await anext(stream)]
            await first.aclose()
            async with stand.serving(limits=limits) as (again, _):
                made += [sandbox async for sandbox in stream]
                assert len({sandbox.id for sandbox in made}) == 30
                assert len(again.sandboxes) == 30


async def test_members_that_failed_are_told_by_number_and_reason(stand) -> None:
    async with stand.serving() as (node, _), sandboxes_of(node) as sandboxes:
        stand.backend.knobs.fail_creates_after = 2
        failures: dict[int, SkerryError] = {}
        made = [
            one
            async for one in sandboxes.create_each(SandboxSpec(), 5, failed=failures.__setitem__)
        ]
        assert len(made) == 2
        assert len(failures) == 3
        assert all(isinstance(error, Unavailable) for error in failures.values())
        stand.backend.knobs.fail_creates_after = 3
        more = sandboxes.create_each(SandboxSpec(), 2)
        made.append(await anext(more))
        with pytest.raises(Unavailable, match="launcher"):
            await anext(more)
        await sandboxes.destroy_many(made)


# -- all or nothing -------------------------------------------------------------------------------


async def test_retried_group_leaves_no_member_of_the_failed_try(stand) -> None:
    """(report 48)"""
    async with stand.serving() as (node, _), sandboxes_of(node) as sandboxes:
        stand.backend.knobs.fail_creates_after = 5
        with pytest.raises(Unavailable):
            await sandboxes.create_many(8)
        assert nothing_left(stand, node)
        stand.backend.knobs.fail_creates_after = None
        group = await sandboxes.create_many(8)
        assert {one.id for one in group} == {one.id for one in node.sandboxes}


async def test_cancelled_group_leaves_nothing(stand) -> None:
    """(report 48)"""
    limits = Limits(creates_in_flight_max=2, **FREE)
    async with stand.serving(limits=limits) as (node, _), sandboxes_of(node) as sandboxes:
        stand.backend.knobs.slow_create_s = 0.01
        task = asyncio.create_task(sandboxes.create_many(100))
        await until(lambda: stand.world.created >= 3)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await until(lambda: nothing_left(stand, node))


async def test_group_of_a_client_that_died_is_undone(stand) -> None:
    limits = Limits(creates_in_flight_max=2, **FREE)
    async with stand.serving(limits=limits) as (node, api):
        stand.backend.knobs.slow_create_s = 0.01
        body = {"spec": {"key": "g"}, "count": 100, "all_or_nothing": True}
        task = asyncio.create_task(api.call("POST", "/v1/sandboxes/batch", body))
        await until(lambda: stand.world.created >= 3)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await until(lambda: nothing_left(stand, node))


async def test_repeat_of_a_group_that_is_being_undone_makes_it_anew(stand) -> None:
    limits = Limits(creates_in_flight_max=2, **FREE)
    async with stand.serving(limits=limits) as (node, api):
        stand.backend.knobs.slow_create_s = 0.01
        stand.backend.knobs.slow_destroy_s = 0.05
        body = {"spec": {"key": "g"}, "count": 10, "all_or_nothing": True}
        task = asyncio.create_task(api.call("POST", "/v1/sandboxes/batch", body))
        await until(lambda: stand.world.created >= 3)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        items = (await api.call("POST", "/v1/sandboxes/batch", body))["items"]
        ids = {item["info"]["id"] for item in items}
        assert ids == {one.id for one in node.sandboxes}
        assert {item["info"]["state"] for item in items} == {"running"}


async def test_request_that_repeats_a_group_keeps_what_the_lost_one_made(stand) -> None:
    limits = Limits(creates_in_flight_max=2, **FREE)
    async with stand.serving(limits=limits) as (node, api):
        stand.backend.knobs.slow_create_s = 0.01
        body = {"spec": {"key": "g"}, "count": 20, "all_or_nothing": True}
        first = asyncio.create_task(api.call("POST", "/v1/sandboxes/batch", body))
        await until(lambda: stand.world.created >= 3)
        second = asyncio.create_task(api.call("POST", "/v1/sandboxes/batch", body))
        await until(lambda: len(node.batches) == 2)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        items = (await second)["items"]
        assert {item["info"]["id"] for item in items} == {one.id for one in node.sandboxes}
        assert len(items) == len(node.sandboxes) == node.admission.sandboxes == 20


async def test_batch_with_a_wrong_query_takes_no_place(stand) -> None:
    async with stand.serving(limits=Limits(batches_max=1, **FREE)) as (_, api):
        body = {"spec": {}, "count": 1}
        for query in ("stream=perhaps", "streams=1"):
            await api.call("POST", f"/v1/sandboxes/batch?{query}", body, status=422)
        await api.call("POST", "/v1/sandboxes/batch", body)


async def test_two_groups_that_do_not_fit_together_do_not_ruin_each_other(stand) -> None:
    async with stand.serving(limits=Limits(sandboxes_max=10, **FREE)) as (node, _):
        stand.backend.knobs.slow_create_s = 0.01
        async with sandboxes_of(node) as one, sandboxes_of(node) as two:
            outcomes = await asyncio.gather(
                one.create_many(7, wait=0), two.create_many(7, wait=0), return_exceptions=True
            )
        made = [group for group in outcomes if isinstance(group, list)]
        refused = [error for error in outcomes if isinstance(error, Overloaded)]
        assert len(made) == len(refused) == 1
        assert refused[0].fields["wanted"] == 7
        assert len(node.sandboxes) == 7


async def test_group_waits_until_all_of_it_fits(stand) -> None:
    limits = Limits(sandboxes_max=4, **FREE)
    async with stand.serving(limits=limits) as (node, _), sandboxes_of(node) as sandboxes:
        first = await sandboxes.create_many(3)
        group = asyncio.create_task(sandboxes.create_many(4, wait=30))
        await until(lambda: node.admission.waiting == 1)
        for sandbox in first:
            assert not group.done()
            await sandbox.destroy()
        assert len(await group) == 4
        assert node.admission.sandboxes == 4


async def test_group_that_gives_up_lets_go_of_what_it_gathered(stand, manual) -> None:
    async with stand.alive(limits=Limits(sandboxes_max=4, **FREE)) as node:
        other = [await node.lives.create(SandboxSpec()) for _ in range(2)]
        body = BatchCreate(spec=SandboxSpec(), count=4, all_or_nothing=True, wait_s=5)
        task = asyncio.create_task(node.batches.create(body, owner=None))
        await settle()
        assert node.admission.sandboxes == 4
        await manual.advance(6)
        with pytest.raises(Overloaded):
            await task
        assert node.admission.sandboxes == 2
        for sandbox in other:
            await node.lives.delete(sandbox)


async def test_client_may_wait_longer_than_one_request_does(stand) -> None:
    async with stand.serving() as (node, _), sandboxes_of(node) as sandboxes:
        group = await sandboxes.create_many(2, wait=1e9)
        group += [one async for one in sandboxes.create_each(SandboxSpec(), 2, wait=1e9)]
        assert len(group) == 4


async def test_group_that_can_never_fit_is_refused_without_waiting(stand) -> None:
    async with stand.serving(limits=Limits(sandboxes_max=4, **FREE)) as (node, _):
        async with sandboxes_of(node) as sandboxes, asyncio.timeout(20):
            with pytest.raises(Overloaded):
                await sandboxes.create_many(5, wait=3000)
        assert nothing_left(stand, node)


# -- waiting and turns ----------------------------------------------------------------------------


async def test_batch_of_thousands_does_not_hold_up_one_create(stand) -> None:
    limits = Limits(creates_in_flight_max=2, **FREE)
    async with stand.alive(limits=limits) as node:
        stand.backend.knobs.slow_create_s = 0.002
        body = BatchCreate(spec=SandboxSpec(labels={"job": "big"}), count=2000)
        big = asyncio.create_task(node.batches.create(body, owner=None))
        await until(lambda: stand.world.created >= 5)
        before = stand.world.created
        await node.lives.create(SandboxSpec(labels={"job": "small"}))
        assert stand.world.created - before <= 6
        assert node.admission.waiting <= 2
        assert len(node.tasks) < 50
        result = await big
        assert all(item.info is not None for item in result.items)


async def test_members_wait_for_room_and_run_as_others_end(stand) -> None:
    limits = Limits(sandboxes_max=5, **FREE)
    async with stand.serving(limits=limits) as (node, _), sandboxes_of(node) as sandboxes:
        peak = 0
        async for sandbox in sandboxes.create_each(SandboxSpec(), 40, wait=60):
            peak = max(peak, node.admission.sandboxes)
            await sandbox.destroy()
        assert stand.world.created == 40
        assert peak <= 5
        assert nothing_left(stand, node)


async def test_members_that_wait_in_vain_say_which_limit(stand, manual) -> None:
    async with stand.alive(limits=Limits(sandboxes_max=5, **FREE)) as node:
        body = BatchCreate(spec=SandboxSpec(), count=8, wait_s=10)
        task = asyncio.create_task(node.batches.create(body, owner=None))
        await settle()
        await manual.advance(11)
        result = await task
        errors = [item.error for item in result.items if item.error is not None]
        assert len(errors) == 3
        assert {error.fields["limit"] for error in errors} == {"sandboxes"}


async def test_batch_of_ten_thousand_on_a_small_node_answers_for_each(stand) -> None:
    async with stand.alive(limits=Limits(sandboxes_max=50, **FREE)) as node:
        body = BatchCreate(spec=SandboxSpec(), count=10_000)
        result = await node.batches.create(body, owner=None)
        made = [item.info for item in result.items if item.info is not None]
        refused = [item.error for item in result.items if item.error is not None]
        assert (len(made), len(refused)) == (50, 9_950)
        assert len({id(error) for error in refused}) == 1  # not ten thousand copies
        assert len(msgspec.msgpack.encode(result)) < 8 << 20


async def test_batches_under_way_are_bounded(stand) -> None:
    limits = Limits(batches_max=2, creates_in_flight_max=1, **FREE)
    async with stand.alive(limits=limits) as node:
        stand.backend.knobs.slow_create_s = 0.05
        body = BatchCreate(spec=SandboxSpec(), count=2)
        tasks = [asyncio.create_task(node.batches.create(body, owner=None)) for _ in range(3)]
        done = await asyncio.gather(*tasks, return_exceptions=True)
        refused = [error for error in done if isinstance(error, Overloaded)]
        assert [error.fields["limit"] for error in refused] == ["batches"]
        assert len(node.batches) == 0


@pytest.mark.parametrize("wait_s", [-1.0, 1e9, float("nan")])
async def test_wait_out_of_bounds_is_refused(stand, wait_s) -> None:
    async with stand.alive() as node:
        body = BatchCreate(spec=SandboxSpec(), count=1, wait_s=wait_s)
        with pytest.raises(InvalidRequest, match="wait_s"):
            await node.batches.create(body, owner=None)


# -- batches without a client ---------------------------------------------------------------------


async def test_batch_makes_as_many_as_it_can_and_says_which_failed(stand) -> None:
    async with stand.serving() as (_, api):
        stand.backend.knobs.fail_creates_after = 5
        body = {"spec": {"key": "b"}, "count": 8}
        items = (await api.call("POST", "/v1/sandboxes/batch", body))["items"]
        made = [item["info"]["id"] for item in items if "info" in item]
        assert len(made) == 5
        assert {item["error"]["code"] for item in items if "error" in item} == {"unavailable"}
        stand.backend.knobs.fail_creates_after = None
        again = (await api.call("POST", "/v1/sandboxes/batch", body))["items"]
        assert set(made) < {item["info"]["id"] for item in again}
        assert again[3]["info"]["spec"]["key"] == "b/3"
        ids = [item["info"]["id"] for item in again] + ["s" + "a" * 20]
        items = (await api.call("POST", "/v1/sandboxes/batch/delete", {"ids": ids}))["items"]
        assert len(items) == 9
        assert items[-1] == {}
        assert stand.world.instances == {}


async def test_batch_of_all_or_nothing_undoes_everything_on_one_failure(stand) -> None:
    async with stand.serving() as (node, api):
        stand.backend.knobs.fail_creates_after = 5
        body = {"spec": {}, "count": 8, "all_or_nothing": True}
        items = (await api.call("POST", "/v1/sandboxes/batch", body))["items"]
        assert {item["error"]["code"] for item in items} == {"unavailable"}
        assert stand.world.instances == {}
        assert len(node.sandboxes) == 0


async def test_batch_that_cannot_fit_as_a_whole_is_refused_at_once(stand) -> None:
    async with stand.alive(limits=Limits(sandboxes_max=5, **FREE)) as node:
        with pytest.raises(Overloaded):
            await node.batches.create(
                BatchCreate(spec=SandboxSpec(), count=6, all_or_nothing=True), owner=None
            )
        assert stand.world.created == 0
        result = await node.batches.create(BatchCreate(spec=SandboxSpec(), count=6), owner=None)
        assert sum(item.info is not None for item in result.items) == 5
