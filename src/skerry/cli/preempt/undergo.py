"""A job of scripted agents, run under the eyes of an outside witness, with kills or undisturbed."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from skerry.cli import following
from skerry.cli.preempt import agent
from skerry.cli.preempt.killing import Say, Trainers, Workers, kill_points
from skerry.cli.preempt.script import EXPECTED, TURNS, Script
from skerry.cli.preempt.trainer import Orders
from skerry.cli.preempt.witness import Judgement, Witness
from skerry.errors import SkerryError
from skerry.spec.rollout import JobEvent, JobSummary, RolloutRecord
from skerry.spec.task import TaskSpec
from skerry.spec.worker import RolloutState, Scaffold

if TYPE_CHECKING:
    from skerry.aio import Client, Job

WITNESS_PORT = 4399  # inside, on loopback
LOOK_S = 0.2
TRAINER_ENDS_WITHIN_S = 60.0
ACTS = {RolloutState.ACTING, RolloutState.ASKING, RolloutState.STARTING}

Row = tuple[str, int, str, float | None, str]  # task, index, kind, reward, verdict


class Course(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be run, and how often what of it is killed."""

    tasks: tuple[TaskSpec, ...]
    script: Script
    concurrency: int
    trainer_kills: int = 0
    worker_kills: int = 0
    seed: int = 0

    @property
    def rollouts(self) -> int:
        """How many rollouts the job has."""
        return len(self.tasks) * self.script.n


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What came of it."""

    summary: JobSummary
    judgement: Judgement
    trainer_kills: int
    worker_kills: int
    deaths: tuple[str, ...]  # of trainers that nobody killed
    table: tuple[Row, ...]


def table_of(records: Sequence[RolloutRecord], script: Script) -> tuple[Row, ...]:
    """Returns the result table: what was earned by whom, in the order of the plan."""
    numbered = sorted((int(one.rollout.rpartition("-")[2]), one) for one in records)
    return tuple(
        (one.task, one.index, script.kind(number), one.reward, str(one.verdict))
        for number, one in numbered
    )


def unexpected(table: Sequence[Row]) -> list[str]:
    """Returns a line for each row that is not as it must be."""
    return [
        f"{task} {kind} {index}: reward {reward}, {verdict}; expected {EXPECTED[kind]}"
        for task, index, kind, reward, verdict in table
        if (reward, verdict) != EXPECTED[kind]
    ]


async def undergo(
    client: Client,
    orders: Orders,
    course: Course,
    *,
    jobs_dir: Path,
    on_event: following.OnEvent,
) -> Outcome:
    """Runs the job to its end and returns what the witness saw; nothing of it is left, whatever happens.

    The only trainer is a process of its own, which holds the job's lease.
    """
    witness, draw = Witness(), random.Random(course.seed)  # noqa: S311 - no secret
    requests = course.rollouts * TURNS
    async with witness.serving():
        wanted = following.Wanted(
            tasks=course.tasks,
            scaffold=_scaffold(),
            n=course.script.n,
            concurrency=course.concurrency,
        )
        job = await following.start(client, orders.job, wanted, detached=False)
        trainers = Trainers(msgspec.structs.replace(orders, witness=witness.url))
        workers = Workers(client)
        say = _teller(on_event)
        points = (
            kill_points(course.trainer_kills, requests, draw),
            kill_points(course.worker_kills, requests, draw),
        )
        training = asyncio.ensure_future(trainers.keep())
        others: list[asyncio.Future[Any]] = [
            asyncio.ensure_future(one)
            for one in (
                _ways_to_witness(client, job, witness.port),
                trainers.kill(points[0], witness, draw, say),
                workers.kill(points[1], witness, draw, say),
            )
        ]
        try:
            summary = await _guarded(
                following.follow(job, jobs_dir=jobs_dir, on_event=on_event, wanted=wanted),
                [training, *others],
            )
            await asyncio.wait_for(training, TRAINER_ENDS_WITHIN_S)
        finally:
            for one in (training, *others):
                one.cancel()
            await asyncio.gather(training, *others, return_exceptions=True)
            await following.ended(job)
    return Outcome(
        summary=summary,
        judgement=witness.judge(course.rollouts, TURNS),
        trainer_kills=trainers.kills,
        worker_kills=workers.kills,
        deaths=tuple(trainers.deaths),
        table=table_of(summary.records, course.script),
    )


def _scaffold() -> Scaffold:
    program = Path(agent.__file__).read_text()
    return Scaffold(
        argv=("/usr/bin/python3", "-I", "-c", program),
        name="scripted",
        env={"WITNESS": f"http://127.0.0.1:{WITNESS_PORT}/"},
    )


def _teller(on_event: following.OnEvent) -> Say:
    return lambda text: on_event(JobEvent(kind="build", text=text))


async def _guarded(
    work: Coroutine[Any, Any, JobSummary], helpers: Sequence[asyncio.Future[Any]]
) -> JobSummary:
    """Returns what the work returns; raises what a helper raises, for the work would wait for it."""
    task = asyncio.ensure_future(work)
    try:
        waiting: set[asyncio.Future[Any]] = {task, *helpers}
        while not task.done():
            done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for one in done - {task}:
                one.result()
        return task.result()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _ways_to_witness(client: Client, job: Job, port: int) -> None:
    """Opens a way from inside each agent's sandbox to the witness; never returns.

    A reverse forward needs no network inside, and is not of the worker's making.
    """
    async with contextlib.AsyncExitStack() as open_ways:
        known: set[str] = set()
        while True:
            with contextlib.suppress(SkerryError):  # the worker or the sandbox is away: look again
                async for one in job.rollouts():
                    if one.sandbox is None or one.sandbox in known or one.state not in ACTS:
                        continue
                    sandbox = await client.sandboxes.get(one.sandbox)
                    way = sandbox.reverse_forward(WITNESS_PORT, "127.0.0.1", port)
                    await open_ways.enter_async_context(way)
                    known.add(one.sandbox)
            await asyncio.sleep(LOOK_S)
