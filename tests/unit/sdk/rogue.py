"""A server on a loopback whose connections do what a test says, well or badly."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import uvloop

from skerry.sdk.dial import Dialer
from skerry.sdk.pool import Pool

Act = Callable[["Peer"], Awaitable[None]]

GET = b"GET / HTTP/1.1\r\nHost: node\r\n\r\n"
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


def on_both_loops(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Runs the test on the loop of the standard library, and on the one of the sync face."""

    async def guarded(values: dict[str, object]) -> None:
        async with asyncio.timeout(30):  # what is not noticed would be waited for without end
            await test(**values)

    @functools.wraps(test)
    def run(*, loop: Callable[[], asyncio.AbstractEventLoop], **values: object) -> None:
        with asyncio.Runner(loop_factory=loop) as runner:
            runner.run(guarded(values))

    parameters = [*inspect.signature(test).parameters.values()]
    loop = inspect.Parameter("loop", inspect.Parameter.KEYWORD_ONLY)
    run.__signature__ = inspect.Signature([*parameters, loop])  # type: ignore[attr-defined]
    loops = [asyncio.new_event_loop, uvloop.new_event_loop]
    return pytest.mark.parametrize("loop", loops, ids=["asyncio", "uvloop"])(run)


def post(length: int) -> bytes:
    return b"POST / HTTP/1.1\r\nHost: node\r\nContent-Length: %d\r\n\r\n" % length


class Peer:
    """The server's side of one connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.heads: list[bytes] = []
        self.closed = asyncio.Event()  # by the client

    async def head(self) -> bytes:
        """Returns the next request's head."""
        self.heads.append(await self.reader.readuntil(b"\r\n\r\n"))
        return self.heads[-1]

    async def body(self) -> bytes:
        """Returns the body of the request whose head came last."""
        lines = self.heads[-1].lower().split(b"\r\n")
        (length,) = (line for line in lines if line.startswith(b"content-length:"))
        return await self.reader.readexactly(int(length.partition(b":")[2]))

    async def say(self, *pieces: bytes) -> None:
        for piece in pieces:
            self.writer.write(piece)
            await self.writer.drain()
            await asyncio.sleep(0)

    def close_now(self, last: bytes = b"") -> None:
        """Says this and closes the connection, before the client's loop gets to look."""
        number = self.writer.get_extra_info("socket").fileno()
        with socket.socket(fileno=os.dup(number)) as same:
            same.send(last)
            same.shutdown(socket.SHUT_RDWR)

    async def until_closed(self) -> None:
        while await self.reader.read(1 << 16):
            pass


class Rogue:
    """What the server saw, one Peer a connection."""

    def __init__(self) -> None:
        self.peers: list[Peer] = []
        self.port = 0
        self.path = ""


async def well(peer: Peer) -> None:
    """Answers every request as a node does."""
    while True:
        await peer.head()
        await peer.say(OK)


def saying(*pieces: bytes) -> Act:
    """Answers one request with these bytes, and closes."""

    async def act(peer: Peer) -> None:
        await peer.head()
        await peer.say(*pieces)

    return act


@asynccontextmanager
async def rogue(path: Path | None, *acts: Act, tls: object = None) -> AsyncIterator[Rogue]:
    """A server whose connections do these acts in turn; the last act is that of all further ones."""
    found = Rogue()
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = Peer(reader, writer)
        found.peers.append(peer)
        act = acts[min(len(found.peers), len(acts)) - 1]
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
                await act(peer)
        finally:
            peer.closed.set()
            writer.close()
            tasks.discard(task)

    if path is not None:
        found.path = str(path / "node.sock")
        server = await asyncio.start_unix_server(serve, found.path)
    else:
        server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls)  # type: ignore[arg-type]
        found.port = server.sockets[0].getsockname()[1]
    try:
        yield found
    finally:
        server.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@asynccontextmanager
async def pool_to(server: Rogue, *, tls: bool = False) -> AsyncIterator[Pool]:
    """A pool of connections to it."""
    pool = Pool(Dialer("127.0.0.1", server.port, socket_path=server.path or None, tls=tls))
    try:
        yield pool
    finally:
        await pool.close()
        assert not pool._open
