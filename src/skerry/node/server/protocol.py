"""HTTP connections with bounds: how many, how large a head may be, how long it may take.

uvicorn's own bounds do not do: its limit of connections answers text without a reason and counts no
WebSocket, the head of a request may be of any size, and a client that never ends it is waited for.
Beyond `connections_max` a few more connections are taken, on which only the health route is served,
so that a crowded node can be told from a dead one.

An answer whose body is known leaves in one write. uvicorn's `send` makes two, and each wakes the
client; what is sent piece by piece still goes through it.
"""

from __future__ import annotations

import asyncio
import logging
import resource
from dataclasses import dataclass
from itertools import chain
from typing import Any

import msgspec
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)

from skerry.errors import InvalidRequest, Overloaded, SkerryError
from skerry.node.server.exchange import Exchange, Headers, Receive, Scope, Send
from skerry.node.server.guard import OPEN_PATHS
from skerry.wire.http import ErrorBody

SPARE_CONNECTIONS = 64
HEAD_BYTES_MAX = 64 << 10
HEADERS_MAX = 128
HEAD_WITHIN_S = 15.0
RETRY_AFTER_S = 2.0
LINGER_S = 5.0

# What clients do wrong is answered, not logged: a flood of it must not fill a disk.
_quiet = logging.getLogger("skerry.node.server.protocol")
_quiet.setLevel(logging.ERROR)


@dataclass(slots=True)
class Bounds:
    """What a listener's connections share."""

    connections_max: int
    head_within_s: float
    refused: int = 0  # connections beyond the limit
    cut: int = 0  # connections whose request's head was too large or too late


