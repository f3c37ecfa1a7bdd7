"""The workers behind uplinks: when they are started, what they say, what is passed through."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from uplinks_world import World, workers

from skerry.node.workers.options import WorkersConfig


@pytest.fixture
async def world(stand: Any) -> AsyncIterator[World]:
    async with stand.serving(workers=workers()) as (node, api):
        yield World(stand, node, api)


async def test_no_worker_is_started_before_it_is_needed(world: World) -> None:
    sandbox = await world.sandbox()
    assert await world.api.call("GET", "/v1/workers") == [{"worker": 0, "state": "unused"}]
    client = world.client(sandbox)
    await client.send()
    await world.asked(1)
    (info,) = await world.api.call("GET", "/v1/workers")
    assert (info["state"], info["starts"]) == ("ready", 1)
    assert info["pid"] == (await world.worker("GET", "health"))["pid"]


async def test_a_worker_that_does_not_start_says_why_and_requests_wait(stand: Any) -> None:
    broken = WorkersConfig(command=("/bin/false",))
    async with stand.serving(workers=broken) as (node, api):
        world = World(stand, node, api)
        client = world.client(await world.sandbox())
        await client.send()
        await world.problem("it ends")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.2):
                raise AssertionError(await client.receive())


async def test_a_bug_in_starting_a_worker_costs_one_try(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = world.node.workers._all[0]
    serve, bugs = worker._serve_somehow, []

    async def buggy() -> int:
        if not bugs:
            bugs.append(1)
            raise KeyError("a bug")
        return await serve()

    monkeypatch.setattr(worker, "_serve_somehow", buggy)
    client = world.client(await world.sandbox())
    await client.send()
    assert len(await world.asked(1)) == 1
    assert bugs


@pytest.mark.parametrize(
    ("uplinks", "word"),
    [([{"port": 4321, "worker": 1}], "1 workers"), ([{"port": 3128}], "proxy")],
)
async def test_an_uplink_that_the_node_cannot_give_is_refused(
    world: World, uplinks: Any, word: str
) -> None:
    answer = await world.api.call("POST", "/v1/sandboxes", {"uplinks": uplinks}, status=422)
    assert word in answer["message"]


async def test_the_workers_own_routes_are_passed_through(world: World) -> None:
    told = await world.worker("POST", "echo?a=%20b&c", {"x": 1}, status=201)
    assert told["body"] == '{"x":1}'
    assert told["query"] == "a=%20b&c"
    assert told["tenant"] == ""
    async with world.api.session.get("/v1/workers/0/slow?bytes=100000&pieces=20") as answer:
        pieces = [piece async for piece in answer.content.iter_any()]
    assert sum(map(len, pieces)) == 2_000_000
    assert len(pieces) > 10
    for path, status in (
        ("0/model/wait", 422),
        ("0/a/../model/wait", 422),
        ("0/a//b", 422),
        ("0/a%2fb", 404),
        ("0/.", 422),
        ("1/health", 404),
        ("x/health", 404),
        ("0/nothing", 404),
    ):
        async with world.api.session.get(f"http://node/v1/workers/{path}") as answer:
            assert answer.status == status, path


async def test_a_pass_through_that_breaks_off_is_no_whole_answer(world: World) -> None:
    async with world.api.session.get("/v1/workers/0/slow?bytes=1000&pieces=1000") as answer:
        await answer.content.readany()
        await world.kill()
        with pytest.raises(aiohttp.ClientPayloadError):
            await answer.read()
