"""Forwards both ways over a node: bytes, half closes, refusals, lost channels, activity."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress

import aiohttp
import msgspec
import pytest
from node_stand import settle

from skerry.errors import Conflict, InvalidRequest, PortRefused, SkerryError
from skerry.sdk.client import connect
from skerry.wire.http import StreamEvent


@asynccontextmanager
async def client_of(node):
    async with connect(f"unix://{node.config.socket_path}") as client:
        yield client


def ports(stand, sandbox_id):
    return stand.world.instances[sandbox_id].agent.ports


async def echo(stream) -> None:
    while data := await stream.read():
        await stream.write(data)


async def greet(stream) -> None:
    data = await stream.read_all()
    await stream.write(b"got %d" % len(data))


@asynccontextmanager
async def sandbox_with(stand, **services):
    async with stand.serving() as (node, _), client_of(node) as client:
        sandbox = await client.sandboxes.create()
        ports(stand, sandbox.id).services = {
            int(name.removeprefix("p")): service for name, service in services.items()
        }
        yield node, sandbox


async def test_raw_connection_carries_bytes_and_half_closes(stand) -> None:
    async with sandbox_with(stand, p80=greet) as (_, sandbox), sandbox.connect(80) as raw:
        await raw.write(b"x" * 300_000)
        await raw.write_eof()
        await raw.write_eof()
        assert await raw.read() == b"got 300000"
        assert await raw.read() == b""
        assert await raw.read() == b""


async def test_megabytes_echo_through_a_local_listener(stand) -> None:
    data = bytes(range(256)) * 4096 * 4
    async with (
        sandbox_with(stand, p8000=echo) as (_, sandbox),
        sandbox.forward(8000) as where,
    ):
        assert where.host == "127.0.0.1"
        reader, writer = await asyncio.open_connection(*where)

        async def send() -> None:
            writer.write(data)
            await writer.drain()
            writer.write_eof()

        sending = asyncio.create_task(send())
        assert await reader.read(-1) == data
        await sending
        writer.close()


async def test_a_hundred_connections_at_once_are_carried(stand) -> None:
    async def one(where, number: int) -> None:
        reader, writer = await asyncio.open_connection(*where)
        writer.write(b"%d" % number * 1000)
        writer.write_eof()
        assert await reader.read(-1) == b"%d" % number * 1000
        writer.close()

    async with sandbox_with(stand, p1=echo) as (_, sandbox), sandbox.forward(1) as where:
        await asyncio.gather(*(one(where, number) for number in range(100)))


async def test_port_that_nobody_listens_on_is_the_sandboxs_fault(stand) -> None:
    async with sandbox_with(stand) as (_, sandbox):
        with pytest.raises(PortRefused, match="nothing listens on port 9 inside") as caught:
            async with sandbox.connect(9):
                pass
        assert caught.value.fault == "sandbox"
        assert caught.value.fields["port"] == 9
        async with sandbox.forward(9) as where:
            reader, writer = await asyncio.open_connection(*where)
            with pytest.raises(ConnectionError):
                await reader.read()
            writer.close()


async def test_server_that_resets_breaks_the_connection_off(stand) -> None:
    async def rude(stream) -> None:
        await stream.read()
        stream.reset()

    async with sandbox_with(stand, p1=rude) as (_, sandbox), sandbox.connect(1) as raw:
        await raw.write(b"x")
        with pytest.raises(SkerryError, match="reset inside"):
            await raw.read()


async def test_block_that_is_left_resets_what_is_open(stand) -> None:
    cut = asyncio.Event()

    async def patient(stream) -> None:
        try:
            await stream.read_all()
        except ConnectionResetError:
            cut.set()
            raise

    async with sandbox_with(stand, p1=patient) as (node, sandbox):
        async with sandbox.connect(1):
            assert node.sandboxes.get(sandbox.id).busy == 1
        await asyncio.wait_for(cut.wait(), 5)
        while node.sandboxes.get(sandbox.id).busy:
            await settle()


@pytest.mark.parametrize("query", ["", "?port=0", "?port=65536", "?port=x", "?port=1&typo=1"])
async def test_bad_port_is_told_in_words_and_closed(stand, query) -> None:
    async with stand.serving() as (_, api):
        sid = await api.create()
        async with api.session.ws_connect(f"/v1/sandboxes/{sid}/connect{query}") as socket:
            message = await socket.receive(timeout=5)
            assert message.type is aiohttp.WSMsgType.TEXT
            event = msgspec.json.decode(message.data, type=StreamEvent)
            assert event.error is not None
            assert event.error.code == "invalid"
            assert (await socket.receive(timeout=5)).type is aiohttp.WSMsgType.CLOSE


async def test_text_and_bytes_after_the_end_are_refused(stand) -> None:
    async with stand.serving() as (_, api):
        sid = await api.create()
        ports(stand, sid).services[1] = echo
        for messages in (("words",), (b"", b"more")):
            async with api.session.ws_connect(f"/v1/sandboxes/{sid}/connect?port=1") as socket:
                assert (await socket.receive(timeout=5)).data == "{}"
                for message in messages:
                    if isinstance(message, str):
                        await socket.send_str(message)
                    else:
                        await socket.send_bytes(message)
                last = [m async for m in socket if m.type is aiohttp.WSMsgType.TEXT][-1]
                error = msgspec.json.decode(last.data, type=StreamEvent).error
                assert error is not None
                assert error.code == "invalid"


async def test_open_forward_is_activity(stand, manual) -> None:
    async with stand.serving() as (node, api):
        sid = await api.create(idle_timeout_s=60.0)
        ports(stand, sid).services[1] = echo
        async with api.session.ws_connect(f"/v1/sandboxes/{sid}/connect?port=1") as socket:
            await socket.receive(timeout=5)
            await manual.advance(200)
            assert node.sandboxes.get(sid).state == "running"
        while node.sandboxes.get(sid).busy:
            await settle()
        await manual.advance(200)
        while node.sandboxes.get(sid).state != "stopped":
            await settle()


async def test_connection_ends_with_its_sandbox(stand) -> None:
    async with sandbox_with(stand, p1=echo) as (_, sandbox), sandbox.connect(1) as raw:
        await sandbox.destroy()
        with pytest.raises(SkerryError):
            await raw.read()


# --- reverse


async def serve_upper(reader, writer) -> None:
    data = await reader.read(-1)
    writer.write(data.upper())
    await writer.drain()
    writer.close()


@asynccontextmanager
async def upper_server():
    server = await asyncio.start_server(serve_upper, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


async def ask(stand, sandbox, port: int, data: bytes) -> bytes:
    stream = ports(stand, sandbox.id).connect(port)
    await stream.write(data)
    stream.end()
    return await stream.read_all()


async def test_reverse_forward_reaches_a_server_here(stand) -> None:
    async with (
        sandbox_with(stand) as (_, sandbox),
        upper_server() as target,
        sandbox.reverse_forward(5432, "127.0.0.1", target),
    ):
        assert await ask(stand, sandbox, 5432, b"query" * 50_000) == b"QUERY" * 50_000


async def test_reverse_forward_is_served_again_after_a_lost_channel(stand) -> None:
    async with (
        sandbox_with(stand) as (node, sandbox),
        upper_server() as target,
        sandbox.reverse_forward(5432, "127.0.0.1", target),
    ):
        inside = ports(stand, sandbox.id)
        for _ in range(3):
            idle = inside.connect(5432)
            inside.heard.clear()
            inside.agent.connection.close()
            await asyncio.wait_for(inside.heard.wait(), 5)
            with pytest.raises(ConnectionResetError):
                await idle.read()
            assert await ask(stand, sandbox, 5432, b"again") == b"AGAIN"
        assert node.sandboxes.get(sandbox.id).state == "running"


async def test_port_is_free_again_after_the_reverse_forward(stand) -> None:
    async with sandbox_with(stand) as (_, sandbox), upper_server() as target:
        async with sandbox.reverse_forward(5432, "127.0.0.1", target):
            with pytest.raises(Conflict, match="5432 is served"):
                async with sandbox.reverse_forward(5432, "127.0.0.1", target):
                    pass
        inside = ports(stand, sandbox.id)
        while inside.listening:
            await settle()
        inside.taken.add(5432)
        with pytest.raises(Conflict, match="in use inside"):
            async with sandbox.reverse_forward(5432, "127.0.0.1", target):
                pass


async def test_connection_that_nobody_reads_holds_up_no_other(stand) -> None:
    """Neither a client inside that does not read, nor a server here that does not."""
    deaf = asyncio.Event()

    async def serve(reader, writer) -> None:
        if await reader.readexactly(1) == b"u":
            writer.write((await reader.read(-1)).upper())
        elif await reader.readexactly(1) == b"g":  # gives without end
            with suppress(ConnectionError):
                while True:
                    writer.write(b"x" * 65_536)
                    await writer.drain()
        else:  # takes nothing
            await deaf.wait()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        async with (
            sandbox_with(stand) as (_, sandbox),
            sandbox.reverse_forward(5432, "127.0.0.1", port),
        ):
            inside = ports(stand, sandbox.id)
            unread = inside.connect(5432)
            await unread.write(b"-g")
            stuffed = inside.connect(5432)
            stuffing = asyncio.create_task(stuffed.write(b"-t" + b"y" * (32 << 20)))
            for _ in range(5):
                answer = ask(stand, sandbox, 5432, b"u" + b"a" * 500_000)
                assert await asyncio.wait_for(answer, 20) == b"A" * 500_000
            assert not stuffing.done()
            deaf.set()
            stuffing.cancel()


async def test_client_that_leaves_resets_what_is_open_inside(stand) -> None:
    async with sandbox_with(stand) as (node, sandbox), upper_server() as target:
        async with sandbox.reverse_forward(5432, "127.0.0.1", target):
            stream = ports(stand, sandbox.id).connect(5432)
            await stream.write(b"half a question")
        with pytest.raises(ConnectionResetError):
            await asyncio.wait_for(stream.read(), 10)
        while node.sandboxes.get(sandbox.id).busy:
            await settle()


@pytest.mark.parametrize("how", ["reset", "channel lost"])
async def test_connection_that_breaks_off_does_not_look_whole_to_the_server(stand, how) -> None:
    came: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    began = asyncio.Event()

    async def serve(reader, writer) -> None:
        try:
            await reader.readexactly(4)
            began.set()
            await reader.read(-1)
            came.set_result("whole")
        except ConnectionResetError:
            came.set_result("reset")
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        async with (
            sandbox_with(stand) as (_, sandbox),
            sandbox.reverse_forward(5432, "127.0.0.1", port),
        ):
            inside = ports(stand, sandbox.id)
            stream = inside.connect(5432)
            await stream.write(b"half")
            await asyncio.wait_for(began.wait(), 10)
            if how == "reset":
                stream.reset()
            else:
                inside.agent.connection.close()
            assert await asyncio.wait_for(came, 10) == "reset"


async def test_bad_reverse_port_is_refused(stand) -> None:
    async with stand.alive() as node:
        sandbox = await node.lives.create(stand_spec())
        for port in (0, 70_000):
            with pytest.raises(InvalidRequest):
                async with node.forwarder.open(sandbox, port, None):
                    pass
        link = await node.lives.ensure_running(sandbox)
        ports(stand, sandbox.id).taken.add(99)
        with pytest.raises(Conflict):
            await link.listen(99, None)
        await node.lives.delete(sandbox)


def stand_spec():
    from skerry.spec.sandbox import SandboxSpec

    return SandboxSpec()
