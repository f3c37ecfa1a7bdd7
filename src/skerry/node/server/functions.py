"""Routes of function calls: whole, streamed over a WebSocket, and their pools."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Any, cast

from skerry.errors import InvalidRequest, OutcomeUnknown
from skerry.guest.files import STALL_S
from skerry.node.functions.api import CallStreams
from skerry.node.node import Node
from skerry.node.server.bodies import CALL, CALL_FEED, CALL_OPEN, PREWARM
from skerry.node.server.exchange import ClientGone, Exchange
from skerry.node.server.sockets import Socket
from skerry.wire.functions import PIECE_BYTES, WINDOW_BYTES, CallEvent, CallFeed

TELL_BYTES = WINDOW_BYTES // 4  # of input are taken before the client is told again


async def call(node: Node, exchange: Exchange) -> None:
    """POST /v1/functions/call."""
    if exchange.scope["query_string"]:
        exchange.allow()
    spec = (await exchange.body(CALL)).check()
    if not spec.idempotent:
        exchange.when_cut = OutcomeUnknown("the node is ending; the call may have run")
    work = node.functions.call(spec, tenant=exchange.tenant)
    del spec  # its input may be large
    await exchange.reply(await exchange.if_there(work))


async def prewarm(node: Node, exchange: Exchange) -> None:
    """POST /v1/functions/prewarm."""
    exchange.allow()
    body = (await exchange.body(PREWARM)).check()
    await exchange.reply(await exchange.while_there(node.functions.prewarm(body)))


async def pools(node: Node, exchange: Exchange) -> None:
    """GET /v1/functions/pools."""
    exchange.allow()
    await exchange.reply(node.functions.pools())


class Inlet:
    """What a client streams into one call: read at once, so that its going is noticed at once.

    Invariant: it holds no more than the window, and what one message may exceed that by.
    """

    def __init__(self, socket: Socket, ends: int) -> None:
        self._socket = socket
        self._ends = ends  # that are still to come
        self._parts: deque[bytearray | None] = deque()  # None: an end
        self._held = 0
        self._taken = 0
        self._told = 0
        self._came = asyncio.Event()

    async def read(self) -> None:
        """Reads until the client is gone, which raises ClientGone; InvalidRequest if it goes wrong."""
        while (feed := await self._socket.receive(CALL_FEED)) is not None:
            if bool(feed.data) == feed.end:
                raise InvalidRequest("a CallFeed has either data or an end")
            if not self._ends:
                raise InvalidRequest("more input than was announced")
            self._held += len(feed.data)
            if self._held > WINDOW_BYTES:
                raise InvalidRequest(f"more than {WINDOW_BYTES} bytes beyond what was taken")
            self._put(feed)
            self._came.set()
        raise ClientGone

    def _put(self, feed: CallFeed) -> None:
        last = self._parts[-1] if self._parts else None
        if feed.end:
            self._ends -= 1
            self._parts.append(None)
        elif last is not None and len(last) < PIECE_BYTES:
            last += feed.data  # many small ones must not cost more than they hold
        else:
            self._parts.append(bytearray(feed.data))

    async def pieces(self) -> AsyncGenerator[bytes]:
        """Yields up to the next end. The client is told when that begins, and as it goes on."""
        await self._socket.send(CallEvent(taken=self._taken))
        while True:
            while not self._parts:
                self._came.clear()
                await self._came.wait()
            part = self._parts.popleft()
            if part is None:
                return
            yield bytes(part)
            self._held -= len(part)
            self._taken += len(part)
            if self._taken - self._told >= TELL_BYTES:
                self._told = self._taken
                await self._socket.send(CallEvent(taken=self._taken))


async def attach(node: Node, socket: Socket) -> None:
    """GET /v1/functions/attach: ends when the call has; the call ends when the client is gone."""
    socket.query.allow()
    first = await socket.receive(CALL_OPEN)
    if first is None:
        return
    spec = first.call.check(streamed=True)
    inlet = Inlet(socket, first.files + first.stdin)
    streams = CallStreams(
        output=lambda stream, data: _tell(socket, stream, data),
        fetched=lambda tar: _give(socket, tar),
        files=inlet.pieces() if first.files else None,
        stdin=inlet.pieces() if first.stdin else None,
    )
    calling = asyncio.ensure_future(
        node.functions.call(spec, tenant=socket.query.tenant, streams=streams)
    )
    del first, spec
    reading = asyncio.ensure_future(inlet.read())
    try:
        await asyncio.wait({calling, reading}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        reading.cancel()
        calling.cancel()
        await asyncio.wait({calling, reading})
    await _answer(socket, calling, reading)


async def _answer(
    socket: Socket, calling: asyncio.Future[Any], reading: asyncio.Future[Any]
) -> None:
    """Tells how it ended: the call's end comes first, then what was wrong with the client."""
    if not calling.cancelled():
        await socket.send(CallEvent(result=calling.result()))
    elif not reading.cancelled() and not isinstance(reading.exception(), ClientGone):
        reading.result()


async def _tell(socket: Socket, stream: str, data: bytes) -> None:
    for at in range(0, len(data), PIECE_BYTES):
        piece = data if len(data) <= PIECE_BYTES else data[at : at + PIECE_BYTES]
        event = CallEvent(stdout=piece) if stream == "stdout" else CallEvent(stderr=piece)
        await _send(socket, event)


async def _give(socket: Socket, tar: AsyncIterator[bytes]) -> None:
    async with aclosing(cast("AsyncGenerator[bytes]", tar)) as pieces:
        async for data in pieces:
            for at in range(0, len(data), PIECE_BYTES):
                await _send(socket, CallEvent(files=data[at : at + PIECE_BYTES]))


async def _send(socket: Socket, event: CallEvent) -> None:
    """Sends; a client that takes nothing for so long is no client."""
    try:
        async with asyncio.timeout(STALL_S):
            await socket.send(event)
    except TimeoutError:
        raise InvalidRequest(f"the client took nothing for {STALL_S:g} s") from None
