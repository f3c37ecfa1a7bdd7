"""Connections kept for the next request: which are used again, and when they are let go of."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import subprocess
from pathlib import Path

import pytest
from rogue import GET, OK, Peer, on_both_loops, pool_to, post, rogue, well

from skerry.sdk import dial, pool
from skerry.sdk.dial import Dialer
from skerry.sdk.pool import Pool


@pytest.fixture(autouse=True)
def _none_is_idle_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "IDLE_S", 3600.0)


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


async def nothing_left(before: int) -> None:
    for _ in range(100):  # the server lets go of its side a little later
        await asyncio.sleep(0)
        if descriptors() <= before:
            return
    raise AssertionError(f"{before} descriptors became {descriptors()}")


@on_both_loops
async def test_requests_in_turn_share_a_connection_and_those_at_once_have_their_own(
    tmp_path: Path,
) -> None:
    async with rogue(tmp_path, well) as server, pool_to(server) as connections:
        for _ in range(5):
            await connections.ask(GET, None, again=False)
        assert len(server.peers) == 1
        # There is no limit: one that waits would hold up all others behind it.
        both = [connections.ask(GET, None, again=False) for _ in range(150)]
        assert await asyncio.gather(*both) == [(200, b"ok")] * 150
        assert len(server.peers) == 150


@pytest.mark.parametrize(
    "raw",
    [
        b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok",
        b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok",
        OK + b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\npoison",
        OK + b"\x00",
    ],
)
@on_both_loops
async def test_connection_that_is_not_to_be_kept_is_closed(tmp_path: Path, raw: bytes) -> None:
    """What follows an answer is nobody's: the next request must not take it for its own."""

    async def act(peer: Peer) -> None:
        await peer.head()
        await peer.say(raw)
        await peer.until_closed()

    async with rogue(tmp_path, act, well) as server, pool_to(server) as connections:
        assert await connections.ask(GET, None, again=False) == (200, b"ok")
        await server.peers[0].closed.wait()
        assert await connections.ask(GET, None, again=False) == (200, b"ok")
        assert len(server.peers) == 2


