"""One request and its answer: bounded bodies, JSON or msgpack, errors in the envelope.

Raw ASGI on purpose: this is the hot path, and every body and answer is a msgspec type.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, MutableMapping
from typing import Any, Generic, TypeAlias, TypeVar
from urllib.parse import unquote_plus

import msgspec

from skerry.errors import InvalidRequest, SkerryError
from skerry.spec.limits import MIB
from skerry.wire.http import JSON, MSGPACK, ErrorBody, printable

Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Headers: TypeAlias = tuple[tuple[bytes, bytes], ...]
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

BODY_BYTES_MAX = MIB  # of a body that is one message, unless its type allows more
QUERY_FIELDS_MAX = 64
BODY_WITHIN_S = 30.0  # a body that is one message, and this for each piece of it:
BODY_BYTES_PER_S = MIB
LOOK_AFTER_S = 0.02  # a client that goes sooner after its request is found out by the answer

log = logging.getLogger("skerry.node.server")

_JSON, _MSGPACK = JSON.encode(), MSGPACK.encode()
_to_json = msgspec.json.Encoder()
_to_msgpack = msgspec.msgpack.Encoder()


class ClientGone(Exception):
    """The client closed the connection before its request was complete."""


class Body(Generic[T_co]):
    """How to read one type of body: both decoders, and how large it may be."""

    def __init__(self, type_: type[T_co], bytes_max: int = BODY_BYTES_MAX) -> None:
        self.bytes_max = bytes_max
        self.json = msgspec.json.Decoder(type_)
        self.msgpack = msgspec.msgpack.Decoder(type_)


class Exchange:
    """One request. Everything that a client can get wrong here raises InvalidRequest.

    `status` is that of the answer, 0 before it began; the counts are of bodies.
    """

    __slots__ = (
        "_packed",
        "_params",
        "_receive",
        "_send",
        "bytes_in",
        "bytes_out",
        "scope",
        "status",
        "when_cut",
    )

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.scope = scope
        self.status = 0
        self.bytes_in = 0
        self.bytes_out = 0
        self.when_cut: SkerryError | None = None  # what is said if the node ends; None: ask again
        self._receive = receive
        self._send = send
        self._params: dict[str, list[str]] | None = None
        self._packed: bool | None = None

    @property
    def started(self) -> bool:
        """Whether an answer has begun: no other one can be given."""
        return self.status != 0

    def path(self, name: str) -> str:
        """Returns a part of the path; it may hold anything, so it is checked where it is used."""
        value: str = self.scope["path_params"][name]
        return value

    def header(self, name: bytes) -> str | None:
        """Returns a header's value, or None."""
        for key, value in self.scope["headers"]:
            if key == name:
                text: str = value.decode("latin-1")
                return text
        return None

    @property
    def tenant(self) -> str:
        """Tells tokens apart, without telling them; "" on the unix socket."""
        found: str = self.scope.get("skerry.tenant", "")
        return found

    # -- query ------------------------------------------------------------------------------------

    def allow(self, *names: str) -> None:
        """Raises InvalidRequest if the query holds a field that is not among the names."""
        for name in self.params():
            if name not in names:
                raise InvalidRequest(f"query: {name[:80]!r} is unknown; known: {', '.join(names)}")

    def params(self) -> dict[str, list[str]]:
        """Returns the query's fields; bytes that are no UTF-8 become surrogate escapes."""
        if self._params is None:
            self._params = {}
            parts = self.scope["query_string"].decode("latin-1").split("&")
            if len(parts) > QUERY_FIELDS_MAX:
                raise InvalidRequest("query: too many fields")
            for part in parts:
                if part:
                    name, _, value = part.partition("=")
                    self._params.setdefault(_word(name), []).append(_word(value))
        return self._params

    def param(self, name: str) -> str | None:
        """Returns the one value of a query field, or None. It is UTF-8."""
        value = self.name_param(name)
        if value is not None and not value.isascii() and value != printable(value):
            raise InvalidRequest(f"query: {name} is no UTF-8")
        return value

    def name_param(self, name: str) -> str | None:
        """Returns the one value of a query field that names files: it may be any bytes."""
        values = self.params().get(name)
        if values is None:
            return None
        if len(values) > 1:
            raise InvalidRequest(f"query: {name} is given more than once")
        return values[0]

    def number(self, name: str, default: int, *, low: int, high: int) -> int:
        """Returns a query field as a whole number within bounds."""
        text = self.param(name)
        if text is None:
            return default
        digits = text.removeprefix("-")
        if not digits.isascii() or not digits.isdecimal() or len(digits) > 19:
            raise InvalidRequest(f"query: {name}={text[:40]!r} is no number")
        if not low <= int(text) <= high:
            raise InvalidRequest(f"query: {name} must be between {low} and {high}, not {text}")
        return int(text)

    def seconds(self, name: str, default: float, *, high: float) -> float:
        """Returns a query field as seconds between 0 and a maximum."""
        text = self.param(name)
        if text is None:
            return default
        try:
            value = float(text)
        except ValueError as error:
            raise InvalidRequest(f"query: {name}={text[:40]!r} is no number of seconds") from error
        if not (math.isfinite(value) and 0 <= value <= high):
            raise InvalidRequest(f"query: {name} must be between 0 and {high:g} s, not {text[:40]}")
        return value

    def flag(self, name: str) -> bool:
        """Returns a query field that is 1, true or empty for yes; 0, false or missing for no."""
        text = self.param(name)
        if text is None or text in {"0", "false"}:
            return False
        if text in {"", "1", "true"}:
            return True
        raise InvalidRequest(f"query: {name}={text[:40]!r} is neither 1 nor 0")

    # -- body in ----------------------------------------------------------------------------------

    async def chunks(self) -> AsyncIterator[bytes]:
        """Gives the body as it comes, no faster than it is taken; ClientGone if it breaks off."""
        more = True
        while more:
            chunk, more = await self._piece()
            if chunk:
                yield chunk

    async def _piece(self) -> tuple[bytes, bool]:
        """Returns the next piece of the body, and whether more may come; ClientGone."""
        message = await self._receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        data: bytes = message.get("body", b"")
        self.bytes_in += len(data)
        return data, message.get("more_body", False)

    async def raw(self, bytes_max: int) -> bytes:
        """Returns the whole body if it is small enough."""
        length = self.header(b"content-length")
        if length is not None and length.isdecimal() and int(length) > bytes_max:
            raise InvalidRequest(f"body: {length} bytes, at most {bytes_max}")
        data, more = await self._piece()
        if not more and len(data) <= bytes_max:
            return data
        seconds = BODY_WITHIN_S + bytes_max / BODY_BYTES_PER_S
        try:
            async with asyncio.timeout(seconds):
                return await self._rest(data, bytes_max, more=more)
        except TimeoutError:
            raise InvalidRequest(f"body: not complete within {seconds:.0f} s") from None

    async def _rest(self, data: bytes, bytes_max: int, *, more: bool) -> bytes:
        parts, total = [data], len(data)
        while more and total <= bytes_max:
            data, more = await self._piece()
            parts.append(data)
            total += len(data)
        if total > bytes_max:
            raise InvalidRequest(f"body: at most {bytes_max} bytes")
        return b"".join(parts)

    async def body(self, kind: Body[T]) -> T:
        """Returns the body as its type."""
        data = await self.raw(kind.bytes_max)
        content_type = self.header(b"content-type")
        if content_type is None or content_type.startswith(JSON):
            decoder: Any = kind.json
        elif content_type.startswith(MSGPACK):
            decoder = kind.msgpack
        else:
            raise InvalidRequest(
                f"content-type: {content_type[:80]!r} is neither {JSON} nor {MSGPACK}"
            )
        try:
            value: T = decoder.decode(data)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise InvalidRequest(f"body: {str(error)[:500]}") from error
        return value

    # -- answer -----------------------------------------------------------------------------------

    def packed(self) -> bool:
        """Returns whether the answer is msgpack: as accepted, or else as the body came."""
        if self._packed is None:
            accept = self.header(b"accept")
            if accept is None or accept == "*/*":
                accept = self.header(b"content-type") or ""
            self._packed = MSGPACK in accept
        return self._packed

    async def reply(self, value: Any, status: int = 200, headers: Headers = ()) -> None:
        """Answers with one value."""
        if self.packed():
            data, kind = _to_msgpack.encode(value), _MSGPACK
        else:
            data, kind = _to_json.encode(value), _JSON
        self.status = status
        self.bytes_out += len(data)
        answer = self.scope["skerry.whole"]
        await answer(self._send, status, ((b"content-type", kind), *headers), data)

    async def fail(self, error: SkerryError) -> None:
        """Answers with an error, in the envelope."""
        headers: Headers = ()
        retry = error.fields.get("retry_after_s")
        if isinstance(retry, int | float):
            headers = ((b"retry-after", b"%d" % max(1, math.ceil(retry))),)
        if error.http_status == 401:
            headers += ((b"www-authenticate", b"Bearer"),)
        await self.reply(ErrorBody.of(error), error.http_status, headers)

    async def open_stream(self, content_type: str) -> None:
        """Begins an answer of unknown length."""
        await self.open_answer(200, ((b"content-type", content_type.encode()),))

    async def open_answer(self, status: int, headers: Headers) -> None:
        """Begins an answer of unknown length that somebody else gives."""
        self.status = status
        whole = [*headers, (b"x-accel-buffering", b"no")]
        await self._send({"type": "http.response.start", "status": status, "headers": whole})

    async def write(self, *parts: bytes) -> None:
        """Sends a piece; returns when the client has room for more, or is gone."""
        if not self._write_at_once(parts):
            data = b"".join(parts)
            self.bytes_out += len(data)
            await self._send({"type": "http.response.body", "body": data, "more_body": True})

    def _write_at_once(self, parts: tuple[bytes, ...]) -> bool:
        """Sends a piece if the client has room for it; False if it was not sent."""
        sent: int = self.scope["skerry.at_once"](self._send, parts)
        self.bytes_out += sent
        return sent > 0

    async def close_stream(self) -> None:
        """Ends the answer: only then may the client take it for complete."""
        await self._send({"type": "http.response.body", "body": b""})

    async def wait_gone(self) -> None:
        """Returns when the client has closed the connection (its body must have been read)."""
        while (await self._receive())["type"] != "http.disconnect":
            pass

    async def while_there(self, work: Coroutine[Any, Any, T]) -> T:
        """Does the work and returns what it does; ends it, with ClientGone, when the client goes.

        For work that is of use to this client only. The request's body must have been read.
        """
        task = asyncio.ensure_future(work)
        gone = asyncio.ensure_future(self.wait_gone())
        try:
            await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise ClientGone
        finally:
            gone.cancel()
            task.cancel()
            await asyncio.wait({task, gone})
        return await task

    async def if_there(self, work: Coroutine[Any, Any, T]) -> T:
        """As `while_there`, for work that is mostly short: nobody looks for the client at first.

        The work is done by the running task, which costs a third of a task and of watching it.
        """
        task, loop = asyncio.current_task(), asyncio.get_running_loop()
        assert task is not None  # noqa: S101 - a coroutine runs in one
        watch: asyncio.Future[None] | None = None
        gone = False

        def leave(seen: asyncio.Future[None]) -> None:
            nonlocal gone
            if not seen.cancelled():
                gone = True
                task.cancel()

        def look() -> None:
            nonlocal watch
            watch = asyncio.ensure_future(self.wait_gone())
            watch.add_done_callback(leave)

        timer = loop.call_later(LOOK_AFTER_S, look)
        try:
            return await work
        except asyncio.CancelledError:
            if gone and task.uncancel() == 0:
                raise ClientGone from None
            raise
        finally:
            timer.cancel()
            if watch is not None:
                watch.remove_done_callback(leave)
                watch.cancel()

    async def send_within(self, seconds: float, *parts: bytes) -> None:
        """Sends a piece as `write` does; a client that takes nothing for so long counts as gone."""
        if self._write_at_once(parts):
            return
        try:
            async with asyncio.timeout(seconds):
                await self.write(*parts)
        except TimeoutError:
            log.warning("%s: the client took nothing for %g s", self.scope["path"], seconds)
            raise ClientGone from None


def _word(text: str) -> str:
    """Returns a name or a value as it was before it was put into a query."""
    if "%" in text or "+" in text:
        return unquote_plus(text, errors="surrogateescape")
    return text
