"""Connecting, losing and closing a channel, and pings over it."""

from __future__ import annotations

import asyncio

import pytest
from guest_sinks import ListSink, operation

from skerry.errors import Overloaded, SandboxFailed, Unavailable
from skerry.guest.client import GuestClient
from skerry.guest.pings import PINGS_MAX
from skerry.wire import guest

NONCE = b"nonce of 16 byte"


async def test_welcome_names_generation_version_and_live_operations(connect):
    known = guest.KnownOperation(3, bytes(16), True, 5, 6)
    client, _ = await connect(known, generation=9)
    assert client.generation == 9
    assert client.agent_version == "0.3.0"
    (live,) = client.live
    assert (live.handle, live.op_id, live.done) == (3, bytes(16), True)
    assert (live.stdout_total, live.stderr_total) == (5, 6)


async def test_what_comes_before_the_welcome_of_this_nonce_is_dropped(socketpair):
    open_channel, agent = await socketpair()
    task = asyncio.ensure_future(GuestClient.connect(open_channel, nonce=NONCE, timeout=5))
    hello = await agent.expect(guest.Hello, 0)
    agent.send(guest.Data(0, b"old"), 4 | 2, generation=3)
    agent.send(guest.Welcome(b"another of 16 by", 8, b"0.x"), generation=8)
    agent.send(guest.Welcome(hello.nonce, 9, b"0.x"), generation=9)
    client = await task
    assert client.generation == 9
    await client.close()


async def test_frames_of_another_generation_are_dropped(connect):
    client, agent = await connect()
    running = client.start(operation(), ListSink())
    await agent.expect(guest.Start)
    agent.send(guest.Done(exit_code=5), 4, generation=6)
    agent.done(1)
    assert (await running.wait()).exit_code == 0


async def test_agent_that_does_not_answer_is_unavailable(socketpair):
    open_channel, agent = await socketpair()
    with pytest.raises(Unavailable, match=r"did not answer within 0\.01 s"):
        await GuestClient.connect(open_channel, nonce=NONCE, timeout=0.01)
    await agent.expect(guest.Hello)
    await agent.closed()


async def test_channel_that_cannot_be_opened_is_unavailable():
    async def open_channel(factory):
        raise ConnectionRefusedError(111, "refused")

    with pytest.raises(Unavailable, match="cannot be reached"):
        await GuestClient.connect(open_channel, nonce=NONCE, timeout=1)


async def test_agent_that_closes_before_its_welcome_is_unavailable(socketpair):
    open_channel, agent = await socketpair()
    task = asyncio.ensure_future(GuestClient.connect(open_channel, nonce=NONCE, timeout=5))
    await agent.expect(guest.Hello)
    agent.writer.close()
    with pytest.raises(Unavailable, match="was lost"):
        await task


async def test_cancelled_connect_closes_the_channel(socketpair):
    open_channel, agent = await socketpair()
    task = asyncio.ensure_future(GuestClient.connect(open_channel, nonce=NONCE, timeout=5))
    await agent.expect(guest.Hello)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await agent.closed()


async def test_garbage_instead_of_a_welcome_is_the_sandboxs_fault(socketpair):
    open_channel, agent = await socketpair()
    task = asyncio.ensure_future(GuestClient.connect(open_channel, nonce=NONCE, timeout=5))
    await agent.expect(guest.Hello)
    agent.writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    with pytest.raises(SandboxFailed, match="broke the protocol"):
        await task


async def test_lost_channel_ends_everything_that_waits(connect):
    client, agent = await connect()
    running = client.start(operation(stdin=True), ListSink())
    started = running.started
    waits = [
        asyncio.ensure_future(work)
        for work in (
            running.wait(),
            running.write_stdin(bytes(1 << 20)),
            client.ping(),
            client.listen(80, lambda connection: None, handle=2),
        )
    ]
    await agent.expect(guest.Start)
    agent.writer.close()
    for wait in (*waits, started):
        with pytest.raises(Unavailable, match="lost"):
            await wait
    assert isinstance(await client.lost, Unavailable)
    assert running.ended
    running.acknowledge()  # nothing to tell any more
    for use in (running.cancel, lambda: running.signal(9), lambda: running.resize(1, 1)):
        with pytest.raises(Unavailable):
            use()
    with pytest.raises(Unavailable):
        client.start(operation(5), ListSink())
    with pytest.raises(Unavailable):
        await client.ping()


async def test_close_ends_what_waits_and_is_safe_twice(connect):
    client, agent = await connect()
    running = client.start(operation(), ListSink())
    wait = asyncio.ensure_future(running.wait())
    await agent.expect(guest.Start)
    await client.close()
    await client.close()
    with pytest.raises(Unavailable, match="closed by the host"):
        await wait
    await agent.closed()


async def test_pings_are_answered_by_token_and_bounded(connect):
    client, agent = await connect()
    pings = [asyncio.ensure_future(client.ping()) for _ in range(PINGS_MAX)]
    tokens = [(await agent.expect(guest.Ping, 0)).token for _ in pings]
    assert len(set(tokens)) == PINGS_MAX
    with pytest.raises(Overloaded):
        await client.ping()
    pings[0].cancel()
    for token in reversed(tokens):
        agent.send(guest.Pong(token))
    agent.send(guest.Pong(b"nobody asked"))
    await asyncio.gather(*pings[1:])
    assert not client.lost.done()


async def test_error_about_what_has_ended_is_ignored(connect):
    client, agent = await connect()
    agent.send(guest.Error(2, "handle"), 4)
    agent.send(guest.Credit(5), 4 | 1)
    agent.send(guest.Error(2, "handle"), 0)
    ping = asyncio.ensure_future(client.ping())
    agent.send(guest.Pong((await agent.expect(guest.Ping)).token))
    await ping
    client.acknowledge(12)
    await agent.expect(guest.Ack, 12 << 2)
