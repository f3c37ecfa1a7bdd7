"""Uplinks: a sandbox's model requests reach its worker, whatever happens to that worker."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from skerry.node.workers import requests, uplink, visit
from skerry.node.workers.options import WorkersConfig
from waiting import until

PORT = 4321
STAND_IN = str(Path(__file__).parents[2] / "worker_stand_in.py")
CHAT = {"model": "policy", "messages": [{"role": "user", "content": "2 + 2?"}]}


def workers(**changes: Any) -> WorkersConfig:
    return WorkersConfig(command=(sys.executable, STAND_IN), **changes)


class Client:
    """One connection from inside to the uplink."""

    def __init__(self, stand: Any, sandbox: str, port: int = PORT) -> None:
        self.stream = stand.world.instances[sandbox].agent.ports.connect(port)
        self._data = b""

    async def send(
        self, body: Any = CHAT, path: str = "chat/completions", *, key: str = "key", **headers: str
    ) -> None:
        data = msgspec.json.encode(body)
        named = {"Authorization": f"Bearer {key}", "Content-Length": str(len(data)), **headers}
        head = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in named.items())
        text = f"POST /v1/{path} HTTP/1.1\r\nHost: x\r\n{head}\r\n"
        await self.stream.write(text.encode() + data)

    async def receive(self) -> tuple[int, dict[str, str], bytes]:
        """Returns the next answer; it must be whole."""
        while b"\r\n\r\n" not in self._data:
            await self._more()
        head, _, self._data = self._data.partition(b"\r\n\r\n")
        first, *lines = head.decode().split("\r\n")
        headers = {
            name.lower(): value.strip() for name, _, value in (one.partition(":") for one in lines)
        }
        size = int(headers.get("content-length", "0"))
        while len(self._data) < size:
            await self._more()
        body, self._data = self._data[:size], self._data[size:]
        return int(first.split()[1]), headers, body

    async def ask(self, body: Any = CHAT, **more: Any) -> tuple[int, Any]:
        await self.send(body, **more)
        status, _, data = await self.receive()
        return status, msgspec.json.decode(data)

    async def _more(self) -> None:
        data = await self.stream.read()
        if not data:
            raise EOFError(self._data)
        self._data += data


class World:
    """A node with its workers, and the trainer's side of worker 0."""

    def __init__(self, stand: Any, node: Any, api: Any) -> None:
        self.stand, self.node, self.api = stand, node, api

    async def sandbox(self, **spec: Any) -> str:
        return str(await self.api.create(uplinks=[{"port": PORT}], **spec))

    def client(self, sandbox: str) -> Client:
        return Client(self.stand, sandbox)

    async def asked(self, count: int = 0) -> list[Any]:
        """Returns what was asked, once it is so much."""
        found: list[Any] = []

        async def there() -> bool:
            found[:] = await self.worker("GET", "asked")
            return len(found) >= count

        await until(there)
        return found

    async def give(self, sandbox: str, ordinal: int, answer: Any) -> None:
        await self.worker("POST", f"answers/{ordinal}/{sandbox}", {"content": answer})

    async def worker(self, method: str, path: str, body: Any = None, **more: Any) -> Any:
        return await self.api.call(method, f"/v1/workers/0/{path}", body, **more)

    async def another(self, pids: set[int]) -> None:
        """Returns when the worker is none of these processes any more."""

        async def other() -> bool:
            return (await self.worker("GET", "health"))["pid"] not in pids

        await until(other)

    async def problem(self, text: str) -> None:
        """Returns when the node says that of its worker."""

        async def told() -> bool:
            (info,) = await self.api.call("GET", "/v1/workers")
            return text in info.get("problem", "")

        await until(told)

    async def gauges(self, **wanted: int) -> None:
        """Returns when the node's gauges are what they should become."""
        await until(
            lambda: all(
                self.node.gauges()[f"uplink_{name}"] == value for name, value in wanted.items()
            )
        )

    async def kill(self) -> int:
        """Kills the worker and returns which process that was."""
        pid = int((await self.worker("GET", "health"))["pid"])
        os.kill(pid, signal.SIGKILL)
        return pid


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


async def test_no_worker_is_started_before_it_is_needed(world: World) -> None:
    sandbox = await world.sandbox()
    assert await world.api.call("GET", "/v1/workers") == [{"worker": 0, "state": "unused"}]
    client = world.client(sandbox)
    await client.send()
    await world.asked(1)
    (info,) = await world.api.call("GET", "/v1/workers")
    assert (info["state"], info["starts"]) == ("ready", 1)
    assert info["pid"] == (await world.worker("GET", "health"))["pid"]


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


