"""Pauses and resumes of a whole job: order, progress, bounds, cancellation, what fails."""

from __future__ import annotations

import asyncio

import pytest
from node_stand import settle

from skerry.errors import Conflict, Unavailable
from skerry.node.jobs.moves import AT_ONCE
from skerry.node.node import Node
from skerry.spec.command import CommandSpec
from skerry.spec.job import JobSpec, JobState
from skerry.spec.sandbox import SandboxSpec, State
from skerry.testing.fake import FakeInstance
from waiting import until

IN_JOB = SandboxSpec(job="train")


async def job_of(node: Node, count: int):
    job = node.keeping.make(JobSpec(id="train", lease_s=3600), owner="")
    return job, [await node.lives.create(IN_JOB) for _ in range(count)]


@pytest.fixture
def paused(monkeypatch) -> list[str]:
    """The ids of instances in the order in which they were paused."""
    order: list[str] = []
    before = FakeInstance.pause

    async def pause(self):
        order.append(self.request.instance_id)
        return await before(self)

    monkeypatch.setattr(FakeInstance, "pause", pause)
    return order


async def test_all_are_paused_the_longest_idle_first_and_told_one_by_one(
    stand, manual, paused
) -> None:
    async with stand.alive() as node:
        job, made = await job_of(node, 5)
        for index in (3, 1, 4, 0, 2):
            await manual.advance(1)
            await node.operations.run(made[index], None, CommandSpec(shell="true"))
        move = await node.keeping.pause(job)
        steps = [step async for step in move.listen()]
        assert paused == [made[index].id for index in (3, 1, 4, 0, 2)]
        assert [step.done for step in steps] == [0, 1, 2, 3, 4, 5, 5]
        assert [step.sandbox for step in steps[1:-1]] == paused
        end = steps[-1].end
        assert (end.total, end.done, end.failed, end.cancelled) == (5, 5, (), False)
        assert node.keeping.info(job).sandboxes == {"paused": 5}


async def test_no_more_than_a_bounded_number_is_paused_at_once(stand, monkeypatch) -> None:
    under_way = most = 0
    before = FakeInstance.pause

    async def pause(self):
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await settle(3)
        under_way -= 1
        return await before(self)

    monkeypatch.setattr(FakeInstance, "pause", pause)
    async with stand.alive() as node:
        job, made = await job_of(node, AT_ONCE + 20)
        end = await (await node.keeping.pause(job)).until_over()
        assert end.done == len(made)
        assert most == AT_ONCE


async def test_resume_begins_with_those_that_have_work_then_the_last_used(
    stand, manual, monkeypatch
) -> None:
    order: list[str] = []
    before = FakeInstance.resume

    async def resume(self):
        order.append(self.request.instance_id)
        await before(self)

    async with stand.alive() as node:
        job, made = await job_of(node, 4)
        await node.operations.start(made[2], None, CommandSpec(shell="sleep 1000"))
        for index in (1, 3, 0):
            await manual.advance(1)
            await node.operations.run(made[index], None, CommandSpec(shell="true"))
        await (await node.keeping.pause(job)).until_over()
        monkeypatch.setattr(FakeInstance, "resume", resume)
        end = await (await node.keeping.resume(job)).until_over()
        assert order == [made[index].id for index in (2, 0, 3, 1)]
        assert (end.done, job.state) == (4, JobState.ACTIVE)


async def test_pause_asked_twice_is_one_and_a_second_one_finds_all_paused(stand, paused) -> None:
    async with stand.alive() as node:
        job, _ = await job_of(node, 40)
        first, second = await asyncio.gather(node.keeping.pause(job), node.keeping.pause(job))
        assert first is second
        assert (await first.until_over()).done == 40
        again = await (await node.keeping.pause(job)).until_over()
        assert (again.done, len(paused)) == (40, 40)


