"""Forwards: connections to a port inside, and from one, carried to and from a client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from errno import ETIMEDOUT

from skerry.errors import InvalidRequest, PortRefused, SkerryError
from skerry.guest.forward import Connection
from skerry.network.pieces import Pieces, Room
from skerry.node.clock import Clock
from skerry.node.ledger import Did
from skerry.node.life.lives import Lives
from skerry.node.life.sandbox import Sandbox
from skerry.node.trail.acts import Trail
from skerry.wire.http import ForwardFrame

CONNECT_S = 10.0  # a server inside that does not accept is given that long
RESET_S = 1.0  # for telling a slow client that a connection is gone

Send = Callable[[ForwardFrame], Awaitable[None]]


class Served:
    """One connection of a forward; `ended` when the client sends no more for it."""

    def __init__(self, connection: Connection, *, limited: bool) -> None:
        self.connection = connection
        self.pieces = Pieces()
        self.room = Room(limited=limited)
        self.ended = asyncio.Event()
        connection.on_break = self.room.open

    def reset(self) -> None:
        """Aborts it; its `serve` ends by that."""
        self.connection.reset()
        self.pieces.end()
        self.ended.set()


class Forward:
    """One listening port and its connections; `over` is done when the sandbox is."""

    def __init__(self, send: Send, over: asyncio.Future[SkerryError], *, counts: bool) -> None:
        self.over = over
        self._send = send
        self._counts = counts
        self._served: dict[int, Served] = {}

    async def serve(self, connection: Connection) -> None:
        """Carries one connection both ways until both halves have ended."""
        number = connection.number
        served = self._served[number] = Served(connection, limited=self._counts)
        inward = asyncio.create_task(self._inward(served))
        try:
            await self._send(ForwardFrame(number, opened=True))
            while data := await connection.read():
                await served.room.wait()
                await self._send(ForwardFrame(number, data=data))
                served.room.sent(len(data))
            await self._send(ForwardFrame(number, eof=True))
            await served.ended.wait()
        except SkerryError:
            await self._send(ForwardFrame(number, reset=True))
        except asyncio.CancelledError:  # the agent's channel is lost; the port is served again
            with suppress(TimeoutError):
                async with asyncio.timeout(RESET_S):
                    await self._send(ForwardFrame(number, reset=True))
            raise
        finally:
            del self._served[number]
            inward.cancel()
            await asyncio.wait((inward,))

    async def _inward(self, served: Served) -> None:
        connection = served.connection
        try:
            while data := await served.pieces.take():
                await connection.write(data)
                total = served.pieces.carried(len(data))
                if total and self._counts:
                    await self._send(ForwardFrame(connection.number, taken=total))
            await connection.write_eof()
        except SkerryError:
            pass  # `serve` has it too, and tells it
        served.ended.set()

    async def take(self, frame: ForwardFrame) -> None:
        """Takes one frame of the client; one for a connection that is gone is dropped."""
        served = self._served.get(frame.conn)
        if served is None:
            return
        if frame.reset:
            served.reset()
            return
        served.room.taken(frame.taken)
        if frame.data:
            await served.pieces.put(frame.data)
        if frame.eof:
            served.pieces.end()

    def close(self) -> None:
        """The client is gone: nobody carries its connections any further."""
        for served in tuple(self._served.values()):
            served.reset()


class Forwarder:
    """Opens forwards; each keeps its sandbox active while it lasts."""

    def __init__(self, lives: Lives, clock: Clock, trail: Trail) -> None:
        self._lives = lives
        self._clock = clock
        self._trail = trail

    @asynccontextmanager
    async def open(
        self, sandbox: Sandbox, port: int, send: Send, *, counts: bool = False
    ) -> AsyncIterator[Forward]:
        """Listens inside while the block lasts, over lost channels too; Conflict if it is taken.

        Connections that are open at its end are reset. `counts` is as in ForwardOpen.
        """
        _check(port)
        link = await self._lives.ensure_running(sandbox)
        forward = Forward(send, link.over, counts=counts)
        with sandbox.active_while(self._clock):
            try:
                async with link.listening(port, forward.serve):
                    await self._opened(sandbox, "forward", port)
                    yield forward
            finally:
                forward.close()

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
                await self._opened(sandbox, "connect", port)
                yield connection
            finally:
                connection.reset()

    async def _opened(self, sandbox: Sandbox, action: str, port: int) -> None:
        """Puts on record that it is open, as durably as the sandbox asks for."""
        now = self._clock.wall()
        done = Did(action, {"port": port}, result={}, started=now, ended=now)
        self._trail.note(sandbox, done)
        await self._trail.levels.reach(sandbox.spec)


def _check(port: int) -> None:
    if not 1 <= port <= 65_535:
        raise InvalidRequest(f"port: {port} is not between 1 and 65535")