@on_both_loops
async def test_what_comes_unasked_ends_a_connection(tmp_path: Path) -> None:
    async def act(peer: Peer) -> None:
        await peer.head()
        await peer.say(OK)
        await asyncio.sleep(0)
        await peer.say(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\npoison")
        await peer.until_closed()

    async with rogue(tmp_path, act, well) as server, pool_to(server) as connections:
        assert await connections.ask(GET, None, again=False) == (200, b"ok")
        await server.peers[0].closed.wait()
        assert await connections.ask(GET, None, again=False) == (200, b"ok")


@on_both_loops
async def test_kept_connection_that_the_node_has_closed_costs_nothing(tmp_path: Path) -> None:
    """It is seen before the request is sent, even if the loop has not been told."""
    go, closed = asyncio.Event(), asyncio.Event()

    async def act(peer: Peer) -> None:
        await peer.head()
        await peer.say(OK)
        await go.wait()
        peer.close_now()
        closed.set()

    async with rogue(tmp_path, act, well) as server, pool_to(server) as connections:
        await connections.ask(GET, None, again=False)
        go.set()
        await closed.wait()
        assert await connections.ask(post(1), b"x", again=False) == (200, b"ok")
        assert len(server.peers) == 2


@on_both_loops
async def test_why_a_kept_connection_was_closed_is_heard_though_writing_to_it_fails(
    tmp_path: Path,
) -> None:
    go, closed = asyncio.Event(), asyncio.Event()

    async def act(peer: Peer) -> None:
        await peer.head()
        await peer.say(OK)
        await go.wait()
        peer.close_now(b"HTTP/1.1 429 Too Many\r\nContent-Length: 3\r\n\r\nwhy")
        closed.set()

    async with rogue(tmp_path, act, well) as server, pool_to(server) as connections:
        await connections.ask(GET, None, again=True)
        (connection,) = connections._open
        connection._transport.pause_reading()  # the loop would look first if it had the time
        go.set()
        await closed.wait()
        assert await connections.ask(GET, None, again=True) == (429, b"why")
        assert await connections.ask(GET, None, again=True) == (200, b"ok")
        assert len(server.peers) == 2


@pytest.mark.parametrize("said", [b"", b"HTTP/1.1 200"])
@pytest.mark.parametrize("again", [False, True])
@on_both_loops
async def test_request_is_made_twice_only_if_it_may_and_nothing_was_said(
    tmp_path: Path, said: bytes, *, again: bool
) -> None:
    async def act(peer: Peer) -> None:
        await peer.head()
        await peer.say(OK)
        await peer.head()
        await peer.say(said)

    async with rogue(tmp_path, act, well) as server, pool_to(server) as connections:
        await connections.ask(GET, None, again=again)
        if again and not said:
            assert await connections.ask(GET, None, again=again) == (200, b"ok")
        else:
            with pytest.raises(OSError, match="answer"):
                await connections.ask(GET, None, again=again)
        assert len(server.peers[0].heads) == 2
        assert sum(len(peer.heads) for peer in server.peers) == (3 if again and not said else 2)


@pytest.mark.parametrize("size", [10, 8 << 20])
@pytest.mark.parametrize("said", [b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nstale", b""])
@on_both_loops
async def test_one_who_stops_waiting_leaves_no_answer_to_the_next(
    tmp_path: Path, size: int, said: bytes
) -> None:
    there, go = asyncio.Event(), asyncio.Event()

    async def late(peer: Peer) -> None:
        await peer.head()
        there.set()
        await go.wait()
        await peer.say(said)
        await peer.until_closed()

    async with rogue(tmp_path, late, well) as server, pool_to(server) as connections:
        asking = asyncio.create_task(connections.ask(post(size), b"x" * size, again=True))
        await there.wait()
        asking.cancel()
        go.set()
        with pytest.raises(asyncio.CancelledError):
            await asking
        assert await connections.ask(GET, None, again=False) == (200, b"ok")
        await server.peers[0].closed.wait()
        assert len(server.peers) == 2


@on_both_loops
async def test_one_who_stops_waiting_for_a_connection_leaves_none(tmp_path: Path) -> None:
    async with rogue(tmp_path, well) as server:
        before = descriptors()
        async with pool_to(server) as connections:
            for turns in range(8):
                asking = asyncio.create_task(connections.ask(GET, None, again=False))
                for _ in range(turns):
                    await asyncio.sleep(0)
                asking.cancel()
                await asyncio.gather(asking, return_exceptions=True)
        await nothing_left(before)


@on_both_loops
async def test_idle_connections_are_let_go_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "IDLE_S", 0.01)
    async with rogue(tmp_path, well) as server, pool_to(server) as connections:
        await asyncio.gather(*(connections.ask(GET, None, again=False) for _ in range(10)))
        for peer in server.peers:
            await peer.closed.wait()
        assert len(server.peers) == 10
        assert await connections.ask(GET, None, again=False) == (200, b"ok")


@on_both_loops
async def test_close_ends_all_and_those_who_wait_hear_of_it(tmp_path: Path) -> None:
    there = asyncio.Event()

    async def never(peer: Peer) -> None:
        await peer.head()
        there.set()
        await peer.until_closed()

    async with rogue(tmp_path, well, never) as server, pool_to(server) as connections:
        before = descriptors()
        await connections.ask(GET, None, again=False)
        first = asyncio.create_task(connections.ask(GET, None, again=False))
        second = asyncio.create_task(connections.ask(post(8 << 20), b"x" * (8 << 20), again=False))
        await there.wait()
        await asyncio.gather(first, return_exceptions=True)
        await asyncio.gather(connections.close(), connections.close())
        with pytest.raises(OSError, match="closed"):
            await second
        with pytest.raises(OSError, match="closed"):
            await connections.ask(GET, None, again=False)
        await nothing_left(before)


@on_both_loops
async def test_connection_over_tcp_is_probed_while_nothing_is_said() -> None:
    async with rogue(None, well) as server, pool_to(server) as connections:
        await connections.ask(GET, None, again=False)
        (connection,) = connections._open
        sock = connection._transport.get_extra_info("socket")
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 20
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


@on_both_loops
async def test_connection_that_is_not_made_in_time_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A server that takes the connection and says nothing to the handshake."""
    monkeypatch.setattr(dial, "CONNECT_TIMEOUT_S", 0.05)
    context = dial._trusting_the_system()
    monkeypatch.setattr(dial, "_trusting_the_system", lambda: context)
    async with (
        rogue(None, Peer.until_closed) as server,
        pool_to(server, tls=True) as connections,
    ):
        with pytest.raises(TimeoutError, match=r"no connection within 0.05 s"):
            await connections.ask(GET, None, again=True)
        await server.peers[0].closed.wait()


@on_both_loops
async def test_name_that_nobody_has_is_an_oserror() -> None:
    for name in ("no-such-host.invalid", "a" * 64 + ".invalid"):
        connections = Pool(Dialer(name, 80, socket_path=None, tls=False))
        with pytest.raises(OSError):  # noqa: PT011
            await connections.ask(GET, None, again=True)
        await connections.close()


@pytest.fixture(scope="module")
def own_certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    place = tmp_path_factory.mktemp("certificate")
    key, certificate = place / "key.pem", place / "cert.pem"
    words = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
    names = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    files = ["-keyout", str(key), "-out", str(certificate)]
    subprocess.run([*words, *names, *files], check=True, capture_output=True)
    return key, certificate


@on_both_loops
async def test_tls_is_checked_and_kept(
    own_certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    key, certificate = own_certificate
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)
    async with rogue(None, well, tls=context) as server:
        async with pool_to(server, tls=True) as connections:
            with pytest.raises(ssl.SSLCertVerificationError):
                await connections.ask(GET, None, again=True)
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        async with pool_to(server, tls=True) as connections:
            for _ in range(3):
                assert await connections.ask(GET, None, again=False) == (200, b"ok")
            assert len(connections._open) == 1