async def test_sandbox_that_cannot_be_paused_is_named_and_holds_up_no_other(
    stand, monkeypatch
) -> None:
    async with stand.alive() as node:
        job, made = await job_of(node, 6)
        before = FakeInstance.pause

        async def pause(self):
            if self.request.instance_id == made[2].id:
                raise Unavailable("the launcher is away")
            return await before(self)

        monkeypatch.setattr(FakeInstance, "pause", pause)
        move = await node.keeping.pause(job)
        end = await move.until_over()
        assert (end.done, [one.sandbox for one in end.failed]) == (5, [made[2].id])
        assert end.failed[0].error.message == "the launcher is away"
        assert [step.error is not None for step in move.steps].count(True) == 1
        assert (made[2].state, made[2].paused_by) == (State.RUNNING, "")
        end = await (await node.keeping.resume(job)).until_over()
        assert (end.total, made[2].state) == (5, State.RUNNING)


async def test_cancelled_pause_stops_where_it_is_and_a_resume_takes_it_back(
    stand, monkeypatch
) -> None:
    gate, begun = asyncio.Event(), 0
    before = FakeInstance.pause

    async def pause(self):
        nonlocal begun
        begun += 1
        await gate.wait()
        return await before(self)

    monkeypatch.setattr(FakeInstance, "pause", pause)
    async with stand.alive() as node:
        job, _ = await job_of(node, AT_ONCE + 10)
        move = await node.keeping.pause(job)
        await settle()
        node.keeping.cancel(job, pausing=False)  # of the other kind: nothing
        assert not move.cancelled
        node.keeping.cancel(job, pausing=True)
        gate.set()
        end = await move.until_over()
        assert (end.done, end.left, end.cancelled, begun) == (AT_ONCE, 10, True, AT_ONCE)
        assert job.state is JobState.ACTIVE
        back = await (await node.keeping.resume(job)).until_over()
        assert (back.total, back.done) == (AT_ONCE, AT_ONCE)
        assert node.keeping.info(job).sandboxes == {"running": AT_ONCE + 10}


async def test_resume_overtakes_a_pause_that_is_under_way(stand, monkeypatch) -> None:
    before = FakeInstance.pause

    async def pause(self):
        await settle(2)
        return await before(self)

    monkeypatch.setattr(FakeInstance, "pause", pause)
    async with stand.alive() as node:
        job, made = await job_of(node, AT_ONCE + 10)
        pausing = await node.keeping.pause(job)
        await settle(1)
        end = await (await node.keeping.resume(job)).until_over()
        assert pausing.steps[-1].end.left > 0
        assert end.done == pausing.steps[-1].end.done
        assert {one.state for one in made} == {State.RUNNING}
        assert job.paused_by is None


async def test_last_one_asked_for_holds_whatever_came_before(stand, monkeypatch) -> None:
    before = FakeInstance.pause

    async def pause(self):
        await settle(1)
        return await before(self)

    monkeypatch.setattr(FakeInstance, "pause", pause)
    async with stand.alive() as node:
        job, made = await job_of(node, AT_ONCE + 5)
        for last in ("pause", "resume"):
            words = [*("pause", "resume") * 3, last]
            moves = []
            for word in words:
                moves.append(node.tasks.spawn(getattr(node.keeping, word)(job)))
                await settle(1)
            for move in await asyncio.gather(*moves):
                await move.until_over()
            wanted = State.PAUSED if last == "pause" else State.RUNNING
            assert {one.state for one in made} == {wanted}
            assert (job.paused_by is None) == (last == "resume")


async def test_what_is_being_made_is_paused_and_what_ended_is_nobodys_failure(
    stand, manual
) -> None:
    async with stand.alive() as node:
        job, made = await job_of(node, 2)
        stand.backend.knobs.slow_create_s = 5.0
        coming = node.tasks.spawn(node.lives.create(IN_JOB))
        await settle()
        await node.control.stop(made[0])
        move = await node.keeping.pause(job)
        await manual.advance(6)
        end = await move.until_over()
        assert (end.total, end.done, end.failed) == (2, 2, ())
        assert (await coming).state is State.PAUSED


