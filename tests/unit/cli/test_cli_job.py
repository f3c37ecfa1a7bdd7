"""`skerry job`: what is asked, what is said, and the status."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from fake_client import FakeClient, invoke

from skerry.errors import NotFound, Unavailable
from skerry.spec.job import JobInfo, JobSpec, JobState
from skerry.spec.worker import JobStatus, Signal
from skerry.wire.http import ErrorBody
from skerry.wire.jobs import JobFailure, JobMoved, JobQueue, JobStep, JobWaiting
from skerry.wire.workers import WorkerInfo


@dataclass
class FakeJob:
    created_as: JobInfo
    client: Any
    moved: JobMoved = field(default_factory=lambda: JobMoved(total=2, done=2, seconds=0.1))

    async def queue(self) -> JobQueue:
        return JobQueue(
            job=self.created_as.id,
            waiting=3,
            items=(JobWaiting(position=1, last=3, count=3, key="k", estimate_s=65.0),),
            estimate_s=65.0,
            message="sandboxes: 20 of 20 are in use",
        )

    async def status(self) -> list[JobStatus]:
        if not self.client.rollouts:
            raise NotFound("nothing was submitted")
        share = JobStatus(
            job="train", total=9, share=(0, 1), rollouts=9, created=1.0,
            counts={"ended": 4, "asking": 3, "waiting": 2, "acting": 0}, trouble="\x1b[2Jno model",
        )  # fmt: skip
        return [share]

    async def signal(self) -> Signal:
        return Signal(
            version=1, waiting=2, leased=1, oldest_s=61.0, sandboxes_busy=0, verifying=0,
            rollouts_waiting=2, rollouts_running=3, rollouts_ended=4, next_request_s=0.0,
        )  # fmt: skip

    async def pause(self, told: Any) -> JobMoved:
        self.client.asked.append(("pause", self.created_as.id))
        told(JobStep(total=2))
        return self.moved

    resume = pause

    async def update(self, **changes: Any) -> JobInfo:
        self.client.asked.append(("update", changes))
        return self.created_as

    async def end(self) -> JobInfo:
        self.client.asked.append(("end", self.created_as.id))
        return self.created_as


class FakeJobs:
    def __init__(self) -> None:
        self.asked: list[tuple[Any, ...]] = []
        self.rollouts = False
        info = JobInfo(
            id="train",
            state=JobState.PAUSED,
            spec=JobSpec(id="train", priority=3, sandboxes_max=9, labels={"a": "\x1b[2Jb"}),
            created=1.0,
            lost_since=2.0,
            paused_by="loss",
            sandboxes={"paused": 4, "running": 1},
            waiting=3,
        )
        self.jobs = {"train": FakeJob(info, self)}

    async def workers(self) -> list[WorkerInfo]:
        return [WorkerInfo(worker=0, state="ready" if self.rollouts else "unused")]

    async def list(self, **filters: Any) -> list[JobInfo]:
        self.asked.append(("list", filters))
        return [job.created_as for job in self.jobs.values()]

    async def get(self, name: str) -> FakeJob:
        if name not in self.jobs:
            raise NotFound(f"there is no job {name}")
        return self.jobs[name]


def client() -> Any:
    fake = FakeClient()
    fake.jobs = FakeJobs()  # type: ignore[attr-defined]
    fake.workers = fake.jobs.workers  # type: ignore[attr-defined]
    return fake


def test_ls_says_how_jobs_stand() -> None:
    fake = client()
    said = invoke(fake, "job", "ls", "-a", "--label", "a=b").stdout
    assert "train" in said
    assert "4 paused 1 running" in said
    assert "lost" in said
    assert fake.jobs.asked == [("list", {"labels": {"a": "b"}, "ended": True})]
    assert json.loads(invoke(client(), "job", "ls", "--json").stdout)["waiting"] == 3


def test_show_says_who_waits_and_nothing_that_commands_a_terminal() -> None:
    said = invoke(client(), "job", "show", "train").stdout
    assert "paused by loss" in said
    assert "3 creates; the last comes in about 1 min" in said
    assert "20 of 20" in said
    assert "1-3" in said
    assert "\x1b[2J" not in said
    shown = json.loads(invoke(client(), "job", "show", "train", "--json").stdout)
    assert shown["queue"]["items"][0]["last"] == 3
    assert invoke(client(), "job", "show", "none").exit_code == 125


def test_show_says_how_rollouts_stand() -> None:
    fake = client()
    assert "rollouts" not in invoke(fake, "job", "show", "train").stdout
    fake.jobs.rollouts = True
    said = invoke(fake, "job", "show", "train").stdout
    assert "4 of 9 ended, 3 asking, 2 waiting\n" in said
    assert "2 wait, 1 are with a trainer; the oldest for 1 min" in said
    assert "no model" in said
    assert "\x1b[2J" not in said
    shown = json.loads(invoke(fake, "job", "show", "train", "--json").stdout)
    assert shown["rollouts"]["signal"]["waiting"] == 2


def test_pause_and_resume_say_what_came_of_it() -> None:
    fake = client()
    result = invoke(fake, "job", "pause", "train")
    assert (result.exit_code, result.stdout) == (0, "2 of 2 sandboxes paused in 0.1 s\n")
    assert "2 of 2 sandboxes resumed" in invoke(fake, "job", "resume", "train").stdout
    failed = JobFailure("s1", ErrorBody.of(Unavailable("the launcher is away")))
    fake.jobs.jobs["train"].moved = JobMoved(
        total=2, done=1, failures=1, failed=(failed,), freed_bytes=3 << 20
    )
    result = invoke(fake, "job", "pause", "train")
    assert result.exit_code == 1
    assert "s1: the launcher is away" in result.stderr
    assert "3 MiB given back" in result.stdout
    result = invoke(fake, "job", "pause", "train", "--json")
    assert (result.exit_code, json.loads(result.stdout)["failures"]) == (1, 1)


def test_extend_counts_from_now() -> None:
    fake = client()
    assert invoke(fake, "job", "extend", "train", "--ttl", "2h").stdout == "train expires in 2 h\n"
    assert fake.jobs.asked == [("update", {"ttl": 7200.0})]
    assert invoke(fake, "job", "extend", "train").exit_code != 0


def test_rm_ends_each_once_and_none_if_one_is_unknown() -> None:
    fake = client()
    assert invoke(fake, "job", "rm", "train", "train").stdout == "train\n"
    assert fake.jobs.asked == [("end", "train")]
    assert invoke(fake, "job", "rm", "train", "none").exit_code == 125
    assert len(fake.jobs.asked) == 1
