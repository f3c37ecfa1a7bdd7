"""Who of a job waits: limits of its own, priorities, positions and estimates."""

from __future__ import annotations

import asyncio

import pytest
from node_stand import FREE, nothing_left, sandboxes_of, settle

from skerry.aio import connect
from skerry.errors import Overloaded, Unavailable
from skerry.node.admission.fairness import Flow
from skerry.node.admission.holders import Holder
from skerry.node.admission.lineup import position
from skerry.node.admission.rates import Rate
from skerry.node.config import Limits
from skerry.node.jobs.queues import queue_of
from skerry.node.node import Node
from skerry.spec.job import JobSpec
from skerry.spec.sandbox import SandboxSpec
from skerry.wire.batch import BatchCreate
from waiting import until


def make(node: Node, name: str, owner: str = "", **spec):
    return node.keeping.make(JobSpec(id=name, lease_s=3600, **spec), owner=owner)


async def test_job_at_its_limit_waits_and_holds_up_nobody(stand, manual) -> None:
    async with stand.alive() as node:
        job = make(node, "small", sandboxes_max=2)
        first = [await node.lives.create(SandboxSpec(job="small")) for _ in range(2)]
        with pytest.raises(Overloaded) as caught:
            await node.lives.create(SandboxSpec(job="small"))
        assert caught.value.fields["limit"] == "sandboxes_per_job"
        waiting = [
            node.tasks.spawn(node.lives.create(SandboxSpec(job="small"), wait_s=600))
            for _ in range(3)
        ]
        await settle()
        other = await node.lives.create(SandboxSpec())
        queue = queue_of(node, job)
        assert (queue.waiting, queue.limit) == (3, "sandboxes_per_job")
        assert [item.position for item in queue.items] == [1, 2, 3]
        await node.lives.delete(first[0])
        await until(waiting[0].done)
        assert [task.done() for task in waiting] == [True, False, False]  # in order
        await node.lives.delete(other)
        await settle()
        assert not waiting[1].done()  # what others leave is not the job's
        await node.keeping.end(job, "done", delete=True)
        assert nothing_left(stand, node)


async def test_token_at_its_limit_waits_whatever_its_jobs_are_and_holds_up_nobody(
    stand, manual
) -> None:
    limits = Limits(sandboxes_per_owner_max=2, **FREE)
    async with stand.alive(limits=limits) as node:
        make(node, "a", owner="one")
        await node.lives.create(SandboxSpec(job="a"))
        loose = await node.lives.create(SandboxSpec(), tenant="one")
        waiting = node.tasks.spawn(node.lives.create(SandboxSpec(job="a"), wait_s=600))
        await settle()
        with pytest.raises(Overloaded) as caught:
            await node.lives.create(SandboxSpec(), tenant="one")
        assert caught.value.fields["limit"] == "sandboxes_per_owner"
        await node.lives.create(SandboxSpec(), tenant="two")
        await node.lives.delete(loose)
        await until(waiting.done)
    async with stand.alive(limits=limits) as node:  # a restart knows whose they are
        with pytest.raises(Overloaded):
            await node.lives.create(SandboxSpec(), tenant="one")
        await node.lives.create(SandboxSpec(), tenant="two")


@pytest.mark.parametrize("every", [0.5, 2.0, 10.0])
def test_rate_that_was_just_begun_is_of_the_time_that_it_has_seen(every) -> None:
    now = 100.0
    rate = Rate(lambda: now, 60.0)
    assert rate.per_second() == 0.0
    for number in range(1, 61):
        now += every
        rate.note()
        if number * every >= 10.0:  # an event just now counts whole
            assert 1.0 <= rate.per_second() * every <= 1.0 + 1.1 * every / min(number * every, 60)
    now += 600.0
    assert rate.per_second() < 1e-4


