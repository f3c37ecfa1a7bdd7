"""Values of others: which of them can be said again."""

from __future__ import annotations

from typing import Any

import pytest

from skerry.errors import InvalidRequest
from skerry.spec.values import DEPTH_MAX, check_json_like, check_value


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth - 1):
        value = [value]
    return value


@pytest.mark.parametrize(
    "value",
    [
        5, "x", None, True, -1.5, [], {}, [[], {}], (1, (2,)), {"a": {"b": [1, None, "c"]}},
        [(1 << 64) - 1, -(1 << 63)], nested(DEPTH_MAX), [[], [1], [[2]], {"a": []}],
    ],
)  # fmt: skip
def test_what_json_says_the_same_passes(value: Any) -> None:
    check_json_like(value, "it")


@pytest.mark.parametrize(
    ("value", "named"),
    [
        (b"x", "bytes"), ([[b"x"]], "bytes"), ({1}, "set"), ([object()], "object"),
        ({1: 2}, "key"), ([[], {"a": [{None: 1}]}], "key"),
        ([1 << 64], "64 bits"), ({"a": [0, -(1 << 63) - 1]}, "64 bits"), (1 << 64, "64 bits"),
        (float("nan"), "finite"), ([1.0, [float("-inf")]], "finite"), (nested(DEPTH_MAX + 1), "deep"),
    ],
)  # fmt: skip
def test_what_it_does_not_is_named(value: Any, named: str) -> None:
    with pytest.raises(InvalidRequest, match=f"^it .*{named}"):
        check_json_like(value, "it")


def test_value_of_other_encoders_may_have_bytes_and_any_keys() -> None:
    check_value([b"x", {1: float("nan")}], "it")
    check_value(nested(DEPTH_MAX), "it")
    for wrong in ([1 << 64], nested(DEPTH_MAX + 1)):
        with pytest.raises(InvalidRequest):
            check_value(wrong, "it")
    with pytest.raises(InvalidRequest, match="finite"):
        check_value([float("nan")], "it", finite=True)


@pytest.mark.parametrize("check", [check_value, check_json_like])
def test_number_of_values_is_bounded(monkeypatch: pytest.MonkeyPatch, check: Any) -> None:
    monkeypatch.setattr("skerry.spec.values.VALUES_MAX", 4)
    check([1, {"a": 2, "b": 3}], "it")
    with pytest.raises(InvalidRequest, match="more than 4 values"):
        check([1, {"a": 2, "b": [3]}], "it")
