"""The soak's judge: what it must object to, and what a fault explains."""

from __future__ import annotations

import msgspec
import pytest

from soak.host import Sample
from soak.judge import Judge, rank, slope
from soak.summary import Figures

SAMPLE = Sample(
    pid=1,
    node_kib=40_000,
    node_fds=50,
    node_threads=4,
    launcher=2,
    launcher_kib=800,
    launcher_fds=170,
    slots=80,
    journal_kib=32_768,
    worker=3,
    worker_kib=50_000,
    worker_fds=20,
)


def failed(kind: str, code: str, at: float, own: tuple[str, ...] = ()) -> dict:
    return {"k": "op", "who": "c", "n": kind, "x": code, "m": "", "s": at, "e": at + 1, "own": own}


@pytest.mark.parametrize(
    ("fault", "kind", "code"),
    [
        ("node", "run", "unavailable"),  # the SDK repeats a command: nobody may hear of it
        ("launcher", "run", "unavailable"),  # no command passes the launcher
        ("cut", "create", "conflict"),
        ("both", "run", "outcome_unknown"),
        ("cut", "file", "outcome_unknown"),  # only a kill leaves a change unknown
        ("disk", "destroy", "storage_failed"),  # every state can be deleted
        ("node", "job", "unavailable"),  # the SDK repeats all that a job is asked
        ("cut", "repeat", "unavailable"),
        ("worker", "run", "unavailable"),  # no sandbox needs the worker
        ("trainer", "repeat", "diverged"),
        ("node", "file", "untyped"),
    ],
)
def test_error_that_no_fault_explains_is_a_violation(fault: str, kind: str, code: str) -> None:
    judge = Judge()
    judge.begin(fault, 10.0).end = 12.0
    judge.take(failed(kind, code, 11.0))
    judge.settle()
    assert len(judge.violations) == 1


@pytest.mark.parametrize(
    ("fault", "kind", "code"),
    [
        ("node", "stream", "unavailable"),
        ("launcher", "create", "unavailable"),
        ("node", "file", "outcome_unknown"),
        ("disk", "run", "storage_failed"),
    ],
)
def test_error_fits_its_fault_only_while_that_is_felt(fault: str, kind: str, code: str) -> None:
    judge = Judge()
    judge.begin(fault, 10.0).end = 12.0
    judge.take(failed(kind, code, 11.0))
    judge.settle()
    assert not judge.violations
    judge.take(failed(kind, code, 20.0))
    judge.settle()
    assert len(judge.violations) == 1


def test_what_a_guest_brought_upon_itself_is_no_violation() -> None:
    judge = Judge()
    judge.take(failed("run", "sandbox_failed", 1.0, own=("sandbox_failed",)))
    judge.settle()
    assert not judge.violations


def test_wrong_answer_is_excused_only_by_the_faults_that_it_names() -> None:
    judge = Judge()
    bad = {"k": "bad", "who": "c", "n": "bad", "text": "?", "s": 1.0, "e": 2.0, "excuse": ["disk"]}
    judge.begin("node", 1.0).end = 2.0
    judge.take(bad)
    judge.settle()
    assert len(judge.violations) == 1
    judge.begin("disk", 1.0).end = 2.0
    judge.take(bad)
    judge.settle()
    assert len(judge.violations) == 1


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"node_kib": 2000}, "node's memory"),
        ({"launcher_kib": 2000}, "launcher's memory"),
        ({"node_fds": 20}, "node's descriptors"),
        ({"launcher_fds": 20}, "launcher's descriptors"),
        ({"worker_kib": 2000}, "worker's memory"),
        ({"worker_fds": 20}, "worker's descriptors"),
        ({"node_threads": 10}, "threads"),
        ({"journal_kib": 30_000}, "journal"),
    ],
)
def test_growth_from_epoch_to_epoch_is_a_violation(change: dict[str, int], word: str) -> None:
    flat, growing = Figures(), Figures()
    for number in range(10):
        flat.take(number, SAMPLE, {"run": [0.01]}, 1.0)
        grown = {name: getattr(SAMPLE, name) + number * step for name, step in change.items()}
        growing.take(number, msgspec.structs.replace(SAMPLE, **grown), {"run": [0.01]}, 1.0)
    assert not flat.drifts()
    assert len(growing.drifts()) == 1
    assert word in growing.drifts()[0]


def test_slopes_and_percentiles() -> None:
    assert slope([1, 3, 5, 7]) == 2
    assert slope([5]) == 0
    assert (rank([3, 1, 2], 50), rank([], 99)) == (2, 0)