async def test_pause_that_a_restart_cut_short_goes_on(stand, manual) -> None:
    async with stand.alive() as node:
        job, made = await job_of(node, 3)
        node.jobs.stand(job, "request", moving=True)  # and no more: the node is killed here
    async with stand.alive() as node:
        job = node.jobs.get("train")
        await until(lambda: job.move is None)
        assert {node.sandboxes.get(one.id).state for one in made} == {State.PAUSED}
        await settle()
    async with stand.alive() as node:  # what a request sets going is not paused by a restart
        job = node.jobs.get("train")
        one = node.sandboxes.get(made[0].id)
        await node.operations.run(one, None, CommandSpec(shell="true"))
    async with stand.alive() as node:
        await settle(200)
        assert node.sandboxes.get(made[0].id).state is State.RUNNING
        end = await (await node.keeping.resume(node.jobs.get("train"))).until_over()
        assert end.total == 2


async def test_orderly_end_of_the_node_tells_no_end_of_a_pause(stand, monkeypatch) -> None:
    """Else its client would take it for cancelled; the next start goes on with it."""
    gate = asyncio.Event()
    before = FakeInstance.pause

    async def pause(self):
        await gate.wait()
        return await before(self)

    async with stand.alive() as node:
        job, made = await job_of(node, 3)
        monkeypatch.setattr(FakeInstance, "pause", pause)
        move = await node.keeping.pause(job)
        await settle()
    assert not move.over
    gate.set()
    async with stand.alive() as node:
        await until(lambda: node.jobs.get("train").move is None)
        assert {node.sandboxes.get(one.id).state for one in made} == {State.PAUSED}
        assert node.sandboxes.get(made[0].id).paused_by == "request"


async def test_job_that_has_ended_is_neither_paused_nor_resumed(stand) -> None:
    async with stand.alive() as node:
        job, _ = await job_of(node, 1)
        await node.keeping.end(job, "its ttl is over", delete=False)
        for act in (node.keeping.pause, node.keeping.resume):
            with pytest.raises(Conflict, match="has ended"):
                await act(job)


async def test_end_overtakes_a_pause(stand, monkeypatch) -> None:
    before = FakeInstance.pause

    async def pause(self):
        await settle(2)
        return await before(self)

    monkeypatch.setattr(FakeInstance, "pause", pause)
    async with stand.alive() as node:
        job, _ = await job_of(node, AT_ONCE + 5)
        move = await node.keeping.pause(job)
        await settle(1)
        await node.keeping.end(job, "it was removed", delete=True)
        await move.until_over()
        assert len(node.sandboxes) == 0
        assert stand.world.instances == {}


async def test_client_that_goes_ends_no_pause_and_finds_it_again(stand) -> None:
    async with stand.serving() as (node, api):
        await api.call("POST", "/v1/jobs", {"id": "train"})
        for _ in range(3):
            await api.create(job="train")
        async with api.session.post("/v1/jobs/train/pause") as answer:
            assert answer.status == 200  # and it leaves without reading
        job = node.jobs.get("train")
        await until(lambda: job.move is None)
        assert (await api.call("GET", "/v1/jobs/train"))["sandboxes"] == {"paused": 3}
        assert len((await api.call("GET", "/v1/sandboxes?job=train"))["items"]) == 3
        assert (await api.call("GET", "/v1/sandboxes?job=other"))["items"] == []
        assert (await api.call("DELETE", "/v1/jobs/train/pause"))["state"] == "paused"
        await api.call("POST", "/v1/jobs/none/pause", status=404)
        await api.call("POST", "/v1/jobs", {"id": "x", "leases": 1}, status=422)
        assert (await api.call("DELETE", "/v1/jobs/train"))["state"] == "ended"
        assert (await api.call("DELETE", "/v1/jobs/train"))["state"] == "ended"
        assert await api.call("GET", "/v1/jobs?all=1") == []
