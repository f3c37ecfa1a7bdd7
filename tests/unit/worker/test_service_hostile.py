"""What one agent, one trainer or one full disk does to a worker must cost nobody else anything."""

from __future__ import annotations

import asyncio
import json
import secrets
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from service_world import World
from upstream import say, upstream

from skerry.errors import StorageFailed
from skerry.spec.worker import AnswerUrl
from skerry.trajectory.rollouts.job_log import JobLog
from skerry.worker import acting
from skerry.worker.model.handler import RELAYS_MAX
from skerry.worker.service import delivery, desk


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


class Odd(World):
    """The agent of the first rollout asks with something odd at first."""

    odd: Any = None
    key = ""

    async def agent(self, sandbox: Any, command: Any, **more: Any) -> Any:
        acts = list(command)[:1] == ["agent"]
        if acts and json.loads(more["stdin"])["rollout"] == "j-0000":
            token = more["env"]["OPENAI_API_KEY"]
            assert await self.ask(sandbox.id, token, self.odd) is None
        return await super().agent(sandbox, command, **more)


def nested(depth: int) -> Any:
    value: Any = []
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    "odd", [1 << 70, -(1 << 64), [1, {"x": 1 << 64}], nested(130), nested(500)]
)
async def test_a_body_that_cannot_be_told_is_refused_and_keeps_no_page_from_the_trainer(
    tmp_path: Path, odd: Any
) -> None:
    world = Odd(tmp_path)
    world.odd = odd
    async with world.worker() as running, world.trainer() as job, asyncio.timeout(60):
        running.submit(world.submit())
        await world.sample(job)
        assert [one.reward async for one in job.results()] == [1.0, 1.0]
    assert [status for status, _ in world.refused] == [400]


