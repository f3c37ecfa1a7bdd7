"""`skerry rollout`: a job of policies over tasks."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
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
    from skerry.spec.rollout import JobEvent, JobSummary
    from skerry.spec.task import TaskSpec
    from skerry.worker import Downloads
    from skerry.worker.session import Policy


def default_concurrency() -> int:
    """Returns how many rollouts run at a time: two a core, since much of one is waiting."""
    return max(2, 2 * (os.cpu_count() or 1))


def downloads() -> Downloads:
    """Returns the cache of archives, fetched through this machine's own pip configuration."""
    from skerry.worker import Downloads

    return Downloads(Path(cache_home()), environment())


@click.command(cls=SkerryCommand)
@click.argument("tasks", metavar="TASKS...", nargs=-1, required=True)
@click.option(
    "--policy", "policies", multiple=True, metavar="NAME",
    help="gold, noop, cheat or cheat:VARIANT; repeatable.",
)  # fmt: skip
@click.option("-n", "count", type=click.IntRange(1), default=1, show_default=True,
              help="Rollouts for each task and policy.")  # fmt: skip
@click.option("--repeats", type=click.IntRange(1, REPEATS_MAX), metavar="N",
              help="Verify each so many times, in a fresh sandbox each; all must pass.")  # fmt: skip
@click.option("--concurrency", type=click.IntRange(1), help="Rollouts at a time [2 a core].")
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
    model: str | None,
    model_name: str,
    turns: int,
    api_key_env: str | None,
    jobs: str | None,
) -> int:
    """Run a job: policies over tasks, each rollout in its own sandbox, graded in a fresh one.

    TASKS are directories of tasks, single tasks, or ids of the tasks that come with Skerry. Progress
    is live; the table and the rates come at the end. The key of a model never enters a sandbox.
    Exit status 1 if a rollout has no reward (infrastructure errors, after three tries).

    \b
    skerry rollout examples/tasks --policy gold --policy noop -n 4
    skerry rollout mytask --model http://127.0.0.1:8000/v1 --model-name qwen
    """  # noqa: D301 - \b tells click to keep the lines
    from skerry.worker import Model, ModelOptions, load_tasks, policy_named

    acting: list[Policy] = [policy_named(name) for name in dict.fromkeys(policies)]
    if model is not None:
        key = secret_from(api_key_env, required=True) if api_key_env else None
        options = ModelOptions(model=model_name, turns=turns)
        acting.append(Model(model, api_key=key, options=options))
    if not acting:
        raise InvalidRequest("nobody acts", hint="give --policy gold, or --model URL")
    loaded = load_tasks(task_paths(tasks))
    if repeats is not None:
        loaded = tuple(item.repeated(repeats) for item in loaded)
    summary = run(app, loaded, acting, count=count, concurrency=concurrency, jobs=jobs)
    show_summary(app, summary)
    explain(app, summary.records)
    app.note(f"  on record in {summary.path}; see `skerry trace ls`")
    return 1 if any(item.reward is None for item in summary.records) else 0


def run(
    app: App,
    tasks: Sequence[TaskSpec],
    policies: Sequence[Policy],
    *,
    count: int,
    concurrency: int | None,
    jobs: str | None,
) -> JobSummary:
    """Runs a job with live progress. A signal ends it cleanly, and what was done stays on record."""
    from skerry.worker import run_job

    folder = jobs_dir(jobs)
    job = ""

    def watching(show: Callable[[JobEvent], None]) -> Callable[[JobEvent], None]:
        def on_event(event: JobEvent) -> None:
            nonlocal job
            if event.kind == "plan":
                job = event.text
            show(event)

        return on_event

    async def work() -> JobSummary:
        async with app.client() as client:
            with progress(app) as show:
                return await run_job(
                    client,
                    tasks,
                    policies,
                    downloads=downloads(),
                    jobs_dir=folder,
                    n=count,
                    concurrency=concurrency or default_concurrency(),
                    on_event=watching(show),
                )

    try:
        return app.wait_for(work)
    except Interrupted:
        if (folder / job).is_dir() and job:
            app.note(f"interrupted; what was done is on record: skerry trace ls --job {job}")
        raise
