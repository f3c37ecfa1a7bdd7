"""Who waits at the door, who is next, and how a wait ends."""

from __future__ import annotations

import asyncio

import pytest
from node_stand import settle

from skerry.errors import Overloaded, Unavailable
from skerry.node.gauges.readings import Readings


async def test_freed_places_go_round_by_job(world) -> None:
    node = world(sandboxes_max=4)
    live = [node.admit() for _ in range(4)]
    waits = [("greedy", node.wait("greedy")) for _ in range(50)]
    waits += [("modest", node.wait("modest")) for _ in range(2)]
    for sandbox in live:
        node.door.release(sandbox)
    served = [job for job, wait in waits if wait.done.done()]
    assert sorted(served) == ["greedy", "greedy", "modest", "modest"]
    node.door.check_invariants()


async def test_job_with_a_weight_gets_that_many_places(world) -> None:
    node = world(sandboxes_max=40)
    live = [node.admit() for _ in range(40)]
    waits = [(job, node.wait(job)) for job in ("vip", "plain") for _ in range(60)]
    for sandbox in live:
        node.door.release(sandbox)
    served = [job for job, wait in waits if wait.done.done()]
    assert served.count("vip") == 30


async def test_nobody_overtakes_those_who_wait(world) -> None:
    node = world(sandboxes_max=1)
    first = node.admit()
    wait = node.wait()
    waiting = asyncio.create_task(node.door.until_admitted(wait))
    await settle(3)
    node.door.release(first)
    assert node.refused()["limit"] == "sandboxes"
    await waiting
    node.door.release(wait.claim.sandbox)
    node.admit()


async def test_wait_ends_with_the_limit_that_was_in_the_way(world, manual) -> None:
    node = world(sandboxes_max=1)
    node.admit()
    task = asyncio.create_task(node.door.until_admitted(node.wait(wait_s=10)))
    await manual.advance(9.9)
    assert not task.done()
    await manual.advance(0.2)
    with pytest.raises(Overloaded) as caught:
        await task
    assert caught.value.fields["limit"] == "sandboxes"
    assert node.door.waiting == 0


async def test_memory_that_comes_back_lets_in_who_waits(world, manual) -> None:
    node = world()
    node.readings = Readings(memory_available=0)
    task = asyncio.create_task(node.door.until_admitted(node.wait()))
    await manual.advance(5)
    assert not task.done()
    node.readings = Readings()
    await manual.advance(1)
    await task
    assert len(node.door._timers) == 0


@pytest.mark.parametrize("word", ["draining", "closing"])
async def test_node_that_drains_or_ends_sends_away_who_waits(world, word) -> None:
    node = world(sandboxes_max=1)
    first = node.admit()
    tasks = [asyncio.create_task(node.door.until_admitted(node.wait())) for _ in range(3)]
    await settle(3)
    setattr(node.door, word, True)
    for task in tasks:
        with pytest.raises(Unavailable) as caught:
            await task
        assert caught.value.fields["retry_after_s"] > 0
    node.door.release(first)
    with pytest.raises(Unavailable):
        node.door.ask(node.claim())
    setattr(node.door, word, False)
    node.admit()


async def test_client_that_goes_away_leaves_the_queue(world) -> None:
    node = world(sandboxes_max=1)
    first = node.admit()
    left = asyncio.Event()

    async def gone() -> None:
        await left.wait()

    waits = [node.wait(), node.wait()]
    tasks = [
        asyncio.create_task(node.door.until_admitted(waits[0], gone)),
        asyncio.create_task(node.door.until_admitted(waits[1])),
    ]
    await settle(3)
    left.set()
    with pytest.raises(Unavailable, match="went away"):
        await tasks[0]
    assert node.door.waiting == 1
    node.door.release(first)
    await tasks[1]


async def test_wait_that_is_cancelled_as_its_turn_comes_frees_the_room(world) -> None:
    node = world(sandboxes_max=1)
    first = node.admit()
    waits = [node.wait(), node.wait()]
    tasks = [asyncio.create_task(node.door.until_admitted(wait)) for wait in waits]
    await settle(3)
    node.door.release(first)  # to the first one, whose task is cancelled before it runs
    tasks[0].cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert tasks[1].done()
    assert list(node.door.claims.by_sandbox) == [waits[1].claim.sandbox]
    node.door.check_invariants()


async def test_queues_are_bounded_for_each_job_and_in_all(world) -> None:
    node = world(sandboxes_max=0, creates_waiting_max=10, creates_waiting_per_owner_max=4)
    for job in "abc":
        for _ in range(3):
            node.wait(job)
    node.wait("a")
    with pytest.raises(Overloaded) as caught:
        node.wait("b")
    assert caught.value.fields["limit"] == "creates_waiting"
    other = world(sandboxes_max=0, creates_waiting_max=10, creates_waiting_per_owner_max=4)
    for _ in range(4):
        other.wait("a")
    with pytest.raises(Overloaded) as caught:
        other.wait("a")
    assert caught.value.fields["limit"] == "creates_waiting_per_owner"
    other.wait("b")


async def test_places_for_creates_go_round_by_job_too(world) -> None:
    node = world(creates_in_flight_max=1)
    order: list[str] = []

    async def make(job: str) -> None:
        async with node.door.place(node.claim(job)):
            order.append(job)
            await asyncio.sleep(0)

    async with asyncio.TaskGroup() as group:
        for job in ["greedy"] * 20 + ["modest"]:
            group.create_task(make(job))
    assert order.index("modest") <= 2
    assert node.door.creating == 0
