"""A new connection takes over what the old one left."""

from __future__ import annotations

import asyncio

import pytest
from guest_sinks import OP_ID, ListSink, operation

from skerry.errors import Conflict, NotFound, SandboxFailed, Unavailable
from skerry.guest.api import Stream
from skerry.wire import guest
from skerry.wire.frames import WINDOW


def known(out: int = 0, err: int = 0, *, done: bool = False, handle: int = 1, **stdin):
    return guest.KnownOperation(handle, OP_ID, done, out, err, **stdin)


async def test_output_goes_on_from_the_offsets(connect):
    client, agent = await connect(known(100, 7))
    sink = ListSink()
    sink.held[Stream.STDOUT] += b"x" * 90
    running = client.attach(1, OP_ID, sink, 90, 0)
    assert await agent.expect(guest.Attach, 4) == guest.Attach(90, 0)
    assert (await agent.expect(guest.Credit, 4 | 2)).offset == 90  # the agent may drop it
    agent.send(guest.Started(33), 4)
    assert await running.started == 33
    agent.output(1, 90, b"0123456789")
    agent.output(1, 0, b"errors!", channel=3)
    agent.done(1, 100, 7)
    assert (await running.wait()).stderr_total == 7
    assert sink.held[Stream.STDOUT] == b"x" * 90 + b"0123456789"
    running.acknowledge()
    await agent.expect(guest.Ack)


async def test_window_counts_from_the_offset(connect):
    client, agent = await connect(known(0))
    sink = ListSink()
    sink.held[Stream.STDOUT] += bytes(1000)
    client.attach(1, OP_ID, sink, 1000, 0)
    await agent.expect(guest.Attach)
    await agent.expect(guest.Credit, 4 | 2)
    agent.output(1, 1000, bytes(WINDOW))
    credit = await agent.expect(guest.Credit, 4 | 2)
    assert credit.offset >= 1000 + WINDOW // 2
    agent.output(1, 1000 + WINDOW, bytes(WINDOW))
    assert (await agent.expect(guest.Credit, 4 | 2)).offset > credit.offset


async def test_operation_that_the_agent_does_not_know_is_not_found(connect):
    client, _ = await connect(known())
    with pytest.raises(NotFound):
        client.attach(2, OP_ID, ListSink(), 0, 0)
    with pytest.raises(NotFound):
        client.attach(1, bytes(16), ListSink(), 0, 0)


async def test_attach_that_is_refused_raises(connect):
    client, agent = await connect(known(), known(handle=2))
    gone = client.attach(1, OP_ID, ListSink(), 0, 0)
    wrong = client.attach(2, OP_ID, ListSink(), 0, 0)
    agent.send(guest.Error(2, "handle"), 4)
    agent.send(guest.Error(34, "state"), 8)
    with pytest.raises(NotFound):
        await gone.wait()
    with pytest.raises(SandboxFailed, match="state"):
        await wrong.wait()


async def test_output_without_attach_is_a_violation(connect):
    client, agent = await connect(known(100))
    agent.output(1, 0, b"x")
    assert isinstance(await client.lost, SandboxFailed)


async def test_standard_input_goes_on_without_loss_or_repeat(connect):
    content = bytes(range(256)) * 600  # 150 KiB, more than a window
    client, agent = await connect()
    first = client.start(operation(stdin=True), ListSink())
    await agent.expect(guest.Start)
    write = asyncio.ensure_future(first.write_stdin(content))
    got = b""
    while len(got) < WINDOW:
        got += (await agent.expect(guest.Data, 4 | 1)).data
    agent.send(guest.Credit(1000), 4 | 1)
    got += (await agent.expect(guest.Data, 4 | 1)).data
    agent.writer.close()
    with pytest.raises(Unavailable):
        await write
    sent = first.stdin_sent
    assert sent == WINDOW + 1000 == len(got)

    client, agent = await connect(known(), generation=8)
    second = client.attach(1, OP_ID, ListSink(), 0, 0, resume=first)
    await agent.expect(guest.Attach)
    assert second.stdin_sent == sent

    async def rest():
        await second.write_stdin(content[sent:])
        await second.close_stdin()

    task = asyncio.ensure_future(rest())
    agent.send(guest.Credit(5000), 4 | 1)  # it has had this much, the rest was lost
    got = got[:5000]
    while len(got) < len(content):
        data = await agent.expect(guest.Data, 4 | 1)
        assert data.offset == len(got)
        got += data.data
        if len(got) == 5000 + WINDOW:
            agent.send(guest.Credit(len(got)), 4 | 1)
    assert got == content
    assert (await agent.expect(guest.Eof, 4 | 1)).total == len(content)
    await task


