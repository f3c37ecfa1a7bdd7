"""Forwards: connections to a port inside, and from one, carried to and from a client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from errno import ETIMEDOUT

from skerry.errors import InvalidRequest, PortRefused, SkerryError
from skerry.guest.forward import Connection
from skerry.node.clock import Clock
from skerry.node.life.lives import Lives
from skerry.node.life.sandbox import Sandbox
from skerry.wire.http import ForwardFrame

CONNECT_S = 10.0  # a server inside that does not accept is given that long
RESET_S = 1.0  # for telling a slow client that a connection is gone

Send = Callable[[ForwardFrame], Awaitable[None]]


class Forward:
    """One listening port and its connections; `over` is done when the sandbox is."""

    def __init__(self, send: Send, over: asyncio.Future[SkerryError]) -> None:
        self.over = over
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
        except asyncio.CancelledError:  # the agent's channel is lost; the port is served again
            with suppress(TimeoutError):
                async with asyncio.timeout(RESET_S):
                    await self._send(ForwardFrame(number, reset=True))
            raise
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

    def __init__(self, lives: Lives, clock: Clock) -> None:
        self._lives = lives
        self._clock = clock

    @asynccontextmanager
    async def open(self, sandbox: Sandbox, port: int, send: Send) -> AsyncIterator[Forward]:
        """Listens inside while the block lasts, over lost channels too; Conflict if it is taken."""
        _check(port)
        link = await self._lives.ensure_running(sandbox)
        forward = Forward(send, link.over)
        with sandbox.active_while(self._clock):
            async with link.listening(port, forward.serve):
                yield forward

    @asynccontextmanager
    async def connect(self, sandbox: Sandbox, port: int) -> AsyncIterator[Connection]:
        """A connection to a port inside; PortRefused if nothing answers there."""
        _check(port)
        link = await self._lives.ensure_running(sandbox)
        client = await link.ready()
        with sandbox.active_while(self._clock):
            try:
                async with asyncio.timeout(CONNECT_S):
                    connection = await client.open_port(port)
            except TimeoutError:
                raise PortRefused(
                    f"what listens on port {port} inside does not accept within {CONNECT_S:g} s",
                    port=port,
                    errno=ETIMEDOUT,
                ) from None
            try:
                yield connection
            finally:
                connection.reset()


def _check(port: int) -> None:
    if not 1 <= port <= 65_535:
        raise InvalidRequest(f"port: {port} is not between 1 and 65535")