@pytest.mark.parametrize("limited", ["token", "job"])
async def test_who_waits_at_a_limit_of_its_own_is_told_how_long_that_takes(
    stand, manual, limited
) -> None:
    limits = Limits(sandboxes_per_owner_max=2 if limited == "token" else 0, **FREE)
    async with stand.alive(limits=limits) as node:
        burst = make(node, "burst", owner="one", sandboxes_max=2 if limited == "job" else None)
        beside = make(node, "beside", owner="one", sandboxes_max=1 if limited == "job" else None)
        make(node, "another", owner="two")
        live = [await node.lives.create(SandboxSpec(job="burst")) for _ in range(2)]
        if limited == "job":
            await node.lives.create(SandboxSpec(job="beside"))
        waiting = {
            name: [
                node.tasks.spawn(node.lives.create(SandboxSpec(job=name), wait_s=600))
                for _ in range(4)
            ]
            for name in ("burst", "beside")
        }
        await settle()
        assert queue_of(node, burst).estimate_s is None  # nothing has ended: nobody can tell
        for _ in range(3):  # what ends of others says nothing
            await node.lives.delete(await node.lives.create(SandboxSpec(job="another")))
        assert queue_of(node, burst).estimate_s is None
        await node.lives.delete(live[0])
        await until(waiting["burst"][0].done)
        queue = queue_of(node, burst)
        assert queue.limit == ("sandboxes_per_owner" if limited == "token" else "sandboxes_per_job")
        assert queue.per_second == pytest.approx(0.2, abs=0.001)  # of five seconds at least
        places = [item.position for item in queue.items]
        assert places == ([1, 3, 5] if limited == "token" else [1, 2, 3])
        assert [item.estimate_s for item in queue.items] == [5.0 * place for place in places]
        other = queue_of(node, beside).estimate_s
        assert other == (5.0 * 7 if limited == "token" else None)  # 3 of the burst come between
        for job in (burst, beside):
            await node.keeping.end(job, "done", delete=True)


async def test_tokens_are_told_apart_over_tcp(stand) -> None:
    tokens = ("a" * 32, "b" * 32)
    limits = Limits(sandboxes_per_owner_max=1, **FREE)
    async with stand.serving(tcp="127.0.0.1:0", tokens=tokens, limits=limits) as (_, api):
        host, port = api.tcp
        async with (
            connect(f"http://{host}:{port}", tokens[0]) as one,
            connect(f"http://{host}:{port}", tokens[1]) as two,
        ):
            jobs = [await one.jobs.create("x"), await two.jobs.create("y")]
            owners = {(await job.info()).owner for job in jobs}
            assert len(owners) == 2
            assert not any(token in owner for token in tokens for owner in owners)
            made = [await job.sandboxes.create() for job in jobs]
            with pytest.raises(Overloaded) as caught:
                await one.sandboxes.create(wait=0)
            assert caught.value.fields["limit"] == "sandboxes_per_owner"
            # In a job it counts for the token whose job that is, whoever asks.
            with pytest.raises(Overloaded):
                await two.sandboxes.create(job="x", wait=0)
            await made[0].destroy()
            await two.sandboxes.create(job="x", wait=0)
            for job in jobs:
                await job.end()


async def test_more_than_a_limit_of_its_own_will_never_fit_all_or_nothing(stand) -> None:
    async with stand.alive() as node:
        make(node, "small", sandboxes_max=2)
        body = BatchCreate(
            spec=SandboxSpec(job="small", key="k"), count=3, all_or_nothing=True, wait_s=60
        )
        with pytest.raises(Overloaded) as caught:
            await node.batches.create(body, owner=None)
        assert caught.value.fields["wanted"] == 3
        assert nothing_left(stand, node)


async def test_freed_places_go_to_the_job_of_higher_priority_of_the_same_token(
    stand, manual
) -> None:
    async with stand.alive(limits=Limits(sandboxes_max=3, **FREE)) as node:
        make(node, "low", owner="one")
        make(node, "high", owner="one", priority=5)
        make(node, "other", owner="two", priority=-5)
        live = [await node.lives.create(SandboxSpec(job="low")) for _ in range(3)]
        waiting = {
            name: [
                node.tasks.spawn(node.lives.create(SandboxSpec(job=name), wait_s=600))
                for _ in range(4)
            ]
            for name in ("low", "high", "other")
        }
        await settle()
        for one in live:
            await node.lives.delete(one)
        every = [task for tasks in waiting.values() for task in tasks]
        await until(lambda: sum(task.done() for task in every) == 3)
        came = {name: sum(task.done() for task in tasks) for name, tasks in waiting.items()}
        assert came == {"low": 0, "high": 2, "other": 1}  # its turns, and none of another token


