"""Leases of jobs: what becomes of the sandboxes as the trainer goes and comes back."""

from __future__ import annotations

import asyncio

import pytest
from job_stand import IN_JOB, begin, make
from node_stand import FREE, settle

from skerry.errors import Conflict
from skerry.node.config import Limits
from skerry.spec.command import CommandSpec
from skerry.spec.job import JobState, OnLost, Resume
from skerry.spec.sandbox import SandboxSpec, State
from skerry.testing.fake import FakeInstance
from waiting import until


async def test_lost_trainer_leaves_its_sandboxes_paused_after_lease_and_grace(
    stand, manual
) -> None:
    async with stand.alive() as node:
        job = make(node, lease_s=60, grace_s=30)
        ours, other = await node.lives.create(IN_JOB), await node.lives.create(SandboxSpec())
        await manual.advance(59)
        assert job.state is JobState.ACTIVE
        await manual.advance(2)
        assert (job.state, ours.state) == (JobState.AWAY, State.RUNNING)
        assert node.keeping.info(job).lost_since == pytest.approx(manual.wall() - 1, abs=0.1)
        await manual.advance(30)
        assert (job.state, ours.state) == (JobState.PAUSED, State.PAUSED)
        assert other.state is State.RUNNING
        info = node.keeping.info(job)
        assert (info.paused_by, info.lease_expires, info.sandboxes) == ("loss", None, {"paused": 1})


async def test_loss_pauses_what_somebody_is_connected_to_as_well(stand, manual) -> None:
    async with stand.alive() as node:
        make(node, lease_s=5, grace_s=5)
        ours = await node.lives.create(IN_JOB)
        with ours.active_while(node.clock):  # a forward that is open
            await manual.advance(11)
            assert ours.state is State.PAUSED


async def test_heartbeats_keep_a_job_for_ever(stand, manual) -> None:
    async with stand.alive() as node:
        job = make(node, lease_s=60, grace_s=0)
        ours = await node.lives.create(IN_JOB)
        for _ in range(100):
            await manual.advance(50)
            node.keeping.heartbeat(job)
        assert (job.state, ours.state) == (JobState.ACTIVE, State.RUNNING)
        assert len(node.timers) < 10


async def test_job_that_was_never_heard_of_again_is_lost_as_well(stand, manual) -> None:
    async with stand.alive() as node:
        job = make(node, lease_s=5, grace_s=5, on_lost=OnLost.STOP)
        ours = await node.lives.create(IN_JOB)
        await manual.advance(11)
        assert (job.state, job.reason) == (JobState.ENDED, "its lease ran out")
        assert ours.state is State.STOPPED
        with pytest.raises(Conflict, match="its lease ran out"):
            node.keeping.heartbeat(job)


async def test_job_that_keeps_its_sandboxes_ends_when_nobody_comes_back(stand, manual) -> None:
    limits = Limits(job_away_s_max=3600, **FREE)
    async with stand.alive(limits=limits) as node:
        job = make(node, lease_s=5, grace_s=5, on_lost=OnLost.KEEP)
        ours = await node.lives.create(IN_JOB)
        await manual.advance(3600)
        assert (job.state, ours.state) == (JobState.AWAY, State.RUNNING)
        await manual.advance(10)
        assert (job.state, ours.state) == (JobState.ENDED, State.STOPPED)
        assert "stayed away" in str(ours.reason)


async def test_what_a_request_set_going_is_paused_again_while_the_trainer_is_away(
    stand, manual
) -> None:
    async with stand.alive() as node:
        make(node, lease_s=5, grace_s=20)
        ours = await node.lives.create(IN_JOB)
        await manual.advance(26)
        assert ours.state is State.PAUSED
        await node.operations.run(ours, None, CommandSpec(shell="echo hi"))
        assert ours.state is State.RUNNING
        await manual.advance(15)
        assert ours.state is State.RUNNING
        await manual.advance(30)
        assert ours.state is State.PAUSED


# -- and comes back -------------------------------------------------------------------------------


@pytest.mark.parametrize(("resume", "all_go_on"), [(Resume.LAZY, False), (Resume.ALL, True)])
async def test_return_resumes_what_the_loss_has_paused_and_nothing_else(
    stand, manual, resume, all_go_on
) -> None:
    async with stand.alive() as node:
        job = make(node, lease_s=5, grace_s=5, resume=resume)
        idle, busy, before = [await node.lives.create(IN_JOB) for _ in range(3)]
        await begin(node, busy)
        await node.control.pause(before)  # by its user
        await manual.advance(11)
        assert {one.state for one in (idle, busy, before)} == {State.PAUSED}
        node.keeping.heartbeat(job)
        await until(lambda: busy.state is State.RUNNING and job.move is None)
        assert job.state is JobState.ACTIVE
        assert idle.state is (State.RUNNING if all_go_on else State.PAUSED)
        assert before.state is State.PAUSED
        await node.operations.run(idle, None, CommandSpec(shell="true"))
        assert (idle.state, idle.paused_by) == (State.RUNNING, "")


async def test_return_in_the_middle_of_the_pause_overtakes_it(stand, manual, monkeypatch) -> None:
    gate = asyncio.Event()
    before = FakeInstance.pause

    async def pause(self):
        await gate.wait()
        return await before(self)

    monkeypatch.setattr(FakeInstance, "pause", pause)
    async with stand.alive() as node:
        job = make(node, lease_s=5, grace_s=5, resume=Resume.ALL)
        made = [await node.lives.create(IN_JOB) for _ in range(40)]
        await manual.advance(10.5)
        assert job.move is not None
        node.keeping.heartbeat(job)
        gate.set()
        await until(lambda: {one.state for one in made} == {State.RUNNING})
        assert job.state is JobState.ACTIVE
        await until(lambda: job.move is None)


async def test_return_within_the_grace_changes_nothing(stand, manual) -> None:
    async with stand.alive() as node:
        job = make(node, lease_s=5, grace_s=5)
        ours = await node.lives.create(IN_JOB)
        await manual.advance(9)
        node.keeping.heartbeat(job)
        await manual.advance(4.9)
        assert (job.state, ours.state) == (JobState.ACTIVE, State.RUNNING)


async def test_pause_that_was_asked_for_outlives_the_loss_and_the_return(stand, manual) -> None:
    async with stand.alive() as node:
        job = make(node, lease_s=5, grace_s=5, resume=Resume.ALL)
        ours = await node.lives.create(IN_JOB)
        await (await node.keeping.pause(job)).until_over()
        await manual.advance(20)
        node.keeping.heartbeat(job)
        await settle()
        assert (job.state, ours.state) == (JobState.PAUSED, State.PAUSED)
        await (await node.keeping.resume(job)).until_over()
        assert (job.state, ours.state) == (JobState.ACTIVE, State.RUNNING)
