"""A job that is followed: what is copied of the workers' record, and what is told of it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from skerry.aio import Job
from skerry.cli import recorded
from skerry.cli.app import App
from skerry.cli.following import follow
from skerry.spec.rollout import Line
from skerry.trajectory.rollouts.job_log import FILE
from skerry.trajectory.rollouts.reader import verify_job

ENDED = {
    "job": "j", "rollout": "j-0000", "task": "t", "policy": "gold", "reward": 1.0,
    "verdict": "passed",
}  # fmt: skip


class Followed:
    """A job that ended long ago: four seconds after its environments were ready."""

    id = "j"

    async def status(self) -> list[Any]:
        return [
            SimpleNamespace(total=1, built=True, ended=True, failure="", building="", trouble="")
        ]

    async def lines(self) -> AsyncIterator[Line]:
        event = {"rollout": "j-0000", "action": "begin", "task": "t", "policy": "gold"}
        yield Line(seq=0, prev="", time=100.0, kind="job", data={"job": "j"})
        yield Line(seq=1, prev="", time=101.0, kind="event", data=event)
        yield Line(seq=2, prev="", time=104.0, kind="rollout", data=ENDED)

    async def results(self) -> AsyncIterator[None]:
        for _ in ():
            yield None


async def test_who_follows_later_has_the_times_of_the_workers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    summary = await follow(cast("Job", Followed()), jobs_dir=tmp_path, on_event=lambda _event: None)
    lines = [json.loads(one) for one in (tmp_path / "j" / FILE).read_text().splitlines()]
    assert [one["kind"] for one in lines] == ["job", "event", "rollout", "end"]
    assert [one["time"] for one in lines[:3]] == [100.0, 101.0, 104.0]
    assert verify_job(tmp_path, "j").sound
    assert (summary.seconds, summary.per_second) == (4.0, 0.25)
    recorded.show_summary(App(), summary)
    shown = capsys.readouterr().out
    assert "1 rollout in 4.0 s (0.25 a second)\n" in shown  # of the environments it knows nothing