async def test_eight_thousand_at_once_come_as_room_allows_and_in_order(stand) -> None:
    limits = Limits(sandboxes_max=20, **FREE)
    async with stand.alive(limits=limits) as node:
        job = make(node, "burst")
        spec = SandboxSpec(job="burst", key="k")
        batch = node.batches.open(BatchCreate(spec=spec, count=8000, wait_s=3600), owner=None)
        came: list[int] = []

        async def tell(index, item) -> None:
            if item.error is None:
                came.append(index)

        running = asyncio.ensure_future(node.batches.run(batch, tell))
        await until(lambda: len(came) == 20)
        await settle()
        queue = queue_of(node, job)
        assert (queue.waiting, queue.limit) == (7980, "sandboxes")
        single, rest = queue.items[:-1], queue.items[-1]
        assert [item.key for item in single] == [f"k/{20 + number}" for number in range(16)]
        assert [item.position for item in single] == list(range(1, 17))
        assert (rest.key, rest.count, rest.position, rest.last) == ("k", 7964, 17, 7980)
        assert queue.estimate_s == pytest.approx(7980 / queue.per_second, rel=0.01)
        assert node.keeping.info(job).waiting == 7980
        for index in range(60):
            await node.lives.delete(node.sandboxes.by_key[f"k/{index}"])
            await until(lambda wanted=21 + index: len(came) == wanted, pause_s=0.001)
        assert sorted(came) == list(range(80))
        assert all(abs(index - place) < 16 for place, index in enumerate(came))
        batch.leave()
        with pytest.raises(Unavailable, match="gone"):
            await running
        await node.keeping.end(job, "done", delete=True)
        assert nothing_left(stand, node)
        assert not node.admission.expected


async def test_second_job_is_not_behind_all_of_the_first(stand) -> None:
    async with stand.alive(limits=Limits(sandboxes_max=1, **FREE)) as node:
        make(node, "big")
        small = make(node, "small")
        await node.lives.create(SandboxSpec(job="big"))
        batch = BatchCreate(spec=SandboxSpec(job="big", key="k"), count=1000, wait_s=3600)
        open_ = node.batches.open(batch, owner=None)

        async def tell(index, item) -> None:
            pass

        running = asyncio.ensure_future(node.batches.run(open_, tell))
        await settle()
        waiting = [
            node.tasks.spawn(node.lives.create(SandboxSpec(job="small"), wait_s=600))
            for _ in range(3)
        ]
        await settle()
        assert [item.position for item in queue_of(node, small).items] == [1, 3, 5]
        for name in ("big", "small"):
            await node.keeping.end(node.jobs.get(name), "done", delete=True)
        open_.leave()
        await asyncio.gather(running, *waiting, return_exceptions=True)


async def test_create_that_waits_in_several_requests_keeps_its_place(stand, monkeypatch) -> None:
    monkeypatch.setattr("skerry.sdk.making.SERVER_WAIT_S", 0.2)
    limits = Limits(sandboxes_max=1, **FREE)
    async with stand.serving(limits=limits) as (node, _), sandboxes_of(node) as sandboxes:
        live = await sandboxes.create()
        order: list[int] = []

        async def one(number: int) -> None:
            async with await sandboxes.create(wait=60):
                order.append(number)

        creates = []
        for number in range(4):
            creates.append(asyncio.create_task(one(number)))
            await until(lambda wanted=number + 1: node.admission.waiting == wanted)
        refused = node.admission.refused
        await until(lambda: refused["sandboxes"] >= 12)  # each has asked several times
        monkeypatch.setattr("skerry.sdk.making.SERVER_WAIT_S", 60.0)

        def all_wait_on() -> bool:  # none is just between two requests
            waits = node.admission.line(Holder()).waits
            soon = node.timers.now() + 30
            return len(waits) == 4 and all(wait.timer.deadline > soon for wait in waits)

        await until(all_wait_on)
        await live.destroy()
        await asyncio.gather(*creates)
        assert order == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("others", "mine", "number", "place"),
    [
        ([], Flow("me", 5), 3, 3),
        ([Flow("a", 100)], Flow("me", 5), 3, 5),
        ([Flow("a", 1)], Flow("me", 5), 3, 4),
        ([Flow("a", 100, weight=3)], Flow("me", 5), 3, 9),
        ([Flow("a", 100, "t", 1)], Flow("me", 5, "t", 0), 1, 101),
        ([Flow("a", 100, "t", 0)], Flow("me", 5, "t", 1), 3, 3),
        ([Flow("a", 100, "t", 1), Flow("b", 1000, "u")], Flow("me", 5, "t", 0), 1, 151),
    ],
)
def test_position_counts_the_turns_of_others(others, mine, number, place) -> None:
    assert position(others, mine, number) == place