async def test_bodies_and_connections_are_bounded(stand: Any) -> None:
    bounds = workers(connections_max=3, waiting_max=2, body_bytes_max=2000, bodies_bytes_max=3000)
    async with stand.serving(workers=bounds) as (node, api):
        world = World(stand, node, api)
        sandbox = await world.sandbox()
        large = {**CHAT, "x": "y" * 3000}
        status, answer = await world.client(sandbox).ask(large)
        assert (status, answer["error"]["code"]) == (413, "too_large")
        waiting = [world.client(sandbox) for _ in range(2)]
        for number, client in enumerate(waiting):
            await client.send()
            await world.asked(number + 1)
        status, answer = await world.client(sandbox).ask()
        assert (status, answer["error"]["code"]) == (503, "overloaded")
        third = world.client(sandbox)
        await third.stream.write(b"POST ")
        await world.gauges(connections=3)
        many = [world.client(sandbox) for _ in range(100)]
        for client in many:
            status, headers, _ = await client.receive()
            assert (status, headers["retry-after"]) == (503, "1")
        gauges = node.gauges()
        assert (gauges["uplink_connections"], gauges["uplink_waiting"]) == (3, 2)
        assert gauges["uplink_body_bytes"] == 0  # the worker has both
        for client in (*waiting, third):
            client.stream.reset()
        await world.gauges(connections=0, waiting=0)


async def test_all_bodies_together_are_bounded(stand: Any) -> None:
    bounds = workers(body_bytes_max=2000, bodies_bytes_max=3000)
    async with stand.serving(workers=bounds) as (node, api):
        world = World(stand, node, api)
        sandbox = await world.sandbox()
        head = b"POST /v1/responses HTTP/1.1\r\nHost: x\r\nContent-Length: 1900\r\n\r\n"
        slow = world.client(sandbox)
        await slow.stream.write(head + b"x" * 1800)
        await world.gauges(body_bytes=1800)
        next_one = world.client(await world.sandbox())
        await next_one.stream.write(head + b"x" * 1800)
        status, headers, _ = await next_one.receive()
        assert (status, headers["retry-after"]) == (503, "1")
        slow.stream.end()
        await world.gauges(body_bytes=0)


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


async def test_the_bodies_of_one_sandbox_leave_room_for_those_of_others(stand: Any) -> None:
    bounds = workers(body_bytes_max=2000, bodies_bytes_max=24_000)
    async with stand.serving(workers=bounds) as (node, api):
        world = World(stand, node, api)
        flooding, other = await world.sandbox(), await world.sandbox()
        head = b"POST /v1/responses HTTP/1.1\r\nHost: x\r\nContent-Length: 1900\r\n\r\n"
        held = [world.client(flooding) for _ in range(2)]
        for client in held:
            await client.stream.write(head + b"x" * 1400)
        await world.gauges(body_bytes=2800)
        more = world.client(flooding)
        await more.stream.write(head + b"x" * 1400)
        assert (await more.receive())[0] == 503
        await world.worker("POST", "mode", {"echo": True})
        assert (await world.client(other).ask())[0] == 200
        for client in held:
            client.stream.end()
        await world.gauges(body_bytes=0)


async def test_who_is_slow_to_ask_is_cut(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uplink, "HEAD_S", 0.2)
    monkeypatch.setattr(uplink, "BODY_S", 0.2)
    sandbox = await world.sandbox()
    loris = world.client(sandbox)
    await loris.stream.write(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n")
    with pytest.raises(EOFError):
        await loris.receive()
    half = world.client(sandbox)
    await half.send({})
    await half.receive()
    await half.stream.write(
        b"POST /v1/responses HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nabc"
    )
    assert (await half.receive())[0] == 408


async def test_the_time_of_a_paused_sandbox_does_not_count(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uplink, "HEAD_S", 0.3)
    sandbox = await world.sandbox()
    await world.worker("POST", "mode", {"echo": True})
    client = world.client(sandbox)
    data = msgspec.json.encode(CHAT)
    await client.stream.write(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n")
    await world.api.call("POST", f"/v1/sandboxes/{sandbox}/pause")
    await asyncio.sleep(0.6)
    await world.api.call("POST", f"/v1/sandboxes/{sandbox}/resume")
    await client.stream.write(
        b"Authorization: Bearer key\r\nContent-Length: %d\r\n\r\n%s" % (len(data), data)
    )
    assert (await client.receive())[0] == 200


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
