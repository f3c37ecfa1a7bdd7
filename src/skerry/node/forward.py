"""Reverse forward: connections to a port inside a sandbox, carried to a client over one socket."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from skerry.errors import InvalidRequest, SkerryError
from skerry.guest.forward import Connection
from skerry.node.clock import Clock
from skerry.node.handles import Handles
from skerry.node.lives import Lives
from skerry.node.sandbox import Sandbox
from skerry.wire.http import ForwardFrame

Send = Callable[[ForwardFrame], Awaitable[None]]


class Forward:
    """One listening port and its connections; `lost` is done when the agent's channel is."""

    def __init__(self, send: Send, lost: asyncio.Future[SkerryError]) -> None:
        self.lost = lost
        self._send = send
        self._connections: dict[int, Connection] = {}
        self._ended: dict[int, asyncio.Event] = {}

    async def serve(self, connection: Connection) -> None:
        """Carries one connection outward until both halves have ended."""
        number = connection.number
        self._connections[number] = connection
        ended = self._ended[number] = asyncio.Event()
        try:
            await self._send(ForwardFrame(number, opened=True))
            while data := await connection.read():
                await self._send(ForwardFrame(number, data=data))
            await self._send(ForwardFrame(number, eof=True))
            await ended.wait()
        except SkerryError:
            await self._send(ForwardFrame(number, reset=True))
        finally:
            del self._connections[number], self._ended[number]

    async def take(self, frame: ForwardFrame) -> None:
        """Carries one frame of the client inward; one for a connection that is gone is dropped."""
        connection = self._connections.get(frame.conn)
        if connection is None:
            return
        if frame.reset:
            connection.reset()
            self._ended[frame.conn].set()
            return
        try:
            if frame.data:
                await connection.write(frame.data)
            if frame.eof:
                await connection.write_eof()
                self._ended[frame.conn].set()
        except SkerryError:
            ended = self._ended.get(frame.conn)
            if ended is not None:
                ended.set()


class Forwarder:
    """Opens forwards; each keeps its sandbox active while it lasts."""

    def __init__(self, lives: Lives, handles: Handles, clock: Clock) -> None:
        self._lives = lives
        self._handles = handles
        self._clock = clock

    @asynccontextmanager
    async def open(self, sandbox: Sandbox, port: int, send: Send) -> AsyncIterator[Forward]:
        """Listens inside while the block lasts; Conflict if the port is taken."""
        if not 1 <= port <= 65_535:
            raise InvalidRequest(f"port: {port} is not between 1 and 65535")
        link = await self._lives.ensure_running(sandbox)
        client = await link.ready()
        forward = Forward(send, client.lost)
        with sandbox.active_while(self._clock):
            listener = await client.listen(port, forward.serve, handle=self._handles.new(sandbox))
            try:
                yield forward
            finally:
                listener.close()
