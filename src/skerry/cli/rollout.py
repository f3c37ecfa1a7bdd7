"""`skerry rollout`: a job of policies over tasks, at the node's workers."""

from __future__ import annotations

import os
import secrets
import shlex
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from skerry.cli.app import App
from skerry.cli.group import SkerryCommand
from skerry.cli.loop import Interrupted
from skerry.cli.recorded import explain, jobs_dir, jobs_option, progress, show_summary
from skerry.cli.secrets import cache_home, environment, secret_from
from skerry.cli.shipped import task_paths
from skerry.errors import InvalidRequest
from skerry.spec.grading import REPEATS_MAX

if TYPE_CHECKING:
    from skerry.cli.following import Wanted
    from skerry.spec.rollout import JobSummary
    from skerry.worker import Downloads


def default_concurrency() -> int:
    """Returns how many rollouts run at a time: two a core, since much of one is waiting."""
    return max(2, 2 * (os.cpu_count() or 1))


def downloads() -> Downloads:
    """Returns the cache of archives, fetched through this machine's own pip configuration."""
    from skerry.worker import Downloads

    return Downloads(Path(cache_home()), environment())


@click.command(cls=SkerryCommand)
@click.argument("tasks", metavar="TASKS...", nargs=-1)
@click.option(
    "--policy", "policies", multiple=True, metavar="NAME",
    help="gold, noop, cheat or cheat:VARIANT; repeatable.",
)  # fmt: skip
@click.option("-n", "count", type=click.IntRange(1), default=1, show_default=True,
              help="Rollouts for each task and policy.")  # fmt: skip
@click.option("--repeats", type=click.IntRange(1, REPEATS_MAX), metavar="N",
              help="Verify each so many times, in a fresh sandbox each; all must pass.")  # fmt: skip
@click.option("--concurrency", type=click.IntRange(1), help="Rollouts at a time [2 a core].")
@click.option("--scaffold", metavar="COMMAND", help="A command as the agent, in its sandbox.")
@click.option("--toolkit", "toolkits", multiple=True, metavar="LAYER",
              help="A layer with the scaffold; repeatable.")  # fmt: skip
@click.option("--model", metavar="URL", help="A model behind an OpenAI-compatible endpoint.")
@click.option(
    "--model-name",
    metavar="NAME",
    default="default",
    show_default=True,
    help="What that endpoint calls it.",
)
@click.option("--turns", type=click.IntRange(1), default=50, show_default=True,
              help="Of the model, in one rollout.")  # fmt: skip
@click.option("--api-key-env", metavar="NAME", help="Environment variable with the model's key.")
@click.option("--detach", is_flag=True, help="Submit, print the job's name, and leave it running.")
@click.option("--attach", metavar="JOB", help="Follow a job that runs; it goes on if you leave.")
@jobs_option
@click.pass_obj
def rollout(
    app: App,
    /,
    *,
    tasks: tuple[str, ...],
    policies: tuple[str, ...],
    count: int,
    repeats: int | None,
    concurrency: int | None,
    scaffold: str | None,
    toolkits: tuple[str, ...],
    model: str | None,
    model_name: str,
    turns: int,
    api_key_env: str | None,
    detach: bool,
    attach: str | None,
    jobs: str | None,
) -> int:
    """Run a job: policies over tasks, each rollout in its own sandbox, graded in a fresh one.

    TASKS are directories of tasks, single tasks, or ids of the tasks that come with Skerry. The node's
    workers own the rollouts; Ctrl-C ends the job. Progress is live; the table and the rates come at
    the end. With --model a bash-tool agent acts, or the --scaffold. The model's key never enters a
    sandbox. Exit status 1 if a rollout has no reward (infrastructure errors, after three tries).

    \b
    skerry rollout examples/tasks --policy gold --policy noop -n 4
    skerry rollout mytask --model http://127.0.0.1:8000/v1 --model-name qwen
    skerry rollout mytask --scaffold my-agent --toolkit toolkit/my-agent --model http://...
    """  # noqa: D301 - \b tells click to keep the lines
    if attach is not None:
        if tasks or policies or model or scaffold or detach:
            raise InvalidRequest("a job that runs has its tasks: --attach goes alone")
        return _shown(app, follow_job(app, attach, jobs=jobs))
    from skerry.cli.following import Wanted
    from skerry.spec.worker import AnswerUrl, ModelSettings, Scaffold
    from skerry.worker import load_tasks, policy_named

    for name in policies:
        policy_named(name)
    loaded = load_tasks(task_paths(tasks)) if tasks else ()
    if repeats is not None:
        loaded = tuple(item.repeated(repeats) for item in loaded)
    key = secret_from(api_key_env, required=True) if api_key_env else None
    words = shlex.split(scaffold) if scaffold is not None else []
    wanted = Wanted(
        tasks=loaded,
        policies=tuple(dict.fromkeys(policies)),
        scaffold=Scaffold(argv=tuple(words), layers=toolkits) if words else None,
        model=ModelSettings(model=model_name, turns=turns) if model and not words else None,
        answers=AnswerUrl(url=model, api_key=key) if model else None,
        n=count,
        concurrency=concurrency or default_concurrency(),
    )
    checked(wanted)
    if detach:
        app.line(start_job(app, wanted))
        return 0
    return _shown(app, run(app, wanted, jobs=jobs))


