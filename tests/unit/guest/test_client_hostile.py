"""An agent that breaks the protocol loses its channel, and everything that waits is told why."""

from __future__ import annotations

import asyncio

import pytest
from guest_sinks import ListSink, operation
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from skerry.errors import SandboxFailed, SkerryError, Unavailable
from skerry.guest.client import GuestClient
from skerry.wire import guest
from skerry.wire.fields import FieldBuilder
from skerry.wire.frames import WINDOW, Frame

OUT, ERR, IN, CONTROL = 4 | 2, 4 | 3, 4 | 1, 4


def data(offset: int, size: int, stream: int = OUT):
    return lambda agent: agent.send(guest.Data(offset, bytes(size)), stream)


def send(message: guest.Message, stream: int):
    return lambda agent: agent.send(message, stream)


def both(*steps):
    def run(agent):
        for step in steps:
            step(agent)

    return run


def beyond_window(agent):
    agent.output(1, 0, bytes(WINDOW))
    agent.send(guest.Data(WINDOW, b"x"), OUT)


VIOLATIONS = {
    "a gap in the output": data(1, 5),
    "output sent twice": both(data(0, 5), data(0, 5)),
    "output beyond the window": beyond_window,
    "output after its end": both(send(guest.Eof(0), OUT), data(0, 1)),
    "an end at the wrong place": both(data(0, 5), send(guest.Eof(4), OUT)),
    "two ends": both(send(guest.Eof(0), OUT), send(guest.Eof(0), OUT)),
    "output of an unknown operation": data(0, 5, 8 | 2),
    "output on the connection": data(0, 5, 2),
    "data on standard input": data(0, 5, IN),
    "a short DATA": lambda agent: agent.send_raw(0x10, OUT, b"1234567"),
    "STARTED twice": both(send(guest.Started(5), CONTROL), send(guest.Started(5), CONTROL)),
    "STARTED without a process": send(guest.Started(0), CONTROL),
    "STARTED of an unknown operation": send(guest.Started(5), 8),
    "DONE of another process": both(
        send(guest.Started(5), CONTROL), send(guest.Done(exit_code=0, pid=6), CONTROL)
    ),
    "DONE of what ran and did not": lambda agent: agent.send_raw(
        0x84, CONTROL, FieldBuilder().u64(20, 5).text(31, "exec").u64(32, 2).payload()
    ),
    "DONE of an unknown operation": send(guest.Done(exit_code=0), 8),
    "EOF of an unknown operation": send(guest.Eof(0), 8 | 2),
    "a total that is too high": send(guest.Done(exit_code=0, stdout_total=1), CONTROL),
    "a total that is too low": both(data(0, 5), send(guest.Done(exit_code=0), CONTROL)),
    "credit beyond what was sent": send(guest.Credit(1), IN),
    "a frame of the host": send(guest.Cancel(), CONTROL),
    "a second welcome": send(guest.Welcome(bytes(16), 7, b"0.x"), 0),
    "an unknown type": lambda agent: agent.send_raw(0x7F, CONTROL, b""),
    "fields that are none": lambda agent: agent.send_raw(0x84, CONTROL, b"x"),
    "no frame at all": lambda agent: agent.writer.write(bytes(64)),
}


@pytest.mark.parametrize("violate", VIOLATIONS.values(), ids=VIOLATIONS.keys())
async def test_violation_ends_the_channel(connect, violate):
    client, agent = await connect()
    running = client.start(operation(stdin=True), ListSink(safe=False))
    await agent.expect(guest.Start)
    violate(agent)
    with pytest.raises(SandboxFailed, match="the guest agent broke the protocol: "):
        await running.wait()
    assert isinstance(client.lost.result(), SandboxFailed)
    await agent.closed()


async def test_credit_for_a_closed_standard_input_is_a_violation(connect):
    client, agent = await connect()
    running = client.start(operation(), ListSink())
    agent.send(guest.Credit(1), IN)
    with pytest.raises(SandboxFailed, match="never open"):
        await running.wait()


async def test_output_after_done_is_a_violation(connect):
    client, agent = await connect()
    running = client.start(operation(), ListSink())
    agent.done(1)
    await running.wait()
    agent.send(guest.Data(0, b"late"), OUT)
    assert isinstance(await client.lost, SandboxFailed)


FRAME = st.builds(
    Frame,
    st.sampled_from([0x04, 0x0C, 0x10, 0x11, 0x81, 0x82, 0x83, 0x84, 0x86, 0x87, 0x8A, 0x8F, 0x00]),
    st.just(7),
    st.sampled_from([0, 1, 2, 4, 5, 6, 7, 8, 0x80000004, 0x80000005, 0x80000006]),
    st.binary(max_size=12)
    | st.builds(lambda n, d: n.to_bytes(8, "little") + d, st.integers(0, 9), st.binary(max_size=9))
    | st.builds(
        lambda tag, n: bytes([tag, 8, 0, 0, 0]) + n.to_bytes(8, "little"),
        st.sampled_from([5, 7, 20, 21, 22, 23, 24, 32, 33, 48, 61]),
        st.integers(0, 300),
    ),
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.lists(FRAME, max_size=8))
def test_any_frames_end_the_channel_cleanly_or_are_taken(frames):
    async def run() -> None:
        loop = asyncio.get_running_loop()
        client = GuestClient(loop, bytes(16))
        channel = client._channel
        channel.connection_made(DeadTransport())
        client._take_first(welcome_frame())
        running = client.start(operation(stdin=True), ListSink())
        client.cells.renew(1, disk_bytes=1, inodes=1)
        client._tasks.spawn(listen(client))
        await asyncio.sleep(0)
        stream = b"".join(guest.encode_frame(*frame[:3], frame.payload) for frame in frames)
        channel.data_received(stream)
        assert not channel.lost.done() or isinstance(channel.lost.result(), SandboxFailed)
        await client.close()
        assert running.ended

    asyncio.run(run())


async def listen(client: GuestClient) -> None:
    async def serve(connection) -> None:
        while await connection.read():
            pass

    try:
        await client.listen(80, serve, handle=2)
    except SkerryError:
        return


def welcome_frame() -> Frame:
    return Frame(0x81, 7, 0, guest.Welcome(bytes(16), 7, b"0.x").payload())


class DeadTransport(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()

    def set_write_buffer_limits(self, high=None, low=None) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0

    def write(self, data) -> None:
        pass

    def abort(self) -> None:
        pass


async def test_bug_in_the_host_ends_the_channel_too(connect):
    client, agent = await connect()

    class Broken(ListSink):
        def write(self, stream, offset, data):
            raise RuntimeError("a bug in a sink")

    loop = asyncio.get_running_loop()
    seen = []
    loop.set_exception_handler(lambda _, context: seen.append(context["exception"]))
    running = client.start(operation(), Broken())
    agent.output(1, 0, b"x")
    with pytest.raises(Unavailable, match="a bug in a sink"):
        await running.wait()
    assert len(seen) == 1
