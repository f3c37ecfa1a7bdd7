"""Reverse forward: a port inside a sandbox that leads to a server on the client's side.

The node opens no connection of its own: pieces of the forwarded connections come over one WebSocket
to the client, which connects to the target. So a remote client's loopback servers work too. When the
node restarts, the port is opened again; connections that were open have ended.
"""

from __future__ import annotations

import asyncio
import contextlib

import aiohttp
import msgspec

from skerry.errors import Bug, Conflict, PlatformError, Unavailable
from skerry.network.pieces import Pieces, Room
from skerry.sdk.connect import reset
from skerry.sdk.transport import Transport
from skerry.wire.http import ForwardFrame, ForwardOpen, StreamEvent

OPEN_WITHIN_S = 30.0
RECONNECT_FOR_S = 60.0  # how long a node that went away is looked for
RETRY_S = 0.1
CHUNK = 60_000

_decode = msgspec.msgpack.Decoder(ForwardFrame).decode
_decode_event = msgspec.msgpack.Decoder(StreamEvent).decode
_encode = msgspec.msgpack.Encoder().encode


def _frame(data: bytes) -> ForwardFrame:
    """Returns the frame that a message holds; raises the error that it tells instead."""
    try:
        return _decode(data)
    except msgspec.ValidationError:
        error = _decode_event(data).error
        raise Bug("the node sent no frame") if error is None else error.to_error() from None


def _ready(message: aiohttp.WSMessage) -> None:
    """Returns if the node says that the port is open; raises why it is not."""
    if message.type is not aiohttp.WSMsgType.BINARY:
        raise Unavailable(f"the port could not be opened inside: {message.extra}")
    _frame(message.data)


class Way:
    """One connection: what has come for its target, what may be sent for it, who carries it."""

    def __init__(self) -> None:
        self.pieces = Pieces()
        self.room = Room()
        self.task: asyncio.Task[None] | None = None


class ReverseForward:
    """An open forward; use it as an async context manager."""

    def __init__(
        self, transport: Transport, path: str, port: int, host: str, target_port: int
    ) -> None:
        self._transport = transport
        self._path = path
        self._port = port
        self._target = (host, target_port)
        self._socket: aiohttp.ClientWebSocketResponse | None = None
        self._pump: asyncio.Task[None] | None = None
        self._connections: dict[int, Way] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> ReverseForward:
        await self._open()
        self._pump = asyncio.create_task(self._run())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._pump is not None:
            self._pump.cancel()
            await asyncio.gather(self._pump, return_exceptions=True)
        await self._drop()
        if self._socket is not None:
            await self._socket.close()

    async def wait(self) -> None:
        """Returns never while the forward lives; raises why it has ended for good."""
        if self._pump is not None:
            await asyncio.shield(self._pump)

    async def _open(self) -> None:
        """Returns when the port is open inside; raises why it is not."""
        opened = await self._transport.socket(self._path)
        try:
            await opened.send_bytes(_encode(ForwardOpen(self._port, counts=True)))
            async with asyncio.timeout(OPEN_WITHIN_S):
                _ready(await opened.receive())
        except TimeoutError as error:
            await opened.close()
            raise Unavailable(
                f"the node did not open port {self._port} within {OPEN_WITHIN_S:g} s"
            ) from error
        except BaseException:
            await opened.close()
            raise
        self._socket = opened

    async def _run(self) -> None:
        """Serves, over restarts of the node too, until the sandbox has ended."""
        while True:
            await self._receive()
            await self._drop()
            await self._open_again()

    async def _open_again(self) -> None:
        loop = asyncio.get_running_loop()
        give_up = loop.time() + RECONNECT_FOR_S
        while True:
            await asyncio.sleep(RETRY_S)
            try:
                await self._open()
            except (PlatformError, Conflict):  # the old connection may still hold the port
                if loop.time() > give_up:
                    raise
            else:
                return

    async def _drop(self) -> None:
        """Ends the connections of a socket that is gone."""
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._connections.clear()

    async def _receive(self) -> None:
        assert self._socket is not None  # noqa: S101 - set before this task is made
        async for message in self._socket:
            if message.type is not aiohttp.WSMsgType.BINARY:
                continue
            frame = _frame(message.data)
            if frame.opened:
                way = self._connections[frame.conn] = Way()
                way.task = task = asyncio.create_task(self._serve(frame.conn, way))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            elif (found := self._connections.get(frame.conn)) is not None:
                await self._take(found, frame)

    async def _take(self, way: Way, frame: ForwardFrame) -> None:
        if frame.reset and way.task is not None:
            way.task.cancel()
            return
        way.room.taken(frame.taken)
        if frame.data:
            await way.pieces.put(frame.data)
        if frame.eof:
            way.pieces.end()

    async def _serve(self, conn: int, way: Way) -> None:
        try:
            reader, writer = await asyncio.open_connection(*self._target)
            await self._carry(conn, way, reader, writer)
        except OSError:
            await self._send(ForwardFrame(conn, reset=True))
        finally:
            if self._connections.get(conn) is way:
                del self._connections[conn]
            way.pieces.end()

    async def _carry(
        self, conn: int, way: Way, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Carries both ways to both ends. What breaks off is a reset for the target too."""
        inwards = asyncio.create_task(self._inwards(conn, way, reader))
        try:
            while data := await way.pieces.take():
                writer.write(data)
                await writer.drain()
                if total := way.pieces.carried(len(data)):
                    await self._send(ForwardFrame(conn, taken=total))
            if writer.can_write_eof():
                writer.write_eof()
            await inwards
            await writer.drain()
        except BaseException:
            reset(writer)
            raise
        finally:
            inwards.cancel()
            await asyncio.gather(inwards, return_exceptions=True)
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def _inwards(self, conn: int, way: Way, reader: asyncio.StreamReader) -> None:
        try:
            while data := await reader.read(CHUNK):
                await way.room.wait()
                await self._send(ForwardFrame(conn, data=data))
                way.room.sent(len(data))
        except OSError:
            await self._send(ForwardFrame(conn, reset=True))
            return
        await self._send(ForwardFrame(conn, eof=True))

    async def _send(self, frame: ForwardFrame) -> None:
        assert self._socket is not None  # noqa: S101
        if not self._socket.closed:
            await self._socket.send_bytes(_encode(frame))