async def test_a_log_that_takes_no_bodies_costs_no_agent_an_answer(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = [True]
    blob = JobLog.blob

    def kept(self: JobLog, content: bytes) -> str:
        if full[0]:
            raise StorageFailed("no space left on device")
        return blob(self, content)

    monkeypatch.setattr(JobLog, "blob", kept)
    ask, long = world.ask, "x" * 5000
    world.ask = lambda sandbox, token, text: ask(sandbox, token, text + long)  # type: ignore[method-assign]
    async with world.worker() as running, world.trainer() as job, asyncio.timeout(60):
        running.submit(world.submit())
        async for request in job.requests():
            assert (await request.answer("1" + long)).first
            full[0] = request.asked.ordinal < world.turns - 1
        assert [one.reward async for one in job.results()] == [1.0, 1.0]
    assert world.refused == []


async def test_a_page_of_requests_is_bounded_and_the_rest_comes_next(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(desk, "PAGE_BYTES_MAX", 10)
    async with world.worker() as running, world.trainer() as job, asyncio.timeout(60):
        runner = running.submit(world.submit(n=4, concurrency=4))
        version = 0
        while (signal := await job.signal(version=version, wait=5.0)).waiting < 4:
            version = signal.version
        page = await running.desk.poll("j", "a", 4, 0.0)
        assert (len(page.requests), runner.requests.held) == (1, 1)
        runner.requests.check_invariants()
        await world.sample(job)
        assert len([one async for one in job.results()]) == 4


async def test_a_deletion_whose_asker_leaves_is_done_all_the_same(world: World) -> None:
    async with world.worker() as running, world.trainer() as job, asyncio.timeout(60):
        running.submit(world.submit())
        version = 0
        while (signal := await job.signal(version=version, wait=5.0)).waiting < 2:
            version = signal.version
        asking = asyncio.ensure_future(running.delete("j"))
        await asyncio.sleep(0)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        await asyncio.gather(running.delete("j"), running.delete("j"))
        assert running.book.jobs == {}
        running.submit(world.submit())
        await world.sample(job)
        assert [one.reward async for one in job.results()] == [1.0, 1.0]


async def test_whatever_a_server_answers_the_others_are_delivered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery, "PAUSE_S", 0.01)
    monkeypatch.setattr(delivery, "PAUSE_MAX_S", 0.02)
    world = World(tmp_path)
    odd: list[Any] = [nested(900), {"choices": []}, {"choices": [nested(900)]}, [], None, 1]

    def answer(body: dict[str, Any]) -> tuple[int, Any]:
        return (200, odd.pop()) if odd else say("1")

    async with (
        upstream(answer) as server,
        asyncio.timeout(60),
        world.worker() as running,
        world.trainer() as job,
    ):
        running.submit(world.submit(answers=AnswerUrl(url=server.url, tries=1)))
        assert [one.reward async for one in job.results()] == [1.0, 1.0]
    assert odd == []


async def test_a_sandbox_may_have_as_many_requests_at_once_as_a_header_names(world: World) -> None:
    waiting = ",".join(secrets.token_hex(16) for _ in range(RELAYS_MAX - 1))
    ask = world.ask
    names: list[dict[str, str]] = []

    async def crowded(sandbox: str, token: str, text: str) -> Any:
        headers = {"X-Skerry-Sandbox": sandbox, "Authorization": f"Bearer {token}"}
        headers |= {"X-Skerry-Request": secrets.token_hex(16), "X-Skerry-Waiting": waiting}
        connector = aiohttp.UnixConnector(str(world.socket))
        async with (
            aiohttp.ClientSession("http://worker", connector=connector) as session,
            session.get("/model/v1/models", headers=headers) as reply,
        ):
            names.append(await reply.json())
        return await ask(sandbox, token, text)

    world.ask = crowded  # type: ignore[method-assign]
    async with world.worker() as running, world.trainer() as job, asyncio.timeout(60):
        running.submit(world.submit(n=1))
        await world.sample(job)
        assert [one.reward async for one in job.results()] == [1.0]
    assert [one["object"] for one in names] == ["list"] * world.turns


FULL_AT = [("agent", "create"), ("agent", "diff"), ("verify", "create"), ("verify", "info")]


@pytest.mark.parametrize(("role", "step"), FULL_AT, ids=[" ".join(one) for one in FULL_AT])
async def test_a_node_whose_disk_is_full_lets_rollouts_stand_still(
    world: World, monkeypatch: pytest.MonkeyPatch, role: str, step: str
) -> None:
    refused = full_for(world, monkeypatch, role, step, times=20)
    async with world.worker() as running, world.trainer() as job, asyncio.timeout(60):
        running.submit(world.submit())
        await world.sample(job)
        records = [(one.reward, one.attempts) async for one in job.results()]
    assert records == [(1.0, ()), (1.0, ())]
    assert len(refused) == 20
    assert set(world.witness.seen.values()) == {1}  # no agent was begun again
    assert world.client.left() == []


async def test_a_disk_that_stays_full_costs_attempts_in_the_end_and_is_no_reward(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(acting, "DISK_PATIENCE_S", 0.05)
    full_for(world, monkeypatch, "agent", "create", times=1_000_000)
    async with world.worker() as running, world.trainer() as job, asyncio.timeout(60):
        running.submit(world.submit(n=1))
        (record,) = [one async for one in job.results()]
    assert (record.verdict, record.reward, len(record.attempts)) == (
        "infrastructure_error",
        None,
        3,
    )


def full_for(
    world: World, monkeypatch: pytest.MonkeyPatch, role: str, step: str, *, times: int
) -> list[str]:
    """The node's disk is full at a step, so many times; returns what grows with each."""
    monkeypatch.setattr("skerry.worker.service.runner.AGAIN_FIRST_S", 0.01)
    monkeypatch.setattr("skerry.worker.service.runner.AGAIN_MAX_S", 0.02)
    refused: list[str] = []

    def refuse(of: str, what: str) -> None:
        if (of, what) == (role, step) and len(refused) < times:
            refused.append(what)
            raise StorageFailed("the node's disk is full")

    world.client.on_create = lambda of: refuse(of, "create")
    world.client.on_call = lambda sandbox, what: refuse(sandbox.role, what)
    return refused
