"""`skerry trace verify`: whether records are as they were written."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from skerry.cli.app import App
from skerry.cli.group import SkerryCommand
from skerry.cli.recorded import jobs_dir, jobs_option, newest
from skerry.cli.trace.places import Place, named, node_is_there, open_traces, store_options
from skerry.cli.trace.view import inert
from skerry.cli.words import plural
from skerry.errors import InvalidRequest

if TYPE_CHECKING:
    from skerry.spec.trajectory import TrajectoryCheck
    from skerry.trajectory.rollouts.reader import Check

INCOMPLETE = 3  # nothing was changed, but something is missing


@click.command("verify", cls=SkerryCommand)
@click.argument("name", metavar="[NAME]", required=False)
@click.option("--all", "everything", is_flag=True, help="All jobs and all sandboxes.")
@jobs_option
@store_options
@click.pass_obj
def verify(
    app: App,
    /,
    *,
    name: str | None,
    everything: bool,
    jobs: str | None,
    store: str | None,
    config: str | None,
) -> int:
    """Check that records are as they were written: each chain, each segment, each content.

    NAME is a job (the newest if none is given), a sandbox, or a rollout's key; with --all it is every
    job here and every sandbox that the node has on record; with --store and no name everything in
    the store. Exit status 1 if something was changed or taken away, 3 if only what a crash tore off
    or a node said that it dropped is missing. Whoever can write the record can also write another
    one: keep the `head` that is printed with somebody else.
    """
    if name is not None and everything:
        raise InvalidRequest("give a name, or --all")
    place = Place(store, config)
    if everything and not place.given:
        return _verify_all(app, jobs_dir(jobs), sandboxes=jobs is None and node_is_there(app))
    if not place.given and (name is None or _is_job(jobs, name)):
        return _verify_jobs(app, jobs_dir(jobs), (name or newest(jobs_dir(jobs)),))
    return app.wait_for(lambda: _verify_sandboxes(app, name, place))


def _verify_all(app: App, folder: Path, *, sandboxes: bool) -> int:
    """Checks all jobs of a folder, and what the node has; NotFound if there is nothing to check."""
    from skerry.trajectory.rollouts.reader import list_jobs

    if not sandboxes:
        newest(folder)
    status = _verify_jobs(app, folder, list_jobs(folder))
    if sandboxes:
        status = _worse(status, app.wait_for(lambda: _verify_sandboxes(app, None, Place())))
    return status


def _is_job(jobs: str | None, name: str) -> bool:
    from skerry.trajectory.rollouts.reader import list_jobs

    return jobs is not None or name in list_jobs(jobs_dir(jobs))


def _verify_jobs(app: App, folder: Path, jobs: Sequence[str]) -> int:
    from skerry.trajectory.rollouts.reader import verify_job

    sound = True
    for name in jobs:
        check = verify_job(folder, name)
        sound = sound and check.sound
        _show_job_check(app, check)
    return 0 if sound else 1


def _show_job_check(app: App, check: Check) -> None:
    if app.as_json:
        from skerry.cli.jsonable import jsonable

        app.emit({**jsonable(check), "sound": check.sound})
        return
    word = click.style("sound", fg="green") if check.sound else click.style("broken", fg="red")
    app.line(f"{check.job}  {word}  {check.lines} lines, {check.rollouts} rollouts")
    app.line(f"  head {check.head}")
    for problem in check.problems:
        app.line(f"  line {problem.line}: {problem.kind}: {inert(problem.text)}")


async def _verify_sandboxes(app: App, name: str | None, place: Place) -> int:
    status = 0
    async with open_traces(app, place) as traces:
        if name is None:
            found = False
            async for check in traces.check_all():
                found = True
                status = _worse(status, _show_check(app, check))
            if not found:
                app.note(f"no trajectories in {traces.where}")
        else:
            for info in await named(traces, name):
                status = _worse(status, _show_check(app, await traces.check(info.sandbox)))
    return status


def _show_check(app: App, check: TrajectoryCheck) -> int:
    """Tells of one check; returns the exit status that it asks for."""
    guilty = [finding for finding in check.findings if not finding.kind.innocent]
    status = 1 if guilty else INCOMPLETE if check.findings else 0
    if app.as_json:
        from skerry.cli.jsonable import jsonable

        app.emit({**jsonable(check), "sound": check.sound, "status": status})
        return status
    word = click.style("sound", fg="green")
    if status:
        word = click.style(
            *(("broken",) if guilty else ("incomplete",)), fg="red" if guilty else "yellow"
        )
    what = check.sandbox or f"node {check.node}"
    app.line(
        f"{what}  {word}  {plural(check.segments, 'segment')}, {plural(check.records, 'record')}, "
        f"{plural(check.blobs, 'content')}"
    )
    app.line(f"  head {check.head}")
    for finding in check.findings:
        places = [
            f"{label} {value}"
            for label, value in (
                ("segment", finding.segment), ("offset", finding.offset),
                ("sandbox", finding.sandbox), ("content", finding.blob),
            )
            if value is not None
        ]  # fmt: skip
        app.line(f"  {finding.kind}: {inert(finding.detail)} ({', '.join(places)})")
    return status


def _worse(one: int, other: int) -> int:
    """Returns the worse of two exit statuses: 1 before 3 before 0."""
    return min(one, other) or max(one, other)
