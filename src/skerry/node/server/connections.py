"""Sockets that are no command: owner connections and forwards."""

from __future__ import annotations

import asyncio

from skerry.node.node import Node
from skerry.node.server.bodies import CLIENT_EVENT, FORWARD_FRAME, FORWARD_OPEN
from skerry.node.server.sockets import Socket
from skerry.wire.http import ForwardFrame, OwnerWelcome


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
    async with node.forwarder.open(sandbox, first.port, socket.send) as forwarded:
        await socket.send(ForwardFrame(0))

        async def read() -> None:
            while (frame := await socket.receive(FORWARD_FRAME)) is not None:
                await forwarded.take(frame)

        reader = asyncio.create_task(read())
        try:
            await asyncio.wait((reader, forwarded.lost), return_when=asyncio.FIRST_COMPLETED)
        finally:
            reader.cancel()
            await asyncio.wait((reader,))
    if not reader.cancelled():
        reader.result()
    elif forwarded.lost.done():
        raise forwarded.lost.result()
