"""A job at the node's workers, followed from here: its record is copied to a folder as it grows.

The rollouts are the workers'; this process may be killed. Another one with the job's name follows it
from the beginning again.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from skerry.errors import SkerryError
from skerry.spec.rollout import JobEvent, JobSummary, Line, RolloutRecord
from skerry.spec.task import TaskSpec
from skerry.spec.verdict import Outcome
from skerry.spec.worker import AnswerUrl, ModelSettings, Scaffold, Submit, rollout_id
from skerry.trajectory.rollouts.job_log import JobLog
from skerry.trajectory.rollouts.reader import blobs_in_line

if TYPE_CHECKING:
    from skerry.aio import Client, Job

LOOK_S = 0.5
OnEvent = Callable[[JobEvent], None]


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be submitted."""

    tasks: tuple[TaskSpec, ...]
    policies: tuple[str, ...] = ()
    scaffold: Scaffold | None = None
    model: ModelSettings | None = None
    answers: AnswerUrl | None = None
    n: int = 1
    concurrency: int = 4

    def submit(self, job: str) -> Submit:
        """Returns it as a worker takes it; InvalidRequest for what none would take."""
        return Submit(
            job=job,
            tasks=self.tasks,
            policies=self.policies,
            scaffold=self.scaffold,
            model=self.model,
            answers=self.answers,
            n=self.n,
            concurrency=self.concurrency,
        ).check()


async def start(client: Client, name: str, wanted: Wanted, *, detached: bool) -> Job:
    """Makes the job and gives its rollouts to the workers; a detached one runs on by itself."""
    on_lost = "keep" if detached else "pause"
    job = await client.jobs.create(name, on_lost=on_lost, labels={"made-by": "skerry rollout"})
    try:
        await job.submit(
            wanted.tasks,
            wanted.policies,
            scaffold=wanted.scaffold,
            model=wanted.model,
            n=wanted.n,
            concurrency=wanted.concurrency,
            answers=wanted.answers,
        )
    except BaseException:
        await ended(job)
        raise
    return job


async def run(
    client: Client, name: str, wanted: Wanted, *, jobs_dir: Path, on_event: OnEvent
) -> JobSummary:
    """Runs a job to its end; whatever else ends this ends the job too, and leaves no sandbox."""
    job = await start(client, name, wanted, detached=False)
    try:
        async with job:
            summary = await follow(job, jobs_dir=jobs_dir, on_event=on_event, wanted=wanted)
    finally:
        await ended(job)
    return summary


async def attach(client: Client, name: str, *, jobs_dir: Path, on_event: OnEvent) -> JobSummary:
    """Follows a job to its end, and ends it then; left before, it goes on. NotFound."""
    job = await client.jobs.attach(name)
    async with job:
        summary = await follow(job, jobs_dir=jobs_dir, on_event=on_event)
    await job.end()
    return summary


async def ended(job: Job) -> None:
    """Ends a job, also when this is being cancelled; what cannot be ended now its lease ends."""
    ending = asyncio.ensure_future(job.end())
    try:
        with contextlib.suppress(SkerryError):
            await asyncio.shield(ending)
    except asyncio.CancelledError:
        await asyncio.wait({ending})
        raise


async def follow(
    job: Job, *, jobs_dir: Path, on_event: OnEvent, wanted: Wanted | None = None
) -> JobSummary:
    """Copies a job's record, tells of it as it comes, and returns its end.

    What was copied before is copied anew. Raises InvalidRequest if the job cannot go on. With `wanted`
    leaving this ends the job: rollouts that have no verdict are recorded as infrastructure errors.
    """
    total = (await job.status())[0].total
    on_event(JobEvent(kind="plan", text=job.id, total=total))
    folder = jobs_dir / job.id
    shutil.rmtree(folder, ignore_errors=True)
    log = JobLog(folder, time.time)
    told = _InOrder(on_event)
    watching = asyncio.ensure_future(_watch_building(job, total, told))
    worrying = asyncio.ensure_future(_watch_trouble(job, told))
    copy = _Copy(job, log, total, told)
    try:
        async for line in job.lines():
            await copy.take(line)
        built = await watching
        async for _ in job.results():  # raises why the job cannot go on, if it cannot
            pass
        log.append("end", {"rollouts": total, "seconds": round(copy.seconds, 3)}, durable=True)
    except BaseException:
        if wanted is not None:
            copy.cancel_rest(wanted)
        raise
    finally:
        for task in (watching, worrying):
            task.cancel()
        await asyncio.gather(watching, worrying, return_exceptions=True)
        told.all()
        log.close()
    on_event(JobEvent(kind="end", text=job.id, done=total, total=total))
    return JobSummary(
        job=job.id,
        path=str(folder),
        records=tuple(sorted(copy.records, key=lambda one: one.rollout)),
        build_seconds=0.0 if wanted is None else built,  # who comes later has not seen it
        seconds=copy.seconds,
    )


