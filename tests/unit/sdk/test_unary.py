"""One request on a connection: framing, early answers, hostile answers. On both event loops."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from rogue import GET, OK, Peer, on_both_loops, pool_to, post, rogue, saying, well

from skerry.sdk import unary
from skerry.sdk.unary import HEAD_BYTES_MAX, WHOLE_BYTES_MAX, BadAnswer


@pytest.fixture(params=["unix", "tcp"])
def place(request, tmp_path: Path) -> Path | None:
    return tmp_path if request.param == "unix" else None


INTERIM = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    ("raw", "status", "body"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\na\x00\r\nb", 200, b"a\x00\r\nb"),
        (b"HTTP/1.1 429 Too Many\r\ncontent-length:0\r\n\r\n", 429, b""),
        (b"HTTP/1.1 204 No Content\r\n\r\n", 204, b""),
        (CHUNKED + b"3;x=y\r\nabc\r\n2\r\nde\r\n0\r\nTrailer: t\r\n\r\n", 200, b"abcde"),
        (b"HTTP/1.1 200 OK\r\n\r\nto the end", 200, b"to the end"),
        (b"HTTP/1.0 200 OK\r\n\r\nto the end", 200, b"to the end"),
        (INTERIM + OK, 200, b"ok"),
    ],
)
@on_both_loops
async def test_answer_split_at_every_byte_arrives_whole(
    tmp_path: Path, raw: bytes, status: int, body: bytes
) -> None:
    pieces = [bytes([value]) for value in raw]
    async with rogue(tmp_path, saying(raw), saying(*pieces)) as server, pool_to(server) as pool:
        for _ in range(2):
            assert await pool.ask(GET, None, again=True) == (status, body)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"HTTP/1.1 20",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nabc",
        CHUNKED + b"5\r\nabc",
        CHUNKED + b"3\r\nabc\r\n",
        INTERIM,
    ],
)
@on_both_loops
async def test_answer_that_breaks_off_is_an_error(place: Path | None, raw: bytes) -> None:
    async with rogue(place, saying(raw)) as server, pool_to(server) as pool:
        with pytest.raises(OSError, match="answer"):
            await pool.ask(GET, None, again=True)
        assert len(server.peers) == 1  # for a fresh one the caller decides


async def endless_head(peer: Peer) -> None:
    await peer.head()
    await peer.say(b"HTTP/1.1 200 OK\r\n")
    while True:
        await peer.say(b"X-Y: %s\r\n" % (b"z" * 1000))


async def endless_value(peer: Peer) -> None:
    await peer.head()
    await peer.say(b"HTTP/1.1 200 OK\r\nX-Y: ")
    while True:
        await peer.say(b"z" * 1000)


async def endless_interim(peer: Peer) -> None:
    await peer.head()
    while True:
        await peer.say(INTERIM)


async def endless_trailer(peer: Peer) -> None:
    await peer.head()
    await peer.say(CHUNKED + b"3\r\nabc\r\n0\r\nX-Y: ")
    while True:
        await peer.say(b"z" * 1000)


async def endless_body(peer: Peer) -> None:
    await peer.head()
    await peer.say(CHUNKED)
    while True:
        await peer.say(b"400\r\n%s\r\n" % (b"z" * 1024))


@pytest.mark.parametrize(
    "act",
    [
        endless_head,
        endless_value,
        endless_interim,
        endless_trailer,
        endless_body,
        saying(b"SSH-2.0-OpenSSH_9.2\r\n"),
        saying(b"\x00\xff\xfe" * 100),
        saying(b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n"),
        saying(b"HTTP/1.1 200 OK\r\nContent-Length: %s\r\n\r\n" % (b"0" * 5000 + b"9")),
        saying(b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n"),
        saying(b"HTTP/1.1 200 OK\r\nContent-Length:\r\n\r\n"),
        saying(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab"),
        saying(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n"),
        saying(CHUNKED + b"zz\r\n"),
        saying(CHUNKED + b"fffffffffffffffffff\r\n"),
        saying(b"HTTP/1.1 101 Switching\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\nbytes"),
    ],
)
@on_both_loops
async def test_hostile_answer_is_a_bad_answer_and_asked_for_once(
    tmp_path: Path, act: Callable[[Peer], Awaitable[None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unary, "BODY_BYTES_MAX", 1 << 20)
    async with rogue(tmp_path, act) as server, pool_to(server) as pool:
        with pytest.raises(BadAnswer):
            await pool.ask(GET, None, again=True)
        await server.peers[0].closed.wait()
        assert len(server.peers) == 1


@on_both_loops
async def test_large_head_and_many_small_chunks_within_the_bounds_are_taken(tmp_path: Path) -> None:
    head = b"HTTP/1.1 200 OK\r\nX: %s\r\n" % (b"y" * (HEAD_BYTES_MAX - 2000))
    chunks = (b"1\r\n", b"z", b"\r\n") * 30_000
    raw = head + b"Transfer-Encoding: chunked\r\n\r\n"
    async with rogue(tmp_path, saying(raw, *chunks, b"0\r\n\r\n")) as server, pool_to(server) as p:
        assert await p.ask(GET, None, again=False) == (200, b"z" * 30_000)


@pytest.mark.parametrize("framing", ["length", "chunks", "end"])
@on_both_loops
async def test_long_answer_arrives_whole(place: Path | None, framing: str) -> None:
    body = os.urandom(9 << 20)
    head, tail = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body), b""
    if framing == "chunks":
        head, tail = CHUNKED + b"%x\r\n" % len(body), b"\r\n0\r\n\r\n"
    elif framing == "end":
        head = b"HTTP/1.1 200 OK\r\n\r\n"
    async with rogue(place, saying(head, body, tail)) as server, pool_to(server) as pool:
        assert await pool.ask(GET, None, again=False) == (200, body)
        (connection,) = pool._open or [None]
        assert connection is None or not connection._parts  # nobody holds on to it


@on_both_loops
async def test_long_body_is_sent_whole_while_others_are_served(place: Path | None) -> None:
    """What the other side does not take does not pile up, and the loop goes on."""
    body = os.urandom(9 << 20)
    there, go = asyncio.Event(), asyncio.Event()
    got: list[bytes] = []

    async def slow(peer: Peer) -> None:
        await peer.head()
        there.set()
        await go.wait()
        got.append(await peer.body())
        await peer.say(OK)
        await peer.until_closed()

    async with rogue(place, slow, well) as server, pool_to(server) as pool:
        long = asyncio.create_task(pool.ask(post(len(body)), body, again=False))
        await there.wait()
        (connection,) = pool._open
        for _ in range(50):
            assert (await pool.ask(GET, None, again=False))[0] == 200
            # The other side reads 64 KiB ahead by itself, so the client is soon at a stop.
            assert connection._transport.get_write_buffer_size() <= 2 * WHOLE_BYTES_MAX
        assert not long.done()
        go.set()
        assert await long == (200, b"ok")
        assert connection.reusable
    assert hashlib.sha256(got[0]).digest() == hashlib.sha256(body).digest()


@pytest.mark.parametrize("size", [WHOLE_BYTES_MAX, 20 << 20])
@pytest.mark.parametrize("leaves", [False, True])
@on_both_loops
async def test_refusal_that_comes_early_is_the_answer(
    place: Path | None, size: int, *, leaves: bool
) -> None:
    """Whether the node then waits for the rest, or closes, and the client's writing breaks."""
    refused = b"HTTP/1.1 413 Too Large\r\nContent-Length: 4\r\n\r\nmuch"

    async def act(peer: Peer) -> None:
        await peer.head()
        await peer.say(refused)
        if not leaves:
            await peer.body()
            await well(peer)

    async with rogue(place, act, well) as server, pool_to(server) as pool:
        assert await pool.ask(post(size), b"x" * size, again=False) == (413, b"much")
        # Nothing is asked on a connection on which the rest is still to come.
        assert await pool.ask(GET, None, again=True) == (200, b"ok")


@on_both_loops
async def test_nothing_is_asked_behind_a_body_that_nobody_reads(
    place: Path | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unary, "WHOLE_BYTES_MAX", 32 << 20)

    async def act(peer: Peer) -> None:
        await peer.head()
        await peer.say(b"HTTP/1.1 413 Too Large\r\nContent-Length: 4\r\n\r\nmuch")
        await asyncio.Event().wait()

    async with rogue(place, act, well) as server, pool_to(server) as pool:
        assert await pool.ask(post(32 << 20), b"x" * (32 << 20), again=False) == (413, b"much")
        assert await pool.ask(GET, None, again=False) == (200, b"ok")


@on_both_loops
async def test_refusal_of_the_connection_itself_is_the_answer(place: Path | None) -> None:
    """A crowded node answers and closes before it has read anything."""

    async def act(peer: Peer) -> None:
        await peer.say(b"HTTP/1.1 429 Too Many\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")

    async with rogue(place, act) as server, pool_to(server) as pool:
        for _ in range(20):
            assert await pool.ask(GET, None, again=False) == (429, b"")
        assert await pool.ask(post(1 << 20), b"x" * (1 << 20), again=False) == (429, b"")
