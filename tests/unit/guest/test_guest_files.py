"""File operations through the helper: words, content, records, errors."""

from __future__ import annotations

import asyncio
import itertools
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skerry.errors import DiskFull, FileDenied, FileRefused, NotFound, Unavailable
from skerry.guest.api import Outcome
from skerry.guest.files import GuestFiles
from skerry.guest.records import event_reader, helper_error, info_reader, parse_records
from skerry.spec.files import FileInfo, FileType
from skerry.wire import guest
from skerry.wire.frames import WINDOW

RECORD = b"f 644 0 1000 12 1500000000 5 0\na\nb\xff\xc3"


@pytest.fixture
async def files(connect):
    async def make():
        client, agent = await connect()
        numbers = itertools.count(1)

        def new_operation():
            number = next(numbers)
            return number, number.to_bytes(16, "big")

        return GuestFiles(client, new_operation, user=b"1000", cwd=b"/work"), agent, client

    return make


async def answer(agent, stdout=b"", *, handle=1, stderr=b"", **done) -> guest.Start:
    """Plays one helper without stdin to its end."""
    start = await agent.expect(guest.Start, handle << 2)
    assert (start.kind, start.user, start.cwd) == (1, b"1000", b"/work")
    agent.output(handle, 0, stdout)
    agent.output(handle, 0, stderr, channel=3)
    agent.done(handle, len(stdout), len(stderr), **done)
    await agent.expect(guest.Ack, handle << 2)
    return start


def fail(text: bytes) -> dict:
    return {"stderr": text + b"\n", "exit_code": 1}


async def test_stat_parses_a_record(files):
    helper, agent, _ = await files()
    task = asyncio.ensure_future(helper.stat("a"))
    assert (await answer(agent, RECORD)).argv == (b"stat", b"a")
    assert await task == FileInfo("a\nb\udcff\udcc3", FileType.FILE, 0o644, 0, 1000, 12, 1.5)


async def test_list_parses_many_records_with_odd_names(files):
    helper, agent, _ = await files()
    task = asyncio.ensure_future(helper.list_dir("/d"))
    link = b"l 777 0 0 3 -1000000000 1 3\nl../"
    start = await answer(agent, RECORD + link + b"d 1777 0 0 0 0 1 0\n.")
    assert start.argv == (b"list", b"/d")
    names = await task
    assert [(f.type, f.name, f.target) for f in names] == [
        (FileType.FILE, "a\nb\udcff\udcc3", None),
        (FileType.SYMLINK, "l", "../"),
        (FileType.DIRECTORY, ".", None),
    ]
    assert names[1].mtime == -1.0


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda f: f.mkdir("/a"), b"mkdir /a 755 -"),
        (lambda f: f.mkdir("/a", 0o700, parents=True), b"mkdir /a 700 p"),
        (lambda f: f.remove("/a"), b"remove /a -"),
        (lambda f: f.remove("/a", recursive=True), b"remove /a r"),
        (lambda f: f.rename("/a", "/b"), b"rename /a /b"),
        (lambda f: f.chmod("/a", 0o4755), b"chmod /a 4755"),
    ],
)
async def test_words_of_the_page_are_sent(files, call, words):
    helper, agent, _ = await files()
    task = asyncio.ensure_future(call(helper))
    assert b" ".join((await answer(agent)).argv) == words
    await task


async def test_name_that_is_no_utf8_reaches_the_helper_as_it_is(files):
    helper, agent, _ = await files()
    task = asyncio.ensure_future(helper.remove("/a\udcff"))
    assert (await answer(agent)).argv[1] == b"/a\xff"
    await task


