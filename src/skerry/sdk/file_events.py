"""Streams of files and of what happens to them."""

from __future__ import annotations

import asyncio
import random
import struct
from collections.abc import AsyncGenerator
from contextlib import aclosing

import msgspec

from skerry.errors import Bug, SkerryError, Unavailable
from skerry.sdk.loss import RECONNECT_FOR_S
from skerry.sdk.transport import RETRY_FIRST_S, RETRY_MAX_S, Transport
from skerry.spec.files import WatchEvent, WatchKind
from skerry.wire.files import FILE_EVENT_BYTES_MAX, FileEvent, event_from_wire

_decode = msgspec.msgpack.Decoder(FileEvent).decode


async def receive_events(
    transport: Transport, path: str, params: dict[str, str]
) -> AsyncGenerator[FileEvent]:
    """Yields the events of a stream up to its end.

    One that breaks off without saying that it is done raises Unavailable.
    """
    buffer = bytearray()
    async with aclosing(transport.receive("GET", path, params=params)) as chunks:
        async for chunk in chunks:
            buffer += chunk
            while len(buffer) >= 4:
                (length,) = struct.unpack_from("<I", buffer)
                if length > FILE_EVENT_BYTES_MAX:
                    raise Bug(f"an event of {length} bytes")
                if len(buffer) < 4 + length:
                    break
                event = _decode(bytes(buffer[4 : 4 + length]))
                del buffer[: 4 + length]
                if event.error is not None:
                    raise event.error.to_error()
                if event.done:
                    return
                yield event
    raise Unavailable("the stream broke off before its end")


async def watch_events(
    transport: Transport, url: str, params: dict[str, str], path: str
) -> AsyncGenerator[WatchEvent]:
    """Yields what happens, and goes on over a new connection if one is lost.

    What happened in between cannot be known: OVERFLOW says so. Raises Unavailable if there is no
    connection for RECONNECT_FOR_S.
    """
    loop = asyncio.get_running_loop()
    begun = False
    give_up, pause = loop.time(), RETRY_FIRST_S
    while True:
        try:
            async with aclosing(receive_events(transport, url, params)) as events:
                async for event in events:
                    if event.watch is None:
                        continue
                    give_up, pause = loop.time() + RECONNECT_FOR_S, RETRY_FIRST_S
                    if event.watch.kind is WatchKind.READY and begun:
                        yield WatchEvent(WatchKind.OVERFLOW, path, directory=True)
                        continue
                    begun = True
                    yield event_from_wire(event.watch)
            return
        except Unavailable as error:
            if not begun or loop.time() + pause > give_up:
                raise _lost(error) from error
        await asyncio.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311 - jitter, no secret
        pause = min(pause * 2, RETRY_MAX_S)


def _lost(error: SkerryError) -> Unavailable:
    return Unavailable(f"the watch was lost: {error.message}", **error.fields)