class _InOrder:
    """Tells of rollouts after the environments: lines of the record may be here before we have asked.

    With several workers, also while another one still makes its own.
    """

    def __init__(self, on_event: OnEvent) -> None:
        self._on_event = on_event
        self._held: list[JobEvent] | None = []

    def __call__(self, event: JobEvent) -> None:
        if self._held is not None and event.kind not in ("build", "built"):
            self._held.append(event)
            return
        self._on_event(event)
        if event.kind == "built":
            self.all()

    def all(self) -> None:
        """Tells what was held, and holds nothing any more."""
        held, self._held = self._held or [], None
        for event in held:
            self._on_event(event)


async def _watch_trouble(job: Job, on_event: OnEvent) -> None:
    """Tells what the job waits for that should be there; never returns."""
    said = ""
    while True:
        await asyncio.sleep(4 * LOOK_S)
        now = next((state.trouble for state in await job.status() if state.trouble), "")
        if now and now != said:
            on_event(JobEvent(kind="build", text=f"requests wait: {now}"))
        said = now


async def _watch_building(job: Job, total: int, on_event: OnEvent) -> float:
    """Tells what is being made of the environments; returns how long that took."""
    began, said = time.monotonic(), ""
    while True:
        states = await job.status()
        for state in states:
            text = state.failure or state.building
            if text and text != said and not state.built:
                said = text
                on_event(JobEvent(kind="build", text=text, total=total))
        if all(state.built or state.ended or state.failure for state in states):
            seconds = time.monotonic() - began
            on_event(JobEvent(kind="built", text=f"{seconds:.1f} s", total=total))
            return seconds
        await asyncio.sleep(LOOK_S)


class _Copy:
    """Takes lines of the workers' records into one of our own."""

    def __init__(self, job: Job, log: JobLog, total: int, on_event: OnEvent) -> None:
        self._job = job
        self._log = log
        self._total = total
        self._on_event = on_event
        self._started: dict[str, dict[str, str]] = {}
        self._has_head = False
        self._began = self._ended = 0.0  # when environments were ready, and when the last one ended
        self.records: list[RolloutRecord] = []

    @property
    def seconds(self) -> float:
        """How long the rollouts took, by the workers' record: whenever one comes to follow them."""
        return max(0.0, self._ended - self._began)

    async def take(self, line: Line) -> None:
        """Copies a line with what it refers to, and tells of it."""
        if line.kind == "end" or (line.kind == "job" and self._has_head):
            return
        if line.kind == "job":
            self._has_head, self._began = True, line.time
        for digest in blobs_in_line(line.data):
            if not (self._log.folder / "blobs" / digest).exists():
                self._log.blob(await self._job.blob(digest))
        durable = line.kind in ("job", "rollout")
        self._log.append(line.kind, line.data, durable=durable, time=line.time)
        rollout = str(line.data.get("rollout", ""))
        if line.kind == "rollout":
            record = msgspec.convert(line.data, RolloutRecord)
            self.records.append(record)
            self._ended = max(self._ended, line.time)
            self._tell("done", rollout, record=record)
        elif line.kind == "attempt":
            self._tell("attempt", rollout, text=str(line.data.get("detail", "")))
        elif line.kind == "event":
            data = line.data
            if data.get("action") == "begin":
                self._started[rollout] = {"task": str(data["task"]), "policy": str(data["policy"])}
                self._tell("start", rollout)
            else:
                self._tell("step", rollout, text=str(data.get("command") or data.get("action")))

    def cancel_rest(self, wanted: Wanted) -> None:
        """Records the rollouts without a verdict as not carried to their ends."""
        submit = wanted.submit(self._job.id)
        known = {record.rollout for record in self.records}
        for number in range(submit.total):
            rollout = rollout_id(submit.job, number)
            if rollout in known:
                continue
            place, index = divmod(number, submit.n)
            task, actor = divmod(place, len(submit.actors))
            record = RolloutRecord(
                job=submit.job,
                rollout=rollout,
                task=submit.tasks[task].id,
                policy=submit.actors[actor],
                index=index,
                reward=None,
                verdict=Outcome.INFRASTRUCTURE_ERROR,
                detail="cancelled by the operator",
            )
            self._log.rollout(record)
        self._log.append("end", {"interrupted": True}, durable=True)

    def _tell(
        self, kind: str, rollout: str, *, text: str = "", record: RolloutRecord | None = None
    ) -> None:
        who = self._started.get(rollout, {"task": "", "policy": ""})
        self._on_event(
            JobEvent(
                kind=kind,
                text=text[:200],
                rollout=rollout,
                done=len(self.records),
                total=self._total,
                record=record,
                **who,
            )
        )
