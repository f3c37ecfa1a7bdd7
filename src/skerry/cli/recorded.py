"""What `rollout`, `demo` and `trace` share: folders of recorded jobs, live progress, the table."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from skerry.cli.app import App
from skerry.cli.secrets import state_home
from skerry.cli.trace.view import inert
from skerry.cli.words import plural
from skerry.errors import NotFound

if TYPE_CHECKING:
    from skerry.spec.rollout import JobEvent, JobSummary, RolloutRecord

COLOURS = {
    "passed": "green",
    "failed": "yellow",
    "tampered": "red",
    "infrastructure_error": "magenta",
}
STEPS_SHOWN = 8


def jobs_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """Adds --jobs."""
    option = click.option(
        "--jobs", "jobs", metavar="DIR", help="Where jobs are kept [~/.local/state/skerry/jobs]."
    )
    return option(function)


def jobs_dir(given: str | None) -> Path:
    """Returns the directory of jobs."""
    return Path(given or os.path.join(state_home(), "skerry", "jobs")).absolute()


def newest(folder: Path) -> str:
    """Returns the newest job; NotFound says how to make one."""
    from skerry.trajectory.rollouts.reader import list_jobs

    known = list_jobs(folder)
    if not known:
        raise NotFound(f"no jobs in {folder}", hint="`skerry demo` or `skerry rollout` makes one")
    return known[-1]


@contextmanager
def progress(app: App, *, records: bool = True) -> Iterator[Callable[[JobEvent], None]]:
    """Gives a function that shows a job's events: live on a terminal, as lines elsewhere.

    With --json each rollout's record goes to stdout as it ends, unless `records` is false.
    """
    if not app.may_draw:
        yield Lines(app, records=records)
        return
    from rich.live import Live

    shown = Board()
    with Live(
        get_renderable=shown.render, console=app.console(err=True), refresh_per_second=8,
        transient=True,
    ):  # fmt: skip
        yield shown


class Lines:
    """Progress as lines: what is built, and each rollout's end."""

    def __init__(self, app: App, *, records: bool = True) -> None:
        self._app = app
        self._emits = records and app.as_json

    def __call__(self, event: JobEvent) -> None:
        """Says an event, if it is worth a line."""
        if event.kind == "plan":
            self._app.note(f"job {event.text}: {plural(event.total, 'rollout')}")
        elif event.kind == "build":
            self._app.note(f"  {event.text}")
        elif event.kind == "built":
            self._app.note(f"environments are ready ({event.text})")
        elif event.kind == "attempt":
            self._app.note(f"  again: {event.task} {event.policy}: {event.text}")
        elif event.kind == "done" and event.record is not None:
            record = event.record
            self._app.note(
                f"[{event.done}/{event.total}] {record.task} {who(record)}: "
                f"{record.verdict} in {record.seconds:.1f} s"
            )
        if event.record is not None and self._emits:
            self._app.emit(event.record)


class Board:
    """Progress on a terminal: a bar, the counts of verdicts, and what is under way."""

    def __init__(self) -> None:
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeElapsedColumn,
        )

        self._bars = Progress(
            TextColumn("{task.description}"), BarColumn(bar_width=40), MofNCompleteColumn(),
            TimeElapsedColumn(),
        )  # fmt: skip
        self._task = self._bars.add_task("environments", total=None)
        self._steps: dict[str, str] = {}
        self._said: list[str] = []
        self._verdicts: Counter[str] = Counter()

    def __call__(self, event: JobEvent) -> None:
        """Takes an event in."""
        if event.kind == "build":
            self._said = [*self._said, event.text][-STEPS_SHOWN:]
        elif event.kind == "built":
            self._said = []
            self._bars.reset(self._task, description="rollouts", total=event.total)
        elif event.kind in ("start", "step", "attempt"):
            self._steps[event.rollout] = f"{event.task}  {event.policy}  {event.text or 'starting'}"
        elif event.kind == "done":
            self._steps.pop(event.rollout, None)
            self._bars.update(self._task, completed=event.done)
            if event.record is not None:
                self._verdicts[str(event.record.verdict)] += 1

    def render(self) -> Any:
        """Returns what the terminal shows now."""
        from rich.console import Group
        from rich.text import Text

        lines: list[Any] = [self._bars]
        if self._verdicts:
            counts = [
                Text(f"  {count} {verdict}", style=COLOURS[verdict])
                for verdict, count in self._verdicts.items()
            ]
            lines.append(Text("").join(counts))
        steps = list(self._steps.values())
        lines += [
            Text(f"  {step}"[:100], style="dim") for step in (self._said + steps)[:STEPS_SHOWN]
        ]
        if len(steps) > STEPS_SHOWN:
            lines.append(Text(f"  and {len(steps) - STEPS_SHOWN} more", style="dim"))
        return Group(*lines)


