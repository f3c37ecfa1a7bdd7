"""Frames that can wait, ACK above all: with the next frame, after a while, or when there are many."""

from __future__ import annotations

import pytest
from guest_sinks import OP_ID

from skerry.errors import SkerryError, Unavailable
from skerry.guest import channel
from skerry.guest.api import Operation
from skerry.guest.operation import RunningOperation
from skerry.guest.output import MemorySink
from skerry.wire import guest
from skerry.wire.guest_sessions import Exec, Ran


@pytest.fixture
def held(monkeypatch) -> None:
    """What can wait waits for as long as a test takes."""
    monkeypatch.setattr(channel, "LATE_S", 600.0)


def started(client, handle: int) -> RunningOperation:
    op_id = handle.to_bytes(16, "big")
    operation = Operation(handle=handle, op_id=op_id, argv=(b"true",))
    return client.start(operation, MemorySink(100))


async def answered(client, agent, *handles: int) -> None:
    """Commands that have ended, and whose results are recorded."""
    for handle in handles:
        running = started(client, handle)
        agent.done(handle)
        await running.wait()
        running.acknowledge()


async def test_ack_leaves_with_the_next_frame_and_before_it(connect, held) -> None:
    client, agent = await connect()
    await answered(client, agent, 1)
    started(client, 2)
    data = await agent.reader.read(65_536)
    agent._frames = agent._decoder.feed(data)
    await agent.expect(guest.Start, 1 << 2)
    if not agent._frames:  # the agent may read START before the rest has left
        agent._frames = agent._decoder.feed(await agent.reader.read(65_536))
    assert len(agent._frames) == 2
    await agent.expect(guest.Ack, 1 << 2)
    await agent.expect(guest.Start, 2 << 2)


async def test_ack_leaves_before_content(connect, held) -> None:
    client, agent = await connect()
    operation = Operation(handle=9, op_id=bytes(16), argv=(b"cat",), stdin=True)
    reader = client.start(operation, MemorySink(100))
    await agent.expect(guest.Start, 9 << 2)
    await answered(client, agent, 1)
    await agent.expect(guest.Start, 1 << 2)
    await reader.write_stdin(b"content")
    await agent.expect(guest.Ack, 1 << 2)
    assert (await agent.expect(guest.Data, 9 << 2 | 1)).data == b"content"


async def test_ack_without_a_next_frame_leaves_after_a_while(connect) -> None:
    client, agent = await connect()
    for handle in (1, 2):
        await answered(client, agent, handle)
        await agent.expect(guest.Start, handle << 2)
        await agent.expect(guest.Ack, handle << 2)


async def test_acks_are_not_held_beyond_their_bound(connect, held) -> None:
    client, agent = await connect()
    running = [started(client, handle) for handle in range(1, 12)]
    for one in running:
        await agent.expect(guest.Start)
        agent.done(one.handle)
    for one in running:
        await one.wait()
        one.acknowledge()
    for one in running[: channel.LATE_FRAMES_MAX]:
        await agent.expect(guest.Ack, one.handle << 2)
    client.say_held(held=True)
    for one in running[channel.LATE_FRAMES_MAX :]:
        await agent.expect(guest.Ack, one.handle << 2)
    await agent.expect(guest.Hold)


async def test_ack_of_a_session_leaves_before_its_next_command(connect, held) -> None:
    client, agent = await connect(guest.KnownOperation(1, OP_ID, False, 0, 0))
    session = client.attach_session(1, OP_ID, None)
    agent.send(guest.Started(5, 0, 0, 0), 4)
    await session.started
    for seq in (1, 2):
        command = await session.execute(seq, b":", MemorySink(0), timeout_ms=0, no_output_ms=0)
        ran = Ran(seq=seq, exit_code=0, start_ns=1, end_ns=2, stdout_total=0, stderr_total=0)
        agent.send(ran, 4)
        await command.wait()
        command.acknowledge()
    await agent.expect(guest.Attach)
    assert (await agent.expect(Exec)).seq == 1
    assert (await agent.expect(guest.Ack)).seq == 1
    assert (await agent.expect(Exec)).seq == 2


async def test_ack_of_a_lost_channel_is_lost_without_a_word(connect) -> None:
    client, agent = await connect()
    first = started(client, 1)
    agent.done(1)
    await first.wait()
    first.acknowledge()
    second = started(client, 2)
    agent.done(2)
    await second.wait()
    second.acknowledge()
    await client.close()
    first.acknowledge()
    assert isinstance(client.lost.result(), Unavailable)
    with pytest.raises(SkerryError):
        started(client, 3)
    assert client._channel._late == []
    assert client._channel._late_timer.cancelled()