@pytest.mark.parametrize(
    ("done", "expected", "errno"),
    [
        (fail(b"2 open"), NotFound, 2),
        (fail(b"13 open"), FileRefused, 13),
        (fail(b"what?"), FileRefused, 5),
        ({"exit_code": None, "signal": 9}, FileRefused, 4),
        ({"exit_code": None, "signal": 9, "timed_out": True}, FileRefused, 110),
        ({"exit_code": None, "error_step": "user", "errno": 2}, FileRefused, 2),
    ],
)
async def test_failure_has_errno_and_path(files, done, expected, errno):
    helper, agent, _ = await files()
    task = asyncio.ensure_future(helper.stat("/x"))
    await answer(agent, **done)
    with pytest.raises(expected) as caught:
        await task
    assert (caught.value.fields["errno"], caught.value.fields["path"]) == (errno, "/x")


async def test_read_streams_in_constant_memory(files):
    helper, agent, _ = await files()
    reader = helper.read("/big", 5, 1 << 20)
    first = asyncio.ensure_future(anext(reader))
    start = await agent.expect(guest.Start)
    assert start.argv == (b"read", b"/big", b"5", str(1 << 20).encode())
    data = bytes(range(256)) * 4096
    got = b""

    async def agent_side():
        sent, granted = 0, 0
        while sent < len(data):
            while sent < min(granted + WINDOW, len(data)):
                agent.output(1, sent, data[sent : sent + 32_768])
                sent += 32_768
            if sent < len(data):
                granted = (await agent.expect(guest.Credit, 4 | 2)).offset
        agent.done(1, len(data))

    task = asyncio.ensure_future(agent_side())
    got += await first
    async for piece in reader:
        got += piece
    await task
    assert got == data
    message = (await agent.next())[1]
    while isinstance(message, guest.Credit):
        message = (await agent.next())[1]
    assert isinstance(message, guest.Ack)


async def test_read_that_fails_late_raises_after_the_content(files):
    helper, agent, _ = await files()
    reader = helper.read("/x")
    first = asyncio.ensure_future(anext(reader))
    await agent.expect(guest.Start)
    agent.output(1, 0, b"part")
    agent.output(1, 0, b"5 read\n", channel=3)
    agent.done(1, 4, 7, exit_code=1)
    assert await first == b"part"
    with pytest.raises(FileRefused):
        await anext(reader)


async def test_reader_that_stops_early_cancels_the_helper(files):
    helper, agent, _ = await files()
    reader = helper.tree_get("/d")
    first = asyncio.ensure_future(anext(reader))
    assert (await agent.expect(guest.Start)).argv == (b"tree-get", b"/d")
    agent.output(1, 0, b"part")
    await first
    await reader.aclose()
    await agent.expect(guest.Cancel, 4)
    agent.done(1, 4, exit_code=None, signal=9, cancelled=True)
    await agent.expect(guest.Ack, 4)


async def chunks(*pieces, error=None):
    for piece in pieces:
        yield piece
    if error is not None:
        raise error


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, b"write /f 644 k"),
        ({"mode": 0o644}, b"write /f 644 -"),
        ({"mode": 0o755, "parents": True, "append": True, "exclusive": True}, b"write /f 755 pax"),
    ],
)
async def test_write_sends_content_and_returns_the_record(files, options, words):
    helper, agent, _ = await files()
    task = asyncio.ensure_future(helper.write("/f", chunks(b"ab", b"", b"c"), **options))
    start = await agent.expect(guest.Start)
    assert (b" ".join(start.argv), start.stdin) == (words, True)
    assert (await agent.expect(guest.Data, 4 | 1)).data == b"ab"
    assert (await agent.expect(guest.Data, 4 | 1)).data == b"c"
    assert (await agent.expect(guest.Eof, 4 | 1)).total == 3
    agent.output(1, 0, RECORD)
    agent.done(1, len(RECORD))
    assert (await task).size == 12
    await agent.expect(guest.Ack)


async def test_write_whose_content_fails_cancels_instead_of_ending_it(files):
    helper, agent, _ = await files()
    content = chunks(b"ab", error=ValueError("the source broke"))
    task = asyncio.ensure_future(helper.write("/f", content))
    await agent.expect(guest.Start)
    await agent.expect(guest.Data)
    await agent.expect(guest.Cancel)
    with pytest.raises(ValueError, match="the source broke"):
        await task


