"""Rollouts at the workers of a real node: real sandboxes, real agents in them, and kills of everything.

The outside witness is the trainer's side: an agent draws a nonce when it starts and says it with each
request, so an agent that ran twice, or a turn that was taken twice, shows there.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from live_node import LiveNode
from skerry.cli.following import Wanted, run
from skerry.errors import Conflict, SkerryError, Unavailable
from skerry.sdk.client import AsyncClient
from skerry.spec.rollout import RolloutRecord
from skerry.spec.worker import AnswerUrl, ModelSettings, Scaffold
from skerry.trajectory.rollouts.reader import show_rollout, verify_job
from skerry.worker import Downloads, load_tasks
from skerry.worker.archives import gold_patch, source_files

pytestmark = pytest.mark.root

EXAMPLES = Path(__file__).parents[2] / "examples" / "tasks"
TASK = "xmltodict-0.14.2"
TURNS = 4
# An agent with the habits of OpenAI's client: it tries again after a lost connection, and says so.
AGENT = """
import json, os, subprocess, sys, time, urllib.request, uuid
told, nonce = json.load(sys.stdin), uuid.uuid4().hex
def ask(turn, text):
    body = {"model": "m", "messages": [{"role": "user", "content": text}], "seed": turn}
    for number in range(100):
        request = urllib.request.Request(
            os.environ["OPENAI_BASE_URL"] + "/chat/completions", json.dumps(body).encode(),
            {"Content-Type": "application/json", "X-Stainless-Retry-Count": str(number),
             "Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]})
        try:
            with urllib.request.urlopen(request, timeout=600) as answer:
                return json.load(answer)["choices"][0]["message"]["content"]
        except (OSError, ValueError):
            time.sleep(0.2)
for turn in range(int(os.environ["TURNS"])):
    said = ask(turn, json.dumps([told["rollout"], nonce, turn]))
    time.sleep(0.05)
subprocess.run(["patch", "-p1"], input=said.encode(), check=True)
"""


def downloads() -> Downloads:
    return Downloads(Path(os.environ.get("SKERRY_CACHE", "/var/cache/skerry")), os.environ)


async def fix_of(name: str) -> str:
    task = load_tasks([EXAMPLES / name])[0]
    cache = downloads()
    archives = (task.package.bug.archive, task.package.fix.archive)
    from skerry.worker.downloads import Wanted as Needed

    await cache.fetch([Needed(one.file, one.sha256, task.package.name) for one in archives])
    bug, fix = (source_files(cache.read(one), one.file) for one in archives)
    return gold_patch(task, bug, fix).decode()


class Trainer:
    """Answers requests; counts what it was asked, and what was recorded first."""

    def __init__(self, fix: str) -> None:
        self.fix = fix
        self.nonces: dict[str, set[str]] = defaultdict(set)
        self.recorded: Counter[str] = Counter()
        self.turns: Counter[str] = Counter()
        self.deaths = 0

    async def train(self, client: AsyncClient, job_id: str) -> list[RolloutRecord]:
        """One life of a trainer without memory, to the job's end."""
        job = await client.jobs.attach(job_id)
        async with job:
            async for request in job.requests():
                rollout, nonce, turn = json.loads(request.body["messages"][-1]["content"])
                self.nonces[rollout].add(nonce)
                await asyncio.sleep(random.random() * 0.1)
                taken = await request.answer(self.fix)
                if taken.first:
                    self.recorded[request.id] += 1
                    self.turns[f"{rollout} {turn}"] += 1
            return [record async for record in job.results()]

    async def lives(self, node: LiveNode, job_id: str, seconds: list[float]) -> list[RolloutRecord]:
        """Lives that end after so many seconds each, and a last one that does not."""
        lives: list[float | None] = [*seconds, None]
        while True:
            try:
                async with node.client() as client, asyncio.timeout(lives[0]):
                    return await self.train(client, job_id)
            except Unavailable:
                await asyncio.sleep(0.1)  # the node is away: a trainer of another process as well
            except TimeoutError:
                self.deaths += 1
                lives.pop(0)


async def kill_workers(client: AsyncClient, times: int, pause: float) -> int:
    """Kills the node's worker again and again; returns how often it was there to be killed."""
    killed = 0
    while killed < times:
        await asyncio.sleep(pause * (0.5 + random.random()))
        with contextlib.suppress(SkerryError, ProcessLookupError):
            found = await client._transport.call("GET", "/v1/workers", list[Any])  # type: ignore[union-attr]
            if found[0]["state"] == "ready":
                os.kill(found[0]["pid"], signal.SIGKILL)
                killed += 1
    return killed


def scaffold(**env: str) -> Scaffold:
    return Scaffold(argv=("/usr/bin/python3", "-c", AGENT), env={"TURNS": str(TURNS), **env})


@pytest.mark.slow
async def test_kills_of_workers_node_and_trainer_lose_and_double_nothing(layer_store: str) -> None:
    trainer = Trainer(await fix_of(TASK))
    node = LiveNode(layer_store)
    with node.running():
        async with node.client() as client:
            job = await client.jobs.create("kills", lease=600)
            tasks = load_tasks([EXAMPLES / TASK])
            await job.submit(tasks, scaffold=scaffold(), n=6, concurrency=6)
            training = asyncio.ensure_future(trainer.lives(node, "kills", [4.0, 4.0]))
            killed = await kill_workers(client, 4, 1.0)
            node.kill()
            await asyncio.to_thread(node.start)
            killed += await kill_workers(client, 4, 1.0)
            records = await training
            told = Counter(
                [
                    f"{_number(one.rollout)}.{event.request['attempt']}.{event.request['ordinal']}"
                    for one in await client.trajectories.list(job="kills")
                    async for event in client.trajectories.events(one.sandbox)
                    if event.action == "model.request"
                ]
            )
            await job.end()
    assert (killed, trainer.deaths) == (8, 2)
    assert [one.reward for one in records] == [1.0] * 6
    assert [one.attempts for one in records] == [()] * 6  # none was restarted
    assert {len(nonces) for nonces in trainer.nonces.values()} == {1}  # no agent ran twice
    assert len(trainer.nonces) == 6
    assert set(trainer.turns.values()) == {1}
    assert len(trainer.turns) == 6 * TURNS  # no request was lost
    assert set(trainer.recorded.values()) == {1}  # none was answered twice
    assert told == Counter(dict.fromkeys(trainer.recorded, 1))  # and none is told twice


def _number(rollout: str | None) -> int:
    return int(str(rollout).rpartition("-")[2])


async def test_a_request_that_waits_pauses_its_sandbox_and_costs_no_time(
    node_client: AsyncClient,
) -> None:
    fix = await fix_of(TASK)
    job = await node_client.jobs.create("waits", lease=600)
    try:
        tasks = load_tasks([EXAMPLES / TASK])
        await job.submit(tasks, scaffold=scaffold(TURNS="1"), pause_after=0.3)
        paused = None
        while paused is None:
            await asyncio.sleep(0.1)
            states = [one async for one in job.rollouts()]
            paused = next((one for one in states if one.paused), None)
        assert paused.sandbox is not None
        sandbox = await node_client.sandboxes.get(paused.sandbox)
        await sandbox.wait("paused", timeout=30)
        before = await anext(job.rollouts())
        await asyncio.sleep(1.0)
        after = await anext(job.rollouts())
        assert after.active_s == before.active_s
        assert (after.state, after.asked, after.answered) == ("asking", 1, 0)
        signalled = await job.signal()
        assert (signalled.waiting, signalled.next_request_s) == (1, 0.0)
        async for request in job.requests():
            taken = await request.answer(fix)
            assert taken.first
            again = await job.answer(request.id, fix)
            assert not again.first
            with pytest.raises(Conflict):
                await job.answer(request.id, "another answer")
        records = [record async for record in job.results()]
        assert [one.reward for one in records] == [1.0]
    finally:
        await job.end()
    assert await node_client.sandboxes.list() == []


async def test_a_scaffold_that_breaks_its_sandbox_has_failed_and_says_how(
    node_client: AsyncClient,
) -> None:
    job = await node_client.jobs.create("breaks", lease=600)
    try:
        tasks = load_tasks([EXAMPLES / TASK])
        breaks = Scaffold(argv=("/bin/sh", "-c", "rm -rf --no-preserve-root / 2>/dev/null; exit 0"))
        await job.submit(tasks, scaffold=breaks)
        (record,) = [one async for one in job.results()]
        assert (record.reward, record.attempts) == (0.0, ())
        assert record.verdict in ("failed", "tampered")
        found = await node_client.trajectories.list(rollout=record.rollout)
        told = [
            event
            for one in found
            async for event in node_client.trajectories.events(one.sandbox)
            if event.action == "verdict"
        ]
        assert [event.result["outcome"] for event in told if event.result] == [record.verdict]
        assert "left its environment broken" in record.repercussion
    finally:
        await job.end()


async def test_a_scaffold_that_is_not_there_is_no_reward(node_client: AsyncClient) -> None:
    job = await node_client.jobs.create("missing", lease=600)
    try:
        tasks = load_tasks([EXAMPLES / TASK])
        await job.submit(tasks, scaffold=["/opt/no-such-agent"])
        (record,) = [one async for one in job.results()]
        assert (record.reward, record.verdict) == (None, "infrastructure_error")
        assert "could not start" in record.detail
    finally:
        await job.end()


class ScriptedModel:
    """An OpenAI-compatible server on loopback that knows the answer to one task."""

    def __init__(self, patch: str) -> None:
        self.patch = patch
        self.keys: set[str | None] = set()
        self.prompts: list[str] = []
        self.outputs: list[str] = []
        self.failing = 2

    async def answer(self, request: web.Request) -> web.Response:
        if self.failing:
            self.failing -= 1
            return web.Response(status=503)
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


async def test_a_model_behind_a_url_solves_a_task_and_its_key_stays_outside(
    node_client: AsyncClient, tmp_path: Path
) -> None:
    model = ScriptedModel(await fix_of("jsonpatch-1.32"))
    task = load_tasks([EXAMPLES / "jsonpatch-1.32"])[0]
    app = web.Application()
    app.router.add_post("/v1/chat/completions", model.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
        wanted = Wanted(
            tasks=(task,),
            model=ModelSettings(model="scripted", turns=8),
            answers=AnswerUrl(url=url, api_key="sk-secret"),
        )
        summary = await run(
            node_client, "solves", wanted, jobs_dir=tmp_path, on_event=lambda event: None
        )
    finally:
        await runner.cleanup()
    record = summary.records[0]
    assert (record.reward, record.verdict, record.variant) == (1.0, "passed", "scripted")
    assert model.keys == {"Bearer sk-secret"}
    assert "sk-secret" not in "".join(model.outputs)
    assert task.bug.split("\n", maxsplit=1)[0] in model.prompts[0]
    trace = show_rollout(tmp_path, record.rollout)
    actions = Counter(line.data.get("action") for line in trace.lines)
    assert (actions["ask"], actions["answer"]) == (4, 4)
    assert b"sk-secret" not in (Path(summary.path) / "rollouts.jsonl").read_bytes()
    assert verify_job(tmp_path, "solves").sound
    agent, *_ = await node_client.trajectories.list(rollout=record.rollout)
    events = [event async for event in node_client.trajectories.events(agent.sandbox)]
    order = [event.action for event in events]
    requests = [event for event in events if event.action == "model.request"]
    assert [event.request["ordinal"] for event in requests] == [0, 1, 2, 3]
    began, diff = order.index("run"), order.index("disk.diff")
    assert all(began < event.ordinal < diff for event in requests)
    shell = [one["name"] for event in requests for one in event.result.get("tool_calls", ())]
    assert (shell, requests[3].result["answer"]) == (["bash"] * 3, {"text": "Fixed."})
    assert task.bug.split("\n", maxsplit=1)[0] in requests[0].request["new"][1]["text"]
    assert await node_client.sandboxes.list() == []
