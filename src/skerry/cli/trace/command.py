"""`skerry trace`: what is on record of jobs' rollouts, and of what was done to sandboxes."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from skerry.cli.app import App
from skerry.cli.group import SkerryGroup
from skerry.cli.recorded import (
    COLOURS,
    explain,
    jobs_dir,
    jobs_option,
    mean,
    newest,
    show_grading,
    show_table,
    who,
)
from skerry.cli.trace.places import Place, Traces, named, node_is_there, open_traces, store_options
from skerry.cli.trace.verifying import verify
from skerry.cli.trace.view import inert, inert_lines, lines_of, part
from skerry.cli.trace.work import diff, export, stats
from skerry.cli.words import age, plural, size
from skerry.errors import InvalidRequest, NotFound
from skerry.spec.ids import SANDBOX_PATTERN

if TYPE_CHECKING:
    from skerry.spec.rollout import Line, RolloutRecord
    from skerry.spec.trajectory import TrajectoryInfo

SANDBOXES_SHOWN = 20


@click.group(cls=SkerryGroup)
def trace() -> None:
    """Read what is on record: rollouts of jobs, and all that was done to sandboxes.

    A name is that of a sandbox, of a rollout or its key, or of a job. What was done to sandboxes is
    asked of the node, or read without one: from a layer store with --store, else from the state
    directory of this machine.
    """


trace.add_command(diff)
trace.add_command(export)
trace.add_command(stats)
trace.add_command(verify)


@trace.command("ls")
@click.option("--job", metavar="JOB", help="This job [the newest, and all sandboxes].")
@click.option("--rollout", metavar="KEY", help="Only sandboxes with this rollout key.")
@click.option("--all", "everything", is_flag=True, help="All jobs, and all sandboxes.")
@jobs_option
@store_options
@click.pass_obj
def ls(
    app: App,
    /,
    *,
    job: str | None,
    rollout: str | None,
    everything: bool,
    jobs: str | None,
    store: str | None,
    config: str | None,
) -> None:
    """List rollouts with their final verdicts, and the sandboxes of which there is a record.

    With --json one object a line. A rollout's has `kind` "rollout", its verdict, its reward (null for
    an infrastructure error), evidence, seconds, earlier attempts under `attempts`, and more; a
    sandbox's has `kind` "trajectory", its rollout key, job, state, times and number of events.
    """
    if job is not None and everything:
        raise InvalidRequest("--job and --all do not go together")
    offline = Place(store, config).given
    # Who says where jobs are asks for jobs; who says where a store is asks for what is in it.
    sandboxes = offline or rollout is not None or (jobs is None and node_is_there(app))
    found = False
    if not offline and rollout is None:
        found = _ls_jobs(app, jobs_dir(jobs), job, everything=everything, needed=not sandboxes)
    if sandboxes:
        limit = None if everything or rollout or app.as_json else SANDBOXES_SHOWN
        wanted = {"rollout": rollout, "job": job}
        place = Place(store, config)
        app.wait_for(lambda: _ls_sandboxes(app, place, wanted, limit, below=found))


def _ls_jobs(app: App, folder: Path, job: str | None, *, everything: bool, needed: bool) -> bool:
    """Lists rollouts; returns whether there are any. NotFound if there must be and are not."""
    from skerry.trajectory.rollouts.reader import list_jobs, list_rollouts

    if not needed and (job or "") not in ("", *list_jobs(folder)):
        return False
    if not needed and not list_jobs(folder):
        return False
    if job is None and not everything:
        job = newest(folder)
        click.echo(f"job {job} (the newest; --all shows all)", err=True)
    records = list_rollouts(folder, job)
    if app.as_json:
        from skerry.cli.jsonable import jsonable

        for record in records:
            app.emit({"kind": "rollout", **jsonable(record)})
        return bool(records)
    if everything:
        _show_jobs(app, records)
    else:
        show_table(app, records)
        explain(app, records)
        app.note(
            f"\nOne of them: skerry trace show {records[0].rollout}" if records else "\nNo ends"
        )
    return bool(records)


async def _ls_sandboxes(
    app: App, place: Place, wanted: dict[str, str | None], limit: int | None, *, below: bool
) -> None:
    async with open_traces(app, place) as traces:
        found = [info async for info in traces.select(**wanted)]
        where = traces.where
    if app.as_json:
        from skerry.cli.jsonable import jsonable

        for info in found:
            app.emit({"kind": "trajectory", **jsonable(info)})
        return
    if not found:
        if not below:
            raise NotFound(f"no trajectories in {where}")
        return
    shown = found if limit is None else found[-limit:]
    if below:
        app.line("")
    now = time.time()
    app.table(
        ["SANDBOX", "ROLLOUT", "JOB", "STATE", ">EVENTS", ">SIZE", ">AGE"],
        [
            (
                info.sandbox,
                inert(info.rollout or "-"),
                info.job or "-",
                info.state + ("" if info.complete or info.state == "live" else ", incomplete"),
                info.events,
                size(info.bytes),
                age(now - info.created),
            )
            for info in shown
        ],
    )
    if len(shown) < len(found):
        app.note(f"the last {len(shown)} of {plural(len(found), 'sandbox')}; --all shows all")


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
@click.argument("name", metavar="NAME")
@click.option("--from", "start", type=click.IntRange(0), default=0, help="First event [0].")
@click.option("--limit", type=click.IntRange(1), help="At most that many events of a sandbox.")
@click.option("--full", is_flag=True, help="Outputs as long as they stand in the record.")
@jobs_option
@store_options
@click.pass_obj
def show(
    app: App,
    /,
    *,
    name: str,
    start: int,
    limit: int | None,
    full: bool,
    jobs: str | None,
    store: str | None,
    config: str | None,
) -> None:
    """Show one rollout or sandbox: all that was done in it, in order, verdict and evidence.

    NAME is a rollout of a job, a rollout's key, or a sandbox. With --json a rollout of a job is one
    object, and each event of a sandbox is one.
    """
    from skerry.trajectory.rollouts.reader import show_rollout

    found = None
    place = Place(store, config)
    if not place.given and SANDBOX_PATTERN.fullmatch(name) is None:
        try:
            found = show_rollout(jobs_dir(jobs), name)
        except NotFound:
            if jobs is not None:
                raise
    if found is not None:
        if app.as_json:
            app.emit(found)
        else:
            _show_rollout(app, name, found)
        if jobs is not None or not node_is_there(app):
            return
    view = _View(app, start, limit, full=full)
    app.wait_for(lambda: view.show(name, place, needed=found is None))


@dataclass(frozen=True)
class _View:
    """How sandboxes are shown: from which event on, and how many."""

    app: App
    start: int
    limit: int | None
    full: bool

    async def show(self, name: str, place: Place, *, needed: bool) -> None:
        """Shows a sandbox, or all of a rollout; NotFound if there must be one and is none."""
        async with open_traces(self.app, place) as traces:
            try:
                found = await named(traces, name)
            except NotFound:
                if needed:
                    raise
                return
            for info in found:
                await self._one(traces, info)

    async def _one(self, traces: Traces, info: TrajectoryInfo) -> None:
        from skerry.trajectory.reports.export import whole

        app = self.app
        if not app.as_json:
            of = f", rollout {inert(info.rollout)}" if info.rollout else ""
            of += f", job {info.job}" if info.job else ""
            head = click.style(info.sandbox, bold=True)
            app.line(f"{head}  {info.state}, {plural(info.events, 'event')}{of}")
            if not info.state:
                app.warn(f"the beginning of {info.sandbox} is not on record")
        count = 0
        async for event in traces.events(info.sandbox, self.start):
            if self.limit is not None and count >= self.limit:
                break
            count += 1
            if app.as_json:
                app.emit(whole(event))
                continue
            for line in lines_of(event, info.created, full=self.full):
                app.line(line)


def _show_rollout(app: App, rollout: str, found: Any) -> None:
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
    show_grading(app, record)
    if record.detail:
        app.line(f"  detail   {inert_lines(record.detail, ' ' * 11)}")
    for item in record.evidence:
        text = f"{item.kind}: {item.path} {item.detail}".rstrip()
        app.line(f"  evidence {inert_lines(text, ' ' * 11)}")
    for note in record.notes:
        app.line(f"  note     {inert_lines(note, ' ' * 11)}")
    for attempt in record.attempts:
        detail = inert_lines(attempt.detail, " " * 11)
        app.line(f"  attempt  {attempt.stage}: {detail} ({attempt.seconds:.1f} s)")


def _show_line(app: App, line: Line, began: float) -> None:
    data: dict[str, Any] = {key: value for key, value in line.data.items() if key != "rollout"}
    what = str(data.pop("action", line.kind))
    app.line(click.style(f"+{line.time - began:7.2f} s  {inert(what)}", bold=True))
    for name, value in data.items():
        text = value.get("text", "") if isinstance(value, dict) and "text" in value else value
        if text in ("", None, [], {}):
            continue
        words = part(name, str(text), f"{len(str(text))} characters")
        app.line(f"    {inert(name)}: " + inert_lines(words, " " * 6))
