"""Jobs: whose sandboxes are whose, and what becomes of them as the trainer goes and comes back."""

from __future__ import annotations

import asyncio

import pytest
from node_stand import FREE, ManualClock, nothing_left, settle

from skerry.errors import Conflict, InvalidRequest, NotFound, Overloaded
from skerry.node.config import Limits
from skerry.node.node import Node
from skerry.spec.command import CommandSpec
from skerry.spec.job import JobSpec, JobState, OnLost, Resume
from skerry.spec.sandbox import SandboxSpec, State
from skerry.testing.fake import FakeBackend, FakeInstance
from skerry.wire.jobs import JobChange
from waiting import until

IN_JOB = SandboxSpec(job="train")


def make(node: Node, **spec):
    return node.keeping.make(JobSpec(**({"id": "train"} | spec)), owner="")


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


async def begin(node: Node, sandbox) -> object:
    return await node.operations.start(sandbox, None, CommandSpec(shell="sleep 1000"))


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


async def test_restart_gives_the_lease_its_full_term_and_forgets_nothing(stand, manual) -> None:
    async with stand.alive() as node:
        make(node, lease_s=60, grace_s=30, labels={"a": "b"})
        ours = await node.lives.create(IN_JOB)
        await manual.advance(59)
    await manual.advance(1000)  # the node is away, and so is the trainer
    async with stand.alive() as node:
        job = node.jobs.get("train")
        assert list(job.sandboxes) == [ours.id]
        assert job.spec.labels == {"a": "b"}
        await manual.advance(59)
        assert job.state is JobState.ACTIVE
        await manual.advance(40)
        assert node.sandboxes.get(ours.id).state is State.PAUSED
    async with stand.alive() as node:  # paused by its loss, and still so
        job = node.jobs.get("train")
        assert job.state is JobState.PAUSED
        assert node.sandboxes.get(ours.id).paused_by == "loss"
        with pytest.raises(Overloaded):
            await node.lives.create(IN_JOB)
        node.keeping.heartbeat(job)
        await (await node.keeping.resume(job)).until_over()
        assert node.sandboxes.get(ours.id).state is State.RUNNING


async def test_lease_begins_when_a_long_recovery_has_ended(stand, manual, monkeypatch) -> None:
    async with stand.alive() as node:
        make(node, lease_s=60, grace_s=0)
        await node.lives.create(IN_JOB)
    before = FakeBackend.recover

    async def recover(self, record):
        await manual.advance(100)  # nobody is served meanwhile
        return await before(self, record)

    monkeypatch.setattr(FakeBackend, "recover", recover)
    async with stand.alive() as node:
        job = node.jobs.get("train")
        await manual.advance(59)
        assert job.lost_since is None
        await manual.advance(2)
        assert job.lost_since is not None


async def test_end_that_a_restart_cut_short_is_finished(stand, manual) -> None:
    async with stand.alive() as node:
        ended, removed = make(node), make(node, id="other")
        ours = await node.lives.create(IN_JOB)
        theirs = await node.lives.create(SandboxSpec(job="other"))
        node.jobs.end(ended, "its ttl is over", delete=False)  # and no more: it is killed here
        node.jobs.end(removed, "it was removed", delete=True)
    async with stand.alive() as node:
        await until(lambda: node.sandboxes.get(ours.id).state is State.STOPPED)
        await until(lambda: "other" not in node.jobs.by_id)
        assert node.jobs.get("train").reason == "its ttl is over"
        assert node.sandboxes.find(theirs.id) is None


async def test_ttl_counts_the_time_in_which_the_node_was_away_and_no_clock_that_was_set(
    stand, manual, monkeypatch
) -> None:
    async with stand.alive() as node:
        make(node, lease_s=600, ttl_s=1000)
        ours = await node.lives.create(IN_JOB)
        await manual.advance(100)
    monkeypatch.setattr(ManualClock, "wall", lambda self: 4e9 + self.now)  # set to a far future
    await manual.advance(100)
    async with stand.alive() as node:
        job = node.jobs.get("train")
        assert node.sandboxes.get(ours.id).state is State.RUNNING
        await manual.advance(790)
        node.keeping.heartbeat(job)
        assert not job.ended
        await manual.advance(11)
        assert job.ended


async def test_lease_does_not_end_for_the_time_in_which_the_node_itself_stood_still(
    stand, manual
) -> None:
    async with stand.alive() as node:
        job = make(node, lease_s=60, grace_s=0)
        manual.now += 300  # it was stopped: timers come late, and heartbeats lie unread
        await manual.advance(0.01)
        assert job.state is JobState.ACTIVE
        await manual.advance(59)
        assert job.state is JobState.ACTIVE
        await manual.advance(2)
        assert job.state is JobState.PAUSED  # nobody was there after all


async def test_sandbox_whose_job_is_not_on_record_gets_one_and_outlives_nobody(
    stand, manual
) -> None:
    async with stand.alive() as node:
        make(node)
        ours = await node.lives.create(IN_JOB)
        node.ledger.forget("job:train")
    async with stand.alive() as node:
        job = node.jobs.get("train")
        assert list(job.sandboxes) == [ours.id]
        await manual.advance(job.spec.lease_s + job.spec.grace_s + 1)
        assert node.sandboxes.get(ours.id).state is State.PAUSED


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


async def test_job_can_be_changed_while_it_lives_and_a_restart_knows(stand, manual) -> None:
    async with stand.alive() as node:
        job = make(node, lease_s=60, ttl_s=100, sandboxes_max=1, labels={"a": "1", "b": "2"})
        await node.lives.create(IN_JOB)
        waiting = node.tasks.spawn(node.lives.create(IN_JOB, wait_s=600))
        await manual.advance(50)
        assert not waiting.done()
        change = JobChange(ttl_s=1000, sandboxes_max=2, lease_s=500, labels={"a": None, "c": "3"})
        node.keeping.change(job, change)
        await until(waiting.done)
        assert job.spec.labels == {"b": "2", "c": "3"}
        await manual.advance(11)  # it was no heartbeat
        assert job.state is JobState.AWAY
        again = make(node, lease_s=60, ttl_s=100, sandboxes_max=1, labels={"a": "1", "b": "2"})
        assert again is job
        with pytest.raises(InvalidRequest, match="lease"):
            node.keeping.change(job, JobChange(lease_s=0.0))
    async with stand.alive() as node:
        job = node.jobs.get("train")
        await manual.advance(499)
        assert job.state is JobState.ACTIVE
        with pytest.raises(Overloaded) as caught:
            await node.lives.create(IN_JOB)
        assert caught.value.fields["maximum"] == 2
        node.keeping.heartbeat(job)
        node.keeping.change(job, JobChange(ttl_s=None, sandboxes_max=None))
        await node.lives.create(IN_JOB)
        await manual.advance(499)
        node.keeping.heartbeat(job)
        await manual.advance(499)
        assert job.state is JobState.ACTIVE
        await node.keeping.end(job, "done", delete=False)
        with pytest.raises(Conflict):
            node.keeping.change(job, JobChange(ttl_s=5))
