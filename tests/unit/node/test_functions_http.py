"""Function calls over HTTP: plain JSON, streams both ways, clients that go or lie."""

from __future__ import annotations

import base64
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import msgspec
import pytest
from echo_functions import EchoFunctions

from skerry.errors import Overloaded
from skerry.node.functions.api import NoFunctions
from skerry.wire.functions import WINDOW_BYTES, CallEvent
from waiting import until

CALL = {"kind": {"type": "python", "code": "def main(x): return x", "args": [7]}}


@asynccontextmanager
async def echoing(stand):
    async with stand.serving() as (node, api):
        node.functions = EchoFunctions()
        yield node.functions, api


async def test_a_call_in_plain_json(stand) -> None:
    async with echoing(stand) as (functions, api):
        body = CALL | {
            "files": {"a/b.txt": {"text": "héllo"}, "c.bin": {"data": "AAE="}},
            "stdin": base64.b64encode(b"in").decode(),
            "fetch": ["*"],
            "limits": {"wall_s": 3},
        }
        result = await api.call("POST", "/v1/functions/call", body)
        assert (result["value"], result["exit_code"]) == ([7], 0)
        assert base64.b64decode(result["stdout"]) == b"in"
        assert base64.b64decode(result["files"]["a/b.txt"]).decode() == "héllo"
        assert functions.specs[0].limits.wall_s == 3


@pytest.mark.parametrize(
    ("what", "body"),
    [
        ("kind", {}),
        ("Invalid value", {"kind": {"type": "lisp"}}),
        ("unknown field", CALL | {"limits": {"walls": 3}}),
        ("unknown field", CALL | {"environment": {"images": "a"}}),
        ("wall must be", CALL | {"limits": {"wall_s": -3}}),
        ("files", CALL | {"files": {"../a": {"text": ""}}}),
    ],
)
async def test_a_call_that_is_none_is_refused_by_name(stand, what: str, body: Any) -> None:
    async with echoing(stand) as (functions, api):
        error = await api.call("POST", "/v1/functions/call", body, status=422)
        assert what in error["message"], error
        assert functions.specs == []


async def test_overload_is_answered_with_its_limit_and_when_to_come_back(stand) -> None:
    async with echoing(stand) as (functions, api):
        functions.errors = [Overloaded("full", limit="function calls", retry_after_s=2.5)]
        async with api.session.post("/v1/functions/call", json=CALL) as answer:
            assert (answer.status, answer.headers["retry-after"]) == (429, "3")
            assert (await answer.json())["fields"]["limit"] == "function calls"


async def test_a_client_that_goes_ends_its_call(stand) -> None:
    async with echoing(stand) as (functions, api):
        functions.go.clear()
        with pytest.raises(TimeoutError):
            await api.session.post(
                "/v1/functions/call", json=CALL, timeout=aiohttp.ClientTimeout(total=0.1)
            )
        await until(lambda: functions.ended_early == 1)
        assert functions.running == 0


async def test_a_node_without_pools_says_so(stand) -> None:
    async with stand.serving() as (node, api):
        node.functions = NoFunctions("it has no backend")
        error = await api.call("POST", "/v1/functions/call", CALL, status=503)
        assert "no function calls" in error["message"]
        assert await api.call("GET", "/v1/functions/pools") == []


async def test_pools_are_warmed_and_listed(stand) -> None:
    async with echoing(stand) as (_, api):
        body = {"environment": {"modules": ["json"]}, "minimum": 2}
        pool = await api.call("POST", "/v1/functions/prewarm", body)
        assert pool["minimum"] == 2
        assert await api.call("GET", "/v1/functions/pools") == [pool]
        await api.call("POST", "/v1/functions/prewarm", {"minimum": -1}, status=422)


class Line:
    """A client of /attach that does what a test says, also what no client should."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self.socket = socket
        self.taken: list[int] = []

    async def say(self, **fields: Any) -> None:
        await self.socket.send_bytes(msgspec.msgpack.encode(fields))

    async def hear(self) -> CallEvent:
        """Returns the next event but what was taken."""
        while True:
            message = await self.socket.receive(timeout=10)
            assert message.type is aiohttp.WSMsgType.BINARY, message
            event = msgspec.msgpack.decode(message.data, type=CallEvent)
            if event.taken is None:
                return event
            self.taken.append(event.taken)

    async def last(self) -> CallEvent:
        event = await self.hear()
        while event.result is None and event.error is None:
            event = await self.hear()
        return event


@asynccontextmanager
async def line(api, **opened: Any):
    async with api.session.ws_connect("/v1/functions/attach") as socket:
        one = Line(socket)
        await one.say(call=CALL, **opened)
        yield one


async def test_input_is_streamed_in_and_output_out(stand) -> None:
    async with echoing(stand) as (_, api), line(api, stdin=True) as one:
        await one.say(data=b"one")
        assert (await one.hear()).stdout == b"one"
        await one.say(data=b"two")
        assert (await one.hear()).stdout == b"two"
        await one.say(end=True)
        result = (await one.last()).result
        assert result is not None
        assert (result.stdout, result.stdout_total) == (b"", 6)
        assert one.taken == [0]


@pytest.mark.parametrize(
    ("what", "feeds"),
    [
        ("either data or an end", [{}]),
        ("either data or an end", [{"data": b"x", "end": True}]),
        ("more input than was announced", [{"end": True}, {"end": True}]),
        ("more input than was announced", [{"end": True}, {"data": b"x"}]),
        ("beyond what was taken", [{"data": bytes(WINDOW_BYTES)}, {"data": b"x"}]),
        ("unknown field", [{"stdin": b"x"}]),
    ],
)
async def test_a_client_that_keeps_to_no_rule_is_told_and_its_call_ends(
    stand, what: str, feeds: list[dict[str, Any]]
) -> None:
    async with echoing(stand) as (functions, api):
        functions.go.clear()
        async with line(api, stdin=True) as one:
            for feed in feeds:
                await one.say(**feed)
            error = (await one.last()).error
        assert error is not None
        assert (error.code, what in error.message) == ("invalid", True), error.message
        await until(lambda: functions.running == 0)
        assert functions.ended_early == 1


async def test_input_in_many_small_pieces_costs_no_more_than_it_holds(stand) -> None:
    async with echoing(stand) as (functions, api):
        functions.go.clear()
        async with line(api, stdin=True) as one:
            for _ in range(5000):
                await one.say(data=b"x")
            await one.say(end=True)
            functions.go.set()
            pieces = [await one.hear()]
            while pieces[-1].result is None:
                pieces.append(await one.hear())
        assert sum(len(one.stdout or b"") for one in pieces) == 5000
        assert len(pieces) < 100


async def test_a_streaming_client_that_goes_ends_its_call(stand) -> None:
    async with echoing(stand) as (functions, api):
        functions.go.clear()
        async with line(api, stdin=True) as one:
            await one.say(data=bytes(WINDOW_BYTES))
            await until(lambda: functions.running == 1)
        await until(lambda: functions.ended_early == 1)


async def test_an_error_ends_the_stream(stand) -> None:
    async with echoing(stand) as (functions, api):
        functions.errors = [Overloaded("full", limit="function calls", retry_after_s=1)]
        async with line(api) as one:
            error = (await one.last()).error
        assert error is not None
        assert (error.code, error.fields["limit"]) == ("overloaded", "function calls")