def who(record: RolloutRecord) -> str:
    """Returns the policy with its variant."""
    return f"{record.policy}: {record.variant}" if record.variant else record.policy


def show_summary(app: App, summary: JobSummary) -> None:
    """Draws a finished job: the table, the rates, and where it is on record."""
    if app.as_json:
        app.emit(
            {
                "summary": {
                    "job": summary.job,
                    "path": summary.path,
                    "rollouts": len(summary.records),
                    "verdicts": Counter(str(item.verdict) for item in summary.records),
                    "build_seconds": summary.build_seconds,
                    "seconds": summary.seconds,
                    "rollouts_per_second": summary.per_second,
                }
            }
        )
        return
    show_table(app, summary.records)
    app.line("")
    built = f"; environments took {summary.build_seconds:.1f} s" if summary.build_seconds else ""
    app.line(
        f"{plural(len(summary.records), 'rollout')} in {summary.seconds:.1f} s "
        f"({summary.per_second:.2f} a second){built}"
    )
    for policy in dict.fromkeys(item.policy for item in summary.records):
        rewards = [item.reward for item in summary.records if item.policy == policy]
        app.line(f"  {policy:<10} {mean(rewards)}")


def mean(rewards: Sequence[float | None]) -> str:
    """Returns the mean reward in words; what has no reward is counted apart."""
    known = [reward for reward in rewards if reward is not None]
    text = f"mean reward {sum(known) / len(known):.3f}" if known else "no reward"
    text += f" over {plural(len(known), 'rollout')}"
    lost = len(rewards) - len(known)
    return text + (f", {plural(lost, 'infrastructure error')} left out" if lost else "")


def show_table(app: App, records: Sequence[RolloutRecord]) -> None:
    """Draws one row for each policy, variant and task; several rollouts of one are summed up."""
    from rich.text import Text

    groups: dict[tuple[str, str], list[RolloutRecord]] = {}
    records = sorted(records, key=lambda item: item.rollout)  # the order of the plan
    policies = list(dict.fromkeys(record.policy for record in records))
    for record in sorted(records, key=lambda item: policies.index(item.policy)):
        groups.setdefault((who(record), record.task), []).append(record)
    several = any(len(group) > 1 for group in groups.values())
    rows = []
    for (policy, task), group in groups.items():
        rewards = [item.reward for item in group if item.reward is not None]
        verdicts = Counter(str(item.verdict) for item in group)
        words = Text(", ").join(
            Text(f"{count} {word}" if several else word, style=COLOURS[word])
            for word, count in verdicts.items()
        )
        seconds = sum(item.seconds for item in group) / len(group)
        reward = f"{sum(rewards) / len(rewards):.4g}" if rewards else "-"
        rows.append((policy, task, reward, words, f"{seconds:.1f}"))
    app.table(["POLICY", "TASK", ">REWARD", "VERDICT", ">SECONDS"], rows)


def show_grading(app: App, record: RolloutRecord) -> None:
    """Shows what a verdict says beyond its tests: the score, the limit, and each repeat."""
    if record.score is not None:
        app.line(f"  score    {record.score:g}")
    if record.limit is not None:
        app.line(f"  limit    {record.limit}")
    if record.repeats is None:
        return
    runs = len(record.repeats.runs)
    app.line(f"  repeats  {record.repeats.passed} of {runs} passed, {record.repeats.needed} needed")
    for name, count in record.repeats.unstable.items():
        app.line(f"  flaky    {inert(name)}: passed {count} of {runs}")


def explain(app: App, records: Sequence[RolloutRecord]) -> None:
    """Says why rollouts have no reward, each reason once."""
    lost = [item for item in records if item.reward is None]
    for detail, count in Counter(item.detail or "no reason given" for item in lost).items():
        app.warn(f"{plural(count, 'rollout')} without a reward: {detail}")
