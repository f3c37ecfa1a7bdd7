"""`skerry demo`: the main job on real tasks, acted by scripts that need no model."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from skerry.cli.app import App
from skerry.cli.group import SkerryCommand
from skerry.cli.recorded import explain, jobs_option, show_summary, who
from skerry.cli.rollout import default_concurrency, downloads, new_name, run
from skerry.cli.shipped import all_tasks, task_paths
from skerry.cli.words import plural
from skerry.errors import InvalidRequest

if TYPE_CHECKING:
    from skerry.spec.rollout import RolloutRecord

# What each scripted policy must earn: anything else means that rewards cannot be trusted here.
EXPECTED = {"gold": (1.0, "passed"), "noop": (0.0, "failed"), "cheat": (0.0, "tampered")}


@click.command(cls=SkerryCommand)
@click.option("-n", "count", type=click.IntRange(1), default=1, show_default=True,
              help="Rollouts for each task and policy.")  # fmt: skip
@click.option("--tasks", "tasks", multiple=True, metavar="TASK",
              help="Only these: ids or directories; repeatable.")  # fmt: skip
@click.option("--concurrency", type=click.IntRange(1), help="Rollouts at a time [2 a core].")
@click.option("--preempt", is_flag=True,
              help="Kill the trainer again and again, and compare with an undisturbed run.")  # fmt: skip
@click.option("--kills", type=click.IntRange(0, 1000),
              help="Of the trainer, with --preempt [5].")  # fmt: skip
@click.option("--worker-kills", type=click.IntRange(0, 1000),
              help="Of the node's worker, with --preempt [2; 0 with --url].")  # fmt: skip
@jobs_option
@click.pass_obj
def demo(
    app: App,
    /,
    *,
    count: int,
    tasks: tuple[str, ...],
    concurrency: int | None,
    preempt: bool,
    kills: int | None,
    worker_kills: int | None,
    jobs: str | None,
) -> int:
    """Run the main job on real bug-fix tasks with three scripted policies.

    `gold` applies the real fix and must earn 1, `noop` changes nothing and must earn 0, `cheat`
    attacks the grading in several ways and must earn 0 as "tampered". The first run fetches the
    tasks' archives and builds the base image and the layers, which takes a few minutes. Exit status
    0 only if every reward is as it must be.

    With --preempt agents in their sandboxes ask a scripted model, which a trainer process answers. That
    process is killed at random moments, and so is the node's worker. A witness outside counts what
    agents and trainers did; then the same runs undisturbed. Exit status 0 only if nothing was lost,
    done twice or begun again, and both result tables are the same and as they must be.
    """
    if not preempt and (kills, worker_kills) != (None, None):
        raise click.UsageError("--kills and --worker-kills go with --preempt")
    if preempt:
        return preempted(
            app,
            tasks,
            count=count,
            concurrency=concurrency or default_concurrency(),
            kills=(5 if kills is None else kills, worker_kills),
            jobs=jobs,
        )
    from skerry.cli.following import Wanted
    from skerry.worker import load_tasks

    loaded = load_tasks(task_paths(tasks) if tasks else [all_tasks()])
    app.note(
        f"{len(loaded)} real bugs; gold applies the real fix, noop nothing, cheat attacks the grading"
    )
    wanted = Wanted(
        tasks=loaded,
        policies=tuple(EXPECTED),
        n=count,
        concurrency=concurrency or default_concurrency(),
    )
    summary = run(app, wanted, jobs=jobs)
    show_summary(app, summary)
    wrong = unexpected(summary.records)
    for text in wrong:
        app.warn(text)
    explain(app, summary.records)
    if not app.as_json:
        tell_what_next(app, summary.records, summary.path, good=not wrong)
    return 1 if wrong else 0


def preempted(
    app: App,
    tasks: tuple[str, ...],
    *,
    count: int,
    concurrency: int,
    kills: tuple[int, int | None],
    jobs: str | None,
) -> int:
    """Runs the demo of kills; returns its exit status."""
    from skerry.cli.preempt.show import TASKS, Preemption
    from skerry.worker import load_tasks

    far = app.settings.url is not None and not app.settings.url.startswith("unix://")
    worker_kills = (0 if far else 2) if kills[1] is None else kills[1]
    if far and worker_kills:
        raise InvalidRequest("--worker-kills: the node's workers are on another machine")
    loaded = load_tasks(task_paths(tasks or TASKS))
    app.note(
        f"{plural(len(loaded), 'real bug')}; agents that fix, do nothing, cheat and err ask a model "
        f"whose trainer is killed {kills[0]} times, and the worker {worker_kills} times"
    )
    name = new_name()
    return Preemption(
        app,
        tasks=loaded,
        count=count,
        concurrency=concurrency,
        kills=kills[0],
        worker_kills=worker_kills,
        downloads=downloads(),
        jobs=jobs,
    ).run((name, f"{name}-calm"))


def unexpected(records: Sequence[RolloutRecord]) -> list[str]:
    """Returns a line for each rollout whose reward or verdict is not what it must be."""
    out = []
    for item in records:
        reward, verdict = EXPECTED[item.policy]
        if item.reward != reward or item.verdict != verdict:
            got = "no reward" if item.reward is None else f"reward {item.reward:g}"
            out.append(
                f"{item.rollout} ({item.task}, {who(item)}): {got}, {item.verdict}; "
                f"expected {reward:g}, {verdict}"
            )
    return out


def tell_what_next(app: App, records: Sequence[RolloutRecord], path: str, *, good: bool) -> None:
    """Says in a few lines what was seen, where it is on record, and what to try."""
    app.line("")
    if good:
        app.line(
            "Every reward is as it must be: the fix earned 1, doing nothing 0, and no cheat paid."
        )
    app.line(f"Trajectories and verdicts are in {os.path.relpath(path) if _near(path) else path}.")
    cheats = [item for item in records if item.policy == "cheat"]
    chosen = (cheats or list(records))[0]
    for command, why in (
        (f"skerry trace show {chosen.rollout}", "what this one did, and the evidence"),
        ("skerry trace verify", "that nobody changed the record"),
        ("skerry run default -- python3 -c 'print(6*7)'", "a sandbox of your own"),
        ("skerry rollout TASKS --model URL ...", "the same with a model"),
    ):
        app.line(f"  {command:<47} {why}")


def _near(path: str) -> bool:
    return not os.path.relpath(path).startswith("..")
