"""Forwards both ways: listening, connecting, half close, resets, bounds."""

from __future__ import annotations

import asyncio

import pytest

from skerry.errors import (
    Conflict,
    InvalidRequest,
    Overloaded,
    PortRefused,
    SandboxFailed,
    Unavailable,
)
from skerry.guest import forward as forward_module
from skerry.wire import guest
from skerry.wire.frames import WINDOW

HANDLE = 5
LISTENER = HANDLE << 2
CONN = 0x80000000 | 9 << 2
IN, OUT = CONN | 1, CONN | 2


class Served:
    """Collects connections; each is held until the test lets it go."""

    def __init__(self) -> None:
        self.connections = asyncio.Queue()
        self.release = asyncio.Event()

    async def __call__(self, connection) -> None:
        self.connections.put_nowait(connection)
        await self.release.wait()


@pytest.fixture
async def forwarded(connect):
    async def make():
        client, agent = await connect()
        served = Served()
        task = asyncio.ensure_future(client.listen(3128, served, handle=HANDLE))
        assert (await agent.expect(guest.Listen, LISTENER)).port == 3128
        agent.send(guest.Started(1), LISTENER)
        listener = await task
        agent.send(guest.Opened(HANDLE, 3128), CONN)
        connection = await served.connections.get()
        return client, agent, served, listener, connection

    return make


async def sync(client, agent):
    """Returns when the client has taken all frames; what it sent meanwhile is returned."""
    ping = asyncio.ensure_future(client.ping())
    seen = []
    while True:
        stream, message = await agent.next()
        if isinstance(message, guest.Ping):
            agent.send(guest.Pong(message.token))
            await ping
            return seen
        seen.append((stream, message))


async def test_bytes_flow_both_ways_and_each_half_closes(forwarded):
    client, agent, _, _, connection = await forwarded()
    assert (connection.number, connection.port) == (9, 3128)
    agent.send(guest.Data(0, b"GET /"), OUT)
    assert await connection.read() == b"GET /"
    agent.send(guest.Eof(5), OUT)
    assert await connection.read() == b""
    await connection.write(b"200 OK")
    assert await agent.expect(guest.Data, IN) == guest.Data(0, b"200 OK")
    await connection.write_eof()
    assert (await agent.expect(guest.Eof, IN)).total == 6
    assert await connection.read() == b""
    connection.reset()  # over: nothing is sent
    assert await sync(client, agent) == []


async def test_reader_grants_credit_as_it_reads(forwarded):
    client, agent, _, _, connection = await forwarded()
    for offset in range(0, WINDOW, 32_768):
        agent.send(guest.Data(offset, bytes(32_768)), OUT)
    assert await sync(client, agent) == []  # nothing was read yet
    got = 0
    while got < WINDOW:
        got += len(await connection.read())
    credits_ = await sync(client, agent)
    assert credits_[-1] == (OUT, guest.Credit(WINDOW))
    agent.send(guest.Data(WINDOW, b"more"), OUT)
    assert await connection.read() == b"more"


async def test_bytes_beyond_the_window_are_a_violation(forwarded):
    client, agent, _, _, connection = await forwarded()
    for offset in range(0, WINDOW, 32_768):
        agent.send(guest.Data(offset, bytes(32_768)), OUT)
    agent.send(guest.Data(WINDOW, b"x"), OUT)
    assert isinstance(await client.lost, SandboxFailed)
    with pytest.raises(SandboxFailed, match="broke the protocol"):
        await connection.read()


@pytest.mark.parametrize(
    "message",
    [
        (guest.Data(1, b"gap"), OUT),
        (guest.Eof(1), OUT),
        (guest.Credit(1), IN),
        (guest.Opened(HANDLE, 3128), CONN),
    ],
)
async def test_violation_on_a_connection_ends_the_channel(forwarded, message):
    client, agent, *_ = await forwarded()
    agent.send(*message)
    assert isinstance(await client.lost, SandboxFailed)


async def test_writer_waits_for_credit(forwarded):
    client, agent, _, _, connection = await forwarded()
    write = asyncio.ensure_future(connection.write(bytes(WINDOW + 5)))
    got = 0
    while got < WINDOW:
        got += len((await agent.expect(guest.Data, IN)).data)
    assert await sync(client, agent) == []
    assert not write.done()
    agent.send(guest.Credit(WINDOW), IN)
    await write
    assert (await agent.expect(guest.Data, IN)).offset == WINDOW


async def test_connection_reset_inside_ends_reading_and_writing(forwarded):
    client, agent, _, _, connection = await forwarded()
    write = asyncio.ensure_future(connection.write(bytes(2 * WINDOW)))
    agent.send(guest.Reset(), CONN)
    with pytest.raises(SandboxFailed, match="reset inside"):
        await connection.read()
    with pytest.raises(SandboxFailed, match="reset inside"):
        await write
    agent.send(guest.Data(0, b"late"), OUT)  # was under way
    await sync(client, agent)
    assert not client.lost.done()


async def test_handler_that_returns_resets_what_it_left_open(forwarded):
    _, agent, served, _, connection = await forwarded()
    served.release.set()
    await agent.expect(guest.Reset, CONN)
    with pytest.raises(SandboxFailed, match="by the host"):
        await connection.read()
    connection.reset()


async def test_handler_that_fails_is_logged_and_resets(connect, caplog):
    client, agent = await connect()

    async def broken(connection) -> None:
        raise RuntimeError("a bug in a handler")

    task = asyncio.ensure_future(client.listen(80, broken, handle=HANDLE))
    await agent.expect(guest.Listen)
    agent.send(guest.Started(1), LISTENER)
    await task
    agent.send(guest.Opened(HANDLE, 80), CONN)
    await agent.expect(guest.Reset, CONN)
    assert "a task of a guest channel failed" in caplog.text


