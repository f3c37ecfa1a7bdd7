"""`skerry trace`, and how a job's events and table look."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from fake_client import invoke

from skerry.cli.app import App
from skerry.cli.recorded import Board, Lines, jobs_dir, mean, show_table
from skerry.spec.rollout import Attempt, JobEvent, RolloutRecord
from skerry.spec.verdict import Evidence, Outcome
from skerry.trajectory.rollouts.job_log import FILE, JobLog


def record(rollout: str = "job1-0000", **fields: Any) -> RolloutRecord:
    values: dict[str, Any] = {
        "job": "job1", "rollout": rollout, "task": "t", "policy": "gold", "reward": 1.0,
        "verdict": Outcome.PASSED, "seconds": 2.5, "tests_passed": 3,
    }  # fmt: skip
    return RolloutRecord(**{**values, **fields})


LOST = record(
    "job1-0002",
    policy="noop",
    reward=None,
    verdict=Outcome.INFRASTRUCTURE_ERROR,
    detail="the disk was full",
    attempts=(Attempt("act", "the disk was full", 1.0),),
)
CHEAT = record(
    "job1-0001",
    policy="cheat",
    variant="plant_conftest",
    reward=0.0,
    verdict=Outcome.TAMPERED,
    evidence=(Evidence("planted_conftest", "conftest.py", "new"),),
)


@pytest.fixture
def jobs(tmp_path: Path) -> str:
    log = JobLog(tmp_path / "job1", lambda: 5.0)
    log.append("job", {"job": "job1"})
    command = {"text": "out", "bytes": 3}
    log.append("event", {"rollout": "job1-0000", "action": "run", "argv": "ls", "stdout": command})
    for item in (record(), CHEAT, LOST):
        log.rollout(item)
    log.append("end", {"rollouts": 3})
    log.close()
    return str(tmp_path)


def test_ls_takes_the_newest_job_and_says_so_on_stderr(jobs: str) -> None:
    result = invoke(None, "trace", "ls", "--jobs", jobs)
    assert result.exit_code == 0, result.output
    assert "job1 (the newest" in result.stderr
    assert "plant_conftest" in result.stdout
    assert "the disk was full" in result.stderr


def test_ls_json_is_one_object_a_line_for_each_rollout(jobs: str) -> None:
    result = invoke(None, "trace", "ls", "--json", "--jobs", jobs)
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert [line["reward"] for line in lines] == [1.0, 0.0, None]
    assert [line["verdict"] for line in lines] == ["passed", "tampered", "infrastructure_error"]
    assert lines[1]["evidence"][0]["kind"] == "planted_conftest"
    assert lines[2]["attempts"][0]["detail"] == "the disk was full"
    wanted = {"job", "rollout", "task", "policy", "reward", "verdict", "evidence", "seconds"}
    assert all(wanted <= set(line) for line in lines)


def test_ls_of_all_or_of_one_job(jobs: str) -> None:
    assert "job1" in invoke(None, "trace", "ls", "--all", "--jobs", jobs).stdout
    assert invoke(None, "trace", "ls", "--job", "job1", "--jobs", jobs).exit_code == 0
    assert invoke(None, "trace", "ls", "--job", "none", "--jobs", jobs).exit_code == 125
    assert invoke(None, "trace", "ls", "--job", "a", "--all", "--jobs", jobs).exit_code == 125


def test_ls_without_jobs_says_how_to_make_one(tmp_path: Path) -> None:
    result = invoke(None, "trace", "ls", "--jobs", str(tmp_path))
    assert result.exit_code == 125
    assert "skerry demo" in result.stderr


def test_show_gives_the_verdict_the_evidence_and_what_was_done(jobs: str) -> None:
    shown = invoke(None, "trace", "show", "job1-0000", "--jobs", jobs)
    assert "argv: ls" in shown.stdout
    assert "passed, reward 1, 2.5 s" in shown.stdout
    cheated = invoke(None, "trace", "show", "job1-0001", "--jobs", jobs).stdout
    assert "evidence planted_conftest: conftest.py new" in cheated
    body = json.loads(invoke(None, "trace", "show", "job1-0000", "--json", "--jobs", jobs).stdout)
    assert body["record"]["reward"] == 1.0
    assert invoke(None, "trace", "show", "none", "--jobs", jobs).exit_code == 125


def test_verify_finds_a_changed_line(jobs: str) -> None:
    good = invoke(None, "trace", "verify", "--jobs", jobs)
    assert good.exit_code == 0, good.output
    assert "sound" in good.stdout
    path = Path(jobs) / "job1" / FILE
    path.write_bytes(path.read_bytes().replace(b'"reward":0.0', b'"reward":1.0'))
    bad = invoke(None, "trace", "verify", "--json", "--jobs", jobs)
    assert bad.exit_code == 1
    body = json.loads(bad.stdout)
    assert body["sound"] is False
    assert body["problems"][0]["kind"] == "tampered"


def test_jobs_lie_in_the_users_state_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "/xdg")
    assert jobs_dir(None) == Path("/xdg/skerry/jobs")
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv("HOME", "/home/me")
    assert jobs_dir(None) == Path("/home/me/.local/state/skerry/jobs")
    assert jobs_dir("/given") == Path("/given")


def test_an_infrastructure_error_is_never_in_a_mean() -> None:
    assert mean([1.0, None, 0.0]) == (
        "mean reward 0.500 over 2 rollouts, 1 infrastructure error left out"
    )
    assert mean([None]) == "no reward over 0 rollouts, 1 infrastructure error left out"


def test_table_sums_up_several_rollouts_of_one_task(capfd: pytest.CaptureFixture[str]) -> None:
    again = record("job1-0009", reward=0.0, verdict=Outcome.FAILED)
    show_table(App(), [LOST, record(), again])
    lines = capfd.readouterr().out.splitlines()
    assert lines[1].split() == ["gold", "t", "0.5", "1", "passed,", "1", "failed", "2.5"]
    assert lines[2].split()[2] == "-"


def events() -> list[JobEvent]:
    return [
        JobEvent(kind="plan", text="job1", total=2),
        JobEvent(kind="build", text="building base/debian:12", total=2),
        JobEvent(kind="built", text="3.0 s", total=2),
        JobEvent(kind="start", task="t", policy="gold", rollout="job1-0000", total=2),
        JobEvent(
            kind="step", task="t", policy="gold", rollout="job1-0000", text="verifying", total=2
        ),
        JobEvent(kind="done", rollout="job1-0000", done=1, total=2, record=record()),
    ]


def test_progress_as_lines_and_as_json(capfd: pytest.CaptureFixture[str]) -> None:
    for event in events():
        Lines(App())(event)
    shown = capfd.readouterr()
    assert shown.out == ""
    assert "[1/2] t gold: passed in 2.5 s" in shown.err
    assert "building base/debian:12" in shown.err
    for event in events():
        Lines(App(as_json=True))(event)
    shown = capfd.readouterr()
    assert json.loads(shown.out)["rollout"] == "job1-0000"
    assert shown.err == ""


def test_progress_on_a_terminal_shows_what_is_under_way() -> None:
    from rich.console import Console

    board = Board()
    console = Console(width=100, record=True, force_terminal=True, file=open("/dev/null", "w"))  # noqa: SIM115
    for event in events()[:5]:
        board(event)
    console.print(board.render())
    assert "verifying" in console.export_text()
    board(events()[5])
    console.print(board.render())
    text = console.export_text()
    assert "1 passed" in text
    assert "1/2" in text
    console.file.close()
