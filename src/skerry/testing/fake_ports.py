"""Ports of a fake instance: listeners of the host's, services inside, and clients inside.

Keeps the protocol's windows and half closes, so that the host's side can be tested without
privilege. A test adds to `services` what answers on a port inside, and calls `connect` to be a
client inside of a port that the host serves.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from skerry.testing.fake_wire import Code, Frame, Tag, parse_fields
from skerry.wire.streams import FORWARD, HOST_CONN, forward_stream

if TYPE_CHECKING:
    from skerry.testing.fake_agent import FakeAgent

WINDOW = 131_072
_CHUNK = 32_768


class FakeStream:
    """One forwarded connection, seen from inside."""

    def __init__(self, agent: FakeAgent, number: int) -> None:
        self.agent = agent
        self.number = number
        self.generation = agent.generation
        self.was_reset = False
        self._inbox: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._taken = 0
        self._sent = 0
        self._credit = WINDOW
        self._moved = asyncio.Event()

    async def read(self) -> bytes:
        """Returns the next bytes of the host; b"" at its end, ConnectionResetError after a reset."""
        data = await self._inbox.get()
        if data is None:
            self._inbox.put_nowait(None)
            if self.was_reset:
                raise ConnectionResetError
            return b""
        self._taken += len(data)
        self._send(Code.CREDIT, 1, [(Tag.OFFSET, self._taken)])
        return data

    async def read_all(self) -> bytes:
        """Returns everything up to the host's end."""
        parts = []
        while data := await self.read():
            parts.append(data)
        return b"".join(parts)

    async def write(self, data: bytes) -> None:
        """Sends bytes to the host, within its credit."""
        while data and not self.was_reset:
            room = self._credit - self._sent
            if room <= 0:
                self._moved.clear()
                await self._moved.wait()
                continue
            piece = data[: min(room, _CHUNK)]
            payload = self._sent.to_bytes(8, "little") + piece
            if self.generation == self.agent.generation:
                self.agent.send_raw(Code.DATA, forward_stream(self.number, 2), payload)
            self._sent += len(piece)
            data = data[len(piece) :]

    def end(self) -> None:
        """Ends the outward half."""
        self._send(Code.EOF, 2, [(Tag.TOTAL, self._sent)])

    def reset(self) -> None:
        """Aborts it."""
        self._send(Code.RESET, 0, [])
        self.cut()

    def cut(self) -> None:
        """It was aborted by the host, or with the channel."""
        self.was_reset = True
        self._inbox.put_nowait(None)
        self._moved.set()

    def take(self, frame: Frame) -> None:
        """Takes a frame of the host."""
        if frame.type == Code.RESET:
            self.cut()
        elif frame.type == Code.DATA:
            self._inbox.put_nowait(frame.payload[8:])
        elif frame.type == Code.EOF:
            self._inbox.put_nowait(None)
        elif frame.type == Code.CREDIT:
            offset = int.from_bytes(parse_fields(frame.payload)[Tag.OFFSET][0], "little")
            self._credit = max(self._credit, offset + WINDOW)
            self._moved.set()

    def _send(self, code: int, channel: int, pairs: list[tuple[int, int | bytes]]) -> None:
        if self.generation == self.agent.generation:
            self.agent.send(code, forward_stream(self.number, channel), pairs)


Service = Callable[[FakeStream], Awaitable[None]]


class FakePorts:
    """The listeners and forwarded connections of one fake instance."""

    def __init__(self, agent: FakeAgent) -> None:
        self.agent = agent
        self.services: dict[int, Service] = {}  # by port: what answers the host's connections
        self.taken: set[int] = set()  # ports that something inside listens on
        self.listening: dict[int, tuple[int, int]] = {}  # port -> handle, generation
        self.streams: dict[int, FakeStream] = {}
        self.heard = asyncio.Event()  # set by each LISTEN
        self._last = 0
        self._tasks: set[asyncio.Task[None]] = set()

    def connect(self, port: int) -> FakeStream:
        """A client inside connects to a port that the host serves; ConnectionRefusedError if none."""
        handle, generation = self.listening.get(port, (0, 0))
        if generation != self.agent.generation or self.agent.connection is None:
            raise ConnectionRefusedError
        self._last += 1
        stream = self.streams[self._last] = FakeStream(self.agent, self._last)
        pairs: list[tuple[int, int | bytes]] = [(Tag.HANDLE, handle), (Tag.PORT, port)]
        self.agent.send(Code.OPENED, forward_stream(self._last, 0), pairs)
        return stream

    def lose(self) -> None:
        """The channel is gone: connections end, listeners wait for the next one."""
        for stream in self.streams.values():
            stream.cut()
        self.streams.clear()

    def stop(self) -> None:
        """The instance is gone."""
        self.lose()
        for task in self._tasks:
            task.cancel()

    def listen(self, frame: Frame) -> None:
        """LISTEN or UNLISTEN."""
        handle = frame.stream >> 2
        if frame.type == Code.UNLISTEN:
            self.listening = {p: known for p, known in self.listening.items() if known[0] != handle}
            return
        port = int.from_bytes(parse_fields(frame.payload)[Tag.PORT][0], "little")
        known = self.listening.get(port)
        if port in self.taken or (known is not None and known[1] == self.agent.generation):
            pairs: list[tuple[int, int | bytes]] = [(Tag.ERROR_STEP, b"listen")]
            self.agent.send(Code.DONE, frame.stream, [*pairs, (Tag.ERRNO, errno.EADDRINUSE)])
            return
        self.listening[port] = handle, self.agent.generation
        self.agent.send(Code.STARTED, frame.stream, [(Tag.PID, 1)])
        self.heard.set()

    def take(self, frame: Frame) -> None:
        """A frame on a forward stream."""
        number = (frame.stream & (FORWARD - 1)) >> 2
        if frame.type == Code.CONNECT:
            self._connect(frame, number)
        elif (stream := self.streams.get(number)) is not None:
            stream.take(frame)

    def _connect(self, frame: Frame, number: int) -> None:
        port = int.from_bytes(parse_fields(frame.payload)[Tag.PORT][0], "little")
        service = self.services.get(port)
        if service is None or not number & HOST_CONN:
            self.agent.fail(frame.stream, errno.ECONNREFUSED, "connect")
            return
        stream = self.streams[number] = FakeStream(self.agent, number)
        self.agent.send(Code.OPENED, frame.stream, [(Tag.PORT, port)])
        task = asyncio.ensure_future(self._serve(service, stream))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, service: Service, stream: FakeStream) -> None:
        try:
            await service(stream)
        except ConnectionResetError:
            return
        if not stream.was_reset:
            stream.end()
