"""The connections of one event loop to one node, for whole requests (unary.py)."""

from __future__ import annotations

import asyncio
from collections import deque

from skerry.sdk.dial import Dialer
from skerry.sdk.unary import Answer, Connection

IDLE_S = 15.0  # a node lets go of a connection after 75 s; it must not be quicker than we are


def not_sent(error: BaseException) -> bool:
    """Returns whether `Pool.ask` raised it before anything of the request had left."""
    return getattr(error, "not_sent", False)


class Pool:
    """Kept-alive connections, the one last used first; without a limit on how many are in use.

    A command holds its connection for as long as it runs: a limit would stall the one beyond it.
    Used on one loop only; nothing is open after `close`.
    """

    def __init__(self, dialer: Dialer) -> None:
        self._dialer = dialer
        self._loop = asyncio.get_running_loop()
        self._free: deque[Connection] = deque()  # by the time when they became free
        self._open: set[Connection] = set()
        self._sweeper: asyncio.TimerHandle | None = None
        self._closed = False
        self._empty: asyncio.Future[None] | None = None  # while `close` waits

    async def ask(self, head: bytes, body: bytes | None, *, again: bool) -> Answer:
        """Makes one request and returns its answer.

        Raises OSError if the node cannot be reached or the connection is lost, BadAnswer for an
        answer that is none. A kept connection that turns out closed is replaced: with `again`, if the
        request may be made twice, as long as no byte of an answer has come; else before it is sent.
        """
        connection = self._take(sure=not again)
        if connection is not None:
            try:
                answer = await connection.ask(head, body)
            except OSError:
                if connection.heard or not again:
                    raise
            else:
                self._keep(connection)
                return answer
        connection = await self._connect()
        answer = await connection.ask(head, body)
        self._keep(connection)
        return answer

    async def close(self) -> None:
        """Closes all connections; whoever waits on one gets an OSError."""
        self._closed = True
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None
        self._free.clear()
        for connection in self._open:
            connection.abort()
        if self._open:
            self._empty = self._empty or self._loop.create_future()
            await asyncio.shield(self._empty)

    async def _connect(self) -> Connection:
        self._check_open()
        try:
            connection = await self._dialer.dial(lambda: Connection(self._lost))
        except OSError as error:
            error.not_sent = True  # type: ignore[attr-defined]
            raise
        self._open.add(connection)
        try:
            self._check_open()
        except OSError:
            connection.abort()
            raise
        return connection

    def _check_open(self) -> None:
        if self._closed:
            raise ConnectionAbortedError("the client is closed")

    def _lost(self, connection: Connection) -> None:
        self._open.discard(connection)
        if self._empty is not None and not self._open and not self._empty.done():
            self._empty.set_result(None)

    def _take(self, *, sure: bool) -> Connection | None:
        while self._free:
            connection = self._free.pop()
            if connection.reusable and (not sure or connection.silent()):
                return connection
            connection.abort()
        return None

    def _keep(self, connection: Connection) -> None:
        if self._closed or not connection.reusable:
            connection.abort()
            return
        connection.idle_since = self._loop.time()
        self._free.append(connection)
        if self._sweeper is None:
            self._sweeper = self._loop.call_later(IDLE_S, self._sweep)

    def _sweep(self) -> None:
        self._sweeper = None
        until = self._loop.time() - IDLE_S
        while self._free and self._free[0].idle_since <= until:
            self._free.popleft().abort()
        if self._free:
            self._sweeper = self._loop.call_at(self._free[0].idle_since + IDLE_S, self._sweep)
