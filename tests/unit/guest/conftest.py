"""A scripted agent at the other end of a socketpair: tests say each frame and see each answer."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from skerry.guest import channel
from skerry.guest.client import GuestClient
from skerry.wire import guest, streams
from skerry.wire.frames import FrameDecoder, encode_frame

NONCE = b"nonce of 16 byte"
GENERATION = 7


@pytest.fixture(autouse=True)
def late_frames(monkeypatch) -> None:
    """Frames that can wait do not wait long."""
    monkeypatch.setattr(channel, "LATE_S", 0.01)


class Agent:
    """Frames to and from the client, one by one."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.generation = 0
        self._decoder = FrameDecoder()
        self._frames: list = []

    async def next(self):
        """Returns the next frame of the host as (stream, message)."""
        while not self._frames:
            data = await asyncio.wait_for(self.reader.read(65_536), 5)
            if not data:
                raise EOFError
            self._frames = self._decoder.feed(data)
        frame = self._frames.pop(0)
        assert frame.generation == self.generation
        return frame.stream, guest.from_host(frame)

    async def expect(self, kind, stream: int | None = None):
        """Returns the next message, which must be of this kind (and on this stream)."""
        at, message = await self.next()
        assert isinstance(message, kind), message
        assert stream is None or at == stream
        return message

    async def closed(self) -> None:
        """Returns when the host has closed the channel."""
        with contextlib.suppress(EOFError, ConnectionError):
            while True:
                await self.next()

    def send(self, message: guest.Message, stream: int = 0, generation: int | None = None) -> None:
        at = self.generation if generation is None else generation
        self.writer.write(guest.encode(message, at, stream))

    def send_raw(self, type_: int, stream: int, payload: bytes) -> None:
        self.writer.write(encode_frame(type_, self.generation, stream, payload))

    def output(self, handle: int, offset: int, data: bytes, channel: int = 2) -> None:
        for at in range(0, len(data), 32_768):
            piece = data[at : at + 32_768]
            self.send(guest.Data(offset + at, piece), streams.operation_stream(handle, channel))

    def done(self, handle: int, out: int = 0, err: int = 0, **fields) -> None:
        message = guest.Done(
            **({"exit_code": 0} | fields), stdout_total=out, stderr_total=err, start_ns=1, end_ns=2
        )
        self.send(message, handle << 2)

    async def welcome(
        self,
        *operations: guest.KnownOperation,
        generation: int = GENERATION,
        version: bytes = b"0.3.0",
    ):
        hello = await self.expect(guest.Hello, 0)
        self.generation = generation
        raw = tuple(operation.payload() for operation in operations)
        self.send(guest.Welcome(hello.nonce, generation, version, raw))


Connect = Callable[..., Awaitable[tuple[GuestClient, Agent]]]


@pytest.fixture
async def socketpair() -> AsyncIterator[Callable]:
    """Returns a maker of (open_channel, Agent) pairs; all are closed afterwards."""
    agents: list[Agent] = []

    async def make():
        ours, theirs = socket.socketpair()
        reader, writer = await asyncio.open_connection(sock=theirs)
        agents.append(Agent(reader, writer))

        async def open_channel(factory):
            transport, _ = await asyncio.get_running_loop().create_connection(factory, sock=ours)
            return transport

        return open_channel, agents[-1]

    yield make
    for agent in agents:
        agent.writer.close()
        with contextlib.suppress(ConnectionError):
            await agent.writer.wait_closed()


@pytest.fixture
async def connect(socketpair) -> AsyncIterator[Connect]:
    """Returns a maker of welcomed (client, agent) pairs; all are closed afterwards."""
    clients: list[GuestClient] = []

    async def make(*operations, generation: int = GENERATION, version: bytes = b"0.3.0"):
        open_channel, agent = await socketpair()
        task = asyncio.ensure_future(GuestClient.connect(open_channel, nonce=NONCE, timeout=5))
        await agent.welcome(*operations, generation=generation, version=version)
        client = await task
        clients.append(client)
        return client, agent

    yield make
    for client in clients:
        await client.close()
