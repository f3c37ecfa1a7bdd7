"""The fake backend keeps the promises of the guest channel."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from skerry.backends.api import CreateRequest, Exit
from skerry.errors import Overloaded, SandboxFailed, Unavailable
from skerry.guest.client import GuestClient
from skerry.spec.layers import RootfsPlan
from skerry.testing.fake import FakeBackend, FakeInstance, FakeWorld
from skerry.testing.fake_commands import ManualClock
from skerry.testing.fake_wire import Code, Frame, Splitter, Tag, pack, pack_fields, parse_fields


def request(name: str = "s1") -> CreateRequest:
    return CreateRequest(
        instance_id=name,
        rootfs=RootfsPlan(()),
        hostname="h",
        cpu=1,
        memory_bytes=1 << 20,
        pids=10,
        nofile=64,
        shm_bytes=1 << 20,
    )


class Host(asyncio.Protocol):
    """A minimal host side that keeps every frame."""

    def __init__(self) -> None:
        self.frames: list[Frame] = []
        self.news = asyncio.Event()
        self.lost = False
        self.generation = 0
        self.splitter = Splitter()
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True
        self.news.set()

    def data_received(self, data: bytes) -> None:
        self.frames += self.splitter.feed(data)
        self.news.set()

    def send(self, code: int, stream: int, *pairs: tuple[int, int | bytes]) -> None:
        self.transport.write(pack(code, self.generation, stream, pack_fields(list(pairs))))

    async def until(self, code: int, handle: int = 0) -> Frame:
        async with asyncio.timeout(5):
            while True:
                for frame in self.frames:
                    if frame.type == code and frame.stream >> 2 == handle:
                        return frame
                self.news.clear()
                await self.news.wait()

    def output(self, handle: int, channel: int = 2) -> bytes:
        stream = handle << 2 | channel
        data = [f for f in self.frames if f.type == Code.DATA and f.stream == stream]
        return b"".join(f.payload[8:] for f in data)


async def eventually(question) -> None:
    while not question():  # noqa: ASYNC110 - one turn of the loop at a time
        await asyncio.sleep(0)


async def connect(instance: FakeInstance) -> Host:
    transport = await instance.open_channel(Host)
    host = transport.get_protocol()
    assert isinstance(host, Host)
    host.send(Code.HELLO, 0, (Tag.NONCE, b"n" * 16))
    welcome = parse_fields((await host.until(Code.WELCOME)).payload)
    assert welcome[Tag.NONCE] == [b"n" * 16]
    host.generation = int.from_bytes(welcome[Tag.GENERATION][0], "little")
    return host


def start(host: Host, handle: int, *argv: str, **fields: int | bytes) -> None:
    pairs: list[tuple[int, int | bytes]] = [(Tag.OP_ID, handle.to_bytes(16, "big"))]
    pairs += [(Tag.ARG, word.encode()) for word in argv]
    pairs += [(Tag[name], value) for name, value in fields.items()]
    host.send(Code.START, handle << 2, *pairs)


async def run(host: Host, handle: int, *argv: str, **fields: int | bytes) -> dict[int, int]:
    start(host, handle, *argv, **fields)
    done = parse_fields((await host.until(Code.DONE, handle)).payload)
    return {tag: int.from_bytes(v[0], "little") for tag, v in done.items() if tag != Tag.ERROR_STEP}


@pytest.fixture
async def backend():
    made = FakeBackend()
    await made.start()
    yield made
    await made.close(keep_instances=False)


@pytest.fixture
async def host(backend):
    return await connect(await backend.create(request()))


async def test_commands_end_as_they_say(host):
    assert (await run(host, 1, "true"))[Tag.EXIT_CODE] == 0
    assert (await run(host, 2, "exit", "7"))[Tag.EXIT_CODE] == 7
    assert (await run(host, 3, "kill", "15"))[Tag.SIGNO] == 15
    assert (await run(host, 4, "missing"))[Tag.ERRNO] == 2
    assert (await run(host, 5, "sh", "-c", "echo a b; err c && exit 3"))[Tag.EXIT_CODE] == 3
    assert host.output(5) == b"a b\n"
    assert host.output(5, 3) == b"c\n"
    assert (await run(host, 6, "oom"))[Tag.OOM] == 1


async def test_cat_echoes_standard_input(host):
    start(host, 1, "cat", STDIN=1)
    host.transport.write(pack(Code.DATA, host.generation, 1 << 2 | 1, bytes(8) + b"hello"))
    host.send(Code.EOF, 1 << 2 | 1, (Tag.TOTAL, 5))
    await host.until(Code.DONE, 1)
    assert host.output(1) == b"hello"


async def test_flood_stops_at_the_window_and_goes_on_with_credit(host):
    start(host, 1, "flood", "300000")
    await eventually(lambda: len(host.output(1)) >= 131072)
    await asyncio.sleep(0)
    assert len(host.output(1)) == 131072
    host.send(Code.CREDIT, 1 << 2 | 2, (Tag.OFFSET, 131072))
    await eventually(lambda: len(host.output(1)) >= 262144)
    host.send(Code.CREDIT, 1 << 2 | 2, (Tag.OFFSET, 262144))
    await host.until(Code.DONE, 1)
    assert host.output(1) == b"x" * 300000


async def test_sleep_waits_on_the_clock_and_a_timeout_ends_it():
    clock = ManualClock()
    backend = FakeBackend(clock=clock)
    await backend.start()
    host = await connect(await backend.create(request()))
    start(host, 1, "sleep", "100", TIMEOUT_MS=5000)
    await eventually(lambda: clock.sleepers == 2)
    clock.advance(5)
    done = parse_fields((await host.until(Code.DONE, 1)).payload)
    assert done[Tag.TIMED_OUT] == [(1).to_bytes(8, "little")]
    await backend.close(keep_instances=False)


async def test_cancel_ends_a_sleep(host):
    start(host, 1, "sleep", "100")
    await asyncio.sleep(0)
    host.send(Code.CANCEL, 1 << 2)
    done = parse_fields((await host.until(Code.DONE, 1)).payload)
    assert done[Tag.CANCELLED] == [(1).to_bytes(8, "little")]


async def test_a_repeated_operation_id_is_refused(host):
    await run(host, 1, "true")
    host.send(Code.ACK, 1 << 2)
    host.send(Code.START, 2 << 2, (Tag.OP_ID, (1).to_bytes(16, "big")), (Tag.ARG, b"true"))
    assert parse_fields((await host.until(Code.ERROR, 2)).payload)[Tag.ERROR_STEP] == [b"start"]


async def test_a_result_waits_for_the_next_connection(backend):
    instance = await backend.create(request())
    first = await connect(instance)
    await run(first, 1, "echo", "kept")
    second = await connect(instance)
    await first.until(Code.WELCOME)
    assert second.frames[0].type == Code.WELCOME
    live = parse_fields(parse_fields(second.frames[0].payload)[Tag.OP][0])
    assert live[Tag.STATE] == [(1).to_bytes(8, "little")]
    second.send(Code.ATTACH, 1 << 2, (Tag.STDOUT_TOTAL, 2), (Tag.STDERR_TOTAL, 0))
    await second.until(Code.DONE, 1)
    assert second.output(1) == b"pt\n"
    assert first.lost


async def test_files_are_written_and_read(host):
    start(host, 1, "write", "/a/b.txt", "644", "p", KIND=1, STDIN=1)
    host.transport.write(pack(Code.DATA, host.generation, 1 << 2 | 1, bytes(8) + b"text"))
    host.send(Code.EOF, 1 << 2 | 1, (Tag.TOTAL, 4))
    await host.until(Code.DONE, 1)
    assert host.output(1).startswith(b"f 644 0 0 4 ")
    await run(host, 2, "read", "/a/b.txt", "1", "-1", KIND=1)
    assert host.output(2) == b"ext"
    assert (await run(host, 3, "read", "/none", "0", "-1", KIND=1))[Tag.EXIT_CODE] == 1
    assert host.output(3, 3) == b"2 read\n"


async def test_refused_create_leaves_nothing(backend):
    backend.knobs.refuse_create = Overloaded("full", limit="test", retry_after_s=1)
    with pytest.raises(Overloaded):
        await backend.create(request())
    backend.knobs.refuse_create = None
    backend.knobs.fail_create_at = "overlay"
    with pytest.raises(SandboxFailed):
        await backend.create(request())
    assert not backend.world.instances


async def test_an_instance_dies_after_its_operations(backend):
    backend.knobs.die_after_operations = 1
    instance = await backend.create(request())
    host = await connect(instance)
    await run(host, 1, "true")
    start(host, 2, "true")
    assert await instance.wait() == Exit(signal=9)
    with pytest.raises(Unavailable):
        await instance.open_channel(asyncio.Protocol)


@pytest.mark.parametrize("turns", range(6))
async def test_a_connection_that_is_given_up_while_it_is_made_leaves_no_socket(backend, turns: int):
    instance = await backend.create(request())
    before = len(os.listdir("/proc/self/fd"))
    making = asyncio.create_task(instance.open_channel(asyncio.Protocol))
    for _ in range(turns):
        await asyncio.sleep(0)
    making.cancel()
    await asyncio.gather(making, return_exceptions=True)
    await instance.destroy()
    await asyncio.sleep(0.01)  # transports close their sockets in a later turn
    assert len(os.listdir("/proc/self/fd")) <= before


async def test_an_agent_may_never_answer(backend):
    backend.knobs.never_answer = True
    instance = await backend.create(request())
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(connect(instance), 0.05)


async def test_an_agent_may_send_garbage(backend):
    backend.knobs.send_garbage = True
    instance = await backend.create(request())
    client = GuestClient.connect(instance.open_channel, nonce=bytes(16), timeout=5)
    with pytest.raises(SandboxFailed, match="broke the protocol"):
        await client


async def test_a_dropped_channel_leaves_the_operation(backend):
    backend.knobs.drop_channel_after = 2
    instance = await backend.create(request())
    host = await connect(instance)
    start(host, 1, "echo", "x")
    await eventually(lambda: host.lost)
    backend.knobs.drop_channel_after = None
    again = await connect(instance)
    assert Tag.OP in parse_fields(again.frames[0].payload)


async def test_a_second_backend_recovers_what_the_first_kept(backend):
    instance = await backend.create(request())
    record = instance.record()
    await backend.close(keep_instances=True)
    other = FakeBackend(world=backend.world)
    await other.start()
    assert await other.recover(record) is instance
    await other.close(keep_instances=False)
    assert await other.recover(record) is None
    assert FakeWorld().instances == {}


async def test_a_snapshot_holds_what_was_written(backend):
    instance = await backend.create(request())
    await run(await connect(instance), 1, "write", "/root/x", "hello")
    async with instance.snapshot() as upper:
        assert Path(upper.path, "root/x").read_text() == "hello"
