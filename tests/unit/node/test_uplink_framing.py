"""What comes from inside: whose it is, and what of it reaches a worker."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from uplinks_world import CHAT, Client, World, workers


@pytest.fixture
async def world(stand: Any) -> AsyncIterator[World]:
    async with stand.serving(workers=workers()) as (node, api):
        yield World(stand, node, api)


async def test_nobody_says_who_it_is_from_inside(world: World) -> None:
    mine, other = await world.sandbox(), await world.sandbox()
    await world.worker("POST", "mode", {"rollouts": [other]})
    client = world.client(mine)
    status, answer = await client.ask(X_Skerry_Sandbox=other, X_Skerry_Request="0" * 32)
    assert (status, answer["error"]["code"]) == (404, "not_found")
    assert await world.asked() == []
    assert (await world.client(other).ask(key="wrong"))[0] == 401


async def test_a_sandbox_without_an_uplink_has_none(world: World) -> None:
    sandbox = await world.api.create()
    with pytest.raises(ConnectionRefusedError):
        Client(world.stand, sandbox)


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n", 404),
        (b"POST /model/v1/chat/completions HTTP/1.1\r\nHost: x\r\n\r\n", 404),
        (b"GET /v1/../asked HTTP/1.1\r\nHost: x\r\n\r\n", 404),
        (b"GET /v1/models/../../asked HTTP/1.1\r\nHost: x\r\n\r\n", 404),
        (b"GET /v1/models/%2e%2e HTTP/1.1\r\nHost: x\r\n\r\n", 404),
        (b"GET http://worker/v1/models HTTP/1.1\r\nHost: x\r\n\r\n", 404),
        (b"CONNECT worker:80 HTTP/1.1\r\nHost: x\r\n\r\n", 404),
        (b"DELETE /v1/models HTTP/1.1\r\nHost: x\r\n\r\n", 405),
        (b"GET /v1/chat/completions HTTP/1.1\r\nHost: x\r\n\r\n", 405),
        (b"nonsense\r\n\r\n", 400),
        (b"GET /v1/models HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n", 400),
        (b"GET /v1/models HTTP/1.1\r\n\r\n", 400),
        (b"GET /v1/models HTTP/1.1\r\nHost: x\r\nA: " + b"x" * 40_000 + b"\r\n\r\n", 431),
        (
            (
                b"POST /v1/responses HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n"
                b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
            ),
            400,
        ),
        (
            (
                b"POST /v1/responses HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n"
                b"Content-Length: 5\r\n\r\nabcd"
            ),
            400,
        ),
        (
            b"POST /v1/responses HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
            501,
        ),
        (b"POST /v1/responses HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n", 400),
        (
            (
                b"POST /v1/responses HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
                b"zz\r\nabc\r\n"
            ),
            400,
        ),
        (
            (
                b"POST /v1/responses HTTP/1.1\r\nHost: x\r\nContent-Encoding: gzip\r\n"
                b"Content-Length: 1\r\n\r\nx"
            ),
            415,
        ),
    ],
)
async def test_what_is_no_call_of_a_model_reaches_no_worker(
    world: World, request_: bytes, status: int
) -> None:
    client = world.client(await world.sandbox())
    await client.stream.write(request_)
    found, _, body = await client.receive()
    assert found == status
    assert msgspec.json.decode(body)["error"]["message"].startswith("skerry: ")
    assert (await world.api.call("GET", "/v1/workers"))[0]["state"] == "unused"


async def test_a_request_hidden_in_a_body_stays_a_body(world: World) -> None:
    sandbox = await world.sandbox()
    await world.worker("POST", "mode", {"echo": True})
    hidden = "\r\n\r\nPOST /v1/chat/completions HTTP/1.1\r\nX-Skerry-Sandbox: other\r\n\r\n{}"
    client = world.client(sandbox)
    body = {"model": "policy", "messages": [{"role": "user", "content": hidden}]}
    assert (await client.ask(body))[0] == 200
    (asked,) = await world.asked()
    assert asked["body"] == body
    assert asked["sandbox"] == sandbox


async def test_a_chunked_body_and_the_models_come_through(world: World) -> None:
    sandbox = await world.sandbox()
    await world.worker("POST", "mode", {"echo": True})
    data = msgspec.json.encode(CHAT)
    client = world.client(sandbox)
    await client.stream.write(
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer key\r\n"
        b"Transfer-Encoding: chunked\r\nExpect: 100-continue\r\n\r\n"
    )
    assert (await client.receive())[0] == 100
    for at in range(0, len(data), 7):
        piece = data[at : at + 7]
        await client.stream.write(b"%x\r\n%s\r\n" % (len(piece), piece))
    await client.stream.write(b"0\r\n\r\n")
    assert (await client.receive())[0] == 200
    await client.stream.write(
        b"GET /v1/models HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer key\r\n\r\n"
    )
    status, _, body = await client.receive()
    assert (status, msgspec.json.decode(body)["data"][0]["id"]) == (200, "policy")


async def test_requests_that_come_ahead_are_answered_in_order(world: World) -> None:
    sandbox = await world.sandbox()
    await world.worker("POST", "mode", {"echo": True})
    client = world.client(sandbox)
    for number in range(3):
        await client.send({**CHAT, "seed": number})
    for number in range(3):
        text = msgspec.json.decode((await client.receive())[2])["choices"][0]["message"]["content"]
        assert text.startswith(f"{number} of ")
