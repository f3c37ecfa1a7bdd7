"""Connections that flood, stall or swell: bounded, answered, and the health route still answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import Any

import aiohttp
import msgspec
import pytest
from node_stand import FREE

from skerry.node.config import Limits
from skerry.node.server import protocol
from skerry.testing.fake import FakeBackend
from skerry.wire.http import OwnerWelcome

GET = b"GET %s HTTP/1.1\r\nhost: node\r\n\r\n"


class Raw:
    """A connection on which a test says what it likes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def answer(self) -> tuple[int, bytes]:
        """Returns status and body of the next answer, as far as the node says it."""
        async with asyncio.timeout(20):
            head = await self.reader.readuntil(b"\r\n\r\n")
            length = 0
            for line in head.lower().split(b"\r\n"):
                if line.startswith(b"content-length:"):
                    length = int(line.partition(b":")[2])
            return int(head.split()[1]), await self.reader.readexactly(length)

    async def ended(self) -> bytes:
        """Returns what comes until the node closes the connection."""
        async with asyncio.timeout(20):
            try:
                return await self.reader.read()
            except ConnectionResetError:
                return b""

    async def send(self, data: bytes) -> bool:
        """Returns whether the connection still takes bytes."""
        if self.writer.is_closing() or self.reader.at_eof():
            return False
        try:
            self.writer.write(data)
            await self.writer.drain()
        except ConnectionError:
            return False
        return True

    def close(self) -> None:
        self.writer.close()


Dial = Callable[[Any], Awaitable[Raw]]


@pytest.fixture
async def dial() -> AsyncIterator[Dial]:
    """Opens connections, and closes them at the end."""
    opened: list[Raw] = []

    async def one(node: Any) -> Raw:
        opened.append(Raw(*await asyncio.open_unix_connection(node.config.socket_path)))
        return opened[-1]

    yield one
    for raw in opened:
        raw.close()
        with suppress(ConnectionError):
            await raw.writer.wait_closed()


async def healthy(node: Any, dial: Dial) -> None:
    raw = await dial(node)
    await raw.send(GET % b"/v1/health")
    status, body = await raw.answer()
    assert (status, msgspec.json.decode(body)["node"]) == (200, node.identity.name)
    raw.close()


async def test_connection_too_many_is_told_so_and_health_still_answers(stand, dial) -> None:
    limits = Limits(connections_max=5, **FREE)
    async with stand.serving(limits=limits) as (node, _):
        idle = [await dial(node) for _ in range(5)]
        await asyncio.sleep(0.05)
        late = await dial(node)
        await late.send(GET % b"/v1/sandboxes")
        status, body = await late.answer()
        error = msgspec.json.decode(body)
        assert (status, error["fields"]["limit"]) == (429, "connections")
        assert await late.ended() == b""
        await healthy(node, dial)
        for raw in idle:
            raw.close()
        await asyncio.sleep(0.05)
        again = await dial(node)
        await again.send(GET % b"/v1/sandboxes")
        assert (await again.answer())[0] == 200
        again.close()


async def test_flood_of_connections_is_answered_without_being_read(
    stand, dial, monkeypatch
) -> None:
    monkeypatch.setattr(protocol, "SPARE_CONNECTIONS", 3)
    limits = Limits(connections_max=2, **FREE)
    async with stand.serving(limits=limits) as (node, _):
        flood = [await dial(node) for _ in range(30)]
        answers = await asyncio.gather(*(raw.answer() for raw in flood[5:]))
        assert {status for status, _ in answers} == {429}
        for raw in flood:
            raw.close()
        await asyncio.sleep(0.05)
        await healthy(node, dial)


async def test_idle_websockets_are_bounded_like_all_connections(stand, dial) -> None:
    limits = Limits(connections_max=4, **FREE)
    async with stand.serving(limits=limits) as (node, _):
        connector = aiohttp.UnixConnector(node.config.socket_path, limit=0)
        async with aiohttp.ClientSession(connector=connector, base_url="http://node") as session:
            held = []
            for _ in range(4):
                held.append(await session.ws_connect("/v1/connection"))
                msgspec.msgpack.decode(await held[-1].receive_bytes(), type=OwnerWelcome)
            with pytest.raises(aiohttp.WSServerHandshakeError) as caught:
                await session.ws_connect("/v1/connection")
            assert caught.value.status == 429
            await healthy(node, dial)
            for socket in held:
                await socket.close()


async def test_head_that_never_ends_is_not_waited_for(stand, dial, monkeypatch) -> None:
    monkeypatch.setattr(protocol, "HEAD_WITHIN_S", 0.2)
    async with stand.serving() as (node, _):
        silent, slow = await dial(node), await dial(node)
        await slow.send(b"GET /v1/health HTTP/1.1\r\nx-slow: ")
        for raw in (silent, slow):
            status, body = await raw.answer()
            assert (status, msgspec.json.decode(body)["code"]) == (408, "invalid")
            assert await raw.ended() == b""
        await healthy(node, dial)


async def test_second_request_on_a_connection_must_end_its_head_too(
    stand, dial, monkeypatch
) -> None:
    monkeypatch.setattr(protocol, "HEAD_WITHIN_S", 0.2)
    async with stand.serving() as (node, _):
        raw = await dial(node)
        await raw.send(GET % b"/v1/health")
        assert (await raw.answer())[0] == 200
        await asyncio.sleep(0.4)  # between requests a connection may rest
        await raw.send(GET % b"/v1/health")
        assert (await raw.answer())[0] == 200
        await raw.send(b"GET /v1/he")
        assert (await raw.answer())[0] == 408


