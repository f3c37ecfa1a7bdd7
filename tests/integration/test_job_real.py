"""The main job on a real node: real tasks, real sandboxes, a scripted model, Ctrl-C."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from skerry.spec.rollout import JobEvent
from skerry.trajectory.rollouts_reader import list_rollouts, show_rollout, verify_job
from skerry.worker import (
    Downloads,
    Model,
    ModelOptions,
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


class ScriptedModel:
    """An OpenAI-compatible server on loopback that knows the answer to one task."""

    def __init__(self, patch: str) -> None:
        self.patch = patch
        self.keys: set[str | None] = set()
        self.prompts: list[str] = []
        self.outputs: list[str] = []

    async def answer(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.keys.add(request.headers.get("Authorization"))
        messages = body["messages"]
        self.prompts.append(messages[1]["content"])
        tools = [one["content"] for one in messages if one["role"] == "tool"]
        self.outputs = tools
        commands = [
            "ls; env; cat /proc/1/environ 2>/dev/null | tr '\\0' '\\n'",
            f"patch -p1 <<'EOF'\n{self.patch}EOF\n",
            "python -m pytest -q -p no:cacheprovider 2>&1 | tail -n 1",
        ]
        if len(tools) >= len(commands):
            message: dict[str, Any] = {"role": "assistant", "content": "Fixed."}
        else:
            arguments = json.dumps({"command": commands[len(tools)]})
            function = {"name": "bash", "arguments": arguments}
            calls = [{"id": f"c{len(tools)}", "type": "function", "function": function}]
            message = {"role": "assistant", "content": None, "tool_calls": calls}
        return web.json_response({"choices": [{"message": message}]})


async def test_a_model_solves_a_task_through_the_reverse_forward(
    node_client: Any, tmp_path: Path
) -> None:
    from skerry.worker.archives import gold_patch, source_files

    task = load_tasks([EXAMPLES / "jsonpatch-1.32"])[0]
    cache = downloads()
    await run_job(
        node_client, [task], [policy_named("noop")], downloads=cache, jobs_dir=tmp_path / "first"
    )
    bug, fix = (
        source_files(cache.read(one.archive), one.file)
        for one in (task.package.bug, task.package.fix)
    )
    model = ScriptedModel(gold_patch(task, bug, fix).decode())
    app = web.Application()
    app.router.add_post("/v1/chat/completions", model.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
        policy = Model(url, api_key="sk-secret", options=ModelOptions(model="scripted", turns=8))
        summary = await run_job(
            node_client, [task], [policy], downloads=cache, jobs_dir=tmp_path / "jobs"
        )
    finally:
        await runner.cleanup()
    record = summary.records[0]
    assert (record.reward, record.verdict, record.variant) == (1.0, "passed", "scripted")
    assert model.keys == {"Bearer sk-secret"}
    assert "sk-secret" not in "".join(model.outputs)
    assert task.bug.split("\n", maxsplit=1)[0] in model.prompts[0]
    trace = show_rollout(tmp_path / "jobs", record.rollout)
    exchanges = [line for line in trace.lines if line.data.get("action") == "model"]
    assert len(exchanges) == 4
    assert b"sk-secret" not in (Path(summary.path) / "rollouts.jsonl").read_bytes()


async def test_a_dead_model_server_is_no_reward(node_client: Any, tmp_path: Path) -> None:
    policy = Model("http://127.0.0.1:1/v1", options=ModelOptions(retry_pause_s=0.01))
    task = load_tasks([EXAMPLES / "xmltodict-0.14.2"])
    summary = await run_job(node_client, task, [policy], downloads=downloads(), jobs_dir=tmp_path)
    record = summary.records[0]
    assert (record.reward, record.verdict) == (None, "infrastructure_error")
    assert len(record.attempts) == 3


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
