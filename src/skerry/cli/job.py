"""`skerry job`: what owns sandboxes in a trainer's stead, listed, paused, resumed and ended."""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING

import click

from skerry.cli.app import App
from skerry.cli.group import SkerryGroup
from skerry.cli.options import complete_job, labels_option, seconds
from skerry.cli.words import age, plural, size
from skerry.errors import NotFound

if TYPE_CHECKING:
    from skerry.aio import Client, Job
    from skerry.spec.job import JobInfo
    from skerry.spec.worker import JobStatus, Signal
    from skerry.wire.jobs import JobMoved, JobQueue, JobStep

    Progress = tuple[list[JobStatus], Signal]

SHOWN = 10  # creates that wait

job_argument = click.argument("job_id", metavar="JOB", shell_complete=complete_job)


@click.group(cls=SkerryGroup)
def job() -> None:
    """List, show, pause, resume and remove jobs."""


@job.command("ls")
@click.option("-a", "--all", "everything", is_flag=True, help="Ended ones too.")
@labels_option("Only with this label.")
@click.pass_obj
def ls(app: App, /, *, everything: bool, labels: tuple[tuple[str, str], ...]) -> None:
    """List jobs, oldest first."""

    async def work() -> list[JobInfo]:
        async with app.client() as client:
            return await client.jobs.list(labels=dict(labels), ended=everything)

    found = app.wait_for(work)
    if app.as_json:
        for info in found:
            app.emit(info)
        return
    if not found:
        app.note("no jobs" if everything else "no jobs (-a shows ended ones)")
        return
    now = time.time()
    app.table(
        ["JOB", "STATE", ">AGE", "SANDBOXES", ">WAITING", "LEASE"],
        [
            (
                info.id,
                info.state,
                age(now - info.created),
                _counts(info),
                info.waiting,
                _lease(info, now),
            )
            for info in found
        ],
    )


@job.command("show")
@job_argument
@click.pass_obj
def show(app: App, /, *, job_id: str) -> None:
    """Show how a job stands: its sandboxes, its rollouts, and which of its creates wait for room."""

    async def work() -> tuple[JobInfo, JobQueue, Progress | None]:
        async with app.client() as client:
            found = await client.jobs.get(job_id)
            return found.created_as, await found.queue(), await _progress(client, found)

    info, queue, progress = app.wait_for(work)
    if app.as_json:
        from skerry.cli.jsonable import jsonable

        rollouts = None
        if progress is not None:
            rollouts = {"status": jsonable(progress[0]), "signal": jsonable(progress[1])}
        app.emit({**jsonable(info), "queue": jsonable(queue), "rollouts": rollouts})
        return
    _describe(app, info)
    if progress is not None:
        _describe_rollouts(app, *progress)
    if queue.waiting:
        _describe_queue(app, queue)


async def _progress(client: Client, job: Job) -> Progress | None:
    """Returns how the job's rollouts stand; None if it has none. Starts no worker to ask it."""
    if all(one.state == "unused" for one in await client.workers()):
        return None
    try:
        return await job.status(), await job.signal()
    except NotFound:
        return None


def _describe_rollouts(app: App, status: list[JobStatus], signal: Signal) -> None:
    counts: Counter[str] = Counter()
    for share in status:
        counts.update(share.counts)
    ended = counts.pop("ended", 0)
    others = "".join(f", {count} {state}" for state, count in sorted(counts.items()) if count)
    app.line(f"  {'rollouts':<19} {ended} of {status[0].total} ended{others}")
    waits = f"{signal.waiting} wait, {signal.leased} are with a trainer"
    if signal.waiting or signal.leased:
        waits += f"; the oldest for {age(signal.oldest_s)}"
    app.line(f"  {'model requests':<19} {waits}")
    for share in status:
        if share.failure or share.trouble:
            app.line(f"  {'trouble':<19} {share.failure or share.trouble}")


def _describe(app: App, info: JobInfo) -> None:
    spec, now = info.spec, time.time()
    state = f"{info.state} ({info.reason})" if info.reason else str(info.state)
    rows: list[tuple[str, object]] = [
        ("state", f"{state} by {info.paused_by}" if info.paused_by else state),
        ("created", f"{age(now - info.created)} ago"),
        ("lease", _lease(info, now)),
        (
            "when it is lost",
            f"{spec.on_lost}, {spec.grace_s:g} s after a lease of {spec.lease_s:g} s",
        ),
        ("when it is back", f"resume {spec.resume}"),
        ("sandboxes", _counts(info)),
    ]
    if spec.sandboxes_max is not None:
        rows.append(("at most", plural(spec.sandboxes_max, "sandbox")))
    if spec.priority:
        rows.append(("priority", spec.priority))
    if info.owner:
        rows.append(("API token", info.owner))
    if info.expires is not None:
        rows.append(("expires", f"in {age(info.expires - now)}"))
    if spec.labels:
        rows.append(("labels", " ".join(f"{name}={value}" for name, value in spec.labels.items())))
    app.line(info.id)
    for name, value in rows:
        app.line(f"  {name:<19} {value}")


