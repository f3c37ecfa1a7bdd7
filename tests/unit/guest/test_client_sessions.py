"""A session taken over from an earlier connection, by an agent that may say anything about it."""

from __future__ import annotations

import pytest
from guest_sinks import OP_ID, ListSink

from skerry.errors import SandboxFailed
from skerry.guest.api import Stream
from skerry.wire import guest
from skerry.wire.guest_sessions import Ran

CONTROL, OUT = 4, 4 | 2
KNOWN = guest.KnownOperation(1, OP_ID, False, 0, 0)


async def taken_over(connect, sink, *messages):
    """Returns the command 3, whose output began at 100, after what the agent said of it."""
    client, agent = await connect(KNOWN)
    session = client.attach_session(1, OP_ID, (3, sink))
    await agent.expect(guest.Attach, CONTROL)
    agent.send(guest.Started(5, 3, 100, 0), CONTROL)
    for message, stream in messages:
        agent.send(message, stream)
    await session.started
    assert session.resumed is not None
    return session.resumed


def ran(out: int, err: int = 0) -> Ran:
    return Ran(seq=3, exit_code=0, start_ns=1, end_ns=2, stdout_total=out, stderr_total=err)


async def test_output_goes_on_where_it_is_known_to_be(connect):
    sink = ListSink()
    sink.write(Stream.STDOUT, 0, b"01")
    command = await taken_over(connect, sink, (guest.Data(102, b"234"), OUT), (ran(105), CONTROL))
    outcome = await command.wait()
    assert (outcome.exit_code, outcome.stdout_total) == (0, 5)
    assert sink.held[Stream.STDOUT] == b"01234"


@pytest.mark.parametrize(
    "said",
    [
        ((guest.Data(101, b"x"), OUT),),
        ((guest.Data(1 << 40, b"x"), OUT),),
        ((ran(105), CONTROL),),
        ((ran(99), CONTROL),),
        ((guest.Data(100, b"x"), OUT), (ran(100), CONTROL)),
    ],
    ids=["a gap", "far away", "output that never came", "before its beginning", "too little"],
)
async def test_output_that_does_not_fit_ends_the_channel(connect, said):
    command = await taken_over(connect, ListSink(safe=False), *said)
    with pytest.raises(SandboxFailed, match="the guest agent broke the protocol: "):
        await command.wait()
