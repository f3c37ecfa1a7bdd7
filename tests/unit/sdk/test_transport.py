"""How requests are addressed."""

from __future__ import annotations

import asyncio
import queue
import socket
import socketserver
import threading
from pathlib import Path
from urllib.parse import parse_qsl

import aiohttp
import msgspec
import pytest
import uvloop
from rogue import Peer, on_both_loops, rogue, saying

from skerry.errors import InvalidRequest, OutcomeUnknown, Unavailable
from skerry.sdk.dial import CONNECT_TIMEOUT_S, kept_alive
from skerry.sdk.loss import RECONNECT_FOR_S, extended
from skerry.sdk.transport import Transport
from skerry.wire.http import ErrorBody


@pytest.mark.parametrize("name", ["/root/\udcff.txt", "/a b&c=d+e%41#?", "/ä"])
def test_every_name_that_a_file_can_have_reaches_the_node(name: str) -> None:
    address = Transport("http://node")._address("/v1/x", {"path": name})
    assert address.raw_path == "/v1/x"
    assert parse_qsl(address.raw_query_string, errors="surrogateescape") == [("path", name)]


def test_an_address_without_parameters_is_the_path() -> None:
    assert str(Transport("http://node")._address("/v1/x", None)) == "http://node/v1/x"


async def test_a_number_that_no_field_can_hold_is_the_callers_fault() -> None:
    with pytest.raises(InvalidRequest, match="out of all bounds"):
        await Transport("http://node").call("POST", "/v1/x", body={"size": 1 << 64})


@pytest.mark.parametrize("end", [object(), None], ids=["an object", "no end"])
async def test_a_body_that_no_message_can_hold_is_the_callers_fault(end: object) -> None:
    for _ in range(5000 if end is None else 1):
        end = [end]
    with pytest.raises(InvalidRequest, match="what is to be sent"):
        await Transport("http://node").call("POST", "/v1/x", body={"answer": end})


async def hours_pass(hours: float) -> None:
    """Every timer of this loop that is due within that time goes off now, and what it wakes runs."""
    loop = asyncio.get_running_loop()
    await asyncio.sleep(0)  # who was only just begun sets its own timer
    clock, ahead = loop.time, hours * 3600.0
    loop.time = lambda: clock() + ahead  # type: ignore[method-assign]
    for _ in range(50):
        await asyncio.sleep(0)