def bounds_of(connections_max: int) -> Bounds:
    """Returns the bounds; connections never take more than half of the descriptors."""
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if soft != resource.RLIM_INFINITY:
        connections_max = max(1, min(connections_max, soft // 2))
    return Bounds(connections_max, HEAD_WITHIN_S)


class BoundedProtocol(HttpToolsProtocol):
    """One connection. It is cut if a request's head is too large, or is not there in time."""

    def __init__(self, bounds: Bounds, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.logger = _quiet
        self._bounds = bounds
        self._crowded = False
        self._in_head = True
        self._head_bytes = 0
        self._head_timer: asyncio.TimerHandle | None = None
        self._no_rest = False  # of the request's body
        self._linger_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Takes the connection, or answers at once that there are too many."""
        super().connection_made(transport)
        count = len(self.connections)
        self._crowded = count > self._bounds.connections_max
        if count > self._bounds.connections_max + SPARE_CONNECTIONS:
            self._refuse(b"429 Too Many Requests", self._too_many())
            return
        self._wait_for_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Lets go of it."""
        self._head_is_there()
        self._unlinger()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Takes the next bytes; a head that does not end is not collected."""
        if self.transport.is_closing():
            return
        if self._in_head and self._head_bytes > HEAD_BYTES_MAX:
            self._cut(f"head: more than {HEAD_BYTES_MAX} bytes")
            return
        if self._in_head:
            self._head_bytes += len(data)
        super().data_received(data)
        # Nearly every head comes whole: a timer that was set when it began would be for nothing.
        if self._in_head and self._head_timer is None and not self.transport.is_closing():
            self._wait_for_head()

    def on_message_begin(self) -> None:
        """A request begins."""
        super().on_message_begin()
        self.scope["skerry.whole"] = _answer_whole  # type: ignore[typeddict-unknown-key]
        self.scope["skerry.at_once"] = _write_at_once  # type: ignore[typeddict-unknown-key]
        self._no_rest = False
        if not self._in_head:
            self._in_head = True
            self._head_bytes = 0

    def on_headers_complete(self) -> None:
        """Serves the request, or says why not."""
        self._in_head = False
        self._head_bytes = 0
        self._head_is_there()
        size = len(self.url) + sum(map(len, chain.from_iterable(self.headers)))
        served = self.app
        if size > HEAD_BYTES_MAX or len(self.headers) > HEADERS_MAX:
            self.app = _answer(
                InvalidRequest(f"head: at most {HEAD_BYTES_MAX} bytes in {HEADERS_MAX} fields")
            )
        elif self._crowded and self.url.partition(b"?")[0].decode("latin-1") not in OPEN_PATHS:
            self.app = _answer(self._too_many())
        try:
            super().on_headers_complete()
        finally:
            refused, self.app = self.app is not served, served
        if (refused or self._crowded) and self.cycle is not None:
            self.cycle.keep_alive = False

    def on_body(self, body: bytes) -> None:
        """Takes a piece of a body. One that finds no other before it is passed on as it is."""
        cycle: Any = self.cycle  # its `receive` makes bytes of whatever its body is
        if cycle.body or cycle.response_complete:
            if type(cycle.body) is bytes:
                cycle.body = bytearray(cycle.body)  # many small ones must not be copied each time
            super().on_body(body)
            return
        super().on_body(b"")
        cycle.body = body
        if len(body) > HIGH_WATER_LIMIT:
            self.flow.pause_reading()

    def on_message_complete(self) -> None:
        """The request is there as a whole."""
        self._no_rest = True
        self._unlinger()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """The answer is out; a body that was not waited for gets a moment to end."""
        super().on_response_complete()
        if not self._no_rest and not self.transport.is_closing():
            self._linger_timer = self.loop.call_later(LINGER_S, self.transport.abort)

    def _unlinger(self) -> None:
        if self._linger_timer is not None:
            self._linger_timer.cancel()
            self._linger_timer = None

    def handle_websocket_upgrade(self) -> None:
        """Hands the connection to the WebSocket protocol unless it is one too many."""
        if self._crowded:
            self._refuse(b"429 Too Many Requests", self._too_many())
            return
        super().handle_websocket_upgrade()

    def _wait_for_head(self) -> None:
        self._head_timer = self.loop.call_later(self._bounds.head_within_s, self._late)

    def _head_is_there(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _late(self) -> None:
        self._head_timer = None
        self._cut(f"head: not complete within {self._bounds.head_within_s:g} s")

    def send_400_response(self, msg: str) -> None:
        """Answers to what is no HTTP, in the envelope of all errors."""
        self._end(b"400 Bad Request", msg.rstrip("."))

    def _cut(self, why: str) -> None:
        self._bounds.cut += 1
        self._end(b"408 Request Timeout", why)

    def _end(self, status: bytes, why: str) -> None:
        if self.cycle is not None and not self.cycle.response_complete:
            self.transport.abort()  # an answer is under way: nothing can be said in its midst
        else:
            self._refuse(status, InvalidRequest(why))

    def _too_many(self) -> Overloaded:
        self._bounds.refused += 1
        maximum = self._bounds.connections_max
        return Overloaded(
            f"connections: {maximum} are open",
            limit="connections",
            maximum=maximum,
            retry_after_s=RETRY_AFTER_S,
        )

    def _refuse(self, status: bytes, error: SkerryError) -> None:
        body = msgspec.json.encode(ErrorBody.of(error))
        head = b"HTTP/1.1 %s\r\ncontent-type: application/json\r\ncontent-length: %d\r\n"
        retry = b"retry-after: %d\r\n" % RETRY_AFTER_S if isinstance(error, Overloaded) else b""
        self.transport.write(
            head % (status, len(body)) + retry + b"connection: close\r\n\r\n" + body
        )
        self.transport.close()


def _answer(error: SkerryError) -> Any:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await Exchange(scope, receive, send).fail(error)

    return app


def _write_at_once(send: Send, parts: tuple[bytes, ...]) -> int:
    """Sends the next piece of a chunked answer, its parts as they lie; returns how long it was.

    Sends nothing, and returns 0, if it would have to wait, or if there is something else to it.
    """
    cycle = getattr(send, "__self__", None)  # not when uvicorn traces what is sent
    size = sum(map(len, parts))
    if (
        not size
        or not isinstance(cycle, RequestResponseCycle)
        or cycle.flow.write_paused
        or cycle.disconnected
        or cycle.response_complete
        or not cycle.chunked_encoding
        or cycle.scope["method"] == "HEAD"
    ):
        return 0
    cycle.transport.writelines((b"%x\r\n" % size, *parts, b"\r\n"))
    return size


async def _answer_whole(send: Send, status: int, headers: Headers, body: bytes) -> None:
    """Gives the request's whole answer, as its cycle's `send` would in two messages."""
    cycle: RequestResponseCycle = send.__self__  # type: ignore[attr-defined]
    if cycle.flow.write_paused and not cycle.disconnected:
        await cycle.flow.drain()
    if cycle.disconnected:
        return
    cycle.response_started = cycle.response_complete = True
    cycle.waiting_for_100_continue = False
    head = [STATUS_LINE[status]]
    for name, value in (*cycle.default_headers, *headers):
        head += (name, b": ", value, b"\r\n")
    if not cycle.keep_alive:
        head.append(b"connection: close\r\n")
    head.append(b"content-length: %d\r\n\r\n" % len(body))
    cycle.transport.writelines((b"".join(head), b"" if cycle.scope["method"] == "HEAD" else body))
    cycle.message_event.set()
    if not cycle.keep_alive:
        cycle.transport.close()
    cycle.on_response()
