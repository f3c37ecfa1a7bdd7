"""Closing a connection at once, in each of the states that it may be in."""

from __future__ import annotations

import asyncio
import socket

import pytest

from skerry.sdk.transport import cut

MUCH = bytes(8 << 20)  # more than the kernel takes at once


class Told(asyncio.Protocol):
    def __init__(self) -> None:
        self.lost = asyncio.Event()

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.set()


async def connected() -> tuple[asyncio.Transport, Told, socket.socket]:
    near, far = socket.socketpair()
    near.setblocking(False)
    far.setblocking(False)
    loop = asyncio.get_running_loop()
    transport, told = await loop.create_unix_connection(Told, sock=near)
    return transport, told, far


@pytest.mark.parametrize("closing", [False, True])
async def test_what_is_still_to_be_sent_keeps_no_connection_open(closing: bool) -> None:
    transport, told, far = await connected()
    with far:
        transport.write(MUCH)
        if closing:
            transport.close()
        cut(transport)
        async with asyncio.timeout(30):
            await told.lost.wait()


async def test_connection_that_was_closed_and_has_sent_everything_is_gone() -> None:
    transport, told, far = await connected()
    with far:
        transport.write(MUCH)
        transport.close()
        loop, got = asyncio.get_running_loop(), 0
        async with asyncio.timeout(30):
            while data := await loop.sock_recv(far, 1 << 20):
                got += len(data)
            await told.lost.wait()
        assert got == len(MUCH)
        cut(transport)  # `transport.abort()` raises AttributeError here
