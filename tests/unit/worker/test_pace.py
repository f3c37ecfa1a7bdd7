"""The estimate of when an agent asks its model again."""

from __future__ import annotations

import pytest

from skerry.worker.service.pace import Mean, Pace


def pace(think: float | None, start: float | None = None) -> Pace:
    made = Pace()
    for mean, value in ((made.think, think), (made.start, start)):
        if value is not None:
            mean.saw(value)
    return made


def test_old_observations_fade() -> None:
    mean = Mean()
    for _ in range(50):
        mean.saw(10.0)
    for _ in range(50):
        mean.saw(1.0)
    assert mean.value == pytest.approx(1.0, abs=0.01)


@pytest.mark.parametrize(
    ("made", "state", "expected"),
    [
        (pace(5.0), {"waiting": 1, "busy_for": [9.0]}, 0.0),
        (pace(5.0), {"busy_for": [1.0, 4.0]}, 1.0),
        (pace(5.0), {"busy_for": [60.0]}, 0.0),
        (pace(None), {"busy_for": [1.0]}, 0.0),
        (pace(5.0, 3.0), {"starting": True}, 3.0),
        (pace(5.0, 3.0), {"to_come": True}, 3.0),
        (pace(5.0, 3.0), {"busy_for": [1.0], "to_come": True}, 4.0),
        (pace(5.0, 3.0), {}, None),
    ],
)
def test_the_soonest_of_all_agents_is_told(
    made: Pace, state: dict[str, object], expected: float | None
) -> None:
    whole = {"waiting": 0, "busy_for": [], "starting": False, "to_come": False} | state
    assert made.next_request(**whole) == expected  # type: ignore[arg-type]
