"""A gateway with a stream for its client, and servers on this machine for the other side."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from skerry.errors import SandboxFailed
from skerry.network.decision import Decisions
from skerry.network.dial import Dialer
from skerry.network.gateway import Bounds, Gateway, Places
from skerry.network.resolve import Resolver
from skerry.network.services import NetworkConfig, Service, Services

WINDOW = 131_072
PYPI = {"pypi": Service(hosts=("index.example",))}


class Client:
    """Both ends of a connection from inside: `stream` is the gateway's."""

    def __init__(self) -> None:
        self.stream = self
        self._in: asyncio.Queue[bytes] = asyncio.Queue()
        self._out: asyncio.Queue[bytes] = asyncio.Queue()
        self._room = asyncio.Event()
        self._unread = 0
        self.unread_max = 0
        self.ended = False
        self.was_reset = asyncio.Event()

    # the gateway's side

    async def read(self) -> bytes:
        read = asyncio.ensure_future(self._in.get())
        cut = asyncio.ensure_future(self.was_reset.wait())
        try:
            await asyncio.wait((read, cut), return_when=asyncio.FIRST_COMPLETED)
            if read.done():
                return read.result()
            raise SandboxFailed("reset")
        finally:
            read.cancel()
            cut.cancel()

    async def write(self, data: bytes) -> None:
        while self._unread >= WINDOW and not self.was_reset.is_set():
            self._room.clear()
            await self._room.wait()
        if self.was_reset.is_set():
            raise SandboxFailed("reset")
        self._unread += len(data)
        self.unread_max = max(self.unread_max, self._unread)
        self._out.put_nowait(data)

    async def write_eof(self) -> None:
        if not self.ended:
            self.ended = True
            self._out.put_nowait(b"")

    def reset(self) -> None:
        self.was_reset.set()
        self._room.set()
        self._out.put_nowait(b"")

    # the test's side

    def send(self, data: bytes) -> None:
        if data:
            self._in.put_nowait(data)

    def end(self) -> None:
        self._in.put_nowait(b"")

    async def take(self) -> bytes:
        data = await asyncio.wait_for(self._out.get(), 10)
        self._unread -= len(data)
        self._room.set()
        return data

    async def until(self, mark: bytes) -> bytes:
        data = b""
        while mark not in data:
            piece = await self.take()
            assert piece, data
            data += piece
        return data

    async def rest(self) -> bytes:
        data = b""
        while piece := await self.take():
            data += piece
        return data


class Stand:
    """A gateway whose names lead to 127.0.0.1 unless a test says otherwise."""

    def __init__(self, *entries: str, bounds: Bounds | None = None, **config) -> None:
        self.names: dict[str, list[str]] = {}
        self.asked: list[str] = []
        self.own: frozenset[int] = frozenset()
        network = NetworkConfig(private=("*.test",), **config).check()
        services = Services(network, PYPI.__getitem__)
        services._known |= PYPI
        self.services = services
        loop = asyncio.get_running_loop()
        self.resolver = Resolver(self._lookup, network.addresses, loop.time)
        dialer = Dialer(self.resolver, services.may_be_private, lambda: self.own)
        self.places = Places(1000)
        self.decisions = Decisions("s-test", 100, loop.time, self.places.counts)
        self.touched = 0
        bounds = bounds or Bounds(200, 16_384, 30.0)
        self.gateway = Gateway(dialer, self.decisions, bounds, self.places, self._touch)
        self.change(*entries)
        self.tasks: set[asyncio.Task] = set()

    def _touch(self) -> None:
        self.touched += 1

    async def _lookup(self, host: str) -> list[str]:
        self.asked.append(host)
        return self.names.get(host, ["127.0.0.1"])

    def change(self, *entries: str) -> None:
        self.gateway.change(entries, self.services.policy(entries))

    def connect(self) -> Client:
        client = Client()
        task = asyncio.ensure_future(self.gateway.serve(client.stream))
        self.tasks.add(task)

        def over(done: asyncio.Task) -> None:
            self.tasks.discard(done)
            client.reset()

        task.add_done_callback(over)
        return client

    async def ask(self, data: bytes) -> bytes:
        """Sends a request, and returns all that comes."""
        client = self.connect()
        client.send(data)
        client.end()
        return await client.rest()

    def last(self):
        return self.decisions.last()[-1]

    async def close(self) -> None:
        for task in tuple(self.tasks):
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        await self.resolver.close()


@asynccontextmanager
async def server(handle: Callable) -> AsyncIterator[int]:
    """A server on the loopback; `handle(reader, writer)`."""
    tasks: set[asyncio.Task] = set()

    async def serve(reader, writer) -> None:
        tasks.add(asyncio.current_task())
        try:
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                await handle(reader, writer)
                await writer.drain()
        finally:
            writer.close()
            tasks.discard(asyncio.current_task())

    made = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield made.sockets[0].getsockname()[1]
    finally:
        made.close()
        for task in tuple(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def echo_head(reader, writer) -> None:
    """Answers with the head of the request that it got."""
    head = await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(head) + head)
