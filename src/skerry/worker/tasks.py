"""Tasks on disk: finding and reading them, and checking that one is what it claims to be."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec

from skerry.errors import InvalidRequest, NotFound
from skerry.spec.rollout import RolloutRecord
from skerry.spec.task import TaskSpec, parse_task
from skerry.spec.verdict import Outcome
from skerry.worker.downloads import Downloads
from skerry.worker.job import OnEvent, ignore, run_job
from skerry.worker.policies.scripted import Gold, Noop
from skerry.worker.ports import Client

FILE = "task.toml"
TASK_BYTES_MAX = 1 << 20


def load_tasks(paths: Iterable[Path | str]) -> tuple[TaskSpec, ...]:
    """Returns the tasks at the paths: a task's directory or file, or a directory of tasks.

    Raises NotFound for a path without a task, InvalidRequest for a task that is not well formed or
    an id that occurs twice.
    """
    found: dict[str, TaskSpec] = {}
    for path in paths:
        for file in _files(Path(path)):
            task = _read(file)
            if task.id in found:
                raise InvalidRequest(f"{file}: the id {task.id!r} occurs twice")
            found[task.id] = task
    return tuple(found.values())


def _files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    if (path / FILE).is_file():
        return [path / FILE]
    files = sorted(path.glob(f"*/{FILE}"))
    if not files:
        raise NotFound(f"there is no {FILE} in {path} or in a directory below it")
    return files


def _read(file: Path) -> TaskSpec:
    data = file.read_bytes()
    if len(data) > TASK_BYTES_MAX:
        raise InvalidRequest(f"{file}: larger than {TASK_BYTES_MAX} bytes")
    try:
        return parse_task(data.decode(), str(file))
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"{file}: not UTF-8: {error}") from error


class TaskCheck(msgspec.Struct, frozen=True):
    """Whether a task is sound: the real fix earns 1 and nothing earns 0, by failing the named tests."""

    task: str
    gold: RolloutRecord
    noop: RolloutRecord
    problems: tuple[str, ...]

    @property
    def sound(self) -> bool:
        """True if there is no problem."""
        return not self.problems


async def check_task(
    client: Client,
    task: TaskSpec,
    *,
    downloads: Downloads,
    jobs_dir: Path,
    repeats: int | None = None,
    on_event: OnEvent = ignore,
) -> TaskCheck:
    """Runs gold and noop once each and says what is wrong with the task.

    With `repeats` what they leave is verified so many times: then a test that does not come to the
    same every time with the real fix is a problem too.
    """
    if repeats is not None:
        task = task.repeated(repeats)
    summary = await run_job(
        client,
        [task],
        [Gold(), Noop()],
        downloads=downloads,
        jobs_dir=jobs_dir,
        concurrency=2,
        on_event=on_event,
    )
    gold, noop = summary.records
    problems = []
    if gold.verdict is not Outcome.PASSED:
        problems.append(f"the real fix is {gold.verdict}: {gold.detail}")
    if noop.verdict is not Outcome.FAILED:
        problems.append(f"changing nothing is {noop.verdict}: {noop.detail}")
    elif noop.tests_failed != len(task.tests.fail_to_pass):
        problems.append(
            f"without the fix {noop.tests_failed} tests fail, "
            f"fail_to_pass names {len(task.tests.fail_to_pass)}"
        )
    expected = task.tests.pass_to_pass + len(task.tests.fail_to_pass)
    if gold.verdict is Outcome.PASSED and gold.tests_passed != expected:
        problems.append(f"with the fix {gold.tests_passed} tests pass, the task says {expected}")
    return TaskCheck(task.id, gold, noop, (*problems, *_flaky(gold)))


def _flaky(gold: RolloutRecord) -> list[str]:
    repeats = gold.repeats
    if repeats is None:
        return []
    runs = len(repeats.runs)
    return [
        f"flaky with the fix: {name} passed in {count} of {runs}"
        for name, count in repeats.unstable.items()
    ]
