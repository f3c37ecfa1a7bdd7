"""A rollout job: policies x tasks x n, in parallel sandboxes, on record, with live events."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from skerry.errors import InvalidRequest
from skerry.spec.rollout import JobEvent, JobSummary, RolloutRecord
from skerry.spec.task import TaskSpec
from skerry.trajectory.rollouts.job_log import JobLog, to_plain
from skerry.worker.downloads import Downloads
from skerry.worker.environment import Builder, Environment
from skerry.worker.lives import together
from skerry.worker.plan import Plan
from skerry.worker.ports import Client
from skerry.worker.rollout import Rollouts
from skerry.worker.session import Policy
from skerry.worker.verify import Guards

ROLLOUTS_MAX = 1_000_000
CONCURRENCY_MAX = 4096

OnEvent = Callable[[JobEvent], None]


def ignore(event: JobEvent) -> None:
    """Takes an event and does nothing with it."""
    del event


def new_job_id(now: float, random: bytes) -> str:
    """Returns an id that sorts by time."""
    return time.strftime("%Y%m%d-%H%M%S", time.gmtime(now)) + "-" + random.hex()[:6]


async def run_job(
    client: Client,
    tasks: Sequence[TaskSpec],
    policies: Sequence[Policy],
    *,
    downloads: Downloads,
    jobs_dir: Path,
    n: int = 1,
    concurrency: int = 4,
    on_event: OnEvent = ignore,
    guards: Guards | None = None,
    clock: Callable[[], float] = time.time,
) -> JobSummary:
    """Runs `n` rollouts of each policy on each task and returns their ends.

    Environments are made first, once. At most `concurrency` rollouts run at a time, each in one
    sandbox at a time. When this is cancelled, the sandboxes are destroyed, the rollouts that have no
    verdict are recorded as infrastructure errors, and the cancellation is raised on. Raises
    InvalidRequest for an empty job, and what building the environments raises.
    """
    if not tasks or not policies or not 1 <= n <= ROLLOUTS_MAX:
        raise InvalidRequest("a job needs at least one task, one policy and one rollout")
    if not 1 <= concurrency <= CONCURRENCY_MAX:
        raise InvalidRequest(f"concurrency must be between 1 and {CONCURRENCY_MAX}")
    if len({task.id for task in tasks}) != len(tasks):
        raise InvalidRequest("two tasks have the same id")
    job = new_job_id(clock(), secrets.token_bytes(3))
    total = len(tasks) * len(policies) * n
    on_event(JobEvent(kind="plan", text=job, total=total))
    began = clock()

    def say(text: str) -> None:
        on_event(JobEvent(kind="build", text=text, total=total))

    environments = await Builder(client.images, downloads, say).build(tasks)
    built = clock()
    on_event(JobEvent(kind="built", text=f"{built - began:.1f} s", total=total))
    log = JobLog(jobs_dir / job, clock)
    try:
        plans = _plans(job, environments, policies, n)
        names = [policy.name for policy in policies]
        log.append("job", head_of(job, environments, names, n, concurrency), durable=True)
        rollouts = Rollouts(client, log, job=job, guards=guards or Guards(), clock=clock)
        work = _Work(rollouts, log, plans, on_event=on_event, clock=clock)
        await work.run(concurrency)
        summary = JobSummary(
            job=job,
            path=str(log.folder),
            records=tuple(work.records[plan.rollout] for plan in plans),
            build_seconds=built - began,
            seconds=clock() - built,
        )
        log.append("end", {"rollouts": total, "seconds": round(summary.seconds, 3)}, durable=True)
        on_event(JobEvent(kind="end", text=job, done=total, total=total))
        return summary
    finally:
        log.close()


class _Work:
    """The rollouts of a job while they run.

    Invariant: when `run` returns or raises, every plan has exactly one record.
    """

    def __init__(
        self,
        rollouts: Rollouts,
        log: JobLog,
        plans: Sequence[Plan],
        *,
        on_event: OnEvent,
        clock: Callable[[], float],
    ) -> None:
        self._rollouts = rollouts
        self._log = log
        self._plans = plans
        self._on_event = on_event
        self._clock = clock
        self._waiting = iter(plans)
        self.records: dict[str, RolloutRecord] = {}

    async def run(self, concurrency: int) -> None:
        """Runs all plans, at most so many at a time."""
        try:
            await together(self._lane() for _ in range(min(concurrency, len(self._plans))))
        except asyncio.CancelledError:
            self._mark_rest()
            raise

    async def _lane(self) -> None:
        for plan in self._waiting:
            self._tell("start", plan)
            record = await self._rollouts.run(plan, self._step_of(plan))
            self.records[plan.rollout] = record
            self._tell("done", plan, record=record)

    def _step_of(self, plan: Plan) -> Callable[[str], None]:
        return lambda text: self._tell("step", plan, text=text)

    def _tell(
        self, kind: str, plan: Plan, *, text: str = "", record: RolloutRecord | None = None
    ) -> None:
        self._on_event(
            JobEvent(
                kind=kind,
                text=text,
                task=plan.environment.task.id,
                policy=plan.policy.name,
                rollout=plan.rollout,
                done=len(self.records),
                total=len(self._plans),
                record=record,
            )
        )

    def _mark_rest(self) -> None:
        for plan in self._waiting:
            self._rollouts.cancelled(plan)
        self._log.append("end", {"interrupted": True}, durable=True)


def _plans(
    job: str, environments: Sequence[Environment], policies: Sequence[Policy], n: int
) -> list[Plan]:
    plans: list[Plan] = []
    for task_index, environment in enumerate(environments):
        for policy in policies:
            for index in range(n):
                number = len(plans)
                plans.append(
                    Plan(
                        rollout=f"{job}-{number:04d}",
                        environment=environment,
                        policy=policy,
                        variant=policy.variant(task_index, index),
                        index=index,
                    )
                )
    return plans


def head_of(
    job: str,
    environments: Sequence[Environment],
    policies: Sequence[str],
    n: int,
    concurrency: int,
) -> dict[str, object]:
    """Returns the first line of a job's record."""
    return {
        "job": job,
        "n": n,
        "concurrency": concurrency,
        "policies": list(policies),
        "tasks": [
            {
                "task": one.task.id,
                "digests": list(one.digests),
                "hidden": one.hidden.rpartition("@")[2],
                "spec": to_plain(one.task),
            }
            for one in environments
        ],
    }
