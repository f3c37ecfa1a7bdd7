"""Sinks: what is kept, what survives a kill, and how slow readers are felt."""

from __future__ import annotations

import asyncio
import os

import pytest
from guest_sinks import operation
from hypothesis import given, settings
from hypothesis import strategies as st

from skerry.errors import Bug, InvalidRequest, StorageFailed
from skerry.guest.api import Stream
from skerry.guest.output import TEE_BYTES_MAX, MemorySink, PullSink, SpoolSink, Tee
from skerry.guest.spool import SLACK, SpoolFile
from skerry.wire import guest
from skerry.wire.frames import WINDOW

OUT, ERR = Stream.STDOUT, Stream.STDERR


def content(size: int) -> bytes:
    return b"".join(i.to_bytes(4, "little") for i in range(size // 4 + 1))[:size]


def kept(data: bytes, limit: int) -> bytes:
    if len(data) <= limit:
        return data
    tail = limit // 2
    return data[: limit - tail] + data[len(data) - tail :]


def pieces(data: bytes, sizes: list[int]):
    at = 0
    for size in sizes:
        yield at, data[at : at + size]
        at = min(at + size, len(data))
    yield at, data[at:]


SIZES = st.lists(st.integers(0, 3000), max_size=12)


@given(st.integers(0, 5000), st.integers(0, 20_000), SIZES)
def test_memory_sink_keeps_head_and_tail(limit, size, sizes):
    data = content(size)
    sink = MemorySink(limit)
    for offset, piece in pieces(data, sizes):
        sink.write(OUT, offset, piece)
        held = sink._streams[OUT]
        assert len(held._head) + len(held._tail) <= limit + limit // 2 + len(piece)
    assert sink.output(OUT) == kept(data, limit)
    assert sink.total(OUT) == sink.safe_offset(OUT) == size
    assert sink.truncated == (size > limit)
    assert sink.output(ERR) == b""
    assert sink.total(ERR) == 0


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 100_000), st.integers(0, 400_000), st.lists(st.integers(0, 90_000), max_size=8)
)
def test_spool_sink_keeps_head_and_tail(limit, size, sizes):
    data = content(size)
    directory = os.environ["SPOOL_DIRECTORY"]
    sink = SpoolSink(directory, "op", limit, threshold=1000)
    for offset, piece in pieces(data, sizes):
        sink.write(ERR, offset, piece)
    assert sink.output(ERR) == kept(data, limit)
    assert (sink.total(ERR), sink.truncated) == (size, size > limit)
    assert sink.safe_offset(ERR) == (size if size > 1000 else 0)
    sink.close()
    assert os.listdir(directory) == []


@pytest.fixture(autouse=True)
def _spool_directory(tmp_path, monkeypatch):
    directory = tmp_path / "spool"
    directory.mkdir()
    monkeypatch.setenv("SPOOL_DIRECTORY", str(directory))


@pytest.fixture
def directory() -> str:
    return os.environ["SPOOL_DIRECTORY"]


def test_short_output_makes_no_file_and_counts_as_unsafe(directory):
    sink = SpoolSink(directory, "op", 1 << 20)
    sink.write(OUT, 0, content(32 * 1024))
    assert os.listdir(directory) == []
    assert sink.safe_offset(OUT) == 0
    sink.write(OUT, 32 * 1024, b"x")
    assert os.listdir(directory) == ["op.stdout"]
    assert sink.safe_offset(OUT) == 32 * 1024 + 1
    sink.close()
    sink.close()
    assert os.listdir(directory) == []


