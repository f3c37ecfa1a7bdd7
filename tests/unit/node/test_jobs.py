"""Jobs: whose sandboxes are whose, from the job's making to its end."""

from __future__ import annotations

import pytest
from job_stand import IN_JOB, make
from node_stand import FREE, nothing_left, settle

from skerry.errors import Conflict, InvalidRequest, NotFound, Overloaded
from skerry.node.config import Limits
from skerry.spec.job import JobSpec, JobState
from skerry.spec.sandbox import SandboxSpec, State
from skerry.testing.fake import FakeBackend


async def test_sandbox_of_a_job_belongs_to_it_and_to_no_connection(stand, manual) -> None:
    async with stand.alive(embedded=True) as node:
        owner = node.owners.connect(None)
        job = make(node)
        ours = await node.lives.create(IN_JOB, owner=owner.name)
        theirs = await node.lives.create(SandboxSpec(), owner=owner.name)
        assert (ours.owner, list(job.sandboxes)) == (None, [ours.id])
        node.owners.disconnect(owner, orderly=True)
        await settle()
        assert (ours.gone, theirs.gone) == (False, True)
        assert stand.world.instances[ours.id].request.detached
        await node.lives.delete(ours)
        assert job.sandboxes == {}


async def test_create_in_a_job_that_there_is_not_or_no_more_is_the_callers_mistake(stand) -> None:
    async with stand.alive() as node:
        with pytest.raises(NotFound, match="train"):
            await node.lives.create(IN_JOB)
        job = make(node)
        await node.keeping.end(job, "its ttl is over", delete=False)
        with pytest.raises(Conflict, match="its ttl is over"):
            await node.lives.create(IN_JOB)
        assert nothing_left(stand, node)


async def test_job_is_made_once_and_an_id_names_one_job(stand, manual) -> None:
    async with stand.alive() as node:
        job = make(node, lease_s=10)
        await manual.advance(8)
        assert make(node, lease_s=10) is job  # and its lease has its full term again
        await manual.advance(8)
        assert job.state is JobState.ACTIVE
        with pytest.raises(Conflict, match="another spec"):
            make(node, lease_s=11)
        with pytest.raises(InvalidRequest):
            make(node, id="../x")
        await node.keeping.end(job, "it was removed", delete=True)
        assert make(node, lease_s=11) is not job


async def test_number_of_jobs_is_bounded_in_all_and_for_each_token(stand) -> None:
    limits = Limits(jobs_max=3, jobs_per_owner_max=2, **FREE)
    async with stand.alive(limits=limits) as node:
        for name in "ab":
            node.keeping.make(JobSpec(id=name), owner="one")
        with pytest.raises(Overloaded) as caught:
            node.keeping.make(JobSpec(id="c"), owner="one")
        assert caught.value.fields["limit"] == "jobs_per_owner"
        other = node.keeping.make(JobSpec(id="c"), owner="two")
        with pytest.raises(Overloaded) as caught:
            node.keeping.make(JobSpec(id="d"), owner="two")
        assert caught.value.fields["limit"] == "jobs"
        await node.keeping.end(other, "done", delete=False)
        node.keeping.make(JobSpec(id="d"), owner="two")


# -- the trainer is lost --------------------------------------------------------------------------


async def test_create_in_a_paused_job_waits_until_it_goes_on(stand, manual) -> None:
    async with stand.alive() as node:
        job = make(node, lease_s=5, grace_s=5)
        await manual.advance(11)
        with pytest.raises(Overloaded) as caught:
            await node.lives.create(IN_JOB)
        assert caught.value.fields["limit"] == "job_paused"
        made = node.tasks.spawn(node.lives.create(IN_JOB, wait_s=600))
        other = await node.lives.create(SandboxSpec())  # is held up by nobody
        assert other.state is State.RUNNING
        await manual.advance(60)
        assert not made.done()
        assert node.keeping.info(job).waiting == 1
        node.keeping.heartbeat(job)
        await settle()
        assert (await made).state is State.RUNNING


# -- time and restarts ----------------------------------------------------------------------------


