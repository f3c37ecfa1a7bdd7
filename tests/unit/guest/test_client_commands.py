"""Commands over one channel: start, output with credit, input with credit, end."""

from __future__ import annotations

import asyncio

import pytest
from guest_sinks import ListSink, operation

from skerry.errors import Conflict, InvalidRequest, Overloaded, StorageFailed, Unavailable
from skerry.guest.api import Kind, Stream
from skerry.wire import guest
from skerry.wire.frames import WINDOW

KIB = 1024


async def test_command_without_output_ends_without_any_credit(connect):
    client, agent = await connect()
    running = client.start(operation(env=(b"A=1",), cwd=b"/tmp", timeout_ms=5), ListSink())
    start = await agent.expect(guest.Start, 1 << 2)
    assert start.argv == (b"true",)
    assert start.env == (b"A=1",)
    assert (start.cwd, start.user, start.timeout_ms) == (b"/tmp", None, 5)
    agent.send(guest.Started(42), 1 << 2)
    assert await running.started == 42
    agent.done(1, cpu_us=9)
    outcome = await running.wait()
    assert (outcome.exit_code, outcome.cpu_us, outcome.start_ns) == (0, 9, 1)
    running.acknowledge()
    await agent.expect(guest.Ack, 1 << 2)


async def test_done_alone_says_that_it_ran_and_ends_its_output(connect):
    client, agent = await connect()
    sink = ListSink(safe=False)
    running = client.start(operation(), sink)
    started = running.started
    await agent.expect(guest.Start)
    agent.output(1, 0, b"out")
    agent.done(1, 3, pid=42)
    outcome = await running.wait()
    assert (outcome.exit_code, outcome.stdout_total, outcome.stderr_total) == (0, 3, 0)
    assert await started == 42
    assert await running.started == 42


async def test_done_of_what_was_said_to_have_started_repeats_its_pid(connect):
    client, agent = await connect()
    running = client.start(operation(), ListSink())
    await agent.expect(guest.Start)
    agent.send(guest.Started(42), 1 << 2)
    agent.send(guest.Eof(0), 1 << 2 | 2)
    agent.done(1, pid=42)
    assert (await running.wait()).exit_code == 0
    assert await running.started == 42


async def test_done_without_pid_says_that_it_never_ran(connect):
    client, agent = await connect()
    running = client.start(operation(), ListSink())
    await agent.expect(guest.Start)
    agent.done(1, exit_code=None, error_step="exec", errno=2)
    assert (await running.wait()).error_step == "exec"
    assert running.started.cancelled()


async def test_less_than_the_step_of_output_needs_no_safe_write(connect):
    client, agent = await connect()
    sink = ListSink(safe=False)
    running = client.start(operation(), sink)
    await agent.expect(guest.Start)
    agent.send(guest.Started(5), 4)
    agent.output(1, 0, b"x" * (64 * KIB - 1))
    agent.done(1, 64 * KIB - 1)
    assert (await running.wait()).stdout_total == 64 * KIB - 1
    running.signal(9)  # ended: nothing is sent
    running.acknowledge()
    await agent.expect(guest.Ack)


async def test_safe_output_is_credited_per_stream(connect):
    client, agent = await connect()
    sink = ListSink()
    running = client.start(operation(), sink)
    await agent.expect(guest.Start)
    agent.output(1, 0, b"o" * 70 * KIB)
    credit = await agent.expect(guest.Credit, 4 | 2)
    assert 64 * KIB <= credit.offset <= 70 * KIB
    agent.output(1, 0, b"e" * WINDOW, channel=3)
    offsets = [(await agent.expect(guest.Credit, 4 | 3)).offset]
    while offsets[-1] < WINDOW - 64 * KIB:
        offsets.append((await agent.expect(guest.Credit, 4 | 3)).offset)
    agent.done(1, 70 * KIB, WINDOW)
    await running.wait()
    assert sink.held[Stream.STDERR] == b"e" * WINDOW


