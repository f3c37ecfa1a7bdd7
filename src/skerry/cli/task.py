"""`skerry task`: making, checking and listing tasks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from skerry.cli.app import App
from skerry.cli.group import SkerryGroup
from skerry.cli.recorded import jobs_dir, jobs_option, progress
from skerry.cli.rollout import downloads
from skerry.cli.shipped import all_tasks, task_paths
from skerry.errors import InvalidRequest
from skerry.spec.grading import REPEATS_MAX

if TYPE_CHECKING:
    from skerry.worker.tasks import TaskCheck


@click.group(cls=SkerryGroup)
def task() -> None:
    """Make, check and list tasks."""


@task.command("new")
@click.argument("folder", metavar="DIR")
@click.pass_obj
def new(app: App, /, *, folder: str) -> None:
    """Write a skeleton of a task to DIR/task.toml; its comments say what each field is for."""
    from skerry.worker import new_task

    path = new_task(Path(folder))
    if app.as_json:
        app.emit({"path": str(path)})
        return
    app.line(str(path))
    app.note(f"fill in what is marked TODO, then: skerry task check {folder}")


@task.command("ls")
@click.argument("paths", metavar="[TASKS]...", nargs=-1)
@click.pass_obj
def ls(app: App, /, *, paths: tuple[str, ...]) -> None:
    """List tasks: those that come with Skerry, or those at the paths."""
    from skerry.worker import load_tasks

    found = load_tasks(task_paths(paths) if paths else [all_tasks()])
    if app.as_json:
        for item in found:
            app.emit(item)
        return
    app.table(
        ["TASK", "PACKAGE", ">FAIL", ">PASS", "TITLE"],
        [
            (
                item.id,
                f"{item.package.name} {item.package.bug.version} to {item.package.fix.version}",
                len(item.tests.fail_to_pass),
                item.tests.pass_to_pass,
                item.title,
            )
            for item in found
        ],
    )


@task.command("check")
@click.argument("paths", metavar="TASKS...", nargs=-1, required=True)
@click.option("--repeats", type=click.IntRange(2, REPEATS_MAX), metavar="N",
              help="Verify so many times, and name tests that are flaky.")  # fmt: skip
@jobs_option
@click.pass_obj
def check(app: App, /, *, paths: tuple[str, ...], repeats: int | None, jobs: str | None) -> int:
    """Run the real fix and nothing on each task: the one must earn 1, the other 0.

    Exit status 1 if a task is not what it says, or has flaky tests.
    """
    from skerry.worker import check_task, load_tasks

    found = load_tasks(task_paths(paths))
    for item in found:
        if item.package.name == "TODO":
            raise InvalidRequest(
                f"{item.id}: the skeleton is not filled in yet",
                hint="replace every TODO in its task.toml; docs/guide/tasks.md has the fields",
            )

    async def work() -> list[TaskCheck]:
        done = []
        async with app.client() as client:
            for item in found:
                app.note(f"checking {item.id}")
                with progress(app, records=False) as show:
                    done.append(
                        await check_task(
                            client,
                            item,
                            downloads=downloads(),
                            jobs_dir=jobs_dir(jobs),
                            repeats=repeats,
                            on_event=show,
                        )
                    )
                _show(app, done[-1])
        return done

    return 0 if all(item.sound for item in app.wait_for(work)) else 1


def _show(app: App, item: TaskCheck) -> None:
    if app.as_json:
        from skerry.cli.jsonable import jsonable

        app.emit({**jsonable(item), "sound": item.sound})
        return
    word = click.style("sound", fg="green") if item.sound else click.style("not sound", fg="red")
    app.line(f"{item.task}  {word}  {item.gold.tests_passed} tests pass with the fix")
    for problem in item.problems:
        app.line(f"  {problem}")
