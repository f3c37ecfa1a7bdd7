"""Forwards: a port inside whose connections are served by the host, and connections to one.

The agent listens on both loopback addresses, or connects to 127.0.0.1 and then ::1; each connection
is a pair of streams with a window of its own, so a slow one holds up nobody. Half close works both
ways. When the channel is lost, all connections end and a listener must be asked for again (with a
new handle).
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Awaitable, Callable
from errno import EAGAIN, ECONNREFUSED
from typing import Final

from skerry.errors import Conflict, Overloaded, PortRefused, SandboxFailed, SkerryError
from skerry.guest.channel import Channel, same_error
from skerry.guest.inlet import Inlet
from skerry.wire import guest, guest_forwards, streams
from skerry.wire.frames import WINDOW, ProtocolError
from skerry.wire.streams import place_of

CONNECTIONS_MAX: Final = 1024  # a channel; more are reset at once
CONNECTS_MAX: Final = 256  # of them, those that the host asked for
_GRANT_STEP: Final = WINDOW // 4


def _nothing() -> None:
    """Nobody wants to know."""


class Connection:
    """One forwarded connection. Invariant: granted <= read <= received <= granted + WINDOW."""

    __slots__ = (
        "_channel",
        "_ended",
        "_error",
        "_generation",
        "_granted",
        "_inlet",
        "_on_end",
        "_pieces",
        "_read",
        "_received",
        "_waiter",
        "number",
        "on_break",
        "port",
    )

    def __init__(
        self,
        channel: Channel,
        generation: int,
        number: int,
        port: int,
        on_end: Callable[[int], None],
    ) -> None:
        self.number = number
        self.port = port  # that the client inside connected to
        self._channel = channel
        self._generation = generation
        self._on_end = on_end
        stream = streams.forward_stream(number, streams.INWARD)
        self._inlet = Inlet(channel, generation, stream, resumable=False)
        self._pieces: deque[bytes] = deque()
        self._received = 0
        self._read = 0
        self._granted = 0
        self._ended = False  # the client inside sends no more
        self._error: SkerryError | None = None
        self._waiter: asyncio.Future[None] | None = None
        self.on_break: Callable[[], None] = _nothing  # called when it ends by an error

    async def read(self) -> bytes:
        """Returns the next bytes, b"" at the end; for one reader at a time.

        Raises SandboxFailed if the connection was reset, Unavailable if the channel is lost.
        """
        while not self._pieces:
            if self._error is not None:
                raise same_error(self._error)
            if self._ended:
                return b""
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        data = self._pieces.popleft()
        self._read += len(data)
        if self._read - self._granted >= _GRANT_STEP and self._error is None and not self._ended:
            self._granted = self._read
            self._send(guest.Credit(self._read), streams.OUTWARD)
        return data

    async def write(self, data: bytes) -> None:
        """Sends all of it within the agent's credit; errors as of `read`."""
        await self._inlet.write(data)
        if self._error is not None:
            raise same_error(self._error)

    async def write_eof(self) -> None:
        """Ends the inward half; reading goes on."""
        if self._error is None:
            await self._inlet.end()
            self._settle()

    def reset(self) -> None:
        """Aborts it, unless it is over; safe to call at any time."""
        if self._error is None and not (self._ended and self._inlet.finished):
            self._send(guest_forwards.Reset(), streams.CONTROL)
            self._end(SandboxFailed("the forwarded connection was reset by the host"))

    def take_data(self, message: guest.Data) -> None:
        """Bytes came; raises ProtocolError."""
        end = message.offset + len(message.data)
        if message.offset != self._received or self._ended or end > self._granted + WINDOW:
            raise ProtocolError(f"forwarded bytes {message.offset}..{end} after {self._received}")
        self._received = end
        if message.data:
            self._pieces.append(message.data)
            self._wake()

    def take_eof(self, total: int) -> None:
        """The outward half ended; raises ProtocolError."""
        if self._ended or total != self._received:
            raise ProtocolError(f"end of a connection at {total} after {self._received} bytes")
        self._ended = True
        self._wake()
        self._settle()

    def take_credit(self, offset: int) -> None:
        """The agent takes more; raises ProtocolError."""
        self._inlet.credit(offset)

    def take_reset(self) -> None:
        """The client inside, or the agent, aborted it."""
        self._end(SandboxFailed("the forwarded connection was reset inside"))

    def lose(self, error: SkerryError) -> None:
        """The channel is lost."""
        self._error = self._error or error
        self._inlet.lose(error)
        self._pieces.clear()
        self._wake()
        self.on_break()

    def _settle(self) -> None:
        if self._ended and self._inlet.finished:
            self._on_end(self.number)

    def _end(self, error: SkerryError) -> None:
        self._error = error
        self._inlet.close()
        self._pieces.clear()
        self._on_end(self.number)
        self._wake()
        self.on_break()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _send(self, message: guest.Message, channel: int) -> None:
        if not self._channel.lost.done():
            stream = streams.forward_stream(self.number, channel)
            self._channel.send(guest.encode(message, self._generation, stream))


