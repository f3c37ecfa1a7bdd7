"""Cells, the zygote and calls over one channel: what is asked, what is answered, results with credit."""

from __future__ import annotations

import asyncio

import pytest
from guest_sinks import ListSink, operation

from skerry.errors import Bug, Conflict, InvalidRequest, Overloaded, SandboxFailed, Unavailable
from skerry.guest.api import Kind, Rlimits, Stream
from skerry.guest.cells import ASKED_MAX
from skerry.guest.files import GuestFiles
from skerry.guest.output import MemorySink
from skerry.wire import guest, guest_cells
from skerry.wire.frames import WINDOW
from skerry.wire.guest_cells import Cell, CellIs, CellState, ZygoteIs

KIB = 1024
VERSION = b"0.4.0"
CONTROL, RESULT = 1 << 2, 1 << 2 | 1
READY, GONE, FAILED = CellState.READY, CellState.GONE, CellState.FAILED


@pytest.fixture
async def pair(connect):
    return await connect(version=VERSION)


async def test_cell_is_asked_for_at_once_and_answered(pair):
    client, agent = pair
    answer = client.cells.renew(3, disk_bytes=1 << 20, inodes=64)
    assert await agent.expect(Cell, 0) == Cell(cell=3, action=1, disk=1 << 20, inodes=64)
    assert not answer.done()
    agent.send(CellIs(cell=3, state=READY))
    await answer
    answer = client.cells.drop(3)
    assert await agent.expect(Cell, 0) == Cell(cell=3, action=2)
    agent.send(CellIs(cell=3, state=GONE))
    await answer


async def test_answers_go_to_their_cells_in_the_order_of_the_questions(pair):
    client, agent = pair
    first = client.cells.renew(1, disk_bytes=1, inodes=1)
    other = client.cells.renew(2, disk_bytes=1, inodes=1)
    second = client.cells.renew(1, disk_bytes=2, inodes=1)
    agent.send(CellIs(cell=2, state=READY))
    await other
    assert not first.done()
    agent.send(CellIs(cell=1, state=READY))
    await first
    assert not second.done()
    agent.send(CellIs(cell=1, state=GONE))  # of the first one, which ended by itself
    agent.send(CellIs(cell=1, state=FAILED, error_step="tmpfs", errno=12))
    with pytest.raises(Unavailable, match="errno 12 at 'tmpfs'") as caught:
        await second
    assert (caught.value.fields["step"], caught.value.fields["errno"]) == ("tmpfs", 12)


async def test_answers_of_two_that_were_asked_at_once_say_how_the_last_one_ended(pair):
    client, agent = pair
    made = client.cells.renew(1, disk_bytes=1, inodes=1)
    dropped = client.cells.drop(1)
    agent.send(CellIs(cell=1, state=GONE))
    agent.send(CellIs(cell=1, state=GONE))
    await dropped
    with pytest.raises(Unavailable, match="dropped before"):
        await made
    dropped = client.cells.drop(1)
    made = client.cells.renew(1, disk_bytes=1, inodes=1)
    agent.send(CellIs(cell=1, state=READY))
    agent.send(CellIs(cell=1, state=READY))
    await asyncio.gather(dropped, made)


async def test_refused_question_is_told_to_all_who_wait(pair):
    client, agent = pair
    answer = client.cells.renew(31, disk_bytes=1, inodes=1)
    agent.send(guest.Error(2, "cell"), 0)
    with pytest.raises(Bug):
        await answer
    assert not client.lost.done()


async def test_start_in_a_cell_that_is_not_there_has_not_begun(pair):
    client, agent = pair
    running = client.start(operation(cell=3), ListSink())
    agent.send(guest.Error(11, "cell"), CONTROL)
    with pytest.raises(Unavailable, match="nothing was started"):
        await running.wait()


async def test_answer_of_one_who_gave_up_is_not_the_next_ones(pair):
    client, agent = pair
    given_up = client.cells.renew(1, disk_bytes=1, inodes=1)
    given_up.cancel()
    waiting = client.cells.renew(1, disk_bytes=1, inodes=1)
    agent.send(CellIs(cell=1, state=READY))
    await sees_ping(client, agent)
    assert not waiting.done()
    agent.send(CellIs(cell=1, state=READY))
    await waiting


async def sees_ping(client, agent) -> None:
    ping = asyncio.ensure_future(client.ping())
    while not isinstance((message := (await agent.next())[1]), guest.Ping):
        pass
    agent.send(guest.Pong(message.token))
    await ping


async def test_cell_that_ended_by_itself_is_told_to_nobody(pair):
    client, agent = pair
    agent.send(CellIs(cell=5, state=GONE))
    await sees_ping(client, agent)