def _describe_queue(app: App, queue: JobQueue) -> None:
    whole = "" if queue.estimate_s is None else f"; the last comes in about {age(queue.estimate_s)}"
    app.line(f"  {'waiting':<19} {plural(queue.waiting, 'create')}{whole}")
    if queue.message:
        app.line(f"  {'in the way':<19} {queue.message}")
    rows = []
    for item in queue.items[:SHOWN]:
        place = f"{item.position}" if item.last == item.position else f"{item.position}-{item.last}"
        about = "?" if item.estimate_s is None else age(item.estimate_s)
        rows.append((place, item.count, about, item.key or ""))
    app.table([">PLACE", ">CREATES", ">ABOUT", "KEY"], rows)


def _counts(info: JobInfo) -> str:
    return " ".join(f"{count} {state}" for state, count in sorted(info.sandboxes.items())) or "none"


def _lease(info: JobInfo, now: float) -> str:
    if info.lost_since is not None:
        return f"lost {age(now - info.lost_since)} ago"
    return "none" if info.lease_expires is None else f"{age(info.lease_expires - now)} left"


@job.command("pause")
@job_argument
@click.pass_obj
def pause(app: App, /, *, job_id: str) -> int:
    """Let all sandboxes of a job stand still; its creates wait.

    Ctrl-C stops it where it is. A request that needs a paused sandbox lets that
    one go on. Exit status 1 if some could not be paused: they are named.
    """
    return _move(app, job_id, pausing=True)


@job.command("resume")
@job_argument
@click.pass_obj
def resume(app: App, /, *, job_id: str) -> int:
    """Let what a pause of the job, or the loss of its lease, has paused go on."""
    return _move(app, job_id, pausing=False)


def _move(app: App, job_id: str, *, pausing: bool) -> int:
    told = _Progress(app, "paused" if pausing else "resumed")

    async def work() -> JobMoved:
        async with app.client() as client:
            found = await client.jobs.get(job_id)
            return await (found.pause(told) if pausing else found.resume(told))

    end = app.wait_for(work)
    told.over()
    if app.as_json:
        app.emit(end)
        return int(end.failures > 0)
    for one in end.failed:
        app.warn(f"{one.sandbox}: {one.error.message}")
    freed = f", {size(end.freed_bytes)} given back" if end.freed_bytes else ""
    words = (
        f"{end.done} of {plural(end.total, 'sandbox')} {told.word} in {end.seconds:.1f} s{freed}"
    )
    app.line(words + (" (cancelled)" if end.cancelled else ""))
    return int(end.failures > 0)


class _Progress:
    """A line that counts, on a terminal."""

    def __init__(self, app: App, word: str) -> None:
        self._app = app
        self._drawn = False
        self.word = word

    def __call__(self, step: JobStep) -> None:
        """Says how far it is."""
        if self._app.may_draw:
            failed = f", {step.failed} failed" if step.failed else ""
            click.echo(f"\r{step.done} of {step.total} {self.word}{failed}", nl=False, err=True)
            self._drawn = True

    def over(self) -> None:
        """Lets what follows begin on a line of its own."""
        if self._drawn:
            click.echo(err=True)


@job.command("extend")
@job_argument
@click.option("--ttl", type=seconds, metavar="TIME", required=True, help="End that long from now.")
@click.pass_obj
def extend(app: App, /, *, job_id: str, ttl: float) -> None:
    """Give a job another end, counted from now (90, 10m, 2h)."""

    async def work() -> JobInfo:
        async with app.client() as client:
            return await (await client.jobs.get(job_id)).update(ttl=ttl)

    info = app.wait_for(work)
    if app.as_json:
        app.emit(info)
    else:
        app.line(f"{info.id} expires in {age(ttl)}")


@job.command("rm")
@click.argument("ids", metavar="JOB...", nargs=-1, required=True, shell_complete=complete_job)
@click.pass_obj
def rm(app: App, /, *, ids: tuple[str, ...]) -> None:
    """End jobs: their sandboxes are destroyed, and their names are free."""

    async def work() -> list[JobInfo]:
        async with app.client() as client:
            # The node counts unknown jobs as ended: right for repeats, wrong for typing errors.
            found = [await client.jobs.get(name) for name in dict.fromkeys(ids)]
            return [await one.end() for one in found]

    for info in app.wait_for(work):
        if app.as_json:
            app.emit({"id": info.id, "ended": True})
        else:
            app.line(info.id)