@pytest.mark.parametrize("limit", [0, 1, 999, 50_000, 300_000])
@pytest.mark.parametrize("killed_after", range(6))
def test_killed_process_is_followed_without_loss_or_repeat(directory, limit, killed_after):
    data = content(250_001)
    parts = list(pieces(data, [40_000, 1, 65_000, 30_000, 65_536]))
    first = SpoolSink(directory, "op", limit)
    for offset, piece in parts[:killed_after]:
        first.write(OUT, offset, piece)
    first.detach()  # as the kernel does at a kill
    second = SpoolSink.reopen(directory, "op", limit)
    start = second.safe_offset(OUT)
    assert start == sum(len(piece) for _, piece in parts[:killed_after])
    assert second.output(OUT) == kept(data[:start], limit)
    for offset in range(start, len(data), 32_768):
        second.write(OUT, offset, data[offset : offset + 32_768])
    assert second.output(OUT) == kept(data, limit)
    second.close()


def test_bytes_sent_again_from_an_earlier_offset_change_nothing(directory):
    data = content(200_000)
    sink = SpoolSink(directory, "op", 100_000)
    for start in (0, 0, 50_000, 120_000, 7):
        for offset in range(start, 150_000, 30_000):
            sink.write(OUT, offset, data[offset : min(offset + 30_000, 150_000)])
    sink.write(OUT, 150_000, data[150_000:])
    assert sink.output(OUT) == kept(data, 100_000)
    sink.close()


def test_kill_between_content_and_header_leaves_the_old_state_readable(directory, monkeypatch):
    data = content(400_000)
    sink = SpoolSink(directory, "op", 60_000)
    for offset in range(0, 200_000, 50_000):
        sink.write(OUT, offset, data[offset : offset + 50_000])
    real = os.pwrite

    class Killed(BaseException):
        pass

    def pwrite(fd, what, offset):
        if offset == 0:
            raise Killed
        return real(fd, what, offset)

    monkeypatch.setattr(os, "pwrite", pwrite)
    with pytest.raises(Killed):
        sink.write(OUT, 200_000, data[200_000 : 200_000 + SLACK])
    monkeypatch.undo()
    sink.detach()
    again = SpoolSink.reopen(directory, "op", 60_000)
    assert again.safe_offset(OUT) == 200_000
    assert again.output(OUT) == kept(data[:200_000], 60_000)
    for offset in range(200_000, 400_000, 50_000):
        again.write(OUT, offset, data[offset : offset + 50_000])
    assert again.output(OUT) == kept(data, 60_000)
    again.close()


@pytest.mark.parametrize("cut", range(32))
def test_file_without_a_whole_header_counts_as_none(directory, cut):
    path = os.path.join(directory, "op.stdout")
    file = SpoolFile.create(path, 100)
    file.write(0, b"x" * 50)
    file.close()
    os.truncate(path, cut)
    assert SpoolFile.open(path) is None
    sink = SpoolSink.reopen(directory, "op", 100)
    assert sink.safe_offset(OUT) == 0
    sink.write(OUT, 0, content(40_000))
    assert sink.output(OUT) == kept(content(40_000), 100)
    sink.close()


@pytest.mark.parametrize("position", range(28))
def test_flipped_bit_in_a_header_is_noticed(directory, position):
    path = os.path.join(directory, "op.stdout")
    file = SpoolFile.create(path, 100)
    file.write(0, b"x" * 50)
    file.close()
    with open(path, "r+b") as raw:
        raw.seek(position)
        byte = raw.read(1)[0]
        raw.seek(position)
        raw.write(bytes([byte ^ 1]))
    assert SpoolFile.open(path) is None


def test_file_shorter_than_its_header_says_is_a_storage_failure(directory):
    path = os.path.join(directory, "op.stdout")
    file = SpoolFile.create(path, 100)
    file.write(0, b"x" * 50)
    os.truncate(path, 60)
    with pytest.raises(StorageFailed, match="shorter"):
        file.content()
    file.remove()
    file.remove()


def test_gap_is_a_bug(directory):
    for sink in (MemorySink(10), SpoolSink(directory, "op", 10)):
        with pytest.raises(Bug, match="gap"):
            sink.write(OUT, 1, b"x")