async def test_questions_that_are_not_answered_are_bounded(pair):
    client, _ = pair
    asked = [client.cells.drop(7) for _ in range(ASKED_MAX)]
    with pytest.raises(Overloaded):
        client.cells.drop(7)
    assert not any(answer.done() for answer in asked)


@pytest.mark.parametrize("cell", [-1, guest_cells.CELLS_MAX])
async def test_cell_that_cannot_be_is_refused(pair, cell):
    with pytest.raises(InvalidRequest):
        pair[0].cells.renew(cell, disk_bytes=1, inodes=1)


async def test_lost_channel_is_told_to_all_who_wait(pair):
    client, agent = pair
    answer = client.cells.renew(1, disk_bytes=1, inodes=1)
    zygote = client.cells.start_zygote(operation(kind=Kind.ZYGOTE), ListSink())
    agent.writer.close()
    for waiting in (answer, zygote.ready):
        with pytest.raises(Unavailable, match="lost"):
            await waiting
    with pytest.raises(Unavailable):
        client.cells.drop(1)


async def test_zygote_is_ready_when_the_agent_says_so(pair):
    client, agent = pair
    sink = ListSink()
    start = operation(kind=Kind.ZYGOTE, argv=(b"python3", b"-I"), script=b"driver")
    report = MemorySink(KIB)
    zygote = client.cells.start_zygote(start, sink, result=report)
    asked = await agent.expect(guest.Start, CONTROL)
    assert (asked.kind, asked.argv, asked.script) == (4, (b"python3", b"-I"), b"driver")
    assert asked.result is True
    with pytest.raises(Conflict):
        client.cells.start_zygote(operation(2, kind=Kind.ZYGOTE), ListSink())
    assert not zygote.ready.done()
    agent.output(1, 0, b"imported")
    agent.output(1, 0, b"{}", channel=1)
    agent.send(ZygoteIs(state=READY))
    await zygote.ready
    assert report.output(Stream.STDOUT) == b"{}"
    assert sink.held[Stream.STDOUT] == b"imported"
    agent.done(1, 8, signal=9, exit_code=None, result_total=2)
    assert (await zygote.running.wait()).signal == 9
    agent.send(ZygoteIs(state=READY))  # too late: nothing
    await sees_ping(client, agent)
    again = client.cells.start_zygote(operation(2, kind=Kind.ZYGOTE), ListSink())
    agent.send(ZygoteIs(state=FAILED, error_step="zygote", errno=2))
    with pytest.raises(Unavailable, match="errno 2 at 'zygote'"):
        await again.ready


async def test_zygote_that_ends_before_it_is_ready_never_will_be(pair):
    client, agent = pair
    zygote = client.cells.start_zygote(operation(kind=Kind.ZYGOTE), ListSink())
    agent.done(1, exit_code=1)
    with pytest.raises(Unavailable, match="has ended"):
        await zygote.ready
    with pytest.raises(InvalidRequest):
        client.cells.start_zygote(operation(2), ListSink())


async def test_call_in_a_cell_says_its_limits_and_brings_its_result(pair):
    client, agent = pair
    sink, result = ListSink(), MemorySink(KIB)
    call = operation(
        kind=Kind.CALL,
        argv=(),
        script=b"{}",
        cell=31,
        cpu_ms=1500,
        rlimits=Rlimits(fsize=1 << 20, nofile=64),
        stdin=True,
    )
    running = client.start(call, sink, result=result)
    start = await agent.expect(guest.Start, CONTROL)
    assert (start.kind, start.argv, start.cell, start.cpu_ms) == (3, (), 31, 1500)
    assert guest_cells.Rlimits.parse(start.rlimits) == guest_cells.Rlimits(
        fsize=1 << 20, nofile=64, core=0
    )
    assert start.result is True
    await running.write_stdin(b"in")
    assert (await agent.expect(guest.Data, RESULT)).data == b"in"
    agent.send(guest.Credit(2), RESULT)
    agent.output(1, 0, b"49", channel=1)
    agent.output(1, 0, b"out")
    agent.send(guest.Eof(2), RESULT)
    agent.done(1, 3, result_total=2, disk_used=8192, cpu_limit=True)
    outcome = await running.wait()
    assert result.output(Stream.STDOUT) == b"49"
    assert sink.held[Stream.STDOUT] == b"out"
    assert (outcome.result_total, outcome.disk_used, outcome.cpu_limit) == (2, 8192, True)


@pytest.mark.parametrize("pid", [None, 42])
async def test_call_whose_zygote_ended_says_whether_it_had_begun(pair, pid):
    client, agent = pair
    running = client.start(operation(kind=Kind.CALL, argv=(), cell=0), ListSink())
    agent.done(1, exit_code=None, error_step="zygote", errno=3, pid=pid)
    outcome = await running.wait()
    assert (outcome.error_step, outcome.pid) == ("zygote", pid)
    assert not client.lost.done()