def checked(wanted: Wanted) -> None:
    """Raises InvalidRequest for what no worker would take."""
    if not wanted.tasks:
        raise InvalidRequest("no tasks", hint="name some, or `skerry task ls`")
    if not (wanted.policies or wanted.scaffold or wanted.model):
        raise InvalidRequest("nobody acts", hint="give --policy gold, or --model URL")
    wanted.submit("j")


def _shown(app: App, summary: JobSummary) -> int:
    show_summary(app, summary)
    explain(app, summary.records)
    app.note(f"  on record in {summary.path}; see `skerry trace ls`")
    return 1 if any(item.reward is None for item in summary.records) else 0


def new_name() -> str:
    """Returns a name for a job, which sorts by time."""
    from skerry.worker.job import new_job_id

    return new_job_id(time.time(), secrets.token_bytes(3))


def run(app: App, wanted: Wanted, *, jobs: str | None) -> JobSummary:
    """Runs a job with live progress. A signal ends it cleanly, and what was done stays on record."""
    from skerry.cli import following

    folder, name = jobs_dir(jobs), new_name()
    tell_of_trainer(app, name, wanted)

    async def work() -> JobSummary:
        async with app.client() as client:
            with progress(app) as show:
                return await following.run(client, name, wanted, jobs_dir=folder, on_event=show)

    try:
        return app.wait_for(work)
    except Interrupted:
        if (folder / name).is_dir():
            app.note(f"interrupted; what was done is on record: skerry trace ls --job {name}")
        raise


def tell_of_trainer(app: App, name: str, wanted: Wanted) -> None:
    """Says who answers a scaffold that has no model: it waits for as long as nobody does."""
    if wanted.scaffold is not None and wanted.answers is None:
        app.note(f"a trainer answers its requests: client.jobs.attach({name!r}).requests()")


def start_job(app: App, wanted: Wanted) -> str:
    """Submits a job that runs by itself; returns its name."""
    from skerry.cli import following

    name = new_name()

    async def work() -> None:
        async with app.client() as client:
            await following.start(client, name, wanted, detached=True)

    app.wait_for(work)
    app.note(f"follow it with: skerry rollout --attach {name}")
    tell_of_trainer(app, name, wanted)
    return name


def follow_job(app: App, name: str, *, jobs: str | None) -> JobSummary:
    """Follows a job that runs; a signal leaves it running."""
    from skerry.cli import following

    async def work() -> JobSummary:
        async with app.client() as client:
            with progress(app) as show:
                return await following.attach(client, name, jobs_dir=jobs_dir(jobs), on_event=show)

    return app.wait_for(work)
