"""The whole of `skerry demo --preempt`: a job with kills, the same undisturbed, and the end of both."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import TYPE_CHECKING

from skerry.cli.app import App
from skerry.cli.preempt.script import KINDS, script_of
from skerry.cli.preempt.trainer import Orders
from skerry.cli.preempt.undergo import Course, Outcome, Row, undergo, unexpected
from skerry.cli.recorded import COLOURS, explain, jobs_dir, progress
from skerry.spec.task import TaskSpec

if TYPE_CHECKING:
    from skerry.aio import Client
    from skerry.worker import Downloads

TASKS = ("semver-3.0.2", "xmltodict-0.14.2")  # of those that come with Skerry: small and quick


class Preemption:
    """The two jobs, one after the other."""

    def __init__(
        self,
        app: App,
        *,
        tasks: Sequence[TaskSpec],
        count: int,
        concurrency: int,
        kills: int,
        worker_kills: int,
        downloads: Downloads,
        jobs: str | None,
    ) -> None:
        self._app = app
        self._tasks = tuple(tasks)
        self._n = count * len(KINDS)
        self._concurrency = concurrency
        self._kills = (kills, worker_kills)
        self._downloads = downloads
        self._jobs = jobs_dir(jobs)

    def run(self, names: tuple[str, str]) -> int:
        """Runs both, named so; returns the exit status: 0 if all is as it must be."""
        killed, calm = self._app.wait_for(lambda: self._both(names))
        wrong = verdict_of(killed, calm, self._kills)
        self._show(killed, calm)
        for text in wrong:
            self._app.warn(text)
        explain(self._app, [*killed.summary.records, *calm.summary.records])
        return 1 if wrong else 0

    async def _both(self, names: tuple[str, str]) -> tuple[Outcome, Outcome]:
        script = await script_of(self._tasks, self._downloads, self._n, self._app.note)
        course = Course(
            tasks=self._tasks,
            script=script,
            concurrency=self._concurrency,
            trainer_kills=self._kills[0],
            worker_kills=self._kills[1],
            seed=secrets.randbits(32),
        )
        undisturbed = Course(tasks=self._tasks, script=script, concurrency=self._concurrency)
        async with self._app.client() as client:
            return (
                await self._one(client, names[0], course),
                await self._one(client, names[1], undisturbed),
            )

    async def _one(self, client: Client, name: str, course: Course) -> Outcome:
        settings = self._app.settings
        local = settings.url is None
        orders = Orders(
            job=name,
            witness="",
            script=course.script,
            url=settings.url,
            token=settings.token,
            state_dir=settings.state if local else None,
            run_dir=settings.run if local else None,
        )
        with progress(self._app, records=False) as show:
            return await undergo(client, orders, course, jobs_dir=self._jobs, on_event=show)

    def _show(self, killed: Outcome, calm: Outcome) -> None:
        same = killed.table == calm.table
        if self._app.as_json:
            both = {"preempted": _plain(killed), "undisturbed": _plain(calm)}
            self._app.emit({**both, "identical": same})
            return
        self._app.table(
            ["TASK", "AGENT", ">REWARD", "VERDICT", "UNDISTURBED"], _rows(killed.table, calm.table)
        )
        self._app.line("")
        self._app.table(["", ">PREEMPTED", ">UNDISTURBED"], _figures(killed, calm))
        self._app.line(f"result tables {'identical' if same else 'DIFFER'}")
        self._app.line(
            "Counted by a witness outside: a server that agents and trainers told of each step."
        )
        self._app.line(f"Trajectories and verdicts: skerry trace ls --job {killed.summary.job}")


def verdict_of(killed: Outcome, calm: Outcome, kills: tuple[int, int]) -> list[str]:
    """Returns a line for each thing that is not as it must be."""
    wrong = []
    for name, one in (("preempted", killed), ("undisturbed", calm)):
        wrong += [f"{name}: {text}" for text in (*one.judgement.reasons, *unexpected(one.table))]
        wrong += [f"{name}: a trainer died by itself: {text}" for text in one.deaths]
        if not one.judgement.good and not one.judgement.reasons:
            wrong.append(f"{name}: {one.judgement}")
    if killed.table != calm.table:
        wrong.append("the result tables differ")
    for what, done, asked in (
        ("trainers", killed.trainer_kills, kills[0]),
        ("workers", killed.worker_kills, kills[1]),
    ):
        if done != asked:
            wrong.append(f"{done} {what} were killed, not {asked}")
    return wrong


def _rows(killed: Sequence[Row], calm: Sequence[Row]) -> list[tuple[object, ...]]:
    from rich.text import Text

    other = {row[:3]: row for row in calm}
    rows: list[tuple[object, ...]] = []
    for task, index, kind, reward, verdict in killed:
        there = other.get((task, index, kind))
        again = there[4] if there is not None else "-"
        rows.append(
            (
                task,
                kind,
                "-" if reward is None else f"{reward:g}",
                Text(verdict, style=COLOURS[verdict]),
                Text(again, style=COLOURS.get(again, "")),
            )
        )
    return rows


def _figures(*both: Outcome) -> list[tuple[str, ...]]:
    def row(what: str, *values: object) -> tuple[str, ...]:
        return (what, *(str(value) for value in values))

    seen = [one.judgement for one in both]
    return [
        row("trainer killed (SIGKILL)", *(one.trainer_kills for one in both)),
        row("worker killed (SIGKILL)", *(one.worker_kills for one in both)),
        row("rollouts", *(len(one.table) for one in both)),
        row("model requests answered", *(one.requests for one in seen)),
        row("lost", *(one.lost for one in seen)),
        row("done twice", *(one.double for one in seen)),
        row("begun again", *(one.restarted for one in seen)),
        row("seconds", *(f"{one.summary.seconds:.1f}" for one in both)),
    ]


def _plain(one: Outcome) -> dict[str, object]:
    seen = one.judgement
    return {
        "job": one.summary.job,
        "trainer_kills": one.trainer_kills,
        "worker_kills": one.worker_kills,
        "rollouts": len(one.table),
        "requests": seen.requests,
        "lost": seen.lost,
        "double": seen.double,
        "restarted": seen.restarted,
        "reasons": list(seen.reasons),
        "seconds": round(one.summary.seconds, 3),
        "table": [list(row) for row in one.table],
    }
