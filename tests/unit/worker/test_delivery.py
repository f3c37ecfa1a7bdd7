"""A model's server at a URL answers in the trainer's stead."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from service_world import World
from upstream import say, upstream

from skerry.spec.worker import AnswerUrl
from skerry.worker.service import delivery


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery, "PAUSE_S", 0.01)
    monkeypatch.setattr(delivery, "PAUSE_MAX_S", 0.02)


async def results(world: World, to: AnswerUrl) -> list[Any]:
    async with world.worker() as service, world.trainer() as job:
        service.submit(world.submit(answers=to))
        return [record async for record in job.results()]


async def test_requests_are_answered_with_the_key_and_nobody_inside_has_it(tmp_path: Path) -> None:
    world = World(tmp_path)
    async with upstream(lambda body: say("1")) as server:
        records = await results(world, AnswerUrl(url=server.url, api_key="sk-secret"))
    assert [record.reward for record in records] == [1.0, 1.0]
    assert set(server.keys) == {"Bearer sk-secret"}
    assert len(server.asked) == 2 * world.turns
    assert b"sk-secret" not in (tmp_path / "state/jobs/j/rollouts.jsonl").read_bytes()


@pytest.mark.parametrize("status", [500, 429, 401, 404])
async def test_a_server_that_fails_is_asked_again_and_the_request_waits(
    tmp_path: Path, status: int
) -> None:
    world, failing = World(tmp_path), [20]

    def answer(body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        failing[0] -= 1
        return (status, {}) if failing[0] > 0 else say("1")

    async with upstream(answer) as server:
        records = await results(world, AnswerUrl(url=server.url, tries=2))
    assert [record.reward for record in records] == [1.0, 1.0]
    assert [record.attempts for record in records] == [(), ()]


async def test_while_nothing_answers_there_the_status_says_so_and_a_trainer_may_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path)
    async with world.worker() as service, world.trainer() as job:
        service.submit(world.submit(answers=AnswerUrl(url="http://127.0.0.1:1/v1", tries=1)))
        version = 0
        while not (await job.status())[0].trouble:
            version = (await job.signal(version=version, wait=5.0)).version
        async with asyncio.timeout(30):
            await world.sample(job)
            assert [record.reward async for record in job.results()] == [1.0, 1.0]


async def test_a_request_that_is_at_fault_comes_back_to_the_agent(tmp_path: Path) -> None:
    world = World(tmp_path)
    async with upstream(lambda body: (400, {"error": {"message": "too long"}})) as server:
        await results(world, AnswerUrl(url=server.url))
    assert len(server.asked) == 2
    assert {status for status, _ in world.refused} == {400}
    assert all("too long" in text for _, text in world.refused)
