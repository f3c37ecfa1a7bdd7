"""What happens to jobs: the trainer is lost or comes back, all is paused or goes on, it ends."""

from __future__ import annotations

import logging
from collections import Counter
from typing import TYPE_CHECKING, Final

from skerry.errors import SkerryError, StorageFailed
from skerry.node.admission.quotas import Terms
from skerry.node.admission.shortage import Shortage
from skerry.node.jobs.job import BY_LOSS, BY_REQUEST, Job
from skerry.node.jobs.moves import Move, each, to_pause, to_resume
from skerry.node.life.control import Control
from skerry.node.life.lives import Lives
from skerry.node.life.sandbox import ENDED, Sandbox
from skerry.node.parts import Parts
from skerry.spec.job import JobInfo, JobSpec, JobState, OnLost, Resume
from skerry.spec.sandbox import State
from skerry.wire.jobs import JobChange

if TYPE_CHECKING:
    from skerry.node.stories import JobStory

log = logging.getLogger("skerry.node")

ENDS_AT_ONCE: Final = 64
AGAIN_MIN_S: Final = 10.0
LOST: Final = "its lease ran out"


class Keeping:
    """Invariants: creates of a paused or an ending job are held, and of no other; one move a job."""

    def __init__(self, parts: Parts, control: Control, lives: Lives) -> None:
        self._clock = parts.clock
        self._tasks = parts.tasks
        self._admission = parts.admission
        self._jobs = parts.jobs
        self._control = control
        self._lives = lives
        parts.jobs.grace_over = self._grace_over
        parts.jobs.time_over = self._time_over

    # -- the trainer ------------------------------------------------------------------------------

    def make(self, spec: JobSpec, *, owner: str) -> Job:
        """Returns the job, on record; a repeat finds it, and counts as a heartbeat."""
        known = spec.id in self._jobs.by_id
        job = self._jobs.make(spec, owner=owner)
        self._agree(job)
        if known:
            self.heartbeat(job)
        return job

    def change(self, job: Job, change: JobChange) -> None:
        """Gives it another spec; raises what `Jobs.change` does."""
        self._jobs.change(job, change)
        self._agree(job)
        self._admission.look_again(job.holder)

    def _agree(self, job: Job) -> None:
        terms = Terms(job.spec.priority, job.spec.sandboxes_max)
        self._admission.quotas.agree(job.holder.flow, terms)

    def heartbeat(self, job: Job) -> None:
        """The trainer is there. What its loss has paused goes on, at once or when it is needed.

        Raises Conflict if the job has ended, StorageFailed.
        """
        self._jobs.renew(job)
        if job.paused_by != BY_LOSS:
            return
        self._stand(job, None)
        lazy = job.spec.resume is Resume.LAZY
        log.info("job %s: its trainer is back", job.id)
        self._tasks.spawn(self._come_back(job, lazy=lazy))

    async def _come_back(self, job: Job, *, lazy: bool) -> None:
        """Resumes what the loss has paused; lazily only where commands wait for their time."""
        async with job.turn:
            move = await self._turn(job, pausing=False)
            here = job.lost_since is None and job.paused_by is None and not job.ended
            if move is None and here and (found := to_resume(job, (BY_LOSS,), busy_only=lazy)):
                self._start(job, Move(found, pausing=False, by=BY_LOSS))

    def _grace_over(self, job: Job) -> None:
        if job.spec.on_lost is OnLost.STOP:
            self._time_over(job, LOST)
        elif job.spec.on_lost is OnLost.PAUSE:
            self._pause_lost(job)

    def _pause_lost(self, job: Job) -> None:
        """Pauses what runs; later again what a request has set going and left since."""
        again = max(AGAIN_MIN_S, job.spec.grace_s)
        self._jobs.later(job, again, self._pause_lost)
        first = job.paused_by is None
        if first:
            try:
                self._stand(job, BY_LOSS, moving=True)
            except StorageFailed as error:
                log.warning("job %s is not paused yet: %s", job.id, error.message)
                return
        elif job.move is not None:
            return
        since = None if first else self._clock.monotonic() - again
        self._tasks.spawn(self._pause_quiet(job, since))

    async def _pause_quiet(self, job: Job, since: float | None) -> None:
        """Pauses what runs, or only what was not used since, as long as the trainer is away."""

        def wanted(one: Sandbox) -> bool:
            quiet = since is None or (not one.busy and one.active <= since)
            return one.state is not State.PAUSED and quiet

        async with job.turn:
            move = await self._turn(job, pausing=True)
            away = job.lost_since is not None and job.paused_by is not None and not job.ended
            if move is None and away and (found := to_pause(job, wanted)):
                self._start(job, Move(found, pausing=True, by=BY_LOSS))

    # -- all at once ------------------------------------------------------------------------------

    async def pause(self, job: Job) -> Move:
        """Returns the pause of all, under way; one that is under way is joined. Creates wait then.

        Raises Conflict if the job has ended, StorageFailed.
        """
        async with job.turn:
            self._check_open(job)
            move = job.move
            if job.paused_by != BY_REQUEST or move is None or not move.pausing:
                self._stand(job, BY_REQUEST, moving=True)
            move = await self._turn(job, pausing=True)
            self._check_open(job)
            return move or self._start(job, Move(to_pause(job), pausing=True, by=BY_REQUEST))

    async def resume(self, job: Job) -> Move:
        """Returns the resume, under way, of all that the job's pause or its loss has paused.

        One that is under way is joined. Raises Conflict if the job has ended, StorageFailed.
        """
        async with job.turn:
            self._check_open(job)
            if job.paused_by is not None:
                self._stand(job, None)
            move = await self._turn(job, pausing=False)
            self._check_open(job)
            if move is None:
                found = to_resume(job, (BY_REQUEST, BY_LOSS), busy_only=False)
                move = self._start(job, Move(found, pausing=False, by=BY_REQUEST))
            return move

    def cancel(self, job: Job, *, pausing: bool) -> None:
        """Ends a pause or a resume of all where it is; the job is not paused then. Idempotent."""
        move = job.move
        if move is None or move.pausing is not pausing:
            return
        move.cancel()
        if job.paused_by is not None:
            self._stand(job, None)

    def _check_open(self, job: Job) -> None:
        if job.ended:
            raise job.over()

    async def _turn(self, job: Job, *, pausing: bool) -> Move | None:
        """Ends a move the other way, and returns when none is under way, or one of this way that is."""
        while (move := job.move) is not None:
            if move.pausing is pausing and not move.cancelled:
                return move
            move.cancel()
            await move.until_over()
        return None

    def _start(self, job: Job, move: Move) -> Move:
        job.move = move
        self._tasks.spawn(self._carry_out(job, move))
        return move

    async def _carry_out(self, job: Job, move: Move) -> None:
        try:
            await move.run(self._control, self._clock)
        finally:
            job.move = None if job.move is move else job.move
        end = move.steps[-1].end
        if end is not None:
            what = "pause" if move.pausing else "resume"
            numbers = (end.done, end.total, end.failures, end.seconds)
            log.info("job %s: %s of %d of %d, %d failed, in %g s", job.id, what, *numbers)
        if move.pausing and job.paused_by is not None and not job.ended:
            try:
                self._jobs.stand(job, job.paused_by, moving=False)
            except StorageFailed as error:  # a restart looks again at what runs
                log.warning("job %s: %s", job.id, error.message)

    def _stand(self, job: Job, paused_by: str | None, *, moving: bool = False) -> None:
        self._jobs.stand(job, paused_by, moving=moving)
        self._hold_creates(job)

    def _hold_creates(self, job: Job) -> None:
        why = None
        if job.paused_by is not None:
            because = "a request" if job.paused_by == BY_REQUEST else "its trainer is away"
            message = f"job_paused: job {job.id} is paused ({because}): its creates wait"
            why = Shortage("job_paused", message, {"paused_by": job.paused_by}, 5.0)
        self._admission.hold(job.holder, why)

    # -- the end ----------------------------------------------------------------------------------

    def _time_over(self, job: Job, reason: str) -> None:
        self._tasks.spawn(self.end(job, reason, delete=False))

    async def end(self, job: Job, reason: str, *, delete: bool) -> None:
        """Returns when its sandboxes have ended; with `delete`, when nothing is left of them and it.

        Without it they are stopped, and their results stay. Idempotent. What cannot be destroyed now
        is logged and tried again.
        """
        self._jobs.end(job, reason, delete=delete)
        # What waits is not let in where others make room: it would be made only to be destroyed.
        over = Shortage("job_ended", f"job_ended: {job.over().message}", {}, 1.0)
        self._admission.hold(job.holder, over)
        if job.move is not None:
            job.move.cancel()

        async def one(sandbox: Sandbox) -> None:
            try:
                if delete or sandbox.state is State.CREATING:
                    await self._lives.delete(sandbox)
                else:
                    self._lives.withdrawn(sandbox, f"its job ended: {reason}")
                    await self._control.stop(sandbox, f"its job ended: {reason}")
            except SkerryError as error:
                log.warning("%s of job %s is not ended yet: %s", sandbox.id, job.id, error)

        members = list(job.sandboxes.values())
        try:
            ending = [one for one in members if delete or one.state not in ENDED]
            await each(ending, one, ENDS_AT_ONCE)
        finally:
            self._admission.hold(job.holder, None)
        if delete:
            self._jobs.forget(job)
        self._admission.quotas.forget(job.holder.flow)
        self._jobs.forget_oldest()

    # -- a restart --------------------------------------------------------------------------------

    def recall(self, stories: dict[str, JobStory]) -> None:
        """Takes over the jobs of an earlier process, before its sandboxes."""
        for job_id, story in stories.items():
            job = self._jobs.recover(job_id, story)
            if job is not None and not job.ended:
                self._agree(job)
                self._hold_creates(job)

    def go_on(self, stories: dict[str, JobStory]) -> None:
        """Goes on with ends and pauses that were under way; leases begin now that all is back."""
        for job in self._jobs:
            story = stories.get(job.id)
            if job.ended:
                reason = job.reason or "it ended"
                self._tasks.spawn(self.end(job, reason, delete=job.deleting))
                continue
            self._jobs.renew(job)
            if job.paused_by is not None and story and story.stood and story.stood.moving:
                found = to_pause(job)
                self._start(job, Move(found, pausing=True, by=job.paused_by))

    # -- looking ----------------------------------------------------------------------------------

    def info(self, job: Job) -> JobInfo:
        """Returns what users see of it."""
        wall, now, holder = self._clock.wall(), self._clock.monotonic(), job.holder
        members = job.sandboxes.values()
        waits = [one for one in members if one.waits is not None]
        states = Counter(str(one.state) for one in members if one.waits is None)
        ttl = job.spec.ttl_s
        return JobInfo(
            id=job.id,
            state=job.state,
            spec=job.spec,
            owner=job.owner,
            created=job.created,
            lease_expires=None if job.lease is None else wall + job.lease_until - now,
            lost_since=job.lost_since,
            paused_by=job.paused_by,
            expires=None if ttl is None or job.ended else wall + job.born + ttl - now,
            sandboxes=dict(states),
            waiting=len(waits) + self._admission.expected.get(holder, 0),
            reason=job.reason,
        )

    def gauges(self) -> dict[str, float]:
        """Returns how many jobs stand how."""
        states = Counter(job.state for job in self._jobs)
        shown = (JobState.ACTIVE, JobState.AWAY, JobState.PAUSED)
        return {f"jobs_{state}": float(states[state]) for state in shown}