@pytest.mark.parametrize(("errno", "expected"), [(98, Conflict), (13, SandboxFailed)])
async def test_port_that_cannot_be_listened_on_raises(connect, errno, expected):
    client, agent = await connect()
    task = asyncio.ensure_future(client.listen(80, Served(), handle=HANDLE))
    await agent.expect(guest.Listen)
    agent.send(guest.Done(error_step="listen", errno=errno), LISTENER)
    with pytest.raises(expected):
        await task


async def test_closed_listener_takes_no_more_connections(forwarded):
    client, agent, _, listener, connection = await forwarded()
    listener.close()
    listener.close()
    await agent.expect(guest.Unlisten, LISTENER)
    other = 0x80000000 | 10 << 2
    agent.send(guest.Opened(HANDLE, 3128), other)
    await agent.expect(guest.Reset, other)
    agent.send(guest.Data(0, b"goes on"), OUT)
    assert await connection.read() == b"goes on"
    assert not client.lost.done()


async def test_cancelled_listen_takes_the_late_answer(connect):
    client, agent = await connect()
    task = asyncio.ensure_future(client.listen(80, Served(), handle=HANDLE))
    await agent.expect(guest.Listen)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await agent.expect(guest.Unlisten)
    agent.send(guest.Started(1), LISTENER)
    await sync(client, agent)
    assert not client.lost.done()


async def test_connections_beyond_the_bound_are_reset(forwarded, monkeypatch):
    monkeypatch.setattr(forward_module, "CONNECTIONS_MAX", 1)
    _, agent, *_ = await forwarded()
    other = 0x80000000 | 10 << 2
    agent.send(guest.Opened(HANDLE, 3128), other)
    await agent.expect(guest.Reset, other)


async def test_lost_channel_ends_connections_and_handlers(forwarded):
    client, agent, _, listener, connection = await forwarded()
    read = asyncio.ensure_future(connection.read())
    agent.writer.close()
    with pytest.raises(Unavailable):
        await read
    with pytest.raises(Unavailable):
        await connection.write(b"x")
    connection.reset()
    listener.close()
    await client.close()
    assert not client._tasks


HOST = 0xC0000000 | 1 << 2


async def opened(connect):
    client, agent = await connect()
    task = asyncio.ensure_future(client.open_port(8000))
    assert (await agent.expect(guest.Connect, HOST)).port == 8000
    agent.send(guest.Opened(None, 8000), HOST)
    return client, agent, await task


async def test_asked_for_connection_carries_bytes_and_each_half_closes(connect):
    client, agent, connection = await opened(connect)
    await connection.write(b"GET /")
    assert await agent.expect(guest.Data, HOST | 1) == guest.Data(0, b"GET /")
    await connection.write_eof()
    await agent.expect(guest.Eof, HOST | 1)
    agent.send(guest.Data(0, b"200"), HOST | 2)
    agent.send(guest.Eof(3), HOST | 2)
    assert [await connection.read(), await connection.read()] == [b"200", b""]
    connection.reset()
    assert await sync(client, agent) == []


@pytest.mark.parametrize(
    ("errno", "expected", "text"),
    [
        (111, PortRefused, "nothing listens on port 8000"),
        (110, PortRefused, "timed out"),
        (11, Overloaded, "256"),
    ],
)
async def test_refused_connection_says_why_and_leaves_nothing(connect, errno, expected, text):
    client, agent = await connect()
    task = asyncio.ensure_future(client.open_port(8000))
    await agent.expect(guest.Connect)
    agent.send(guest.Error(errno, "connect"), HOST)
    with pytest.raises(expected, match=text):
        await task
    assert not client._forwards._connections
    assert not client._forwards._opening


async def test_asked_for_connections_are_bounded(connect, monkeypatch):
    monkeypatch.setattr(forward_module, "CONNECTS_MAX", 1)
    client, _, connection = await opened(connect)
    with pytest.raises(Overloaded):
        await client.open_port(8000)
    connection.reset()
    task = asyncio.ensure_future(client.open_port(8000))
    await asyncio.sleep(0)
    assert not task.done()
    task.cancel()


async def test_given_up_connection_is_reset_and_its_late_answer_is_dropped(connect):
    client, agent = await connect()
    task = asyncio.ensure_future(client.open_port(8000))
    await agent.expect(guest.Connect)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await agent.expect(guest.Reset, HOST)
    agent.send(guest.Opened(None, 8000), HOST)
    agent.send(guest.Data(0, b"late"), HOST | 2)
    assert await sync(client, agent) == []
    assert not client.lost.done()


@pytest.mark.parametrize(
    "message",
    [(guest.Data(0, b"early"), HOST | 2), (guest.Reset(), HOST), (guest.Opened(None, 1), CONN)],
)
async def test_answer_that_cannot_be_ends_the_channel(connect, message):
    client, agent = await connect()
    task = asyncio.ensure_future(client.open_port(8000))
    await agent.expect(guest.Connect)
    agent.send(*message)
    with pytest.raises(SandboxFailed, match="broke the protocol"):
        await task
    assert isinstance(await client.lost, SandboxFailed)


async def test_lost_channel_ends_connections_that_are_being_made(connect):
    client, agent = await connect()
    task = asyncio.ensure_future(client.open_port(8000))
    await agent.expect(guest.Connect)
    agent.writer.close()
    with pytest.raises(Unavailable):
        await task


async def test_agent_of_before_is_not_asked_for_what_it_does_not_know(connect):
    client, agent = await connect(version=b"0.1.0")
    with pytest.raises(InvalidRequest, match="earlier version"):
        await client.open_port(80)
    assert await sync(client, agent) == []
