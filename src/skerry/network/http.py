"""Plain HTTP: one request and its answer, each read by h11 and written anew."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import h11

from skerry.network.dial import Failed, Stream
from skerry.network.target import Headers, Target, forwarded


class Side:
    """One end of an exchange: h11's view of it, and its stream."""

    def __init__(self, role: type[h11.CLIENT | h11.SERVER], stream: Stream, head_max: int) -> None:
        self._head_max = head_max
        self.http = h11.Connection(cast("Any", role), max_incomplete_event_size=head_max)
        self.stream = stream

    async def event(self) -> Any:
        """Returns the next event; RemoteProtocolError for what is no HTTP."""
        while True:
            event = self.http.next_event()
            if isinstance(event, h11.Request | h11.Response | h11.InformationalResponse):
                self._check_head(event)
            if event is not h11.NEED_DATA:
                return event
            self.http.receive_data(await self.stream.read())

    def _check_head(self, event: h11.Request | h11.Response | h11.InformationalResponse) -> None:
        """h11 bounds a head only while it is not complete."""
        size = sum(len(name) + len(value) + 4 for name, value in event.headers)
        size += len(event.target) if isinstance(event, h11.Request) else 0
        if size > self._head_max:
            raise h11.RemoteProtocolError(
                f"a head of {size} bytes, at most {self._head_max}", error_status_hint=431
            )

    async def send(self, event: Any) -> None:
        """Sends an event; returns when there is room for more."""
        data = self.http.send(event)
        if data:
            await self.stream.write(data)

    def rest(self) -> bytes:
        """Returns the bytes behind a CONNECT."""
        return bytes(self.http.trailing_data[0])

    def next_cycle(self) -> bool:
        """Makes ready for another request; False if this connection is over."""
        if self.http.our_state is h11.DONE and self.http.their_state is h11.DONE:
            self.http.start_next_cycle()
            return True
        return False


class Exchange:
    """One request from `inside`, carried to `outside`. `moved` is called as bytes move."""

    def __init__(self, inside: Side, outside: Side, moved: Callable[[], None]) -> None:
        self.answered = False  # the answer's head is out
        self._inside = inside
        self._outside = outside
        self._moved = moved

    async def carry(self, request: h11.Request, target: Target) -> None:
        """Returns when the answer is whole, and the request if the server took all of it.

        The answer is carried as it comes, also while the request's body is still being sent.
        Raises Failed and h11's errors for what the server does, and for a body that is none, and the
        errors of the stream from inside.
        """
        host = target.host if target.port == 80 else f"{target.host}:{target.port}"
        headers: Headers = [(b"Host", host.encode()), *forwarded(request.headers)]
        headers.append((b"Connection", b"close"))
        if any(name == b"transfer-encoding" for name, _ in request.headers):
            headers.append((b"Transfer-Encoding", b"chunked"))
        await self._outside.send(
            h11.Request(method=request.method, target=target.path, headers=headers)
        )
        body = asyncio.create_task(self._body())
        answer = asyncio.create_task(self._answer())
        try:
            await asyncio.wait((body, answer), return_when=asyncio.FIRST_COMPLETED)
            if body.done() and not body.cancelled() and body.exception() is None:
                await asyncio.wait((answer,))
        finally:
            for task in (body, answer):
                task.cancel()
            await asyncio.wait((body, answer))
        for task in (answer, body):
            if not task.cancelled():
                task.result()

    async def _body(self) -> None:
        while True:
            event = await self._inside.event()
            self._moved()
            if isinstance(event, h11.ConnectionClosed):
                raise Failed("the client left within its request")
            await self._outside.send(event)
            if isinstance(event, h11.EndOfMessage):
                return

    async def _answer(self) -> None:
        while True:
            event = await self._outside.event()
            self._moved()
            if isinstance(event, h11.ConnectionClosed):
                raise Failed("the server closed the connection before its answer was whole")
            if isinstance(event, h11.InformationalResponse):
                if event.status_code == 101:
                    raise Failed("the server switches protocols, which was not asked for")
                await self._inside.send(event)
                continue
            if isinstance(event, h11.Response):
                self.answered = True
                event = h11.Response(
                    status_code=event.status_code,
                    reason=event.reason,
                    headers=forwarded(event.headers),
                )
            await self._inside.send(event)
            if isinstance(event, h11.EndOfMessage):
                return
