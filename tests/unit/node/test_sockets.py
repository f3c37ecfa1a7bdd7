"""Attached commands over WebSockets: both directions, joins, clients that go."""

from __future__ import annotations

import asyncio
import contextlib
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import msgspec
import pytest

from skerry.wire.http import StreamEvent

OP = "0123456789abcdef" * 2


class Attached:
    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self.socket = socket

    async def say(self, **event: Any) -> None:
        await self.socket.send_bytes(msgspec.msgpack.encode(event))

    async def hear(self) -> StreamEvent:
        message = await self.socket.receive(timeout=10)
        assert message.type is aiohttp.WSMsgType.BINARY, message
        return msgspec.msgpack.decode(message.data, type=StreamEvent)

    async def rest(self) -> list[StreamEvent]:
        decode = msgspec.msgpack.Decoder(StreamEvent).decode
        return [decode(message.data) async for message in self.socket]


@asynccontextmanager
async def attach(api, sid: str, command: dict[str, Any], query: str = ""):
    async with api.session.ws_connect(f"/v1/sandboxes/{sid}/attach{query}") as socket:
        attached = Attached(socket)
        await attached.say(**command)
        yield attached


def joined(events: list[StreamEvent]) -> bytes:
    return b"".join(event.stdout or b"" for event in events)


async def test_input_flows_in_and_output_out(stand) -> None:
    async with stand.serving() as (_, api):
        sid = await api.create()
        command = {"argv": ["cat"], "interactive": True}
        async with attach(api, sid, command, f"?op={OP}") as cat:
            assert (await cat.hear()).started == OP
            await cat.say(stdin=b"one ")
            await cat.say(stdin=b"two")
            await cat.say(eof=True)
            events = await cat.rest()
        assert joined(events) == b"one two"
        assert events[-1].result is not None
        assert events[-1].result.exit_code == 0
        assert cat.socket.close_code == 1000


async def test_megabytes_flow_through_with_bounded_memory(stand) -> None:
    async with stand.serving() as (_, api):
        sid = await api.create()
        data = bytes(range(256)) * 256
        command = {"argv": ["cat"], "interactive": True, "output_limit": 1000}
        async with attach(api, sid, command) as cat:
            await cat.hear()

            async def write() -> None:
                for _ in range(64):
                    await cat.say(stdin=data)
                await cat.say(eof=True)

            writing = asyncio.create_task(write())
            events = await cat.rest()
            await writing
        assert joined(events) == data * 64


async def test_text_messages_are_json(stand) -> None:
    async with stand.serving() as (_, api):
        sid = await api.create()
        async with api.session.ws_connect(f"/v1/sandboxes/{sid}/attach") as socket:
            await socket.send_str('{"argv": ["echo", "hi"]}')
            events = [msgspec.json.decode(m.data, type=StreamEvent) async for m in socket]
        assert joined(events) == b"hi\n"


async def test_signal_and_cancel_over_the_socket(stand) -> None:
    async with stand.serving() as (_, api):
        sid = await api.create()
        for event, check in (
            ({"signal": 15}, lambda result: result.signal == 15),
            ({"cancel": True}, lambda result: result.cancelled),
        ):
            async with attach(api, sid, {"argv": ["sleep", "60"]}) as sleep:
                await sleep.hear()
                await sleep.say(**event)
                assert check((await sleep.rest())[-1].result)


async def test_client_that_goes_can_attach_again(stand) -> None:
    async with stand.serving() as (node, api):
        sid = await api.create()
        command = {"argv": ["cat"], "interactive": True}
        async with attach(api, sid, command, f"?op={OP}") as cat:
            await cat.hear()
            await cat.say(stdin=b"before ")
            assert (await cat.hear()).stdout == b"before "
        assert node.admission.operations == 1
        async with attach(api, sid, {}, f"?op={OP}") as cat:
            assert (await cat.hear()).started == OP
            assert (await cat.hear()).stdout == b"before "
            await cat.say(stdin=b"after")
            await cat.say(eof=True)
            events = await cat.rest()
        assert joined(events) == b"after"
        assert events[-1].result is not None
        assert events[-1].result.stdout_total == 12


async def test_client_that_asked_for_it_ends_its_command_by_going(stand) -> None:
    async with stand.serving() as (_, api):
        sid = await api.create()
        query = f"?op={OP}&on_disconnect=kill"
        async with attach(api, sid, {"argv": ["sleep", "60"]}, query) as sleep:
            await sleep.hear()
        status = await api.call("GET", f"/v1/sandboxes/{sid}/ops/{OP}?wait=5")
        assert status["result"]["cancelled"] is True


@pytest.mark.parametrize(
    ("command", "query"),
    [
        ({}, ""),
        ({}, f"?op={OP}"),
        ({"argv": ["a"], "typo": 1}, ""),
        ({"argv": ["\x00"]}, ""),
        ({"argv": ["a"]}, "?op=xyz"),
        ({"argv": ["a"]}, "?typo=1"),
    ],
)
async def test_bad_opening_is_told_and_closed(stand, command, query) -> None:
    async with stand.serving() as (_, api):
        sid = await api.create()
        async with attach(api, sid, command, query) as socket:
            event = await socket.hear()
            assert event.error is not None
            assert event.error.fault == "caller"
            assert (await socket.socket.receive(timeout=5)).type is aiohttp.WSMsgType.CLOSE
            assert socket.socket.close_code == 4000


@pytest.mark.parametrize(
    "event",
    [
        {},
        {"signal": 0},
        {"signal": 99},
        {"stdin": b"x", "eof": True},
        {"typo": 1},
        {"resize": {"rows": 0, "cols": 1}},
        {"signal": "TERM"},
    ],
)
async def test_bad_event_is_told_and_the_command_goes_on(stand, event) -> None:
    async with stand.serving() as (node, api):
        sid = await api.create()
        async with attach(api, sid, {"argv": ["sleep", "60"]}) as sleep:
            await sleep.hear()
            await sleep.say(**event)
            error = (await sleep.hear()).error
            assert error is not None
            assert error.code == "invalid"
        assert node.admission.operations == 1
        await api.call("DELETE", f"/v1/sandboxes/{sid}")


async def test_message_that_is_too_large_closes_the_socket(stand) -> None:
    async with stand.serving() as (_, api):
        sid = await api.create()
        async with attach(api, sid, {"argv": ["cat"], "interactive": True}) as cat:
            await cat.hear()
            with contextlib.suppress(ConnectionError):
                await cat.say(stdin=b"x" * (3 << 20))
            await cat.rest()
            assert cat.socket.close_code in {1009, 1006}
        assert (await api.call("GET", f"/v1/sandboxes/{sid}"))["running_commands"] == 1
        await api.call("DELETE", f"/v1/sandboxes/{sid}")


async def test_unknown_path_and_sandbox_are_refused(stand) -> None:
    async with stand.serving() as (node, api):
        with pytest.raises(aiohttp.WSServerHandshakeError):
            await api.session.ws_connect("/v1/nothing")
        unknown = "s" + node.identity.name + "a" * 15
        for way in ("attach", "forward"):
            async with api.session.ws_connect(f"/v1/sandboxes/{unknown}/{way}") as socket:
                attached = Attached(socket)
                error = (await attached.hear()).error
                assert error is not None
                assert error.code == "not_found"
