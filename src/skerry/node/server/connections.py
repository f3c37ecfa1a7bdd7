"""Sockets that are no command: owner connections and forwards."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from skerry.errors import InvalidRequest
from skerry.guest.forward import Connection
from skerry.node.node import Node
from skerry.node.server.bodies import CLIENT_EVENT, FORWARD_FRAME, FORWARD_OPEN
from skerry.node.server.sockets import Socket
from skerry.wire.http import ForwardFrame, OwnerWelcome, StreamEvent


async def owner(node: Node, socket: Socket) -> None:
    """GET /v1/connection: held open as long as the owner lives."""
    socket.query.allow("owner")
    held = node.owners.connect(socket.query.param("owner"))
    orderly = False
    try:
        await socket.send(OwnerWelcome(held.name, node.owners.lease_s))
        while await socket.receive(CLIENT_EVENT) is not None:
            pass  # whatever it says, it lives
        orderly = socket.closed_with == 1000
    finally:
        node.owners.disconnect(held, orderly=orderly)


async def forward(node: Node, socket: Socket) -> None:
    """GET /v1/sandboxes/ID/forward: listens inside as long as this socket is open."""
    socket.query.allow()
    sandbox = node.sandboxes.get(socket.query.path("id"))
    first = await socket.receive(FORWARD_OPEN)
    if first is None:
        return
    opening = node.forwarder.open(sandbox, first.port, socket.send, counts=first.counts)
    async with opening as forwarded:
        await socket.send(ForwardFrame(0))

        async def read() -> None:
            while (frame := await socket.receive(FORWARD_FRAME)) is not None:
                await forwarded.take(frame)

        reader = asyncio.create_task(read())
        try:
            await asyncio.wait((reader, forwarded.over), return_when=asyncio.FIRST_COMPLETED)
        finally:
            reader.cancel()
            await asyncio.wait((reader,))
    if not reader.cancelled():
        reader.result()
    elif forwarded.over.done():
        raise forwarded.over.result()


async def connect(node: Node, socket: Socket) -> None:
    """GET /v1/sandboxes/ID/connect: one connection to a port inside; ends when both halves have."""
    socket.packed = False  # what is said in words is text: binary messages are the connection's
    socket.query.allow("port")
    sandbox = node.sandboxes.get(socket.query.path("id"))
    if socket.query.param("port") is None:
        raise InvalidRequest("query: port is missing")
    port = socket.query.number("port", 0, low=1, high=65_535)
    async with node.forwarder.connect(sandbox, port) as connection:
        await socket.send(StreamEvent())
        ended = asyncio.Event()
        outward = asyncio.create_task(_outward(socket, connection, ended))

        async def awake() -> None:  # what stands still would read nothing
            await node.lives.ensure_running(sandbox)

        inward = asyncio.create_task(_inward(socket, connection, ended, awake))
        try:
            await asyncio.wait((outward, inward), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (outward, inward):
                task.cancel()
            await asyncio.wait((outward, inward))
        for task in (outward, inward):
            if not task.cancelled():
                task.result()


async def _outward(socket: Socket, connection: Connection, ended: asyncio.Event) -> None:
    """Carries what comes from inside, then its end; returns when the client's half has ended too."""
    while data := await connection.read():
        await socket.send_bytes(data)
    await socket.send_bytes(b"")
    await ended.wait()


async def _inward(
    socket: Socket,
    connection: Connection,
    ended: asyncio.Event,
    awake: Callable[[], Awaitable[None]],
) -> None:
    """Carries what the client sends, then its end; returns when the client is gone."""
    while (data := await socket.receive_bytes()) is not None:
        if ended.is_set():
            raise InvalidRequest("message: this half of the connection was ended before")
        await awake()
        if data:
            await connection.write(data)
        else:
            await connection.write_eof()
            ended.set()
