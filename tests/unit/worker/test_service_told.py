"""Model requests in the record of the agent's sandbox: each once, and never before an answer."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from job_world import FakeSandbox
from service_world import World

from skerry.errors import StorageFailed
from skerry.spec.command import RunResult
from skerry.worker.service.teller import READS_MAX, Teller


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def told(world: World) -> list[tuple[str, int, bool]]:
    """Returns what the record of sandboxes says of model requests: whose, which, and if answered."""
    return [
        (sandbox, request["ordinal"], result["answered"])
        for sandbox, action, request, result in world.client.recorded.values()
        if action == "model.request"
    ]


async def test_model_requests_are_in_the_record_of_the_sandbox_before_what_came_of_them(
    world: World,
) -> None:
    seen_at_diff: list[int] = []

    def look(sandbox: FakeSandbox, what: str) -> None:
        if sandbox.role == "agent" and what == "diff":
            seen_at_diff.append(sum(one == sandbox.id for one, *_ in told(world)))

    world.client.on_call = look
    async with world.worker() as service, world.trainer() as job:
        service.submit(world.submit())
        await world.sample(job)
        assert [one.reward async for one in job.results()] == [1.0, 1.0]
    agents = [sandbox.id for sandbox in world.client.made if sandbox.role == "agent"]
    assert sorted(told(world)) == sorted((one, turn, True) for one in agents for turn in (0, 1))
    assert seen_at_diff == [world.turns] * 2
    assert world.client.posts == 2 * world.turns + 2  # and the verdicts: each was posted once
    for key, (_, action, request, result) in world.client.recorded.items():
        if action == "model.request":
            assert result["answer"] == {"text": "1"}
            assert request["new"][0]["text"].startswith("j-000")
            started, ended, _ = world.client.times[key]
            assert started is not None
            assert ended is not None
            assert started <= ended


async def test_a_record_that_takes_nothing_keeps_no_answer_from_an_agent_and_nothing_is_lost(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    for where in ("service.teller", "service.runner"):
        monkeypatch.setattr(f"skerry.worker.{where}.AGAIN_FIRST_S", 0.01)
        monkeypatch.setattr(f"skerry.worker.{where}.AGAIN_MAX_S", 0.02)
    full, done, agent = [True], asyncio.Event(), world.client.scaffold

    async def acting(*words: Any, **more: Any) -> RunResult:
        result: RunResult = await agent(*words, **more)
        done.set()
        return result

    world.client.scaffold = acting

    def refuse(sandbox: FakeSandbox, what: str) -> None:
        assert not full[0] or what != "diff", "what came of it is not looked at before"
        if full[0] and what == "record":
            raise StorageFailed("the node's disk is full")

    world.client.on_call = refuse
    async with world.worker() as service, world.trainer() as job, asyncio.timeout(60):
        service.submit(world.submit(n=1))
        sampling = asyncio.ensure_future(world.sample(job))
        await done.wait()
        assert set(world.witness.seen) == {"begin j-0000", "act j-0000 0 1", "act j-0000 1 1"}
        assert told(world) == []
        full[0] = False
        await sampling
        records = [one async for one in job.results()]
        assert [(one.reward, one.attempts) for one in records] == [(1.0, ())]
    assert [ordinal for _, ordinal, _ in told(world)] == list(range(world.turns))


@pytest.mark.parametrize(("times", "told_of"), [(READS_MAX - 1, [0, 1]), (10**6, [1])])
async def test_a_request_that_cannot_be_read_just_then_is_told_later_and_one_that_never_can_is_left(
    world: World, monkeypatch: pytest.MonkeyPatch, times: int, told_of: list[int]
) -> None:
    for where in ("service.teller", "service.runner"):
        monkeypatch.setattr(f"skerry.worker.{where}.AGAIN_FIRST_S", 0.01)
        monkeypatch.setattr(f"skerry.worker.{where}.AGAIN_MAX_S", 0.02)
    left, read = [times], Teller._read

    async def failing(self: Teller, ordinal: int) -> Any:
        if ordinal == 0 and left[0] > 0:
            left[0] -= 1
            raise StorageFailed("the worker's disk is full")
        return await read(self, ordinal)

    monkeypatch.setattr(Teller, "_read", failing)
    async with world.worker() as service, world.trainer() as job, asyncio.timeout(60):
        service.submit(world.submit(n=1))
        await world.sample(job)
        records = [one async for one in job.results()]
        assert [(one.reward, one.attempts) for one in records] == [(1.0, ())]
    assert [ordinal for _, ordinal, _ in told(world)] == told_of


async def test_a_request_that_is_never_answered_is_told_so(world: World) -> None:
    ask = world.ask

    async def leaving(sandbox: str, token: str, text: str) -> Any:
        """Asks once more, and ends without waiting for it."""
        found = await ask(sandbox, token, text)
        if text.endswith(" 1"):
            late = asyncio.ensure_future(ask(sandbox, token, "late"))
            async with world.trainer() as job:
                version = 0
                while [one.asked async for one in job.rollouts()] != [world.turns + 1]:
                    version = (await job.signal(version=version, wait=5.0)).version
            late.cancel()
        return found

    world.ask = leaving  # type: ignore[method-assign]
    async with world.worker() as service, world.trainer() as job, asyncio.timeout(60):
        service.submit(world.submit(n=1))
        async for request in job.requests():
            if request.body["messages"][-1]["content"] != "late":
                await request.answer("1")
        assert [one.reward async for one in job.results()] == [1.0]
    assert [one[1:] for one in told(world)] == [(0, True), (1, True), (2, False)]


async def test_what_a_model_had_its_agent_do_is_noted_over_a_restart_of_the_worker(
    world: World,
) -> None:
    arguments = {"command": "cat /opt/skerry/hidden_tests/test_core.py"}
    call = {"function": {"name": "bash", "arguments": arguments}}
    recorded = asyncio.Event()

    def look(sandbox: FakeSandbox, what: str) -> None:
        if what == "record":
            recorded.set()

    world.client.on_call = look
    async with world.worker() as service, world.trainer() as job, asyncio.timeout(60):
        service.submit(world.submit(n=1))
        requests = job.requests()
        await (await anext(requests)).answer({"tool_calls": [call]})
        await requests.aclose()
        await recorded.wait()
    async with world.worker(), world.trainer() as job, asyncio.timeout(60):
        await world.sample(job)
        (record,) = [one async for one in job.results()]
    assert record.reward == 1.0
    (note,) = record.notes
    assert note.startswith("hidden_tests: model answer 0: it looks for hidden tests")
    assert "cat /opt/skerry" in note