async def test_end_of_standard_input_is_sent_again(connect):
    client, agent = await connect()
    first = client.start(operation(stdin=True), ListSink())
    await agent.expect(guest.Start)
    await first.write_stdin(b"abc")
    await first.close_stdin()
    await agent.expect(guest.Data)
    await agent.expect(guest.Eof)
    await client.close()
    client, agent = await connect(known(), generation=8)
    second = client.attach(1, OP_ID, ListSink(), 0, 0, resume=first)
    await agent.expect(guest.Attach)
    agent.send(guest.Credit(0), 4 | 1)
    assert (await agent.expect(guest.Data, 4 | 1)).data == b"abc"
    assert (await agent.expect(guest.Eof, 4 | 1)).total == 3
    await second.close_stdin()


async def test_credit_that_takes_back_bytes_at_resuming_is_a_violation(connect):
    client, agent = await connect()
    first = client.start(operation(stdin=True), ListSink())
    await agent.expect(guest.Start)
    await first.write_stdin(b"abcdef")
    agent.send(guest.Credit(4), 4 | 1)
    await agent.expect(guest.Data)
    ping = asyncio.ensure_future(client.ping())
    agent.send(guest.Pong((await agent.expect(guest.Ping)).token))
    await ping
    await client.close()
    client, agent = await connect(known(), generation=8)
    client.attach(1, OP_ID, ListSink(), 0, 0, resume=first)
    agent.send(guest.Credit(3), 4 | 1)
    assert isinstance(await client.lost, SandboxFailed)


async def test_standard_input_goes_on_where_a_lost_process_left_it(connect):
    client, agent = await connect(known(stdin_total=200_077))
    running = client.attach(1, OP_ID, ListSink(), 0, 0, stdin=True)
    await agent.expect(guest.Attach)
    assert running.stdin_sent == 200_077
    agent.send(guest.Credit(200_000), 4 | 1)  # of which the command has not read the last ones
    await running.write_stdin(b"next")
    assert await agent.expect(guest.Data, 4 | 1) == guest.Data(200_077, b"next")
    agent.send(guest.Credit(200_079), 4 | 1)
    await running.close_stdin()
    assert await agent.expect(guest.Eof, 4 | 1) == guest.Eof(200_081)
    agent.done(1)
    await running.wait()


async def test_standard_input_that_was_ended_by_a_lost_process_stays_ended(connect):
    client, agent = await connect(known(stdin_total=3, stdin_eof=True))
    running = client.attach(1, OP_ID, ListSink(), 0, 0, stdin=True)
    await agent.expect(guest.Attach)
    agent.send(guest.Credit(3), 4 | 1)
    await running.close_stdin()
    with pytest.raises(Conflict, match="closed before"):
        await running.write_stdin(b"x")
    agent.done(1)
    await running.wait()


async def test_standard_input_of_an_agent_that_does_not_tell_is_lost_with_its_process(connect):
    client, agent = await connect(known(), version=b"0.1.0")
    running = client.attach(1, OP_ID, ListSink(), 0, 0, stdin=True)
    await agent.expect(guest.Attach)
    agent.send(guest.Credit(77), 4 | 1)  # what the agent has of it, from a host that is gone
    assert not running.reads
    with pytest.raises(Conflict):
        await running.write_stdin(b"x")
    agent.done(1)
    await running.wait()


async def test_hold_returns_once_the_agent_has_taken_it(connect):
    client, agent = await connect()
    holding = asyncio.ensure_future(client.hold(held=True))
    assert await agent.expect(guest.Hold, 0) == guest.Hold(held=True)
    ping = await agent.expect(guest.Ping, 0)
    assert not holding.done()
    agent.send(guest.Pong(ping.token))
    await holding
