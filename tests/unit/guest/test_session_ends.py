"""Sessions and operations whose end comes at an awkward moment: whoever waits is told, at once."""

from __future__ import annotations

import asyncio

import pytest
from guest_sinks import OP_ID, ListSink, operation

from skerry.errors import NotFound, SandboxFailed, Unavailable
from skerry.guest import channel
from skerry.guest.api import Kind
from skerry.wire import guest
from skerry.wire.guest_sessions import Exec, Ran

ANSWER_S = 5.0  # only a failure takes as long


def known(handle: int) -> guest.KnownOperation:
    return guest.KnownOperation(handle, OP_ID, False, 0, 0, None, None)


def started(agent, handle: int, seq: int, out: int = 0) -> None:
    message = guest.Started(42, seq=seq, stdout_total=out, stderr_total=0)
    agent.send(message, handle << 2)


async def test_command_of_a_session_that_has_ended_is_refused_and_not_waited_for(connect):
    client, agent = await connect()
    session = client.open_session(operation(kind=Kind.SESSION))
    await agent.expect(guest.Start)
    started(agent, 1, 0)
    await session.started
    agent.done(1)
    await session.wait()
    with pytest.raises(NotFound, match="has ended"):
        await session.execute(1, b"true", ListSink(), timeout_ms=0, no_output_ms=0)


async def test_answer_of_an_earlier_command_that_comes_again_late_is_no_violation(connect):
    """After an attach the agent repeats what was not acknowledged, while EXEC is under way."""
    client, agent = await connect(known(1))
    session = client.attach_session(1, OP_ID, None)
    await agent.expect(guest.Attach)
    started(agent, 1, 3, out=10)
    await session.started
    command = await session.execute(4, b"true", ListSink(), timeout_ms=0, no_output_ms=0)
    assert (await agent.expect(Exec)).seq == 4
    ran = {"exit_code": 0, "start_ns": 1, "end_ns": 2, "stderr_total": 0}
    agent.output(1, 10, b"old")
    agent.send(Ran(seq=3, stdout_total=13, **ran), 1 << 2)
    agent.output(1, 13, b"new")
    agent.send(Ran(seq=4, stdout_total=16, **ran), 1 << 2)
    assert (await asyncio.wait_for(command.wait(), ANSWER_S)).exit_code == 0
    assert not client.lost.done()


async def test_frame_that_is_one_too_many_ends_what_it_began(connect, monkeypatch):
    """The agent reads nothing; the START that fills the bound is lost with its channel."""
    monkeypatch.setattr(channel, "UNSENT_BYTES_MAX", 200_000)
    client, _ = await connect()
    handle = 0
    while not client.lost.done():
        handle += 1
        running = client.start(operation(handle, argv=(b"x" * 60_000,)), ListSink())
    with pytest.raises(Unavailable, match="does not read"):
        await asyncio.wait_for(running.wait(), ANSWER_S)
    assert running.lost


async def test_script_that_is_one_too_many_ends_its_command(connect, monkeypatch):
    client, agent = await connect()
    session = client.open_session(operation(kind=Kind.SESSION))
    await agent.expect(guest.Start)
    started(agent, 1, 0)
    await session.started
    monkeypatch.setattr(channel, "UNSENT_BYTES_MAX", 0)
    client._channel.pause_writing()
    monkeypatch.setattr(client._channel, "_unsent", lambda: 1)
    command = await session.execute(1, b"true", ListSink(), timeout_ms=0, no_output_ms=0)
    with pytest.raises(Unavailable, match="does not read"):
        await asyncio.wait_for(command.wait(), ANSWER_S)


async def begun(connect):
    """Returns the agent and a session of its whose shell runs."""
    client, agent = await connect()
    session = client.open_session(operation(kind=Kind.SESSION))
    await agent.expect(guest.Start)
    started(agent, 1, 0)
    await session.started
    return agent, session


async def test_output_of_jobs_at_the_end_of_a_session_is_taken_and_thrown_away(connect):
    """Credit is granted for it: a pipe that was made wider than the window holds up no end."""
    agent, session = await begun(connect)
    session.close()
    await agent.expect(guest.Eof)
    total = 0
    for _ in range(4):
        agent.output(1, total, b"x" * 30_000)
        total += 30_000
    assert (await agent.expect(guest.Credit)).offset == 90_000
    agent.send(
        guest.Done(exit_code=0, start_ns=1, end_ns=2, stdout_total=total, stderr_total=0), 1 << 2
    )
    assert (await asyncio.wait_for(session.wait(), ANSWER_S)).exit_code == 0


async def test_output_without_a_command_before_the_end_breaks_the_protocol(connect):
    agent, session = await begun(connect)
    agent.output(1, 0, b"x")
    with pytest.raises(SandboxFailed, match="without a command"):
        await asyncio.wait_for(session.wait(), ANSWER_S)
