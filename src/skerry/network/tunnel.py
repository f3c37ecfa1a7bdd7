"""CONNECT: a TLS connection to exactly the server that was asked for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from skerry.errors import InvalidRequest
from skerry.network.dial import Stream
from skerry.network.tls import ALERT, NotTls, server_name
from skerry.spec.network import canonical_host

__all__ = ["ALERT", "WrongServer", "carry", "hello"]


class WrongServer(Exception):
    """What came is no TLS connection to the server of the CONNECT; the text says why."""


async def hello(stream: Stream, first: bytes, host: str) -> bytes:
    """Returns the bytes of a ClientHello that asks for the host; raises WrongServer."""
    data = first
    while True:
        try:
            name = server_name(data)
            if name is not None and canonical_host(name) != host:
                raise WrongServer(f"its TLS names another server, {name[:80]!r}")
        except NotTls as error:
            raise WrongServer(str(error)) from None
        except InvalidRequest as error:
            raise WrongServer(f"its TLS names no server: {error.message}") from None
        if name is not None:
            return data
        more = await stream.read()
        if not more:
            raise WrongServer("it ended before its ClientHello was whole")
        data += more


async def carry(inside: Stream, outside: Stream, moved: Callable[[], None]) -> None:
    """Carries bytes both ways until both halves have ended; raises what breaks one of them."""

    async def one(source: Stream, sink: Stream) -> None:
        while data := await source.read():
            moved()
            await sink.write(data)
            moved()
        await sink.write_eof()

    ways = [
        asyncio.create_task(one(inside, outside)),
        asyncio.create_task(one(outside, inside)),
    ]
    try:
        done, _ = await asyncio.wait(ways, return_when=asyncio.FIRST_EXCEPTION)
    finally:
        for way in ways:
            way.cancel()
        await asyncio.wait(ways)
    for way in done:
        way.result()