async def test_sink_that_is_slow_holds_back_credit(connect):
    client, agent = await connect()
    sink = ListSink()
    sink.welcome.clear()
    client.start(operation(), sink)
    await agent.expect(guest.Start)
    agent.output(1, 0, b"o" * WINDOW)
    ping = asyncio.ensure_future(client.ping())
    agent.send(guest.Pong((await agent.expect(guest.Ping)).token))
    await ping  # so all output was taken, and no credit came before the ping
    assert len(sink.held[Stream.STDOUT]) == WINDOW
    sink.welcome.set()
    assert (await agent.expect(guest.Credit)).offset == WINDOW


async def test_sink_that_fails_cancels_and_discards_the_rest(connect):
    client, agent = await connect()

    class Full(ListSink):
        def write(self, stream, offset, data):
            raise StorageFailed("disk full")

    running = client.start(operation(stdin=True), Full())
    await agent.expect(guest.Start)
    agent.output(1, 0, b"a")
    with pytest.raises(StorageFailed, match="disk full"):
        await running.wait()
    await agent.expect(guest.Cancel, 4)
    agent.output(1, 1, b"b" * WINDOW)
    while (await agent.expect(guest.Credit, 4 | 2)).offset < 64 * KIB:
        pass
    agent.done(1, 1 + WINDOW, signal=9, exit_code=None, cancelled=True)
    await running.write_stdin(b"thrown away")
    message = (await agent.next())[1]
    while isinstance(message, guest.Credit):
        message = (await agent.next())[1]
    assert isinstance(message, guest.Ack)


async def test_stdin_waits_for_credit_and_is_complete(connect):
    client, agent = await connect()
    running = client.start(operation(stdin=True), ListSink())
    assert (await agent.expect(guest.Start)).stdin
    content = bytes(range(256)) * 1024  # 256 KiB

    async def feed():
        await running.write_stdin(content)
        await running.close_stdin()

    task = asyncio.ensure_future(feed())
    got, credited = b"", 0
    while len(got) < len(content):
        data = await agent.expect(guest.Data, 4 | 1)
        assert data.offset == len(got)
        got += data.data
        assert len(got) <= credited + WINDOW
        if len(got) % WINDOW == 0:
            assert not task.done() or len(got) == len(content)
            credited = len(got)
            agent.send(guest.Credit(credited), 4 | 1)
    assert got == content
    assert (await agent.expect(guest.Eof, 4 | 1)).total == len(content)
    await task
    with pytest.raises(Conflict, match="closed before"):
        await running.write_stdin(b"x")


async def test_stdin_of_a_command_that_ends_early_is_thrown_away(connect):
    client, agent = await connect()
    running = client.start(operation(stdin=True), ListSink())
    await agent.expect(guest.Start)
    task = asyncio.ensure_future(running.write_stdin(b"x" * 3 * WINDOW))
    agent.done(1)
    await task
    await running.close_stdin()
    assert (await running.wait()).exit_code == 0


async def test_stdin_that_the_command_closed_is_thrown_away(connect):
    client, agent = await connect()
    running = client.start(operation(stdin=True), ListSink())
    await agent.expect(guest.Start)
    task = asyncio.ensure_future(running.write_stdin(b"x" * 3 * WINDOW))
    agent.send(guest.Error(32, "stdin"), 4 | 1)
    await task
    assert not running.ended


async def test_stdin_that_was_not_asked_for_is_refused(connect):
    client, _ = await connect()
    running = client.start(operation(), ListSink())
    with pytest.raises(Conflict, match="standard input"):
        await running.write_stdin(b"x")


async def test_controls_are_sent_in_order(connect):
    client, agent = await connect()
    running = client.start(operation(kind=Kind.COMMAND, terminal=(24, 80)), ListSink())
    start = await agent.expect(guest.Start)
    assert (start.rows, start.cols) == (24, 80)
    running.resize(50, 100)
    running.signal(15)
    running.cancel()
    assert await agent.expect(guest.Resize, 4) == guest.Resize(50, 100)
    assert (await agent.expect(guest.Signal, 4)).signo == 15
    await agent.expect(guest.Cancel, 4)
    agent.send(guest.Error(3, "state"), 4)  # the signal came too late
    agent.done(1, exit_code=None, signal=9, cancelled=True)
    outcome = await running.wait()
    assert (outcome.signal, outcome.cancelled, outcome.exit_code) == (9, True, None)
    assert running.started.cancelled()