async def test_plain_operation_says_nothing_of_cells(connect):
    client, agent = await connect()  # an agent of before
    client.start(operation(), ListSink())
    start = await agent.expect(guest.Start)
    assert (start.cell, start.cpu_ms, start.rlimits, start.result) == (None, None, None, None)


@pytest.mark.parametrize(
    "fields", [{"cell": 0}, {"cpu_ms": 1}, {"rlimits": Rlimits()}, {"kind": Kind.CALL, "argv": ()}]
)
async def test_earlier_agent_is_not_asked_for_what_it_has_not(connect, fields):
    client, _ = await connect()
    with pytest.raises(InvalidRequest, match="earlier version"):
        client.start(operation(**fields), ListSink())


async def test_long_result_is_credited_at_its_sinks_pace(pair):
    client, agent = pair
    result = ListSink()
    result.welcome.clear()
    running = client.start(operation(cell=0), ListSink(), result=result)
    await agent.expect(guest.Start)
    agent.output(1, 0, bytes(WINDOW), channel=1)
    await sees_ping(client, agent)  # all was taken, and no credit came before
    assert len(result.held[Stream.STDOUT]) == WINDOW
    result.welcome.set()
    assert (await agent.expect(guest.Credit, RESULT)).offset == WINDOW
    agent.output(1, WINDOW, bytes(WINDOW), channel=1)
    agent.done(1, result_total=2 * WINDOW)
    assert (await running.wait()).result_total == 2 * WINDOW


async def test_result_sink_that_fails_cancels_and_discards_the_rest(pair):
    client, agent = pair

    class Full(ListSink):
        def write(self, stream, offset, data):
            raise Unavailable("too long")

    running = client.start(operation(cell=0), ListSink(), result=Full())
    await agent.expect(guest.Start)
    agent.output(1, 0, b"a", channel=1)
    with pytest.raises(Unavailable, match="too long"):
        await running.wait()
    await agent.expect(guest.Cancel, CONTROL)
    agent.output(1, 1, bytes(WINDOW - 1), channel=1)
    assert (await agent.expect(guest.Credit, RESULT)).offset >= 64 * KIB


async def test_file_helper_acts_in_its_cell(pair):
    client, agent = pair
    files = GuestFiles(client, lambda: (1, bytes(16)), cell=4)
    listing = asyncio.ensure_future(files.list_dir("/call"))
    start = await agent.expect(guest.Start, CONTROL)
    assert (start.kind, start.cell) == (1, 4)
    agent.done(1)
    assert await listing == []


VIOLATIONS = {
    "a cell that nobody asked for": lambda a: a.send(CellIs(cell=1, state=READY)),
    "a failure that nobody asked for": lambda a: a.send(
        CellIs(cell=1, state=FAILED, error_step="x", errno=1)
    ),
    "a cell made though it was to be dropped": lambda a: a.send(CellIs(cell=2, state=READY)),
    "a zygote that nobody asked for": lambda a: a.send(ZygoteIs(state=READY)),
    "a result that was not asked for": lambda a: a.output(1, 0, b"x", channel=1),
    "the end of no result": lambda a: a.send(guest.Eof(0), RESULT),
    "a gap in a result": lambda a: a.output(2, 1, b"x", channel=1),
    "a result beyond its window": lambda a: a.output(2, 0, bytes(WINDOW + 1), channel=1),
    "an end of a result at the wrong place": lambda a: a.send(guest.Eof(1), 2 << 2 | 1),
    "a total of no result": lambda a: a.done(1, result_total=1),
    "a total of a result that did not come": lambda a: a.done(2, result_total=1),
    "a result in a session": lambda a: a.output(3, 0, b"x", channel=1),
}


@pytest.mark.parametrize("violate", VIOLATIONS.values(), ids=VIOLATIONS.keys())
async def test_violation_ends_the_channel(pair, violate):
    client, agent = pair
    plain = client.start(operation(1), ListSink())
    client.start(operation(2), ListSink(), result=ListSink(safe=False))
    client.open_session(operation(3, kind=Kind.SESSION))
    client.cells.drop(2)
    violate(agent)
    assert isinstance(await client.lost, SandboxFailed)
    assert "broke the protocol" in str(client.lost.result())
    assert plain.ended


async def test_zygote_that_is_ready_twice_ends_the_channel(pair):
    client, agent = pair
    zygote = client.cells.start_zygote(operation(kind=Kind.ZYGOTE), ListSink())
    agent.send(ZygoteIs(state=READY))
    await zygote.ready
    agent.send(ZygoteIs(state=READY))
    assert isinstance(await client.lost, SandboxFailed)