@pytest.mark.parametrize(
    "start",
    [b"GET /v1/health HTTP/1.1\r\nx: ", b"GET /", b"GET /v1/health?", b"GET / HTTP/1.1\r\n"],
)
async def test_head_that_swells_is_cut(stand, dial, start) -> None:
    async with stand.serving() as (node, _):
        raw = await dial(node)
        await raw.send(start)
        piece = b"x: y\r\n" * 2048 if start.endswith(b"\r\n") else b"x" * 12_288
        sent = 0
        for _ in range(200):  # 2.4 MB, if it were taken
            if not await raw.send(piece):
                break
            sent += len(piece)
            await asyncio.sleep(0.001)
        assert sent < 1 << 20
        await healthy(node, dial)


async def test_thousand_headers_are_refused(stand, dial) -> None:
    async with stand.serving() as (node, _):
        raw = await dial(node)
        await raw.send(b"GET /v1/health HTTP/1.1\r\n" + b"a: b\r\n" * 1000 + b"\r\n")
        status, body = await raw.answer()
        assert (status, b"head" in body) == (422, True)


@pytest.mark.parametrize(
    "said",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET /v1/health HTTP/1.1\r\nhost: x\r\na: b\r\n c\r\n\r\n",
        b"POST /v1/sandboxes HTTP/1.1\r\ncontent-length: -1\r\n\r\n",
        b"POST /v1/sandboxes HTTP/1.1\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\n",
    ],
    ids=["TLS", "a folded line", "a negative length", "two lengths"],
)
async def test_what_is_no_http_is_answered_with_a_typed_error(stand, dial, said) -> None:
    async with stand.serving() as (node, _):
        raw = await dial(node)
        await raw.send(said)
        status, body = await raw.answer()
        assert status == 400
        told = msgspec.json.decode(body)
        assert (told["code"], told["fault"]) == ("invalid", "caller")
        await healthy(node, dial)


async def test_nonsense_behind_a_request_is_not_answered_in_the_midst_of_its_answer(
    stand, dial
) -> None:
    async with stand.serving() as (node, api):
        sid = await api.create()
        raw = await dial(node)
        await raw.send(
            f"GET /v1/sandboxes/{sid}/files/watch?path=/ HTTP/1.1\r\nhost: x\r\n\r\n".encode()
        )
        await raw.reader.readuntil(b"\r\n\r\n")
        await raw.send(b"nonsense\r\n\r\n")
        rest = await raw.ended()
        assert b"HTTP/1.1" not in rest
        await healthy(node, dial)


async def test_huge_body_is_refused_before_it_is_sent(stand, dial) -> None:
    async with stand.serving() as (node, _):
        raw = await dial(node)
        await raw.send(
            b"POST /v1/sandboxes HTTP/1.1\r\ncontent-type: application/json\r\n"
            b"content-length: 1000000000000\r\n\r\n{"
        )
        assert (await raw.answer())[0] == 422
        raw.close()
        chunked = await dial(node)
        await chunked.send(
            b"POST /v1/sandboxes HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n100000\r\n"
            + b" " * (1 << 20)
            + b"\r\n"
        )
        await chunked.send(b"100000\r\n" + b" " * (1 << 20) + b"\r\n")
        assert (await chunked.answer())[0] == 422
        chunked.close()
        await healthy(node, dial)


async def test_body_that_dribbles_is_refused_and_its_connection_ends(
    stand, dial, monkeypatch
) -> None:
    monkeypatch.setattr("skerry.node.server.exchange.BODY_WITHIN_S", 0.1)
    monkeypatch.setattr("skerry.node.server.exchange.BODY_BYTES_PER_S", 1 << 40)
    monkeypatch.setattr(protocol, "LINGER_S", 0.1)
    async with stand.serving() as (node, _):
        raw = await dial(node)
        await raw.send(b"POST /v1/sandboxes HTTP/1.1\r\ncontent-length: 100000\r\n\r\n{")
        status, body = await raw.answer()
        assert (status, b"not complete" in body) == (422, True)
        sent = 0
        while await raw.send(b" "):
            sent += 1
            assert sent < 2000
            await asyncio.sleep(0.01)
        assert len(node.sandboxes) == 0


async def test_flood_of_health_checks_asks_the_backend_once(
    stand, dial, monkeypatch, manual
) -> None:
    asked = 0
    probe = FakeBackend.probe

    async def counted(self: FakeBackend) -> Any:
        nonlocal asked
        asked += 1
        await asyncio.sleep(0.01)
        return await probe(self)

    monkeypatch.setattr(FakeBackend, "probe", counted)
    async with stand.serving() as (node, _):
        await asyncio.gather(*(healthy(node, dial) for _ in range(50)))
        assert asked == 1
        await manual.advance(1)
        await healthy(node, dial)
        assert asked == 2


async def test_flood_of_nonsense_is_not_logged_line_by_line(stand, dial, caplog) -> None:
    async with stand.serving() as (node, _):
        for _ in range(50):
            raw = await dial(node)
            await raw.send(b"\x16\x03\x01\x02\x00nonsense\r\n\r\n")
            assert b"400" in (await raw.ended())[:20]
        await healthy(node, dial)
    assert not [record for record in caplog.records if record.levelname == "WARNING"]


async def test_flood_of_invalid_requests_leaves_nothing_and_the_node_answers(stand, dial) -> None:
    async with stand.serving() as (node, api):

        async def client(number: int) -> None:
            for _ in range(20):
                await api.call("POST", "/v1/sandboxes", {"cpu": -number - 1}, status=422)

        flood = asyncio.gather(*(client(number) for number in range(50)))
        for _ in range(5):
            await healthy(node, dial)
        await flood
        assert (len(node.sandboxes), node.admission.waiting, len(node.tasks)) == (0, 0, 0)
