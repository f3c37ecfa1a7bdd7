"""Streams of events from a running command, and the owner's side of a live one."""

from __future__ import annotations

import struct
from collections.abc import AsyncGenerator, AsyncIterator

import aiohttp
import msgspec

from skerry.errors import Bug, Unavailable
from skerry.spec.command import RunResult, Terminal
from skerry.wire.http import STREAM_EVENT_BYTES_MAX, ClientEvent, StreamEvent

_decode = msgspec.msgpack.Decoder(StreamEvent).decode
_encode = msgspec.msgpack.Encoder().encode


async def events_of(chunks: AsyncIterator[bytes]) -> AsyncIterator[StreamEvent]:
    """Yields the events of a body of length-prefixed ones.

    A body that ends without a result, manifest or error raises Unavailable: never a success.
    """
    finished = False
    async for frame in frames_of(chunks):
        event = _decode(frame)
        if event.error is not None:
            raise event.error.to_error()
        ends = (event.result, event.manifest, event.pushed)
        finished = finished or any(end is not None for end in ends)
        yield event
    if not finished:
        raise Unavailable("the stream broke off before its result")


async def frames_of(chunks: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
    """Yields the contents of length-prefixed frames; an unfinished last one is dropped."""
    buffer = bytearray()
    async for chunk in chunks:
        buffer += chunk
        while len(buffer) >= 4:
            (length,) = struct.unpack_from("<I", buffer)
            if length > STREAM_EVENT_BYTES_MAX:
                raise Bug(f"an event of {length} bytes")
            if len(buffer) < 4 + length:
                break
            frame = bytes(buffer[4 : 4 + length])
            del buffer[: 4 + length]
            yield frame


class LiveCommand:
    """A command with open standard input, over a WebSocket; iterate for its events."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self.result: RunResult | None = None
        self._first: StreamEvent | None = None

    async def opened(self) -> None:
        """Waits for its first event, which iteration yields later; raises what refused it."""
        self._first = await anext(aiter(self))

    async def send(self, data: bytes) -> None:
        """Sends bytes to its standard input, waiting while it does not read."""
        await self._send(ClientEvent(stdin=data))

    async def end_input(self) -> None:
        """Ends its standard input."""
        await self._send(ClientEvent(eof=True))

    async def signal(self, number: int) -> None:
        """Sends a signal to every process of the command."""
        await self._send(ClientEvent(signal=number))

    async def resize(self, rows: int, cols: int) -> None:
        """Sets the size of its terminal."""
        await self._send(ClientEvent(resize=Terminal(rows, cols)))

    async def cancel(self) -> None:
        """Ends every process of the command."""
        await self._send(ClientEvent(cancel=True))

    async def close(self) -> None:
        """Closes the connection; the command goes on without it."""
        await self._socket.close()

    async def _send(self, event: ClientEvent) -> None:
        try:
            await self._socket.send_bytes(_encode(event))
        except (aiohttp.ClientError, OSError) as error:
            raise Unavailable(f"the connection to the command broke off: {error}") from error

    async def __aiter__(self) -> AsyncIterator[StreamEvent]:
        """Yields events up to the result, which is kept in `result`."""
        first, self._first = self._first, None
        if first is not None:
            yield first
            if self.result is not None:
                return
        async for message in self._socket:
            if message.type is not aiohttp.WSMsgType.BINARY:
                continue
            event = _decode(message.data)
            if event.error is not None:
                raise event.error.to_error()
            if event.result is not None:
                self.result = event.result
            yield event
            if event.result is not None:
                return
        raise Unavailable("the connection to the command broke off before its result")
