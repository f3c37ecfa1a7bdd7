"""`skerry rollout`, `demo`, `task`: what is refused before a node is asked, and what is expected."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from fake_client import FakeClient, invoke

from skerry.cli import following, shipped
from skerry.cli import rollout as rollout_module
from skerry.cli.demo import unexpected
from skerry.cli.following import Wanted
from skerry.errors import NotFound
from skerry.spec.rollout import JobEvent, JobSummary, RolloutRecord
from skerry.spec.verdict import Outcome
from skerry.spec.worker import AnswerUrl, ModelSettings

EARNED: dict[str, tuple[float | None, Outcome]] = {
    "gold": (1.0, Outcome.PASSED),
    "noop": (0.0, Outcome.FAILED),
    "cheat": (0.0, Outcome.TAMPERED),
}


def record(policy: str, number: int, end: tuple[float | None, Outcome]) -> RolloutRecord:
    return RolloutRecord(
        job="j", rollout=f"j-{number:04d}", task="t", policy=policy, reward=end[0], verdict=end[1]
    )


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Stands for the worker: records what it was asked for, ends as laid out in `ends`."""
    asked: dict[str, Any] = {"ends": dict(EARNED)}

    async def run(client: Any, name: str, wanted: Wanted, **keywords: Any) -> JobSummary:
        asked.update(keywords, wanted=wanted, tasks=[item.id for item in wanted.tasks])
        names = [*wanted.policies, *(["model"] if wanted.model else [])]
        made = [
            record(name, number, asked["ends"].get(name, (0.0, Outcome.FAILED)))
            for number, name in enumerate(names)
        ]
        keywords["on_event"](JobEvent(kind="plan", text="j", total=len(made)))
        for item in made:
            keywords["on_event"](JobEvent(kind="done", total=len(made), record=item))
        return JobSummary(job="j", path="/j", records=tuple(made), build_seconds=1.0, seconds=2.0)

    monkeypatch.setattr(following, "run", run)
    return asked


def test_demo_is_good_only_if_every_reward_is_as_it_must_be(job: dict[str, Any]) -> None:
    result = invoke(FakeClient(), "demo", "--tasks", "semver-3.0.2", "-n", "2")
    assert result.exit_code == 0, result.output
    assert (job["tasks"], job["wanted"].n) == (["semver-3.0.2"], 2)
    assert job["wanted"].policies == ("gold", "noop", "cheat")
    assert "skerry trace show j-0002" in result.stdout
    assert "/j" in result.stdout


@pytest.mark.parametrize(
    ("policy", "end"),
    [
        ("gold", (0.0, Outcome.FAILED)),
        ("noop", (1.0, Outcome.PASSED)),
        ("cheat", (0.0, Outcome.FAILED)),
        ("cheat", (1.0, Outcome.PASSED)),
        ("gold", (None, Outcome.INFRASTRUCTURE_ERROR)),
    ],
)
def test_demo_with_a_wrong_reward_fails_and_names_it(
    job: dict[str, Any], policy: str, end: tuple[float | None, Outcome]
) -> None:
    job["ends"][policy] = end
    result = invoke(FakeClient(), "demo", "--tasks", "semver-3.0.2")
    assert result.exit_code == 1
    assert "expected" in result.stderr
    assert "no cheat paid" not in result.stdout


def test_demo_runs_all_tasks_that_come_with_skerry(job: dict[str, Any]) -> None:
    assert invoke(FakeClient(), "demo").exit_code == 0
    assert len(job["tasks"]) >= 6


def test_expectations_name_the_rollout() -> None:
    wrong = unexpected([record("gold", 0, EARNED["noop"])])
    assert "j-0000" in wrong[0]
    assert unexpected([record(name, 0, end) for name, end in EARNED.items()]) == []


def test_rollout_json_gives_records_and_then_the_summary(job: dict[str, Any]) -> None:
    result = invoke(FakeClient(), "rollout", "--json", "semver-3.0.2", "--policy", "gold")
    assert result.exit_code == 0, result.output
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert lines[0]["policy"] == "gold"
    assert lines[1]["summary"]["verdicts"] == {"passed": 1}
    assert lines[1]["summary"]["rollouts_per_second"] == 0.5


