"""Uplinks: a sandbox's model requests reach its worker, whatever happens to that worker."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from uplinks_world import CHAT, World, workers

from skerry.node.workers import requests, uplink, visit


@pytest.fixture
async def world(stand: Any) -> AsyncIterator[World]:
    async with stand.serving(workers=workers()) as (node, api):
        yield World(stand, node, api)


async def test_a_request_goes_up_and_its_answer_comes_down(world: World) -> None:
    sandbox = await world.sandbox()
    client = world.client(sandbox)
    await client.send()
    (asked,) = await world.asked(1)
    assert asked == {"sandbox": sandbox, "ordinal": 0, "body": CHAT}
    await world.give(sandbox, 0, "four")
    status, headers, body = await client.receive()
    assert (status, headers["content-type"]) == (200, "application/json")
    assert msgspec.json.decode(body)["choices"][0]["message"]["content"] == "four"
    await client.send()  # the connection is kept, and this is another sampling
    assert [one["ordinal"] for one in await world.asked(2)] == [0, 1]


async def test_a_worker_killed_ten_times_is_invisible_inside(world: World) -> None:
    sandbox = await world.sandbox()
    client = world.client(sandbox)
    await client.send({**CHAT, "stream": True})
    pids = set()
    for _ in range(10):
        await world.asked(1)
        pids.add(await world.kill())
        await world.another(pids)
    assert len(pids) == 10
    assert len(await world.asked(1)) == 1
    await world.give(sandbox, 0, "four")
    status, headers, body = await client.receive()
    assert (status, headers["content-type"]) == (200, "text/event-stream")
    assert body.endswith(b"data: [DONE]\n\n")


async def test_a_worker_killed_within_an_answer_is_invisible_inside(world: World) -> None:
    """The client reads slowly, so most of the answer is still to come at each kill."""
    sandbox = await world.sandbox()
    client = world.client(sandbox)
    await client.send()
    await world.asked(1)
    text = "".join(f"{number:08x}" for number in range(110_000))
    await world.give(sandbox, 0, text)
    data, kills = b"", 0
    while b"\r\n\r\n" not in data or len(data.partition(b"\r\n\r\n")[2]) < len(text):
        data += await client.stream.read()
        if len(data) > (kills + 1) * 100_000 and kills < 4:
            kills += 1
            await world.kill()
    assert kills == 4
    head, _, body = data.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200")
    assert msgspec.json.decode(body)["choices"][0]["message"]["content"] == text
    assert len(await world.asked()) == 1


async def test_equal_requests_at_once_keep_their_own_answers_over_a_kill(world: World) -> None:
    sandbox = await world.sandbox()
    clients = [world.client(sandbox) for _ in range(6)]
    for number, client in enumerate(clients):
        await client.send()
        await world.asked(number + 1)
    await world.kill()
    for number in range(6):
        await world.give(sandbox, number, f"answer {number}")
    found = [msgspec.json.decode((await client.receive())[2]) for client in clients]
    texts = [one["choices"][0]["message"]["content"] for one in found]
    assert texts == [f"answer {number}" for number in range(6)]
    assert len(await world.asked()) == 6


async def test_a_client_that_leaves_and_comes_back_gets_the_same_ordinal(world: World) -> None:
    sandbox = await world.sandbox()
    first = world.client(sandbox)
    await first.send()
    await world.asked(1)
    first.stream.end()
    second = world.client(sandbox)
    await second.send()  # it does not even say that it tries again
    await world.give(sandbox, 0, "four")
    status, _, _ = await second.receive()
    assert status == 200
    assert len(await world.asked()) == 1


async def test_the_next_start_has_the_record_and_a_retry_is_no_second_sampling(
    stand: Any,
) -> None:
    async with stand.serving(workers=workers()) as (node, api):
        world = World(stand, node, api)
        sandbox = await world.sandbox(detached=True)
        await world.client(sandbox).send()
        await world.asked(1)
        pid = (await world.worker("GET", "health"))["pid"]
    assert not os.path.exists(f"/proc/{pid}")  # an orderly end ends the workers
    async with stand.serving(workers=workers()) as (node, api):
        world = World(stand, node, api)
        client = world.client(sandbox)
        await client.send(X_Stainless_Retry_Count="1")
        await world.give(sandbox, 0, "four")
        assert (await client.receive())[0] == 200
        assert len(await world.asked()) == 1


async def test_a_bug_of_the_worker_is_not_told_to_the_agent_but_waited_out(world: World) -> None:
    sandbox = await world.sandbox()
    await world.worker("POST", "mode", {"echo": True, "bugs": 2})
    status, answer = await world.client(sandbox).ask()
    assert (status, answer["choices"][0]["message"]["content"]) == (200, "0 of 1")
    assert len(await world.asked()) == 1


async def test_an_error_that_a_trainer_answers_with_reaches_the_agent(world: World) -> None:
    sandbox = await world.sandbox()
    client = world.client(sandbox)
    await client.send()
    await world.asked(1)
    given = {"error": {"message": "out of cards"}, "status": 500}
    await world.worker("POST", f"answers/0/{sandbox}", given)
    status, _, body = await client.receive()
    assert (status, b"out of cards" in body) == (500, True)


@pytest.mark.parametrize("resume", [True, False])
async def test_an_answer_resumes_the_sandbox_if_the_worker_says_so(
    world: World, resume: bool
) -> None:
    sandbox = await world.sandbox()
    await world.worker("POST", "mode", {"resume": resume})
    client = world.client(sandbox)
    await client.send()
    await world.asked(1)
    await world.api.call("POST", f"/v1/sandboxes/{sandbox}/pause")
    await world.give(sandbox, 0, "four")
    assert (await client.receive())[0] == 200
    where = "running" if resume else "paused"
    info = await world.api.call("GET", f"/v1/sandboxes/{sandbox}/wait?state={where}&timeout=5")
    assert info["state"] == where
    await world.api.call("POST", f"/v1/sandboxes/{sandbox}/resume")
    # Its client may have stopped waiting: the same again is no second sampling, once.
    again = world.client(sandbox)
    await again.send()
    assert (await again.receive())[0] == 200
    assert len(await world.asked()) == 1
    await world.client(sandbox).send()
    assert len(await world.asked(2)) == 2


async def test_an_answer_larger_than_the_sockets_resumes_too(world: World) -> None:
    sandbox = await world.sandbox()
    await world.worker("POST", "mode", {"resume": True})
    client = world.client(sandbox)
    await client.send()
    await world.asked(1)
    await world.api.call("POST", f"/v1/sandboxes/{sandbox}/pause")
    await world.give(sandbox, 0, "x" * 900_000)
    info = await world.api.call("GET", f"/v1/sandboxes/{sandbox}/wait?state=running&timeout=10")
    assert info["state"] == "running"
    status, _, body = await client.receive()
    assert (status, len(body) > 900_000) == (200, True)


def test_what_was_handed_over_is_told_until_it_was_heard() -> None:
    known = requests.Requests()
    relays = [known.begin() for _ in range(3)]
    known.handed(relays[0], held=False)
    known.handed(relays[1], held=True)
    headers = dict(known.headers())
    assert headers[b"X-Skerry-Waiting"] == relays[2].encode()
    assert headers[b"X-Skerry-Handed"] == f"{relays[0]},{relays[1]};held".encode()
    known.told((relays[0],))
    assert known.untold() == (relays[1],)
    for _ in range(100):
        known.handed(known.begin(), held=False)
    assert len(known.untold()) == requests.HANDED_MAX
    assert dict(known.headers())[b"X-Skerry-Waiting"] == relays[2].encode()
    assert visit.LINGER_S < uplink.HEAD_S
