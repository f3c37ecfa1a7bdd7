"""Forward: connections from this side to a port inside a sandbox, each over a WebSocket of its own."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator
from typing import NamedTuple

import aiohttp
import msgspec

from skerry.errors import SkerryError, Unavailable
from skerry.sdk.transport import Transport
from skerry.wire.http import StreamEvent

OPEN_WITHIN_S = 60.0
CHUNK = 60_000
CONNECTIONS_MAX = 256  # of one forward; more wait in the listener's queue

_event = msgspec.json.Decoder(StreamEvent).decode


class AsyncConnection:
    """A connection to a port inside: bytes both ways, each half ends by itself."""

    def __init__(self, channel: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = channel
        self._over = False  # the other half has ended
        self._ended = False

    async def read(self) -> bytes:
        """Returns the next bytes, b"" at the end; raises what broke the connection."""
        if self._over:
            return b""
        data = await _message(self._socket)
        self._over = not data
        return data

    async def write(self, data: bytes) -> None:
        """Sends all of it, waiting while the other side does not read."""
        for start in range(0, len(data), CHUNK):
            await self._send(data[start : start + CHUNK])

    async def write_eof(self) -> None:
        """Ends this half; reading goes on. Idempotent."""
        if not self._ended:
            self._ended = True
            await self._send(b"")

    async def close(self) -> None:
        """Ends it; what is not over is aborted. Idempotent."""
        await self._socket.close()

    async def _send(self, data: bytes) -> None:
        try:
            await self._socket.send_bytes(data)
        except (aiohttp.ClientError, OSError) as error:
            raise Unavailable(f"the forwarded connection broke off: {error}") from error


class Forwarded(NamedTuple):
    """Where a forward listens on this side."""

    host: str
    port: int


async def _message(channel: aiohttp.ClientWebSocketResponse) -> bytes:
    """Returns the next binary message, or b"" for the text that says that it is open."""
    message = await channel.receive()
    if message.type is aiohttp.WSMsgType.BINARY:
        data: bytes = message.data
        return data
    if message.type is aiohttp.WSMsgType.TEXT:
        event = _event(message.data)
        if event.error is not None:
            raise event.error.to_error()
        return b""
    raise Unavailable("the forwarded connection broke off: the node closed it")


@contextlib.asynccontextmanager
async def connected(transport: Transport, root: str, port: int) -> AsyncIterator[AsyncConnection]:
    """A connection to a port inside, for a block; PortRefused if nothing answers there."""
    channel = await transport.socket(f"{root}/connect", {"port": str(port)})
    try:
        try:
            async with asyncio.timeout(OPEN_WITHIN_S):
                await _message(channel)
        except TimeoutError as error:
            raise Unavailable(f"no connection to port {port} within {OPEN_WITHIN_S:g} s") from error
        yield AsyncConnection(channel)
    finally:
        await channel.close()


@contextlib.asynccontextmanager
async def forwarding(
    transport: Transport, root: str, port: int, host: str, local_port: int
) -> AsyncIterator[Forwarded]:
    """Listens on this side for a block; each connection is carried to the port inside.

    One that is refused inside, or whose node is away, is reset; the next one is tried anew.
    """
    tasks: set[asyncio.Task[None]] = set()
    places = asyncio.Semaphore(CONNECTIONS_MAX)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is None:
            return
        tasks.add(task)
        try:
            async with places:
                await _carry(transport, root, port, reader, writer)
        except* (SkerryError, OSError, asyncio.CancelledError):
            reset(writer)  # a cancel is the block's end, which asyncio would log as an error
        finally:
            tasks.discard(task)
            writer.close()

    try:
        server = await asyncio.start_server(serve, host, local_port)
    except OSError as error:
        raise Unavailable(f"cannot listen on {host} port {local_port}: {error}") from error
    try:
        name = server.sockets[0].getsockname()
        yield Forwarded(name[0], name[1])
    finally:
        server.close()
        for task in tuple(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def reset(writer: asyncio.StreamWriter) -> None:
    """Ends a local connection so that its peer sees a reset: `abort` alone looks like an end."""
    with contextlib.suppress(OSError):
        now = struct.pack("ii", 1, 0)
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, now)
    writer.transport.abort()


async def _carry(
    transport: Transport,
    root: str,
    port: int,
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
) -> None:
    async with connected(transport, root, port) as connection, asyncio.TaskGroup() as group:
        # A failure of one direction ends the other; the group raises it.
        group.create_task(_outwards(connection, writer))
        group.create_task(_inwards(connection, reader))


async def _outwards(connection: AsyncConnection, writer: asyncio.StreamWriter) -> None:
    while data := await connection.read():
        writer.write(data)
        await writer.drain()
    if writer.can_write_eof():
        writer.write_eof()


async def _inwards(connection: AsyncConnection, reader: asyncio.StreamReader) -> None:
    while data := await reader.read(CHUNK):
        await connection.write(data)
    await connection.write_eof()