OnConnection = Callable[[Connection], Awaitable[None]]


class Listener:
    """A port inside that is served. `close` stops it; connections that are open go on."""

    __slots__ = ("_close", "answered", "handle", "on_connection", "port", "ready")

    def __init__(
        self,
        handle: int,
        port: int,
        on_connection: OnConnection,
        ready: asyncio.Future[None],
        close: Callable[[int], None],
    ) -> None:
        self.handle = handle
        self.port = port
        self.on_connection = on_connection
        self.answered = False
        self.ready = ready  # done when the agent listens; its exception says why it does not
        self._close = close

    def close(self) -> None:
        """Stops listening; safe to call twice and after the channel was lost."""
        self._close(self.handle)


class Forwards:
    """The listeners and connections of one channel."""

    def __init__(
        self,
        channel: Channel,
        generation: int,
        serve: Callable[[OnConnection, Connection], None],
    ) -> None:
        self._channel = channel
        self._generation = generation
        self._serve = serve
        self._listeners: dict[int, Listener] = {}
        self._given_up: set[int] = set()  # closed before the agent answered: it still will
        self._connections: dict[int, Connection] = {}
        self._opening: dict[int, asyncio.Future[None]] = {}  # not yet answered
        self._last = 0

    async def connect(self, port: int) -> Connection:
        """Returns a connection to a port inside; its holder resets it when it is done.

        Raises PortRefused if nothing answers there, Overloaded beyond CONNECTS_MAX of them.
        """
        if sum(number >= streams.HOST_CONN for number in self._connections) >= CONNECTS_MAX:
            raise _connect_error(port, EAGAIN)
        self._last = self._last % (streams.HOST_CONN - 1) + 1
        number = streams.HOST_CONN | self._last
        connection = Connection(self._channel, self._generation, number, port, self._forget)
        self._tell(guest_forwards.Connect(port), streams.forward_stream(number, streams.CONTROL))
        opening: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._connections[number], self._opening[number] = connection, opening
        try:
            await opening
        except asyncio.CancelledError:
            self._opening.pop(number, None)
            connection.reset()
            raise
        return connection

    def listen(self, handle: int, port: int, on_connection: OnConnection) -> Listener:
        """Asks the agent to listen; the listener's `ready` says when it does."""
        ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        listener = Listener(handle, port, on_connection, ready, self._close)
        self._tell(guest_forwards.Listen(port), streams.operation_stream(handle, streams.CONTROL))
        self._listeners[handle] = listener
        return listener

    def take(self, message: guest.Message, stream: int) -> None:
        """Takes a message on a forward stream; raises ProtocolError.

        One for a connection that is not known any more was under way when the host reset it.
        """
        number = place_of(stream).number
        connection = self._connections.get(number)
        if isinstance(message, guest_forwards.Opened):
            self._open(number, message)
        elif connection is None:
            return
        elif number in self._opening:
            self._refuse(number, message)
        elif isinstance(message, guest.Data):
            connection.take_data(message)
        elif isinstance(message, guest.Eof):
            connection.take_eof(message.total)
        elif isinstance(message, guest.Credit):
            connection.take_credit(message.offset)
        elif isinstance(message, guest_forwards.Reset | guest.Error):
            connection.take_reset()

    def take_answer(self, handle: int, error: SkerryError | None) -> bool:
        """The agent listens, or says why not; False if no listener has this handle."""
        listener = self._listeners.get(handle)
        if listener is None:
            given_up = handle in self._given_up
            self._given_up.discard(handle)
            return given_up
        listener.answered = True
        if error is not None:
            del self._listeners[handle]
        if not listener.ready.done():
            if error is not None:
                listener.ready.set_exception(error)
                listener.ready.exception()
            else:
                listener.ready.set_result(None)
        return True

    def lose(self, error: SkerryError) -> None:
        """The channel is lost."""
        connections, self._connections = self._connections, {}
        for connection in connections.values():
            connection.lose(error)
        opening, self._opening = self._opening, {}
        for future in opening.values():
            if not future.done():
                future.set_exception(same_error(error))
                future.exception()
        for handle in list(self._listeners):
            self.take_answer(handle, same_error(error))

    def _refuse(self, number: int, message: guest.Message) -> None:
        """The agent could not connect; raises ProtocolError if it says anything else."""
        if not isinstance(message, guest.Error):
            raise ProtocolError(f"{message.CODE.name} before connection {number} was opened")
        opening, connection = self._opening.pop(number), self._connections.pop(number)
        if not opening.done():
            opening.set_exception(_connect_error(connection.port, message.errno))

    def _open(self, number: int, message: guest_forwards.Opened) -> None:
        if number >= streams.HOST_CONN:
            opening = self._opening.pop(number, None)
            if opening is not None and not opening.done():
                opening.set_result(None)
            elif number in self._connections:
                raise ProtocolError(f"forwarded connection {number} was opened twice")
            return
        if number in self._connections or message.handle is None:
            raise ProtocolError(f"forwarded connection {number} was opened twice, or by nobody")
        listener = self._listeners.get(message.handle)
        if listener is None or len(self._connections) >= CONNECTIONS_MAX:
            self._tell(guest_forwards.Reset(), streams.forward_stream(number, streams.CONTROL))
            return
        connection = Connection(self._channel, self._generation, number, message.port, self._forget)
        self._connections[number] = connection
        self._serve(listener.on_connection, connection)

    def _forget(self, number: int) -> None:
        self._connections.pop(number, None)

    def _close(self, handle: int) -> None:
        listener = self._listeners.pop(handle, None)
        if listener is not None and not self._channel.lost.done():
            if not listener.answered:
                self._given_up.add(handle)
            self._tell(guest_forwards.Unlisten(), streams.operation_stream(handle, streams.CONTROL))

    def _tell(self, message: guest.Message, stream: int) -> None:
        self._channel.send(guest.encode(message, self._generation, stream))


def _connect_error(port: int, errno: int) -> SkerryError:
    """Returns what the agent's refusal to connect means."""
    if errno == ECONNREFUSED:
        return PortRefused(f"nothing listens on port {port} inside", port=port, errno=errno)
    if errno == EAGAIN:
        return Overloaded(
            f"{CONNECTS_MAX} connections into this sandbox are open already",
            limit="forwards",
            retry_after_s=1.0,
        )
    reason = os.strerror(errno)
    return PortRefused(f"cannot connect to port {port} inside: {reason}", port=port, errno=errno)


def listen_error(errno: int) -> SkerryError:
    """Returns what a refused LISTEN means."""
    if errno in (98, 17):  # EADDRINUSE, EEXIST
        return Conflict("the port is in use inside", errno=errno, step="listen")
    return SandboxFailed(f"the guest agent cannot listen: errno {errno}", errno=errno)
