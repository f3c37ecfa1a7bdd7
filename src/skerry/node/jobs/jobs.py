"""The jobs of this node: who they are, whose sandboxes are whose, and how long each lease runs.

A lease runs on the monotonic clock, so a wall clock that is set changes nothing. It gets its full term
again when the node was restarted, and one term more when the node itself stood still: renewals may
lie unread then, and nobody is to pay for that. Renewals are in no journal.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from skerry.backends.shared import proc
from skerry.errors import Bug, Conflict, NotFound, Overloaded, StorageFailed
from skerry.node import ledger
from skerry.node.admission.holders import JOB_LABEL, Holder
from skerry.node.clock import Clock, born_at
from skerry.node.config import Limits
from skerry.node.jobs.job import Job
from skerry.node.ledger import Ledger
from skerry.node.life.sandbox import ENDED, Sandbox
from skerry.node.timers import Timers
from skerry.spec.job import JobSpec
from skerry.spec.sandbox import SandboxSpec
from skerry.wire.jobs import JobChange

if TYPE_CHECKING:
    from skerry.node.stories import JobStory

log = logging.getLogger("skerry.node")

ENDED_MAX: Final = 1000  # kept for a look; of the oldest beyond it nothing is known any more
LATE_S: Final = 1.0  # a lease's end that comes so late says that the node had stood still
RETRY_S: Final = 30.0


class Jobs:
    """Every job by id, oldest first. What a lost or an ended one leads to is in `keeping`.

    Invariant: a sandbox whose spec names a job is in that job's `sandboxes` from its being asked for
    until nothing is left of it.
    """

    def __init__(
        self, clock: Clock, timers: Timers, entries: Ledger, limits: Limits, boot: str | None = None
    ) -> None:
        self.by_id: dict[str, Job] = {}
        self.grace_over: Callable[[Job], None] = _unset
        self.time_over: Callable[[Job, str], None] = lambda job, _reason: _unset(job)
        self._clock = clock
        self._timers = timers
        self._ledger = entries
        self._limits = limits
        self._boot = proc.boot_id() if boot is None else boot

    def __len__(self) -> int:
        return sum(not job.ended for job in self.by_id.values())

    def __iter__(self) -> Iterator[Job]:
        return iter(tuple(self.by_id.values()))

    # -- finding ----------------------------------------------------------------------------------

    def get(self, job_id: str) -> Job:
        """Returns it; NotFound."""
        job = self.by_id.get(job_id)
        if job is None:
            raise NotFound(f"there is no job {job_id[:80]!r}; it may have been removed")
        return job

    def holder(self, spec: SandboxSpec, *, tenant: str, owner: str | None) -> Holder:
        """Returns as whom a create waits and is counted.

        Raises NotFound for a job that there is not, Conflict for one that has ended.
        """
        if spec.job is None:
            return Holder(tenant, owner, spec.labels.get(JOB_LABEL))
        job = self.get(spec.job)
        if job.ended:
            raise job.over()
        return job.holder

    def add(self, sandbox: Sandbox) -> None:
        """Puts a sandbox into its job, if it has one."""
        if sandbox.spec.job is not None:
            self.get(sandbox.spec.job).sandboxes[sandbox.id] = sandbox

    def remove(self, sandbox: Sandbox) -> None:
        """A sandbox is gone."""
        job = self.by_id.get(sandbox.spec.job or "")
        if job is not None:
            job.sandboxes.pop(sandbox.id, None)

    # -- beginning --------------------------------------------------------------------------------

    def make(self, spec: JobSpec, *, owner: str) -> Job:
        """Returns the job, on record; the one that there is if its spec is the same.

        Raises InvalidRequest, Conflict (the id names another job, or one that has ended),
        Overloaded (too many jobs), StorageFailed.
        """
        spec.check()
        known = self.by_id.get(spec.id)
        if known is not None:
            if known.ended:
                raise known.over()
            if known.asked_spec != spec:
                raise Conflict(f"job {spec.id} is there already, made from another spec")
            self.renew(known)
            return known
        self._check_room(owner)
        job = Job(spec, owner, self._clock.wall(), self._clock.monotonic())
        made = ledger.JobMade(spec, owner, job.created, self._boot, job.born)
        self._ledger.append(ledger.job_subject(job.id), made)
        self.by_id[job.id] = job
        self._begin(job)
        return job

    def _check_room(self, owner: str) -> None:
        mine = sum(job.owner == owner and not job.ended for job in self.by_id.values())
        limits = self._limits
        for limit, used, maximum in (
            ("jobs", len(self), limits.jobs_max),
            ("jobs_per_owner", mine, limits.jobs_per_owner_max),
        ):
            if used >= maximum:
                raise Overloaded(
                    f"{limit}: {used} of {maximum} are there",
                    limit=limit,
                    used=used,
                    maximum=maximum,
                    retry_after_s=RETRY_S,
                )

    def recover(self, job_id: str, story: JobStory) -> Job | None:
        """Takes over what an earlier process had; the lease begins anew. None: it is not known."""
        made = story.made
        if made is None:
            log.warning("job %s: its beginning is not in the journal", job_id)
            return None
        same = made.boot == self._boot
        born = born_at(self._clock, made.created, made.born, same_boot=same)
        job = self.by_id[job_id] = Job(made.spec, made.owner, made.created, born)
        if story.changed is not None:
            job.spec, job.asked = story.changed.spec, made.spec
        if story.ended is not None:
            job.reason, job.deleting = story.ended.reason, story.ended.delete
            return job
        job.paused_by = None if story.stood is None else story.stood.paused_by
        self._begin(job)
        return job

    def recover_member(self, sandbox: Sandbox) -> None:
        """Puts a recovered sandbox into its job; without a job on record one is made for it."""
        name = sandbox.spec.job
        if name is None:
            return
        if name not in self.by_id and sandbox.state not in ENDED:
            log.warning("%s: job %s is not on record: it begins anew", sandbox.id, name)
            try:
                self.make(JobSpec(id=name), owner=sandbox.holder.tenant)
            except (Overloaded, StorageFailed) as error:
                log.warning("%s has no job: %s", sandbox.id, error.message)
        job = self.by_id.get(name)
        if job is not None:
            job.sandboxes[sandbox.id] = sandbox
            sandbox.holder = job.holder

    def _begin(self, job: Job) -> None:
        self.renew(job)
        self._arm_ttl(job)

    def change(self, job: Job, change: JobChange) -> None:
        """Gives it another spec, on record first; the lease goes on, and has the new term next.

        Raises InvalidRequest, Conflict if it has ended, StorageFailed.
        """
        if job.ended:
            raise job.over()
        spec = change.apply(job.spec, self._clock.monotonic() - job.born).check()
        self._ledger.append(ledger.job_subject(job.id), ledger.JobChanged(spec))
        job.asked, job.spec = job.asked_spec, spec
        self._arm_ttl(job)

    def _arm_ttl(self, job: Job) -> None:
        if job.ttl is not None:
            job.ttl.cancel()
            job.ttl = None
        if job.spec.ttl_s is not None:
            left = max(0.0, job.born + job.spec.ttl_s - self._clock.monotonic())
            job.ttl = self._timers.after(left, lambda: self.time_over(job, "its ttl is over"))

    # -- leases -----------------------------------------------------------------------------------

    def renew(self, job: Job) -> None:
        """The trainer is there: the lease has its full term again. Raises Conflict once it ended."""
        if job.ended:
            raise job.over()
        job.spared = False
        self._arm(job)

    def _arm(self, job: Job) -> None:
        _cancel(job)
        job.lost_since = None
        job.lease_until = self._timers.now() + job.spec.lease_s
        job.lease = self._timers.after(job.spec.lease_s, lambda: self._lease_over(job))

    def _lease_over(self, job: Job) -> None:
        if self._timers.now() - job.lease_until > LATE_S and not job.spared:
            self._arm(job)
            job.spared = True
            return
        log.warning("job %s: nobody has renewed its lease of %g s", job.id, job.spec.lease_s)
        job.lease = None
        job.lost_since = self._clock.wall()
        longest = self._limits.job_away_s_max
        self.later(job, job.spec.grace_s, self.grace_over)
        self.later(job, longest, lambda one: self.time_over(one, "its trainer stayed away"))

    def later(self, job: Job, seconds: float, call: Callable[[Job], None]) -> None:
        """Calls after that time unless the trainer comes back or the job ends before."""
        job.timers = [timer for timer in job.timers if timer.call is not None]
        job.timers.append(self._timers.after(seconds, lambda: call(job)))

    # -- pauses and ends --------------------------------------------------------------------------

    def stand(self, job: Job, paused_by: str | None, *, moving: bool) -> None:
        """It is paused, or not, from here on; StorageFailed, and then nothing has changed.

        With `moving` a restart of the node goes on with pausing its sandboxes.
        """
        entry = ledger.JobStood(paused_by, moving)
        self._ledger.append(ledger.job_subject(job.id), entry)
        job.paused_by = paused_by

    def end(self, job: Job, reason: str, *, delete: bool) -> None:
        """It is over, on record first if the disk lets it. A delete of an ended one counts too."""
        if job.ended and (job.deleting or not delete):
            return
        reason = job.reason or reason
        try:
            entry = ledger.JobEnded(reason, delete, self._clock.wall())
            self._ledger.append(ledger.job_subject(job.id), entry)
        except StorageFailed as error:
            # Its sandboxes go all the same. After a restart it is there again, without them.
            log.warning("the end of job %s is not on record: %s", job.id, error)
        job.reason, job.deleting = reason, delete
        job.paused_by = None
        _cancel(job)
        if job.ttl is not None:
            job.ttl.cancel()
            job.ttl = None
        job.lost_since = None

    def forget(self, job: Job) -> None:
        """Nothing of it is known any more, and its id is free; idempotent."""
        if self.by_id.get(job.id) is not job:
            return
        del self.by_id[job.id]
        try:
            self._ledger.forget(ledger.job_subject(job.id))
        except StorageFailed as error:
            log.warning("the journal keeps job %s for now: %s", job.id, error)

    def forget_oldest(self) -> None:
        """Forgets ended ones beyond those that are kept for a look."""
        ended = [job for job in self.by_id.values() if job.ended and not job.sandboxes]
        for job in ended[:-ENDED_MAX]:
            self.forget(job)

    def check_invariants(self) -> None:
        """Raises Bug unless the invariants hold."""
        for job in self.by_id.values():
            job.check_invariants()


def _cancel(job: Job) -> None:
    for timer in (job.lease, *job.timers):
        if timer is not None:
            timer.cancel()
    job.lease = None
    job.timers = []


def _unset(_job: Job) -> None:
    raise Bug("nobody was told what to do with lost jobs")