@pytest.mark.parametrize("whole", [True, False], ids=["whole", "streamed"])
async def test_no_time_limit_of_the_client_is_shorter_than_a_commands(whole: bool) -> None:
    """There is none at all once a connection is made (report 9) (report 10)."""
    asked, answer = asyncio.Event(), asyncio.Event()

    async def late(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        asked.set()
        await answer.wait()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n\xa2ok")
        await writer.drain()
        writer.close()

    async def ask(transport: Transport) -> bytes | str | None:
        if whole:
            return await transport.call("GET", "/v1/x", str)
        return b"".join([piece async for piece in transport.receive("GET", "/v1/x")])

    async with await asyncio.start_server(late, "127.0.0.1", 0) as server:
        transport = Transport(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        asking = asyncio.create_task(ask(transport))
        await asked.wait()
        control = asyncio.create_task(asyncio.sleep(3600.0))  # a limit would go off like this
        await hours_pass(7 * 24)
        assert control.done()
        assert not asking.done()
        answer.set()
        assert await asking in ("ok", b"\xa2ok")
        await transport.close()


def test_a_loops_connections_end_with_it() -> None:
    """(report 70)"""
    transport = Transport("http://node")

    async def use() -> aiohttp.ClientSession:
        assert transport.session() is transport.session()
        return transport.session()

    first, second = asyncio.run(use()), asyncio.run(use())
    assert first is not second
    assert first.closed
    assert second.closed


def test_minute_of_patience_counts_from_the_loss_of_a_long_request() -> None:
    """A node that restarts under a command of hours costs its caller time, not the result."""
    began, give_up = 100.0, 100.0 + RECONNECT_FOR_S
    assert extended(give_up, began, began + 7200) == began + 7200 + RECONNECT_FOR_S
    # What was refused, or not even connected, is no loss: such a node is given up.
    assert extended(give_up, began, began + CONNECT_TIMEOUT_S + 1) == give_up


async def test_connection_to_another_host_is_probed_while_a_command_says_nothing() -> None:
    transport = Transport("http://node")
    assert transport.session().connector._socket_factory is kept_alive  # type: ignore[union-attr]
    await transport.close()
    address = (socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", ("127.0.0.1", 1))
    with kept_alive(address) as sock:
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 20


def head_of(transport: Transport, path: str, params: dict[str, str] | None = None) -> list[str]:
    return transport._head("GET", path, params, None).decode().split("\r\n")


@pytest.mark.parametrize(
    "path",
    [
        "/v1/sandboxes/sbx-1/run?op=ab12",
        "/v1/x?op=a b\r\nX-Evil: 1",
        "/v1/x\n\r\x00\x7f/\u00e4?\u2028=1#part",
        "/v1/../../x/./y//z",
        "/v1/%41%zz+a?a+b=%20&c=;~",
        "/v1/debian:12@sha256:00?x=a/b?c",
    ],
)
@pytest.mark.parametrize("base", ["http://node", "http://node:8080/behind/a/proxy/"])
@pytest.mark.parametrize("params", [None, {"path": "a b/\udcff&c\r\n"}])
def test_target_of_a_request_is_quoted_as_every_other_address(
    base: str, path: str, params: dict[str, str] | None
) -> None:
    """No name makes a line of its own in the head."""
    transport = Transport(base)
    lines = head_of(transport, path, params)
    url = transport._address(path, params)
    assert lines[0] == f"GET {url.raw_path_qs} HTTP/1.1"
    assert lines[1] == f"Host: {url.host_port_subcomponent}"
    assert lines[0].isprintable()
    assert lines[0].count(" ") == 2
    assert len(lines) == 5  # with Accept, and the empty one twice


def test_head_says_who_asks() -> None:
    transport = Transport("http://node", token="secret")
    transport.owner = "me"
    lines = transport._head("POST", "/v1/x", None, 3).decode().split("\r\n")
    assert "Authorization: Bearer secret" in lines
    assert "x-skerry-owner: me" in lines
    assert lines[-3:] == ["Content-Length: 3", "", ""]
    assert "Authorization: Basic bWU6c2VjcmV0" in head_of(Transport("http://me:secret@node"), "/")
    assert b"\r\nContent-Length: 0\r\n" in transport._head("POST", "/v1/x", None, None)


@pytest.mark.parametrize("base", ["http://", "http://node:99999", "http://[::1", "node:80"])
def test_address_that_is_none_is_said_at_once(base: str) -> None:
    with pytest.raises(InvalidRequest, match="address"):
        Transport(base)


@pytest.mark.parametrize("token", ["a\nb", "a\r\nX: y", "a\x00", "\u00e4", "\udcff"])
def test_token_that_no_header_can_hold_is_said_without_telling_it(token: str) -> None:
    with pytest.raises(InvalidRequest, match="token") as caught:
        Transport("http://node", token=token)
    assert token not in str(caught.value)


@pytest.mark.parametrize(
    ("raw", "told"),
    [
        (b"SSH-2.0-OpenSSH_9.2\r\n", "cannot reach the node at .*no answer of a node"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 999999999999\r\n\r\n", "a body of 999999999999"),
        (b"HTTP/1.1 301 Moved\r\nLocation: /x\r\nContent-Length: 0\r\n\r\n", "status 301"),
        (b"HTTP/1.1 502 Bad\r\nContent-Length: 3\r\n\r\nbad", "status 502: b'bad'"),
    ],
)
@on_both_loops
async def test_answer_of_something_else_is_unavailable_at_once(
    tmp_path: Path, raw: bytes, told: str
) -> None:
    """It is not asked for a minute, as a node that went away is; nor is anybody else."""
    async with rogue(tmp_path, saying(raw)) as server:
        transport = Transport("http://node", socket_path=server.path)
        with pytest.raises(Unavailable, match=told):
            await transport.call("GET", "/v1/x", repeatable=True)
        await transport.close()
        assert len(server.peers) == 1


@on_both_loops
async def test_nobody_at_the_address_is_unavailable(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))  # and does not listen
        places = [
            Transport("http://node", socket_path=str(tmp_path / "none.sock")),
            Transport("http://node", socket_path=str(tmp_path / ("long" * 50))),
            Transport(f"http://127.0.0.1:{free.getsockname()[1]}"),
            Transport("http://no-such-host.invalid"),
        ]
        for transport in places:
            with pytest.raises(Unavailable, match="cannot reach the node at"):
                await transport.call("GET", "/v1/x")
            await transport.close()


@on_both_loops
async def test_repeatable_request_survives_nodes_that_die_under_it(tmp_path: Path) -> None:
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n\xc0"
    acts = (saying(b""), saying(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n"), saying(answer))
    async with rogue(tmp_path, *acts) as server:
        transport = Transport("http://node", socket_path=server.path)
        assert await transport.call("POST", "/v1/x", type(None), repeatable=True) is None
        assert len(server.peers) == 3
        await transport.close()


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n", b"no"])
@on_both_loops
async def test_what_is_done_once_is_not_asked_for_again_when_its_answer_is_lost(
    tmp_path: Path, answer: bytes
) -> None:
    async with rogue(tmp_path, saying(answer), saying(b"")) as server:
        transport = Transport("http://node", socket_path=server.path)
        with pytest.raises(OutcomeUnknown, match="may have been done"):
            await transport.call_once("/v1/x", type(None), {})
        assert len(server.peers) == 1
        await transport.close()


@on_both_loops
async def test_what_is_done_once_waits_for_a_node_that_is_not_there_or_did_nothing(
    tmp_path: Path,
) -> None:
    ending = msgspec.msgpack.encode(ErrorBody.of(Unavailable("ending", retry_after_s=0.01)))
    refused = b"HTTP/1.1 503 X\r\nContent-Length: %d\r\n\r\n" % len(ending) + ending
    done = b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n\xc0"
    transport = Transport("http://node", socket_path=str(tmp_path / "late.sock"))
    asking = asyncio.create_task(transport.call_once("/v1/x", type(None), {}))
    await asyncio.sleep(0)
    async with rogue(tmp_path, saying(refused), saying(done)) as server:
        (tmp_path / "late.sock").symlink_to(server.path)
        assert await asking is None
        assert len(server.peers) == 2
    await transport.close()


@pytest.mark.parametrize("size", [10, 1 << 20])
async def test_body_arrives_as_it_was_and_no_proxy_of_the_environment_is_used(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    got: list[bytes] = []

    async def act(peer: Peer) -> None:
        await peer.head()
        got.append(await peer.body())
        await peer.say(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n\xc0")

    async with rogue(None, act) as server:
        transport = Transport(f"http://127.0.0.1:{server.port}")
        await transport.call("POST", "/v1/x", content=bytes(size))
        await transport.close()
    assert got == [bytes(size)]


def test_transport_serves_loop_after_loop_and_keeps_nothing_of_them(tmp_path: Path) -> None:
    """Each loop has connections of its own, which end with it."""
    ended: queue.Queue[None] = queue.Queue()

    class Node(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            while line := self.rfile.readline():
                if line == b"\r\n":
                    self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n\xc0")
            ended.put(None)

    async def use() -> None:
        await asyncio.gather(*(transport.call("GET", "/v1/x") for _ in range(3)))
        await transport.call("GET", "/v1/x")  # and does not close it

    path = str(tmp_path / "node.sock")
    with socketserver.ThreadingUnixStreamServer(path, Node) as server:
        server.daemon_threads, server.block_on_close = True, False  # none is waited for at a fault
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        transport = Transport("http://node", socket_path=path)
        try:
            for run in (asyncio.run, uvloop.run, asyncio.run):
                run(use())
                assert not transport._links
                for _ in range(3):
                    ended.get(timeout=10)
        finally:
            server.shutdown()
            serving.join()
