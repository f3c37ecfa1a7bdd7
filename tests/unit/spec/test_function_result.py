"""What results of function calls say of themselves, and bounds of prewarming."""

from __future__ import annotations

import pytest

from skerry.errors import InvalidRequest
from skerry.spec.function import POOL_MAX, Environment
from skerry.spec.function_limits import Limit
from skerry.spec.function_result import CallError, CallResult, Prewarm, Step


def test_a_call_is_ok_if_all_of_it_went_well() -> None:
    assert CallResult(exit_code=0).ok
    assert CallResult(exit_code=0, compile=Step(exit_code=0)).ok
    assert CallResult(exit_code=0, returned=True).ok
    assert not CallResult(exit_code=0, returned=False).ok
    assert not CallResult(exit_code=1).ok
    assert not CallResult(signal=9).ok
    assert not CallResult(exit_code=0, limit=Limit.DISK).ok
    assert not CallResult(exit_code=0, error=CallError(type="ValueError")).ok
    assert not CallResult(compile=Step(exit_code=1)).ok
    assert not CallResult(exit_code=0, compile=Step(exit_code=0, limit=Limit.WALL)).ok


def test_output_is_text_and_says_whether_it_is_whole() -> None:
    step = Step(exit_code=0, stdout=b"a\xff", stderr=b"e", stdout_total=2, stderr_total=1)
    assert (step.text, step.error_text, step.truncated) == ("a\ufffd", "e", False)
    assert Step(exit_code=0, stdout=b"a", stdout_total=2).truncated


@pytest.mark.parametrize(
    "body",
    [
        Prewarm(minimum=-1),
        Prewarm(minimum=POOL_MAX + 1),
        Prewarm(minimum=3, maximum=2),
        Prewarm(minimum=0, maximum=0),
        Prewarm(keep_s=0),
        Prewarm(environment=Environment(image="!")),
        Prewarm(device="/dev/nvidia0"),
    ],
)
def test_prewarming_is_bounded(body: Prewarm) -> None:
    with pytest.raises(InvalidRequest):
        body.check()


def test_prewarming_in_bounds_passes() -> None:
    Prewarm().check()
    Prewarm(minimum=0, maximum=1).check()
