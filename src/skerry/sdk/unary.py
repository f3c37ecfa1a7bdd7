"""One kept-alive HTTP/1.1 connection for whole requests with whole answers, one after the other.

A command costs the client one request like this; what a general HTTP client does around it (headers
as objects, URLs, timers, readers) was most of the client's time (docs/adr/0007). Framing follows RFC
9112; the parser is llhttp's. Every byte from the other side is hostile: heads and bodies are bounded,
and what is no answer is a BadAnswer.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
from collections.abc import Callable
from typing import cast

import httptools

from skerry.spec.limits import MIB

HEAD_BYTES_MAX = 64 << 10  # of an answer, interim ones (1xx) and trailers included
BODY_BYTES_MAX = 256 * MIB  # twice what a result can be, with the most output that is kept
WHOLE_BYTES_MAX = 256 << 10  # are written at once; more would hold up the loop, and goes in
PIECE_BYTES = 64 << 10  # pieces of this: larger ones leave holes in the node's heap

Answer = tuple[int, bytes]  # status and body


class BadAnswer(Exception):
    """What came is no answer, or beyond all bounds: asking again would change nothing."""


class Connection(asyncio.Protocol):
    """One connection; `ask` makes a request. It belongs to one loop, and to one caller at a time.

    `reusable` says whether another request may follow: the last answer is there as a whole, nothing
    came after it, and all of the request had been taken. Else only `abort` is left.
    """

    def __init__(self, lost: Callable[[Connection], None]) -> None:
        self.heard = False  # whether any byte of an answer has come to the last request
        self.idle_since = 0.0  # kept by the pool
        self._lost = lost
        self._loop = asyncio.get_running_loop()
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport
        self._answer: asyncio.Future[Answer] | None  # while one is waited for
        self._room: asyncio.Future[None] | None = None  # while the other side takes nothing
        self._kept = True  # the answer's own word on the connection, and nothing against it
        self._whole = True  # the request is written
        # From the start: a crowded node answers and closes before it is asked.
        self._first: asyncio.Future[Answer] | None = self._begin()

    def _begin(self) -> asyncio.Future[Answer]:
        self.heard = False
        self._in_head = True
        self._bare_bytes = 0  # that have come since the last one of a body
        self._framed = False  # the answer says where it ends
        self._status = 0
        self._parts: list[bytes] = []
        self._size = 0
        answer: asyncio.Future[Answer] = self._loop.create_future()
        self._answer = answer
        return answer

    # -- for the pool -----------------------------------------------------------------------------

    async def ask(self, head: bytes, body: bytes | None) -> Answer:
        """Makes the request and returns its answer, which may come before the body is all sent.

        Raises OSError if the connection is lost before the answer is whole, BadAnswer for what is
        none. One who stops waiting, and every error, leaves the connection closed.
        """
        answer, self._first = self._first or self._begin(), None
        try:
            if body is None:
                self._transport.write(head)
            elif len(body) <= WHOLE_BYTES_MAX:
                self._transport.write(b"".join((head, body)))
            else:
                await self._send(head, body, answer)
            return await answer
        except BaseException:
            self.abort()
            raise
        finally:
            self._answer = None

    async def _send(self, head: bytes, body: bytes, answer: asyncio.Future[Answer]) -> None:
        self._whole = False
        self._transport.write(head)
        view = memoryview(body)
        for at in range(0, len(view), PIECE_BYTES):
            self._transport.write(view[at : at + PIECE_BYTES])
            await asyncio.sleep(0)
            if self._room is not None:
                await self._room
            if answer.done():  # refused early, or lost
                return
        self._whole = True

    @property
    def reusable(self) -> bool:
        """Returns whether another request may follow on it."""
        return (
            self._kept
            and self._whole
            and not self._transport.is_closing()
            and not self._transport.get_write_buffer_size()
        )

    def silent(self) -> bool:
        """Returns whether nothing lies there to be read: no end of the connection either."""
        poll = select.poll()
        poll.register(self._transport.get_extra_info("socket").fileno(), select.POLLIN)
        return not poll.poll(0)

    def abort(self) -> None:
        """Closes it at once, whatever is still to be sent."""
        self._transport.abort()

    # -- asyncio.Protocol -------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The connection is there."""
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing more comes: an answer that ends with the connection is whole now."""
        self._kept = False
        if exc is not None:
            self._last_words()
        elif not self._in_head and not self._framed:
            self._settle()
        if not isinstance(exc, OSError):
            when = "in the midst of its answer" if self.heard else "before it answered"
            exc = ConnectionResetError(f"it closed the connection {when}")
        self._fail(exc)
        self._lost(self)

    def _last_words(self) -> None:
        """Reads what was said before the connection broke under a write, such as why it closed."""
        if self._transport.get_extra_info("sslcontext") is not None:
            return
        number = self._transport.get_extra_info("socket").fileno()
        with contextlib.suppress(OSError):
            while self._answer is not None:
                data = os.read(number, WHOLE_BYTES_MAX)
                if not data:
                    return
                self.data_received(data)

    def pause_writing(self) -> None:
        """The other side takes nothing for now."""
        self._room = self._loop.create_future()

    def resume_writing(self) -> None:
        """It takes again, or there is nothing more to wait for."""
        room, self._room = self._room, None
        if room is not None and not room.done():
            room.set_result(None)

    def data_received(self, data: bytes) -> None:
        """Takes the next bytes of an answer; what comes unasked ends the connection."""
        if self._answer is None:
            self._kept = False
            self.abort()
            return
        self.heard = True
        size = self._size
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._refuse("it changes to another protocol")
        except httptools.HttpParserError as error:
            self._refuse(str(error) or type(error).__name__)
        if self._size > size:
            self._bare_bytes = 0
            return
        self._bare_bytes += len(data)
        if self._bare_bytes > HEAD_BYTES_MAX and self._answer is not None:
            self._refuse(f"a head of more than {HEAD_BYTES_MAX} bytes")

    def _settle(self) -> None:
        parts, self._parts = self._parts, []
        answer, self._answer = self._answer, None
        if answer is not None and not answer.done():
            body = parts[0] if len(parts) == 1 else b"".join(parts)
            answer.set_result((self._status, body))
        self.resume_writing()

    def _fail(self, error: Exception) -> None:
        self._parts = []
        answer, self._answer = self._answer, None
        if answer is not None and not answer.done():
            answer.set_exception(error)
            answer.exception()  # it counts as seen: one who was cancelled meanwhile does not look
        self.resume_writing()

    def _refuse(self, why: str) -> None:
        self._kept = False
        self._fail(BadAnswer(f"no answer of a node: {why}"))
        self.abort()

    # -- httptools: only what is waited for is looked at ------------------------------------------

    def on_message_begin(self) -> None:
        """An answer begins; a second one was not asked for."""
        if self._answer is None:
            self._kept = False

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header, of which only the framing concerns us; its syntax has been checked."""
        size = len(name)
        if size == 14 and name.lower() == b"content-length":
            self._framed = True
            if len(value) > 18 or int(value) > BODY_BYTES_MAX:
                self._refuse(f"a body of {value[:40].decode('latin-1')} bytes")
        elif size == 17 and name.lower() == b"transfer-encoding":
            self._framed = True

    def on_headers_complete(self) -> None:
        """The head is there; an interim answer is followed by another head."""
        if self._answer is not None:
            self._status = self._parser.get_status_code()
            self._in_head = self._status < 200

    def on_body(self, body: bytes) -> None:
        """A piece of the body."""
        if self._answer is None:
            return
        self._size += len(body)
        self._parts.append(body)
        if self._size > BODY_BYTES_MAX:
            self._refuse(f"a body of more than {BODY_BYTES_MAX} bytes")

    def on_message_complete(self) -> None:
        """An answer is whole, unless it was an interim one."""
        if self._answer is not None and not self._in_head:
            self._kept = self._kept and self._parser.should_keep_alive()
            self._settle()
