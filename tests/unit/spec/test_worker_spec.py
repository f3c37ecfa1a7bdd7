"""Submissions and names of the worker: what is taken, and what is refused by name."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from skerry.errors import InvalidRequest
from skerry.spec.task import parse_task
from skerry.spec.worker import (
    AnswerUrl,
    ModelSettings,
    Scaffold,
    Submit,
    parse_request_id,
    request_id,
    rollout_id,
)

TASKS = sorted((Path(__file__).parents[3] / "examples" / "tasks").glob("*/task.toml"))
TASK = parse_task(TASKS[0].read_text(), "task")


def submit(**fields: object) -> Submit:
    return msgspec.structs.replace(Submit(job="j1", tasks=(TASK,), policies=("gold",)), **fields)


def test_shares_together_hold_each_rollout_once() -> None:
    job = submit(
        policies=("gold", "noop"), scaffold=Scaffold(argv=("a",)), model=ModelSettings(), n=5
    )
    assert job.actors == ("gold", "noop", "scaffold", "model")
    shares = [
        msgspec.structs.replace(job, share=(index, 3)).check().numbers() for index in range(3)
    ]
    assert sorted(number for share in shares for number in share) == list(range(job.total))


@pytest.mark.parametrize(
    "fields",
    [
        {"job": "../j"},
        {"job": "J"},
        {"job": "j" * 65},
        {"tasks": ()},
        {"tasks": (TASK, TASK)},
        {"policies": ()},
        {"policies": ("gold", "gold")},
        {"n": 0},
        {"n": 1_000_001},
        {"concurrency": 0},
        {"share": (1, 1)},
        {"share": (-1, 2)},
        {"pause_after_s": float("nan")},
        {"pause_after_s": 0.0},
        {"scaffold": Scaffold(argv=())},
        {"scaffold": Scaffold(argv=("a\x00b",))},
        {"scaffold": Scaffold(argv=("a",), port=0)},
        {"scaffold": Scaffold(argv=("a",), name="no name")},
        {"scaffold": Scaffold(argv=("a",), env={"a=b": ""})},
        {"model": ModelSettings(turns=0)},
        {"answers": AnswerUrl(url="file:///etc/passwd")},
        {"answers": AnswerUrl(url="http://a", tries=0)},
    ],
)
def test_a_value_out_of_bounds_is_refused(fields: dict[str, object]) -> None:
    with pytest.raises(InvalidRequest):
        submit(**fields).check()


def test_request_names_are_read_back_and_nothing_else_is() -> None:
    assert parse_request_id(request_id(12, 1, 345)) == (12, 1, 345)
    for bad in (
        "",
        "1.2",
        "01.0.0",
        "1.0.00",
        "-1.0.0",
        "1.0.0 ",
        "1.0.0\n",
        "a.b.c",
        "1.0.1000000",
    ):
        with pytest.raises(InvalidRequest):
            parse_request_id(bad)
    assert rollout_id("j", 7) == "j-0007"
