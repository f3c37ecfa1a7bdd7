"""`skerry trace`: what jobs left on record."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from skerry.cli.app import App
from skerry.cli.group import SkerryGroup
from skerry.cli.recorded import COLOURS, explain, jobs_dir, jobs_option, mean, show_table, who
from skerry.errors import InvalidRequest, NotFound

if TYPE_CHECKING:
    from skerry.spec.rollout import Line, RolloutRecord

TEXT_SHOWN = 400


@click.group(cls=SkerryGroup)
def trace() -> None:
    """List, show and verify recorded rollouts."""


@trace.command("ls")
@click.option("--job", metavar="JOB", help="This job [the newest].")
@click.option("--all", "everything", is_flag=True, help="All jobs.")
@jobs_option
@click.pass_obj
def ls(app: App, /, *, job: str | None, everything: bool, jobs: str | None) -> None:
    """List rollouts with their final verdicts.

    With --json one object a line for each rollout: job, rollout, task, policy, reward (null for an
    infrastructure error), verdict, evidence, seconds, earlier attempts under `attempts`, and more.
    """
    from skerry.trajectory.rollouts_reader import list_rollouts

    if job is not None and everything:
        raise InvalidRequest("--job and --all do not go together")
    folder = jobs_dir(jobs)
    if job is None and not everything:
        job = newest(folder)
        click.echo(f"job {job} (the newest; --all shows all)", err=True)
    records = list_rollouts(folder, job)
    if app.as_json:
        for record in records:
            app.emit(record)
        return
    if everything:
        _show_jobs(app, records)
    else:
        show_table(app, records)
        explain(app, records)
        app.note(
            f"\nOne of them: skerry trace show {records[0].rollout}" if records else "\nNo ends"
        )


def newest(folder: Path) -> str:
    """Returns the newest job; NotFound says how to make one."""
    from skerry.trajectory.rollouts_reader import list_jobs

    known = list_jobs(folder)
    if not known:
        raise NotFound(f"no jobs in {folder}", hint="`skerry demo` or `skerry rollout` makes one")
    return known[-1]


def _show_jobs(app: App, records: tuple[RolloutRecord, ...]) -> None:
    groups: dict[tuple[str, str], list[RolloutRecord]] = {}
    for record in records:
        groups.setdefault((record.job, record.policy), []).append(record)
    app.table(
        ["JOB", "POLICY", ">ROLLOUTS", "REWARD"],
        [
            (job, policy, len(group), mean([item.reward for item in group]))
            for (job, policy), group in groups.items()
        ],
    )


@trace.command("show")
@click.argument("rollout")
@jobs_option
@click.pass_obj
def show(app: App, /, *, rollout: str, jobs: str | None) -> None:
    """Show one rollout: its verdict, the evidence, and all that was done in it, in order."""
    from skerry.trajectory.rollouts_reader import show_rollout

    found = show_rollout(jobs_dir(jobs), rollout)
    if app.as_json:
        app.emit(found)
        return
    for line in found.lines:
        if line.kind != "rollout":
            _show_line(app, line, found.lines[0].time)
    if found.record is None:
        app.warn(f"{rollout} has no end: its job was killed, or still runs")
        return
    record = found.record
    app.line("")
    reward = "none" if record.reward is None else f"{record.reward:g}"
    verdict = click.style(str(record.verdict), fg=COLOURS[str(record.verdict)])
    app.line(f"{record.task}, {who(record)}: {verdict}, reward {reward}, {record.seconds:.1f} s")
    app.line(f"  tests    {record.tests_passed} passed, {record.tests_failed} failed")
    if record.detail:
        app.line(f"  detail   {record.detail}")
    for item in record.evidence:
        app.line(f"  evidence {item.kind}: {item.path} {item.detail}".rstrip())
    for note in record.notes:
        app.line(f"  note     {note}")
    for attempt in record.attempts:
        app.line(f"  attempt  {attempt.stage}: {attempt.detail} ({attempt.seconds:.1f} s)")


def _show_line(app: App, line: Line, began: float) -> None:
    data: dict[str, Any] = {key: value for key, value in line.data.items() if key != "rollout"}
    what = str(data.pop("action", line.kind))
    app.line(click.style(f"+{line.time - began:7.2f} s  {what}", bold=True))
    for name, value in data.items():
        text = value.get("text", "") if isinstance(value, dict) and "text" in value else value
        if text in ("", None, [], {}):
            continue
        words = str(text)
        if len(words) > TEXT_SHOWN:
            words = words[:TEXT_SHOWN] + f" ... ({len(words)} characters)"
        app.line(f"    {name}: " + words.rstrip("\n").replace("\n", "\n      "))


@trace.command("verify")
@click.argument("job", required=False)
@click.option("--all", "everything", is_flag=True, help="All jobs.")
@jobs_option
@click.pass_obj
def verify(app: App, /, *, job: str | None, everything: bool, jobs: str | None) -> int:
    """Check that a job's record is as it was written: the chain, and every blob.

    JOB is the newest if it is not given. Exit status 1 if something is wrong. Whoever can write the
    record can also write another one: keep the `head` that is printed with somebody else.
    """
    from skerry.trajectory.rollouts_reader import list_jobs, verify_job

    folder = jobs_dir(jobs)
    if job is not None and everything:
        raise InvalidRequest("give a job, or --all")
    wanted = list_jobs(folder) if everything else (job or newest(folder),)
    sound = True
    for name in wanted:
        check = verify_job(folder, name)
        sound = sound and check.sound
        if app.as_json:
            from skerry.cli.plain import plain

            app.emit({**plain(check), "sound": check.sound})
            continue
        word = click.style("sound", fg="green") if check.sound else click.style("broken", fg="red")
        app.line(f"{check.job}  {word}  {check.lines} lines, {check.rollouts} rollouts")
        app.line(f"  head {check.head}")
        for problem in check.problems:
            app.line(f"  line {problem.line}: {problem.kind}: {problem.text}")
    return 0 if sound else 1