def test_rollout_takes_scripts_and_a_model_together(
    job: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MODEL_KEY", "secret-of-the-model")
    result = invoke(
        FakeClient(), "rollout", "semver-3.0.2", "--policy", "noop", "--model", "http://m:1/v1",
        "--model-name", "q", "--api-key-env", "MODEL_KEY", "-n", "3", "--concurrency", "5",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    wanted = job["wanted"]
    assert wanted.policies == ("noop",)
    assert wanted.model == ModelSettings(model="q")
    assert wanted.answers == AnswerUrl(url="http://m:1/v1", api_key="secret-of-the-model")
    assert (wanted.n, wanted.concurrency) == (3, 5)
    assert "secret-of-the-model" not in result.output


def test_rollout_without_a_reward_somewhere_is_1(job: dict[str, Any]) -> None:
    job["ends"]["gold"] = (None, Outcome.INFRASTRUCTURE_ERROR)
    result = invoke(FakeClient(), "rollout", "semver-3.0.2", "--policy", "gold")
    assert result.exit_code == 1
    assert "without a reward" in result.stderr


def test_a_scaffold_without_a_model_says_who_answers_it(job: dict[str, Any]) -> None:
    job["ends"]["scaffold"] = (0.0, Outcome.FAILED)
    words = ("rollout", "semver-3.0.2", "--scaffold", "my-agent")
    assert "client.jobs.attach('" in invoke(FakeClient(), *words).stderr
    assert "client.jobs.attach" not in invoke(FakeClient(), *words, "--model", "http://m").stderr


@pytest.mark.parametrize(
    "words",
    [
        ("semver-3.0.2",),
        ("semver-3.0.2", "--policy", "nobody"),
        ("no-such-task", "--policy", "gold"),
        ("--policy", "gold"),
        ("semver-3.0.2", "--model", "ftp://m"),
        ("semver-3.0.2", "--policy", "gold", "--attach", "j"),
        ("semver-3.0.2", "--scaffold", "a", "--toolkit", "no layer"),
        ("semver-3.0.2", "--model", "http://m", "--api-key-env", "NOT_SET_ANYWHERE"),
    ],
)
def test_rollout_that_cannot_be_is_refused_before_a_node_is_asked(words: tuple[str, ...]) -> None:
    assert invoke(None, "rollout", *words).exit_code == 125


def test_default_concurrency_follows_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollout_module.os, "cpu_count", lambda: 8)
    assert rollout_module.default_concurrency() == 16
    monkeypatch.setattr(rollout_module.os, "cpu_count", lambda: None)
    assert rollout_module.default_concurrency() == 2


def test_task_new_writes_a_skeleton_once(tmp_path: Path) -> None:
    folder = str(tmp_path / "mine")
    result = invoke(None, "task", "new", folder)
    assert result.exit_code == 0
    assert "skerry task check" in result.stderr
    assert (tmp_path / "mine/task.toml").is_file()
    assert invoke(None, "task", "new", folder).exit_code == 125


def test_task_ls_lists_what_comes_with_skerry() -> None:
    lines = invoke(None, "task", "ls", "--json").stdout.splitlines()
    assert "semver-3.0.2" in [json.loads(line)["id"] for line in lines]
    assert "semver" in invoke(None, "task", "ls", "semver-3.0.2").stdout


def test_an_installed_package_without_tasks_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shipped, "checkout", lambda: None)
    monkeypatch.setattr(shipped, "FILE", "no-such-file")
    with pytest.raises(NotFound):
        shipped.all_tasks()
    with pytest.raises(NotFound):
        shipped.task_paths(["semver-3.0.2"])


def test_rollouts_are_told_of_after_their_environments() -> None:
    """A worker's lines may be here before this process has asked whether all is built."""
    told: list[str] = []
    order = following._InOrder(lambda event: told.append(event.kind))
    for kind in ("build", "start", "done", "build"):
        order(JobEvent(kind=kind))
    assert told == ["build", "build"]
    order(JobEvent(kind="built"))
    order(JobEvent(kind="step"))
    assert told == ["build", "build", "built", "start", "done", "step"]
    order.all()
    assert len(told) == 6


def test_what_is_held_is_told_when_it_ends_before_all_is_built() -> None:
    told: list[str] = []
    order = following._InOrder(lambda event: told.append(event.kind))
    order(JobEvent(kind="done"))
    order.all()
    assert told == ["done"]
