"""The main job on a real node: real tasks, real sandboxes, Ctrl-C."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from skerry.spec.rollout import JobEvent
from skerry.trajectory.rollouts.reader import list_rollouts, verify_job
from skerry.worker import (
    Downloads,
    check_task,
    load_tasks,
    policy_named,
    run_job,
)

pytestmark = pytest.mark.root

EXAMPLES = Path(__file__).parents[2] / "examples" / "tasks"


def downloads() -> Downloads:
    return Downloads(Path(os.environ.get("SKERRY_CACHE", "/var/cache/skerry")), os.environ)


@pytest.mark.slow
async def test_every_example_is_what_it_claims_and_every_cheat_is_seen(
    node_client: Any, tmp_path: Path
) -> None:
    tasks = load_tasks([EXAMPLES])
    summary = await run_job(
        node_client,
        tasks,
        [policy_named(name) for name in ("gold", "noop", "cheat")],
        downloads=downloads(),
        jobs_dir=tmp_path,
        concurrency=4,
    )
    expected = {"gold": (1.0, "passed"), "noop": (0.0, "failed"), "cheat": (0.0, "tampered")}
    wrong = [one for one in summary.records if (one.reward, one.verdict) != expected[one.policy]]
    assert wrong == []
    by_task = {task.id: task.tests for task in tasks}
    for one in summary.records:
        tests = by_task[one.task]
        if one.policy == "gold":
            assert one.tests_passed == tests.pass_to_pass + len(tests.fail_to_pass)
        if one.policy == "noop":
            assert one.tests_failed == len(tests.fail_to_pass)
    variants = {one.variant for one in summary.records if one.policy == "cheat"}
    assert len(variants) == min(8, len(tasks))
    assert verify_job(tmp_path, summary.job).sound


async def test_checking_a_sound_task_finds_no_problem(node_client: Any, tmp_path: Path) -> None:
    task = load_tasks([EXAMPLES / "xmltodict-0.14.2"])[0]
    check = await check_task(node_client, task, downloads=downloads(), jobs_dir=tmp_path)
    assert check.sound, check.problems


async def test_a_second_job_builds_nothing(node_client: Any, tmp_path: Path) -> None:
    task = load_tasks([EXAMPLES / "xmltodict-0.14.2"])
    said: list[str] = []

    def note(event: JobEvent) -> None:
        if event.kind == "build":
            said.append(event.text)

    for _ in range(2):
        said.clear()
        await run_job(
            node_client, task, [policy_named("noop")], downloads=downloads(), jobs_dir=tmp_path,
            on_event=note,
        )  # fmt: skip
    assert said == []


async def test_a_cancelled_job_leaves_no_sandbox(node_client: Any, tmp_path: Path) -> None:
    started = asyncio.Event()

    def watch(event: JobEvent) -> None:
        if event.kind == "step" and event.text == "verifying":
            started.set()

    running = asyncio.create_task(
        run_job(
            node_client,
            load_tasks([EXAMPLES / "humanize-4.12.3"]),
            [policy_named("noop")],
            downloads=downloads(),
            jobs_dir=tmp_path,
            n=6,
            concurrency=2,
            on_event=watch,
        )
    )
    await started.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert await node_client.sandboxes.list() == []
    records = list_rollouts(tmp_path)
    assert len(records) == 6
    assert {one.verdict for one in records} <= {"infrastructure_error", "failed"}


KILLED = """
import asyncio, os, sys
from pathlib import Path
import skerry.aio
from skerry.worker import Downloads, load_tasks, policy_named, run_job

async def main():
    async with skerry.aio.connect(sys.argv[1]) as client:
        await run_job(
            client, load_tasks([sys.argv[2]]), [policy_named("noop")],
            downloads=Downloads(Path(sys.argv[3]), os.environ), jobs_dir=Path(sys.argv[4]),
            n=50, concurrency=2, on_event=lambda event: print(event.kind, flush=True),
        )

asyncio.run(main())
"""


def test_a_killed_worker_leaves_a_readable_record(live_node: Any, tmp_path: Path) -> None:
    cache = os.environ.get("SKERRY_CACHE", "/var/cache/skerry")
    task = str(EXAMPLES / "xmltodict-0.14.2")
    worker = subprocess.Popen(
        [sys.executable, "-c", KILLED, live_node.url, task, cache, str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert worker.stdout is not None
    done = 0
    for line in worker.stdout:
        done += line.strip() == "done"
        if done == 3:
            break
    worker.kill()
    worker.wait()
    worker.stdout.close()
    records = list_rollouts(tmp_path)
    assert len(records) >= 3
    check = verify_job(tmp_path, records[0].job)
    assert not check.complete
    assert {one.kind for one in check.problems} == {"truncated"}
    asyncio.run(_clear(live_node))


async def _clear(live_node: Any) -> None:
    # They would end by their time to live; the next test wants an empty node now.
    async with live_node.client() as client:
        left = [info.id for info in await client.sandboxes.list()]
        await client.sandboxes.destroy_many(left)