async def test_ttl_of_a_job_stops_all_of_it_however_alive_its_trainer_is(stand, manual) -> None:
    async with stand.alive() as node:
        job = make(node, lease_s=60, ttl_s=100)
        ours, paused = [await node.lives.create(IN_JOB) for _ in range(2)]
        await node.control.pause(paused)
        for _ in range(3):
            await manual.advance(33)
            node.keeping.heartbeat(job)
        assert ours.state is State.RUNNING
        await manual.advance(2)
        assert (job.state, ours.state, paused.state) == (
            JobState.ENDED,
            State.STOPPED,
            State.STOPPED,
        )
        assert ours.lost  # nobody inside is to blame
        assert ours.reason == "its job ended: its ttl is over"
        assert node.metrics.ends == {"job": 2}
        with pytest.raises(Conflict, match="ttl"):
            node.keeping.heartbeat(job)


async def test_idle_timer_stands_still_while_paused_and_a_ttl_of_its_own_does_not(
    stand, manual
) -> None:
    async with stand.alive() as node:
        job = make(node, lease_s=3600)
        idle = await node.lives.create(SandboxSpec(job="train", idle_timeout_s=60))
        short = await node.lives.create(SandboxSpec(job="train", ttl_s=500))
        await manual.advance(50)
        await (await node.keeping.pause(job)).until_over()
        await manual.advance(1000)
        assert (idle.state, short.state) == (State.PAUSED, State.STOPPED)
        await (await node.keeping.resume(job)).until_over()
        await manual.advance(59)
        assert idle.state is State.RUNNING
        await manual.advance(2)
        assert idle.state is State.STOPPED


async def test_remove_destroys_all_of_a_job_and_what_waits_in_it(stand, manual) -> None:
    async with stand.alive(limits=Limits(sandboxes_max=2, **FREE)) as node:
        job = make(node)
        for _ in range(2):
            await node.lives.create(IN_JOB)
        waiting = node.tasks.spawn(node.lives.create(IN_JOB, wait_s=60))
        await settle()
        assert node.keeping.info(job).waiting == 1
        await node.keeping.end(job, "it was removed", delete=True)
        with pytest.raises(Exception, match="deleted"):
            await waiting
        assert nothing_left(stand, node)
        assert "train" not in node.jobs.by_id


@pytest.mark.parametrize("paused", [True, False], ids=["paused", "full"])
async def test_end_of_a_job_lets_nothing_in_that_waits_in_it(
    stand, manual, monkeypatch, paused
) -> None:
    made, create = [], FakeBackend.create

    async def creating(self, request):
        made.append(request.instance_id)
        return await create(self, request)

    monkeypatch.setattr(FakeBackend, "create", creating)
    limits = Limits(sandboxes_max=100 if paused else 3, **FREE)
    async with stand.alive(limits=limits) as node:
        job = make(node)
        for _ in range(3):
            await node.lives.create(IN_JOB)
        if paused:
            await (await node.keeping.pause(job)).until_over()
        waiting = [node.tasks.spawn(node.lives.create(IN_JOB, wait_s=600)) for _ in range(5)]
        await settle()
        assert node.keeping.info(job).waiting == 5
        await node.keeping.end(job, "it was removed", delete=True)
        for one in waiting:
            with pytest.raises(Exception, match="deleted"):
                await one
        assert len(made) == 3
        assert nothing_left(stand, node)
        assert make(node).state is JobState.ACTIVE  # the name is free, and holds nothing up
        assert (await node.lives.create(IN_JOB)).state is State.RUNNING


async def test_fork_of_a_sandbox_of_a_job_is_of_that_job(stand) -> None:
    from skerry.wire.commits import ForkBody

    async with stand.alive() as node:
        job = make(node)
        ours = await node.lives.create(IN_JOB)
        batch = node.forks.open(ours, ForkBody(count=2), owner=None, tenant="")
        result = await node.forks.collect(ours, batch)
        members = {item.info.id for item in result.items if item.info is not None}
        assert set(job.sandboxes) == {ours.id, *members}
        assert len(members) == 2
