"""The fake agent keeps the promises about cells, results and the zygote, and fails as told."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from skerry.backends.api import Celled, CellLimits, CellUsage, CreateRequest
from skerry.errors import NotFound, Unavailable
from skerry.guest.api import Kind, Operation, Stream
from skerry.guest.client import GuestClient
from skerry.guest.files import GuestFiles
from skerry.guest.output import MemorySink
from skerry.spec.layers import RootfsPlan
from skerry.testing.fake import FakeBackend
from skerry.testing.fake_commands import Ended, ManualClock

LIMITS = CellLimits(64 << 20, 16)


class Box:
    """A fake function container with two cells, and a client of it."""

    def __init__(self, instance, client, clock) -> None:
        self.instance, self.client, self.clock = instance, client, clock
        self.cells = instance.agent.cells
        self._handles = itertools.count(1)

    def new(self) -> tuple[int, bytes]:
        handle = next(self._handles)
        return handle, handle.to_bytes(16, "big")

    def operation(self, **fields) -> Operation:
        handle, op_id = self.new()
        return Operation(handle=handle, op_id=op_id, **({"argv": ()} | fields))

    def start(self, *argv: str, **fields):
        result, sink = MemorySink(1024), MemorySink(1024)
        words = tuple(word.encode() for word in argv)
        running = self.client.start(self.operation(argv=words, **fields), sink, result=result)
        return running, sink, result

    async def renew(self, cell: int) -> None:
        await self.client.cells.renew(cell, disk_bytes=1 << 20, inodes=64)

    def files(self, cell: int) -> GuestFiles:
        return GuestFiles(self.client, self.new, cell=cell, cwd=b"/call")

    async def zygote(self):
        operation = self.operation(kind=Kind.ZYGOTE, argv=(b"python3",), script=b"driver")
        zygote = self.client.cells.start_zygote(operation, MemorySink(1024))
        await zygote.ready
        return zygote


@pytest.fixture
async def box():
    clock = ManualClock()
    backend = FakeBackend(clock=clock)
    await backend.start()
    request = CreateRequest(
        instance_id="f1",
        rootfs=RootfsPlan(()),
        hostname="h",
        cpu=1,
        memory_bytes=1 << 30,
        pids=10,
        nofile=64,
        shm_bytes=1 << 20,
        cells=2,
    )
    instance = await backend.create(request)
    client = await GuestClient.connect(instance.open_channel, nonce=bytes(16), timeout=5)
    yield Box(instance, client, clock)
    await client.close()
    await backend.close(keep_instances=False)


async def content(*pieces: bytes):
    for piece in pieces:
        yield piece


async def test_cells_have_files_of_their_own_and_a_renewed_one_has_none(box):
    await box.renew(0)
    await box.renew(1)
    await box.files(0).write("a", content(b"1"))
    running, sink, _ = box.start("show", "a", cell=0)
    assert (await running.wait()).disk_used == 1
    assert sink.output(Stream.STDOUT) == b"1"
    with pytest.raises(NotFound):
        await box.files(1).stat("a")
    await box.renew(0)
    with pytest.raises(NotFound):
        await box.files(0).stat("a")
    assert box.cells.made == 3


async def test_renewal_ends_what_is_in_the_cell_before_it_answers(box):
    await box.renew(0)
    running, *_ = box.start("sleep", "60", cell=0)
    await running.started
    other, *_ = box.start("sleep", "60")
    await box.client.cells.drop(0)
    assert running.ended
    assert (await running.wait()).signal == 9
    assert not other.ended
    missing, *_ = box.start("true", cell=0)
    with pytest.raises(Unavailable, match="nothing was started"):
        await missing.wait()


async def test_cell_fails_as_told(box):
    box.cells.fail = ("tmpfs", 12)
    with pytest.raises(Unavailable, match="tmpfs"):
        await box.renew(0)
    box.cells.fail, box.cells.silent = None, True
    answer = box.client.cells.renew(0, disk_bytes=1, inodes=1)
    await box.client.ping()
    assert not answer.done()


async def test_result_and_limits_of_a_program(box):
    await box.renew(0)
    running, _, result = box.start("result", "42", cell=0)
    assert (await running.wait()).result_total == 2
    assert result.output(Stream.STDOUT) == b"42"
    running, *_ = box.start("spin", cell=0, cpu_ms=1500)
    await running.started
    while not box.clock.sleepers:  # noqa: ASYNC110 - one turn of the loop at a time
        await asyncio.sleep(0)
    box.clock.advance(1.5)
    outcome = await running.wait()
    assert (outcome.cpu_limit, outcome.signal, outcome.cpu_us) == (True, 9, 1_500_000)


async def test_calls_need_a_zygote_and_are_answered_as_told(box):
    await box.renew(0)
    early, *_ = box.start(kind=Kind.CALL, cell=0, script=b"{}")
    with pytest.raises(Unavailable, match="nothing was started"):
        await early.wait()
    zygote = await box.zygote()
    call, _, result = box.start(kind=Kind.CALL, cell=0, script=b"{}")
    assert (await call.wait()).exit_code == 0
    assert result.output(Stream.STDOUT) == b"{}"

    async def answer(payload: bytes):
        return payload * 2, Ended(exit_code=3)

    box.cells.on_call = answer
    call, _, result = box.start(kind=Kind.CALL, cell=0, script=b"ab")
    assert (await call.wait()).exit_code == 3
    assert result.output(Stream.STDOUT) == b"abab"
    assert not zygote.running.ended


async def test_zygote_that_dies_takes_its_calls_and_nothing_else(box):
    await box.renew(0)
    zygote = await box.zygote()
    box.cells.on_call = never
    call, *_ = box.start(kind=Kind.CALL, cell=0, script=b"{}")
    await call.started
    program, *_ = box.start("sleep", "60", cell=0)
    await program.started
    box.cells.lose_zygote()
    lost = await call.wait()
    assert (lost.error_step, lost.pid) == ("zygote", await call.started)
    assert (await zygote.running.wait()).signal == 9
    assert not program.ended
    box.cells.zygote_fails = ("exec", 2)
    failing = box.operation(kind=Kind.ZYGOTE, argv=(b"python3",))
    with pytest.raises(Unavailable, match="exec"):
        await box.client.cells.start_zygote(failing, MemorySink(1024)).ready


async def never(_payload: bytes):
    await asyncio.get_running_loop().create_future()
    raise AssertionError


async def test_cells_are_opened_and_counted_as_told(box):
    instance = box.instance
    assert isinstance(instance, Celled)
    assert instance.cells == 2
    assert instance.open_cell(0, LIMITS)
    instance.cell_used[0] = CellUsage(oom_kills=1)
    assert instance.cell_usage(0).oom_kills == 1
    assert instance.open_cell(0, LIMITS)
    assert instance.cell_usage(0).oom_kills == 0
    instance.full_cells.add(1)
    assert not instance.open_cell(1, LIMITS)
    assert instance.cell_limits == {0: LIMITS}