async def test_helper_that_fails_before_the_content_ends_stops_the_writer(files):
    helper, agent, _ = await files()
    content = chunks(*[bytes(WINDOW)] * 100)
    task = asyncio.ensure_future(helper.tree_put("/d", content))
    assert (await agent.expect(guest.Start)).argv == (b"tree-put", b"/d")
    agent.output(1, 0, b"28 write\n", channel=3)
    agent.done(1, 0, 9, exit_code=1)
    with pytest.raises(FileRefused) as caught:
        await task
    assert caught.value.fields["errno"] == 28


async def test_cancelled_caller_cancels_the_helper(files):
    helper, agent, _ = await files()
    task = asyncio.ensure_future(helper.stat("/f"))
    await agent.expect(guest.Start)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await agent.expect(guest.Cancel)


async def test_lost_channel_is_unavailable(files):
    helper, agent, _ = await files()
    task = asyncio.ensure_future(helper.stat("/f"))
    await agent.expect(guest.Start)
    agent.writer.close()
    with pytest.raises(Unavailable):
        await task


async def test_answer_with_two_records_is_refused(files):
    helper, agent, _ = await files()
    task = asyncio.ensure_future(helper.stat("/f"))
    await answer(agent, RECORD * 2)
    with pytest.raises(FileRefused, match="2 records"):
        await task


@given(st.integers(0, len(RECORD) * 2))
def test_records_cut_anywhere_are_refused_unless_whole(cut):
    data = (RECORD * 2)[:cut]
    if cut % len(RECORD) == 0:
        assert len(parse_records(data)) == cut // len(RECORD)
    else:
        with pytest.raises(FileRefused):
            parse_records(data)


@given(st.binary(max_size=100))
def test_garbage_is_records_or_refused(data):
    try:
        parse_records(data)
    except FileRefused:
        return


@pytest.mark.parametrize(
    "data",
    [
        b"f 644 0 0 0 0 0 0\n",
        b"x 644 0 0 0 0 1 0\na",
        b"f 888 0 0 0 0 1 0\na",
        b"f 644 0 0 0 0 99999 0\na",
        b"f 644 0 0 0 0 2 0\na\0",
        b"f 644 -1 0 0 0 1 0\na",
    ],
)
def test_hostile_record_is_refused(data):
    with pytest.raises(FileRefused):
        parse_records(data)


def test_success_is_no_error():
    assert helper_error(Outcome(exit_code=0), b"2 open\n", "/x") is None


@pytest.mark.parametrize(
    ("text", "kind", "fault"),
    [
        (b"2 open", NotFound, "caller"),
        (b"13 open", FileDenied, "caller"),
        (b"1 chown", FileDenied, "caller"),
        (b"28 write", DiskFull, "sandbox"),
        (b"122 write", DiskFull, "sandbox"),
        (b"17 create", FileRefused, "sandbox"),
    ],
)
def test_failures_have_classes_by_their_errno(text, kind, fault) -> None:
    error = helper_error(Outcome(exit_code=1), text + b"\n", "/p")
    assert type(error) is kind
    assert (error.fault, error.fields["path"]) == (fault, "/p")


@given(
    st.lists(st.binary(min_size=1, max_size=40).filter(lambda name: b"\0" not in name)), st.data()
)
def test_records_cut_anywhere_are_read_whole(names, data) -> None:
    stream = b"".join(b"f 644 0 0 1 2 %d 0 4096\n%s" % (len(name), name) for name in names)
    cut = data.draw(st.integers(0, len(stream)))
    reader = info_reader()
    found = reader.feed(stream[:cut]) + reader.feed(stream[cut:])
    reader.finish()
    assert [os.fsencode(info.name) for info in found] == names
    if stream:
        short = info_reader()
        short.feed(stream[:-1])
        with pytest.raises(FileRefused):
            short.finish()


@given(st.binary(max_size=200))
def test_any_bytes_as_events_are_events_or_refused(data) -> None:
    reader = event_reader("/w")
    try:
        reader.feed(data)
        reader.finish()
    except FileRefused:
        return
