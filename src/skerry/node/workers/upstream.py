"""One request to a worker, over a connection of its own to the worker's socket."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import h11

from skerry.network.http import Side
from skerry.network.target import Headers

CONNECT_S = 10.0  # a worker whose backlog is full for so long is not there
HEAD_BYTES_MAX = 65_536
PIECE_BYTES = 65_536


class WorkerGone(Exception):
    """The worker is not there, or broke off; the same request may be sent again."""


class _Socket:
    """The connection as a Stream; its errors are WorkerGone."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def read(self) -> bytes:
        try:
            return await self._reader.read(PIECE_BYTES)
        except OSError as error:
            raise WorkerGone(error.strerror or str(error)) from error

    async def write(self, data: bytes) -> None:
        try:
            self._writer.write(data)
            await self._writer.drain()
        except OSError as error:
            raise WorkerGone(error.strerror or str(error)) from error

    async def write_eof(self) -> None:
        with contextlib.suppress(OSError):
            self._writer.write_eof()

    def reset(self) -> None:
        self._writer.transport.abort()


class Reply:
    """The head of a worker's answer, and its body as it comes."""

    def __init__(self, head: h11.Response, side: Side) -> None:
        self.status = head.status_code
        self._headers = {bytes(name): bytes(value) for name, value in head.headers}
        self._side = side

    def header(self, name: bytes) -> bytes | None:
        """Returns a header's value; the name is in lower case."""
        return self._headers.get(name)

    async def body(self) -> AsyncIterator[bytes]:
        """Gives the pieces of the body; WorkerGone unless it comes to its end."""
        while True:
            event = await _event(self._side)
            if isinstance(event, h11.EndOfMessage):
                return
            yield bytes(event.data)

    async def whole(self, bytes_max: int) -> bytes:
        """Returns the whole body; WorkerGone if it is longer: that is no worker."""
        data = bytearray()
        async for piece in self.body():
            data += piece
            if len(data) > bytes_max:
                raise WorkerGone(f"it answers with more than {bytes_max} bytes")
        return bytes(data)


@asynccontextmanager
async def asking(
    path: str, method: bytes, target: bytes, headers: Headers, body: bytes = b""
) -> AsyncIterator[Reply]:
    """One request to the worker at a socket; the connection is gone at the block's end.

    Raises WorkerGone. There is no limit to how long the worker may take.
    """
    try:
        async with asyncio.timeout(CONNECT_S):
            reader, writer = await asyncio.open_unix_connection(path, limit=2 * PIECE_BYTES)
    except TimeoutError:
        raise WorkerGone(f"it accepts no connection within {CONNECT_S:g} s") from None
    except OSError as error:
        raise WorkerGone(error.strerror or str(error)) from error
    side = Side(h11.CLIENT, _Socket(reader, writer), HEAD_BYTES_MAX)
    # It may answer before it has read all, and then does not read the rest.
    sending = asyncio.create_task(_send(side, method, target, headers, body))
    try:
        while True:
            event = await _event(side)
            if isinstance(event, h11.Response):
                break
        yield Reply(event, side)
    finally:
        sending.cancel()
        await asyncio.wait((sending,))
        if not sending.cancelled():
            sending.exception()
        writer.transport.abort()


async def _send(side: Side, method: bytes, target: bytes, headers: Headers, body: bytes) -> None:
    whole = [(b"Host", b"worker"), (b"Connection", b"close"), *headers]
    if body or method != b"GET":
        whole.append((b"Content-Length", b"%d" % len(body)))
    await side.send(h11.Request(method=method, target=target, headers=whole))
    for at in range(0, len(body), PIECE_BYTES):
        await side.send(h11.Data(data=body[at : at + PIECE_BYTES]))
    await side.send(h11.EndOfMessage())


async def _event(side: Side) -> Any:
    """Returns the next event; WorkerGone for what is no answer, or breaks off."""
    try:
        event = await side.event()
    except h11.RemoteProtocolError as error:
        raise WorkerGone(f"it does not speak HTTP: {error}") from None
    if isinstance(event, h11.ConnectionClosed):
        raise WorkerGone("it closed the connection")
    return event