def test_full_disk_is_a_storage_failure(directory, monkeypatch):
    sink = SpoolSink(directory, "op", 1000, threshold=0)
    sink.write(OUT, 0, b"fits")

    def pwrite(fd, data, offset):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", pwrite)
        with pytest.raises(StorageFailed, match="No space"):
            sink.write(OUT, 4, b"does not")
    assert sink.output(OUT) == b"fits"
    sink.close()
    with pytest.raises(StorageFailed, match="cannot make"):
        SpoolSink(directory + "/missing", "op", 10, threshold=0).write(OUT, 0, b"x")


@pytest.mark.parametrize(("op", "threshold"), [("a/b", 0), (".hidden", 0), ("op", WINDOW)])
def test_sink_that_cannot_work_is_refused(directory, op, threshold):
    with pytest.raises(InvalidRequest):
        SpoolSink(directory, op, 10, threshold)


async def collect(tee: Tee) -> dict[Stream, bytes]:
    found = dict.fromkeys(Stream, b"")
    async for stream, data in tee:
        found[stream] += data
    return found


async def test_tee_gives_a_live_copy_without_repeats(directory):
    sink = SpoolSink(directory, "op", 100, threshold=10)
    sink.write(OUT, 0, b"before")
    tee = Tee()
    sink.tee_to(tee)
    sink.write(OUT, 0, b"before and after")
    sink.write(ERR, 0, b"error")
    sink.write(OUT, 16, b"!")
    sink.finish()
    assert await collect(tee) == {OUT: b" and after!", ERR: b"error"}
    sink.close()


async def test_slow_reader_holds_back_the_command_and_memory_stays_bounded(directory, connect):
    client, agent = await connect()
    sink = SpoolSink(directory, "op", 1 << 20)
    tee = Tee()
    sink.tee_to(tee)
    running = client.start(operation(), sink)
    await agent.expect(guest.Start)
    total, granted = 0, 0
    while total < granted + WINDOW:  # an agent that sends whatever it may
        agent.output(1, total, bytes(32_768))
        total += 32_768
    ping = asyncio.ensure_future(client.ping())
    message = (await agent.next())[1]
    assert isinstance(message, guest.Ping)  # no credit, because nobody reads
    agent.send(guest.Pong(message.token))
    await ping
    assert tee._held == WINDOW <= TEE_BYTES_MAX + WINDOW
    reader = asyncio.ensure_future(collect(tee))
    while total < 1 << 20:
        granted = (await agent.expect(guest.Credit, 4 | 2)).offset
        while total < granted + WINDOW and total < 1 << 20:
            agent.output(1, total, bytes(32_768))
            total += 32_768
    agent.done(1, total)
    await running.wait()
    sink.finish()
    assert await reader == {OUT: bytes(total), ERR: b""}
    sink.close()


async def test_reader_that_vanishes_stops_mattering(directory):
    sink = SpoolSink(directory, "op", 100)
    tee = Tee()
    sink.tee_to(tee)
    sink.write(OUT, 0, bytes(TEE_BYTES_MAX + 1))
    drained = asyncio.ensure_future(sink.drain())
    await asyncio.sleep(0)
    assert not drained.done()
    sink.untee(tee)
    await drained
    sink.write(OUT, TEE_BYTES_MAX + 1, b"more")
    assert tee._held == 0
    assert await collect(tee) == {OUT: b"", ERR: b""}
    sink.untee(tee)
    sink.close()


async def test_pull_sink_waits_for_its_reader_and_keeps_errors():
    sink = PullSink(stderr_limit=4)
    sink.write(OUT, 0, bytes(TEE_BYTES_MAX + 1))
    sink.write(ERR, 0, b"2 open and more")
    drained = asyncio.ensure_future(sink.drain())
    await asyncio.sleep(0)
    assert not drained.done()
    await anext(sink.tee)
    await drained
    assert sink.errors() == b"2 re"
    assert (sink.safe_offset(OUT), sink.safe_offset(ERR)) == (TEE_BYTES_MAX + 1, 15)
