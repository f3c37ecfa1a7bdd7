"""WebSockets: attach to a command, forward a port, hold an owner connection.

A binary message is msgpack, a text message JSON; the node answers in the kind of the first message.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Protocol, TypeVar

import msgspec
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from skerry.errors import Bug, InvalidRequest, SkerryError
from skerry.node.server.exchange import Body, Exchange, Receive, Scope, Send
from skerry.wire.http import ErrorBody, StreamEvent

T = TypeVar("T")
log = logging.getLogger("skerry.node.server")
MESSAGE_BYTES_MAX = 2 << 20
CLOSE_ERROR = 4000  # the last message told the error


class Handler(Protocol):
    """Serves one accepted socket."""

    def __call__(self, node: Any, socket: Socket, /) -> Awaitable[None]:
        """Returns or raises; the socket is closed afterwards."""


class Socket:
    """An accepted WebSocket that speaks msgspec types."""

    def __init__(self, raw: WebSocket, query: Exchange) -> None:
        self.raw = raw
        self.query = query  # for its path and query only
        self.packed = True
        self.closed_with: int | None = None  # the client's code, once it has closed

    async def receive(self, kind: Body[T]) -> T | None:
        """Returns the next message; None when the client is gone. InvalidRequest if it is none."""
        message = await self.raw.receive()
        if message["type"] == "websocket.disconnect":
            self.closed_with = message.get("code")
            return None
        data = message.get("bytes")
        try:
            if data is not None:
                self.packed = True
                return kind.msgpack.decode(data)
            self.packed = False
            return kind.json.decode(message["text"])
        except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
            raise InvalidRequest(f"message: {str(error)[:500]}") from error

    async def send(self, value: Any) -> None:
        """Sends one message; returns when the client has room for more; quiet once it is gone."""
        try:
            if self.packed:
                await self.raw.send_bytes(msgspec.msgpack.encode(value))
            else:
                await self.raw.send_text(msgspec.json.encode(value).decode())
        except (WebSocketDisconnect, RuntimeError, OSError):
            if self.raw.application_state is WebSocketState.CONNECTED and (
                self.raw.client_state is WebSocketState.CONNECTED
            ):
                log.debug("a message to %s was not sent", self.raw.url.path)

    async def receive_bytes(self) -> bytes | None:
        """Returns the next binary message as it is; None when the client is gone."""
        message = await self.raw.receive()
        if message["type"] == "websocket.disconnect":
            self.closed_with = message.get("code")
            return None
        data: bytes | None = message.get("bytes")
        if data is None:
            raise InvalidRequest("message: bytes are expected here, not text")
        return data

    async def send_bytes(self, data: bytes) -> None:
        """Sends one binary message as it is; as `send` else."""
        with suppress(WebSocketDisconnect, RuntimeError, OSError):
            await self.raw.send_bytes(data)

    async def close(self, code: int = 1000) -> None:
        """Closes the connection; idempotent."""
        if self.raw.application_state is not WebSocketState.DISCONNECTED:
            try:
                await self.raw.close(code)
            except (WebSocketDisconnect, RuntimeError, OSError):
                return


class SocketEndpoint:
    """A handler of sockets as an ASGI application that never lets an error out."""

    def __init__(self, node: Any, handler: Callable[[Any, Socket], Awaitable[None]]) -> None:
        self.node = node
        self.handler = handler

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one socket. An error is told in a StreamEvent before the close."""
        raw = WebSocket(scope, receive, send)
        socket = Socket(raw, Exchange(scope, receive, send))
        await raw.accept()
        code = 1000
        try:
            await self.handler(self.node, socket)
        except SkerryError as error:
            await socket.send(StreamEvent(error=ErrorBody.of(error)))
            code = CLOSE_ERROR
        except asyncio.CancelledError:
            await socket.close(1012)
            raise
        except Exception as error:
            log.exception("%s", scope["path"])
            await socket.send(
                StreamEvent(error=ErrorBody.of(Bug(f"{type(error).__name__}: {error}")))
            )
            code = CLOSE_ERROR
        await socket.close(code)
