"""Jobs over restarts of the node, and over what its clocks do."""

from __future__ import annotations

import pytest
from job_stand import IN_JOB, make
from node_stand import ManualClock

from skerry.errors import Conflict, InvalidRequest, Overloaded
from skerry.spec.job import JobState
from skerry.spec.sandbox import SandboxSpec, State
from skerry.testing.fake import FakeBackend
from skerry.wire.jobs import JobChange
from waiting import until


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
