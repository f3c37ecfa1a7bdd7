"""Answers as they leave: what is known as a whole in one write, whatever is asked and however."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import msgspec
import pytest

from skerry.node.server.protocol import BoundedProtocol

HEALTH = b"/v1/health HTTP/1.1\r\nhost: node\r\n"


class Noted:
    """A transport that notes what is written, a piece a call."""

    def __init__(self, transport: asyncio.Transport, pieces: list[bytes]) -> None:
        self._transport = transport
        self._pieces = pieces

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        self._pieces.append(data)
        self._transport.write(data)

    def writelines(self, parts: Iterable[bytes]) -> None:
        parts = list(parts)
        self._pieces.append(b"".join(parts))
        self._transport.writelines(parts)


@pytest.fixture
def written(monkeypatch) -> list[bytes]:
    """What the node writes to its clients from here on."""
    pieces: list[bytes] = []
    take = BoundedProtocol.connection_made

    def connection_made(self: BoundedProtocol, transport: asyncio.Transport) -> None:
        take(self, Noted(transport, pieces))  # type: ignore[arg-type]

    monkeypatch.setattr(BoundedProtocol, "connection_made", connection_made)
    return pieces


async def said(node: Any, data: bytes) -> bytes:
    """Returns all that comes until the node closes the connection."""
    reader, writer = await asyncio.open_unix_connection(node.config.socket_path)
    writer.write(data)
    async with asyncio.timeout(20):
        answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    return answer


async def test_result_of_a_command_leaves_in_one_write(stand, written) -> None:
    async with stand.serving() as (_, api):
        sid = await api.create()
        written.clear()
        await api.call("POST", f"/v1/sandboxes/{sid}/run", {"argv": ["echo", "12345"]})
        assert len(written) == 1
        head, _, body = written[0].partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 ")
        assert b"content-length: %d" % len(body) in head
        assert msgspec.json.decode(body)["exit_code"] == 0


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/v1/nothing", 404), ("PATCH", "/v1/health", 405), ("GET", "/v1/sandboxes/x", 422)],
)
async def test_error_leaves_in_one_write(stand, written, method, path, status) -> None:
    async with stand.serving() as (_, api):
        await api.call(method, path, status=status)
        assert len(written) == 1


async def test_long_answer_comes_whole(stand, written) -> None:
    async with stand.serving() as (_, api):
        sid = await api.create()
        written.clear()
        text = "x" * 300_000
        body = {"argv": ["cat"], "stdin": text}
        done = await api.call("POST", f"/v1/sandboxes/{sid}/run", body)
        assert (len(written), done["stdout_total"]) == (1, len(text) * 3 // 4)


async def test_stream_says_its_head_before_it_has_anything_else_to_say(stand, written) -> None:
    async with stand.serving() as (_, api):
        sid = await api.create()
        url = f"/v1/sandboxes/{sid}/stream"
        data = msgspec.json.encode({"argv": ["sleep", "600"]})
        written.clear()
        headers = {"content-type": "application/json"}
        async with api.session.post(url, data=data, headers=headers) as answer:
            assert answer.status == 200
            assert written[0].endswith(b"transfer-encoding: chunked\r\n\r\n")


@pytest.mark.parametrize(
    ("request_", "has_body"),
    [
        (b"GET " + HEALTH + b"connection: close\r\n\r\n", True),
        (b"GET /v1/health HTTP/1.0\r\n\r\n", True),
        (b"HEAD " + HEALTH + b"connection: close\r\n\r\n", False),
    ],
    ids=["asked to close", "old client", "head only"],
)
async def test_last_answer_of_a_connection_says_so_and_it_is_closed(
    stand, request_, has_body
) -> None:
    async with stand.serving() as (node, _):
        head, _, body = (await said(node, request_)).partition(b"\r\n\r\n")
        assert b"\r\nconnection: close" in head
        assert bool(body) is has_body


async def test_requests_sent_at_once_are_answered_in_their_order(stand) -> None:
    last = b"GET /v1/nothing HTTP/1.1\r\nconnection: close\r\n\r\n"
    async with stand.serving() as (node, _):
        answer = await said(node, (b"GET " + HEALTH + b"\r\n") * 3 + last)
        words = answer.split(b"HTTP/1.1 ")[1:]
        assert [int(word[:3]) for word in words] == [200, 200, 200, 404]


async def test_client_that_asked_before_sending_is_not_told_to_go_on_after_the_answer(
    stand,
) -> None:
    async with stand.serving() as (node, _):
        answer = await said(
            node,
            b"POST /v1/sandboxes HTTP/1.1\r\nexpect: 100-continue\r\nconnection: close\r\n"
            b"content-length: 1000000000\r\n\r\n",
        )
        assert answer.startswith(b"HTTP/1.1 422 ")
