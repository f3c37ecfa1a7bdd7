"""What a job may be asked for."""

from __future__ import annotations

import math

import pytest

from skerry.errors import InvalidRequest
from skerry.spec.job import JobSpec, OnLost, Resume


def test_job_without_wishes_pauses_what_its_trainer_left() -> None:
    spec = JobSpec(id="train-7b.v2").check()
    assert (spec.on_lost, spec.resume) == (OnLost.PAUSE, Resume.LAZY)


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "A", "-x", "a" * 65, "a b", "é", "a\n"])
def test_id_that_is_no_name_is_refused(name) -> None:
    with pytest.raises(InvalidRequest, match="job"):
        JobSpec(id=name).check()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("lease_s", 0.5),
        ("lease_s", math.nan),
        ("lease_s", 1e9),
        ("grace_s", -1.0),
        ("grace_s", math.inf),
        ("priority", 11),
        ("sandboxes_max", 0),
        ("ttl_s", 0.0),
        ("ttl_s", math.inf),
        ("labels", {"": "x"}),
        ("labels", {"a": "\x00"}),
    ],
)
def test_value_out_of_bounds_is_named(field, value) -> None:
    with pytest.raises(InvalidRequest, match=field.removesuffix("_s")):
        JobSpec(id="a", **{field: value}).check()
