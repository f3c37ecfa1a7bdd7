"""Repeats of a verification in a world without a node: fresh sandboxes, flaky tests, checks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from job_world import BUG, GOOD, FakeClient, FakeSandbox, OpenDownloads, reported, task

from skerry.errors import InvalidRequest
from skerry.spec.command import RunResult
from skerry.spec.rollout import RolloutRecord
from skerry.spec.task import TaskSpec
from skerry.spec.verdict import Limit, Outcome
from skerry.worker.job import run_job
from skerry.worker.policies import policy_named
from skerry.worker.tasks import check_task


async def one(client: FakeClient, top: Path, spec: TaskSpec) -> RolloutRecord:
    summary = await run_job(
        client,  # type: ignore[arg-type]
        [spec],
        [policy_named("gold")],
        downloads=OpenDownloads(top, {}),
        jobs_dir=top / "jobs",
    )
    assert client.left() == []
    return summary.records[0]


def flaky(client: FakeClient, *, fails: int) -> None:
    """The named test fails in each run whose number is a multiple of `fails`."""
    count = 0

    def report(sandbox: FakeSandbox, order: dict[str, Any]) -> RunResult:
        nonlocal count
        count += 1
        return reported(order, GOOD if count % fails else GOOD | {BUG: "failed"})

    client.report = report


async def test_each_repeat_has_a_sandbox_of_its_own(tmp_path: Path) -> None:
    client = FakeClient()
    record = await one(client, tmp_path, task(tmp_path).repeated(3))
    assert record.verdict is Outcome.PASSED
    assert record.repeats is not None
    assert (record.repeats.passed, record.repeats.needed, len(record.repeats.runs)) == (3, 3, 3)
    verifying = [made for made in client.made if made.role == "verify"]
    assert len(verifying) == 3
    assert len({made.spec.layers for made in verifying}) == 1


async def test_a_sandbox_that_was_used_before_is_never_used_again(tmp_path: Path) -> None:
    client = FakeClient()
    create = client.create
    known: list[FakeSandbox] = []

    async def same(backend: str = "container", **options: Any) -> FakeSandbox:
        if options["labels"]["role"] == "verify" and known:
            return known[0]
        made = await create(backend, **options)
        if made.role == "verify":
            known.append(made)
        return made

    client.create = same  # type: ignore[method-assign]
    record = await one(client, tmp_path, task(tmp_path).repeated(2))
    assert (record.verdict, record.reward) == (Outcome.INFRASTRUCTURE_ERROR, None)
    assert "used before" in record.detail


async def test_a_flaky_pass_is_no_pass_unless_the_task_says_so(tmp_path: Path) -> None:
    client = FakeClient()
    flaky(client, fails=2)
    record = await one(client, tmp_path, task(tmp_path).repeated(3))
    assert (record.verdict, record.reward) == (Outcome.FAILED, 0.0)
    assert record.repeats is not None
    assert record.repeats.unstable == {BUG: 2}
    lenient = task(tmp_path).repeated(3)
    tests = msgspec.structs.replace(lenient.tests, passes=2)
    client = FakeClient()
    flaky(client, fails=2)
    record = await one(client, tmp_path, msgspec.structs.replace(lenient, tests=tests))
    assert (record.verdict, record.reward) == (Outcome.PASSED, 1.0)


async def test_a_check_with_repeats_names_tests_that_are_flaky_with_the_real_fix(
    tmp_path: Path,
) -> None:
    client = FakeClient()
    honest = client.report
    count = 0

    def report(sandbox: FakeSandbox, order: dict[str, Any]) -> RunResult:
        nonlocal count
        fixed = b"VALUE = 2" in b"".join(sandbox.files.content.values())
        count += fixed
        return reported(order, GOOD | {BUG: "failed"}) if count == 2 else honest(sandbox, order)

    client.report = report
    check = await check_task(
        client,  # type: ignore[arg-type]
        task(tmp_path),
        downloads=OpenDownloads(tmp_path, {}),
        jobs_dir=tmp_path / "jobs",
        repeats=4,
    )
    assert not check.sound
    assert f"flaky with the fix: {BUG} passed in 3 of 4" in check.problems


async def test_memory_that_ran_out_is_a_limit_and_a_runner_that_stands_still_is_tried_again(
    tmp_path: Path,
) -> None:
    client = FakeClient()
    client.report = lambda sandbox, order: RunResult(signal=9, oom_killed=True)
    record = await one(client, tmp_path, task(tmp_path))
    assert (record.verdict, record.limit, record.attempts) == (Outcome.FAILED, Limit.MEMORY, ())
    client = FakeClient()
    count = 0

    def once(sandbox: FakeSandbox, order: dict[str, Any]) -> RunResult:
        nonlocal count
        count += 1
        return RunResult(signal=9, timed_out=True) if count == 1 else reported(order, GOOD)

    client.report = once
    record = await one(client, tmp_path, task(tmp_path))
    assert record.verdict is Outcome.PASSED
    assert [attempt.stage for attempt in record.attempts] == ["verify"]


async def test_the_verifying_sandbox_has_the_memory_of_the_tests(tmp_path: Path) -> None:
    client = FakeClient()
    asked: list[tuple[str, Any]] = []
    create = client.create

    async def note(backend: str = "container", **options: Any) -> FakeSandbox:
        asked.append((options["labels"]["role"], options["memory"]))
        return await create(backend, **options)

    client.create = note  # type: ignore[method-assign]
    spec = task(tmp_path)
    tests = msgspec.structs.replace(spec.tests, memory="96MiB")
    await one(client, tmp_path, msgspec.structs.replace(spec, tests=tests))
    assert asked == [("agent", "512MiB"), ("verify", "96MiB")]


def test_too_many_repeats_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="repeats"):
        task(tmp_path).repeated(1000)