@pytest.mark.parametrize("number", [0, 65, -1])
async def test_signal_out_of_bounds_is_refused(connect, number):
    client, _ = await connect()
    with pytest.raises(InvalidRequest):
        client.start(operation(), ListSink()).signal(number)


async def test_missing_program_is_a_result(connect):
    client, agent = await connect()
    running = client.start(operation(), ListSink())
    started = running.started
    agent.done(1, exit_code=None, error_step="exec", errno=2)
    outcome = await running.wait()
    assert (outcome.error_step, outcome.errno) == ("exec", 2)
    assert started.cancelled()


@pytest.mark.parametrize(
    ("errno", "expected"), [(17, Conflict), (11, Overloaded)], ids=["EEXIST", "EAGAIN"]
)
async def test_start_that_the_agent_refuses_raises(connect, errno, expected):
    client, agent = await connect()
    running = client.start(operation(), ListSink())
    agent.send(guest.Error(errno, "start"), 4)
    with pytest.raises(expected):
        await running.wait()
    with pytest.raises(expected):
        await running.started
    with pytest.raises(InvalidRequest):
        client.start(operation(handle=1 << 29), ListSink())
    client.start(operation(), ListSink())  # the table has forgotten it


async def test_environment_too_large_for_a_start_is_refused_before_sending(connect):
    client, agent = await connect()
    with pytest.raises(InvalidRequest, match="too many"):
        client.start(operation(env=(b"A=" + b"x" * 2_200_000,)), ListSink())
    client.start(operation(), ListSink())
    await agent.expect(guest.Start)


async def test_many_waiters_see_the_same_end_and_a_cancelled_one_spoils_nothing(connect):
    client, agent = await connect()
    running = client.start(operation(), ListSink())
    first, second = (asyncio.ensure_future(running.wait()) for _ in range(2))
    await agent.expect(guest.Start)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    agent.done(1)
    assert (await second).exit_code == 0


async def test_abandoned_operation_is_cancelled_and_acknowledged(connect):
    client, agent = await connect()
    running = client.start(operation(), ListSink())
    await agent.expect(guest.Start)
    running.abandon()
    await agent.expect(guest.Cancel)
    agent.done(1, exit_code=None, signal=9, cancelled=True)
    await agent.expect(guest.Ack)
    with pytest.raises(Conflict, match="abandoned"):
        await running.wait()


async def test_agent_that_reads_nothing_is_given_up(connect):
    client, _ = await connect()
    running = client.start(operation(argv=(b"x" * 60_000,)), ListSink())

    def start_many() -> None:
        for handle in range(2, 200):
            client.start(operation(handle, argv=(b"x" * 60_000,)), ListSink())

    def signal_much() -> None:
        for _ in range(1_000_000):
            running.signal(1)

    with pytest.raises(Overloaded, match="busy reading"):
        start_many()
    with pytest.raises(Unavailable, match="does not read"):
        signal_much()
    assert client.lost.done()


async def test_agent_of_before_is_asked_for_nothing_that_it_does_not_know(connect):
    client, agent = await connect(version=b"0.1.0")
    for more in ({"env": (b"A=" + b"x" * 66_000,)}, {"no_output_ms": 5}, {"script": b"x"}):
        with pytest.raises(InvalidRequest, match="earlier version"):
            client.start(operation(**more), ListSink())
    client.say_held(held=True)
    client.start(operation(), ListSink())
    await agent.expect(guest.Start)


async def test_agent_of_before_is_not_asked_to_merge(connect):
    client, agent = await connect(version=b"0.2.0")
    with pytest.raises(InvalidRequest, match="cannot merge"):
        client.start(operation(merge=True), ListSink())
    client.start(operation(), ListSink())
    assert (await agent.expect(guest.Start)).merge is None


async def test_many_writers_that_wait_send_no_more_than_the_channel_takes(connect):
    client, agent = await connect()
    running = [client.start(operation(handle, stdin=True), ListSink()) for handle in range(1, 101)]
    writers = asyncio.gather(*(one.write_stdin(bytes(WINDOW)) for one in running))
    came = 0
    while came < 100 * WINDOW:
        _, message = await agent.next()
        came += len(message.data) if isinstance(message, guest.Data) else 0
        assert not client.lost.done()
    await writers
