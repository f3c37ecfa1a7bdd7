"""A job's file: its chain, what a crash leaves, and what tampering shows."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from skerry.errors import Conflict, NotFound, StorageFailed
from skerry.spec.rollout import RolloutRecord
from skerry.spec.verdict import Evidence, Outcome
from skerry.trajectory.rollouts.job_log import FILE, INLINE_BYTES, JobLog
from skerry.trajectory.rollouts.reader import list_jobs, list_rollouts, show_rollout, verify_job

JOB = "20260101-000000-abcdef"


def record(number: int, reward: float | None = 1.0) -> RolloutRecord:
    return RolloutRecord(
        job=JOB,
        rollout=f"{JOB}-{number:04d}",
        task="demo-1",
        policy="gold",
        reward=reward,
        verdict=Outcome.PASSED if reward is not None else Outcome.INFRASTRUCTURE_ERROR,
        evidence=(Evidence("protected_path", "/testbed/tests"),),
    )


def write(top: Path, count: int = 3, *, end: bool = True) -> Path:
    log = JobLog(top / JOB, lambda: 1.5)
    log.append("job", {"job": JOB})
    for number in range(count):
        name = f"{JOB}-{number:04d}"
        log.append("event", {"rollout": name, "stdout": log.output(b"x" * (INLINE_BYTES + 1))})
        log.rollout(record(number))
    if end:
        log.append("end", {"rollouts": count})
    log.close()
    return top / JOB / FILE


def test_a_whole_job_is_listed_shown_and_sound(tmp_path: Path) -> None:
    write(tmp_path)
    assert list_jobs(tmp_path) == (JOB,)
    assert [one.rollout[-4:] for one in list_rollouts(tmp_path)] == ["0000", "0001", "0002"]
    trace = show_rollout(tmp_path, f"{JOB}-0001")
    assert trace.record == record(1)
    assert [line.kind for line in trace.lines] == ["event", "rollout"]
    check = verify_job(tmp_path, JOB)
    assert check.sound
    assert (check.complete, check.rollouts, check.lines) == (True, 3, 8)


def test_a_listing_has_what_scripts_read(tmp_path: Path) -> None:
    path = write(tmp_path, 1)
    line = json.loads(path.read_text().splitlines()[2])
    wanted = {"job", "rollout", "task", "policy", "reward", "verdict", "evidence", "seconds"}
    assert wanted | {"attempts"} <= set(line["data"])
    assert line["data"]["verdict"] == "passed"


def test_a_reward_of_none_stays_none(tmp_path: Path) -> None:
    log = JobLog(tmp_path / JOB, lambda: 0.0)
    log.rollout(record(0, None))
    log.close()
    assert list_rollouts(tmp_path, JOB)[0].reward is None


def test_a_killed_worker_leaves_a_readable_file_without_an_end(tmp_path: Path) -> None:
    write(tmp_path, end=False)
    assert len(list_rollouts(tmp_path)) == 3
    check = verify_job(tmp_path, JOB)
    assert not check.complete
    assert [one.kind for one in check.problems] == ["truncated"]


def test_a_torn_last_line_is_passed_over_and_named(tmp_path: Path) -> None:
    path = write(tmp_path)
    data = path.read_bytes()
    path.write_bytes(data[:-10])
    assert len(list_rollouts(tmp_path)) == 3
    problems = verify_job(tmp_path, JOB).problems
    assert [(one.line, one.kind) for one in problems] == [(8, "torn")]


def change_value(lines: list[bytes]) -> int:
    lines[4] = lines[4].replace(b'"reward":1.0', b'"reward":0.0')
    return 5


def remove_line(lines: list[bytes]) -> int:
    del lines[3]
    return 4


def repeat_line(lines: list[bytes]) -> int:
    lines.insert(3, lines[2])
    return 4


def swap_lines(lines: list[bytes]) -> int:
    lines[2], lines[3] = lines[3], lines[2]
    return 3


def add_key(lines: list[bytes]) -> int:
    lines[1] = lines[1].replace(b'"v":1', b'"v":1,"more":2')
    return 2


def add_blank(lines: list[bytes]) -> int:
    lines[1] = lines[1].replace(b'"v":1', b'"v": 1')
    return 2


def garbage(lines: list[bytes]) -> int:
    lines[2] = b"not json\n"
    return 3


@pytest.mark.parametrize(
    "tamper", [change_value, remove_line, repeat_line, swap_lines, add_key, add_blank, garbage]
)
def test_tampering_is_named_with_its_line(
    tmp_path: Path, tamper: Callable[[list[bytes]], int]
) -> None:
    path = write(tmp_path)
    lines = path.read_bytes().splitlines(keepends=True)
    line = tamper(lines)
    path.write_bytes(b"".join(lines))
    problems = verify_job(tmp_path, JOB).problems
    assert problems
    assert (problems[0].line, problems[0].kind) == (line, "tampered")


@pytest.mark.parametrize("keep", [0, 1, 5])
def test_cut_off_lines_are_noticed(tmp_path: Path, keep: int) -> None:
    path = write(tmp_path)
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:keep]))
    assert verify_job(tmp_path, JOB).problems[-1].kind == "truncated"


def test_a_changed_or_missing_blob_is_named(tmp_path: Path) -> None:
    write(tmp_path, 1)
    blob = next((tmp_path / JOB / "blobs").iterdir())
    blob.write_bytes(b"other")
    assert [(one.line, one.kind) for one in verify_job(tmp_path, JOB).problems] == [(2, "blob")]
    blob.unlink()
    assert "missing" in verify_job(tmp_path, JOB).problems[0].text


def test_a_job_is_never_written_twice(tmp_path: Path) -> None:
    write(tmp_path)
    with pytest.raises(Conflict):
        JobLog(tmp_path / JOB, lambda: 0.0)


@pytest.mark.parametrize("name", ["nothing", "../x", "", ".."])
def test_an_unknown_job_is_not_found(tmp_path: Path, name: str) -> None:
    with pytest.raises(NotFound):
        verify_job(tmp_path, name)
    with pytest.raises(NotFound):
        show_rollout(tmp_path, name)


def test_line_that_did_not_fit_leaves_no_trace(tmp_path: Path, monkeypatch) -> None:
    log = JobLog(tmp_path / JOB, lambda: 1.5)
    log.append("job", {"job": JOB})
    file = log._file

    class Full:
        def __getattr__(self, name: str) -> object:
            return getattr(file, name)

        def write(self, data: bytes) -> int:
            return file.write(data[:20])

    with monkeypatch.context() as patch:
        patch.setattr(log, "_file", Full())
        with pytest.raises(StorageFailed, match="part of a line"):
            log.append("event", {"rollout": f"{JOB}-0000"})
    log.append("end", {"rollouts": 0})
    log.close()
    assert verify_job(tmp_path, JOB).problems == ()


def test_texts_that_are_no_text_are_recorded_all_the_same(tmp_path: Path) -> None:
    # A model may ask for a command with such a letter in it; that is no fault of the platform.
    log = JobLog(tmp_path / JOB, lambda: 1.5)
    log.append("event", {"rollout": "r", "command": "echo \ud800", "kept": ["/a\udcff"]})
    log.append("end", {"rollouts": 0})
    log.close()
    assert verify_job(tmp_path, JOB).sound
    line = json.loads((tmp_path / JOB / FILE).read_text().splitlines()[0])
    assert line["data"] == {"rollout": "r", "command": "echo \ufffd", "kept": ["/a\ufffd"]}
