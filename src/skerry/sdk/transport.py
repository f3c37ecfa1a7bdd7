"""One node over HTTP: requests, typed errors, repeats that are safe to make.

A request that carries an operation id or an idempotency key is repeated after a lost connection, so
a node that restarts under a command costs the caller time, not the result (decisions 12 to 14).
"""

from __future__ import annotations

import asyncio
import io
import random
import re
from collections.abc import AsyncGenerator, AsyncIterable
from contextlib import aclosing
from typing import Any, TypeVar, overload
from urllib.parse import urlencode
from weakref import WeakKeyDictionary

import aiohttp
import msgspec
from yarl import URL

from skerry.errors import Bug, InvalidRequest, OutcomeUnknown, SkerryError, Unavailable
from skerry.sdk.debts import Debts
from skerry.sdk.heads import fixed_lines, node_of
from skerry.sdk.identity import Direct
from skerry.sdk.links import Links
from skerry.sdk.loss import Loss, extended
from skerry.sdk.pool import not_sent
from skerry.sdk.unary import WHOLE_BYTES_MAX, BadAnswer
from skerry.wire.http import MSGPACK, OWNER_HEADER, ErrorBody
from skerry.wire.pieces import PIECES, PieceReader

T = TypeVar("T")
Query = dict[str, str] | list[tuple[str, str]] | None

RETRY_FIRST_S = 0.05
RETRY_MAX_S = 2.0

_encoder = msgspec.msgpack.Encoder()
_plain = re.compile(r"[A-Za-z0-9_/?=&:.~-]*").fullmatch  # a target that needs no quoting


class Transport(Direct):
    """Connections to one node; usable from several event loops in turn.

    Whole requests with whole answers go through connections of our own (pool.py); streams,
    uploads and WebSockets through aiohttp. Invariant: what connects is only used on the loop that
    made it, and closed before that is. InvalidRequest for an address or a token that is none.
    """

    def __init__(
        self, base: str, *, socket_path: str | None = None, token: str | None = None
    ) -> None:
        self.base = base.rstrip("/")
        self.socket_path = socket_path
        self.owner: str | None = None
        self.debts = Debts()
        self._token = token
        self.closed = False
        self._loss = Loss()
        self._links: WeakKeyDictionary[asyncio.AbstractEventLoop, Links] = WeakKeyDictionary()
        self._url = node_of(self.base)
        self._root = self._url.raw_path.rstrip("/")
        self._fixed = fixed_lines(self._url, token)

    def another(self) -> Transport:
        """Returns one to the same node with connections of its own, for another loop at that time."""
        return Transport(self.base, socket_path=self.socket_path, token=self._token)

    @property
    def where(self) -> str:
        """The node's address, for messages."""
        return self.socket_path or self.base

    def _address(self, path: str, params: Query) -> URL:
        # aiohttp would drop the bytes of a path inside that are no UTF-8, and name another file.
        url = URL(self.base + path)
        if not params:
            return url
        return URL(f"{url}?{urlencode(params, errors='surrogateescape')}", encoded=True)

    def _head(self, method: str, path: str, params: Query, length: int | None) -> bytes:
        """Returns the head of a request of our own, with a body of that length or none."""
        if params is None and _plain(path) and "/." not in path:
            target = self._root + path
        else:
            target = self._address(path, params).raw_path_qs
        owner = f"{OWNER_HEADER}: {self.owner}\r\n" if self.owner else ""
        if length is not None:
            sent = f"Content-Type: {MSGPACK}\r\nContent-Length: {length}\r\n"
        else:
            sent = "" if method == "GET" else "Content-Length: 0\r\n"
        return f"{method} {target} HTTP/1.1\r\n{self._fixed}{owner}{sent}\r\n".encode()

    def _linked(self) -> Links:
        if self.closed:
            raise RuntimeError("the client is closed; open a new one with connect()")
        loop = asyncio.get_running_loop()
        links = self._links.get(loop)
        if links is None:
            links = Links(self._url, self.socket_path, lambda: self._links.pop(loop, None))
            self._links[loop] = links
        return links

    def session(self) -> aiohttp.ClientSession:
        """Returns the aiohttp session of the running loop."""
        return self._linked().session

    def headers(self, content_type: str | None = None) -> dict[str, str]:
        """Returns the headers of a request."""
        headers = {"Accept": MSGPACK}
        if content_type:
            headers["Content-Type"] = content_type
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        if self.owner:
            headers[OWNER_HEADER] = self.owner
        return headers

    async def close(self) -> None:
        """Closes the connections of the running loop; nothing can be asked afterwards.

        What iterations that were left early have to say is said before.
        """
        await self.debts.pay()
        self.closed = True
        links = self._links.pop(asyncio.get_running_loop(), None)
        if links is not None:
            await links.close()
        self._links.clear()

    @overload
    async def call(
        self,
        method: str,
        path: str,
        answer: type[T],
        *,
        body: Any = ...,
        content: bytes = ...,
        repeatable: bool = ...,
        params: Query = ...,
    ) -> T: ...
    @overload
    async def call(
        self,
        method: str,
        path: str,
        answer: None = None,
        *,
        body: Any = ...,
        content: bytes = ...,
        repeatable: bool = ...,
        params: Query = ...,
    ) -> None: ...
    async def call(
        self,
        method: str,
        path: str,
        answer: type[T] | None = None,
        *,
        body: Any = None,
        content: bytes | None = None,
        repeatable: bool = False,
        params: Query = None,
    ) -> T | None:
        """Makes a request and returns the decoded answer; raises the error that the node named.

        The body is a value, or else `content` as it is.

        With `repeatable` a lost connection, or the answer of a node that is ending, is followed by
        the same request again, for a minute from the loss. What only frees something (DELETE) has no
        minute of its own where another request has found the loss before.
        """
        data = content if body is None else encode(body)
        raw = await self._exchange(method, path, data, params, repeatable=repeatable)
        return None if answer is None else self._decoded(raw, answer, f"{method} {path}")

    async def call_once(self, path: str, answer: type[T], body: Any) -> T:
        """Posts what must not be carried out twice, and returns the decoded answer.

        It is asked for again only if it has not left, or if the node says that it did nothing. Raises
        OutcomeUnknown if the answer was lost.
        """
        raw = await self._exchange("POST", path, encode(body), None, repeatable=False, once=True)
        return self._decoded(raw, answer, f"POST {path}")

    def _decoded(self, raw: bytes, answer: type[T], what: str) -> T:
        try:
            return msgspec.msgpack.decode(raw, type=answer)
        except msgspec.DecodeError as error:
            raise Bug(f"{self.where} answered {what} with something else: {error}") from error

    async def _exchange(
        self,
        method: str,
        path: str,
        data: bytes | None,
        params: Query,
        *,
        repeatable: bool,
        once: bool = False,
    ) -> bytes:
        loop = asyncio.get_running_loop()
        give_up = self._loss.give_up_at(loop.time(), method, path)
        pause = RETRY_FIRST_S
        head = self._head(method, path, params, None if data is None else len(data))
        while True:
            began = loop.time()
            try:
                # Connections that lie ready may be closed ones: GET changes nothing.
                again = repeatable or method == "GET"
                status, raw = await self._linked().pool.ask(head, data, again=again)
                if status < 500:
                    self._loss.heard()
                if not 200 <= status < 300:
                    raise error_of(raw, status, self.where)
                return raw
            except Unavailable as error:
                # Said by a node that ends, or has restarted: nothing was done, or it is on record.
                # One that is being drained does not change its mind soon: the caller must know.
                again = (repeatable or once) and "retry_after_s" in error.fields
                again = again and error.fields.get("reason") != "draining"
                if again:
                    self._loss.missed(loop.time())
                give_up = extended(give_up, began, loop.time())
                if not again or loop.time() + pause > give_up:
                    raise
            except (BadAnswer, OSError) as error:
                if once and not not_sent(error):
                    lost = f"the answer of {self.where} was lost: {error}; it may have been done"
                    raise OutcomeUnknown(lost) from error
                if not isinstance(error, BadAnswer):
                    self._loss.missed(loop.time())
                give_up = extended(give_up, began, loop.time())
                again = (repeatable or once) and not isinstance(error, BadAnswer)
                if not again or loop.time() + pause > give_up:
                    raise Unavailable(f"cannot reach the node at {self.where}: {error}") from error
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311 - jitter, no secret
            pause = min(pause * 2, RETRY_MAX_S)

    async def send(
        self,
        method: str,
        path: str,
        chunks: AsyncIterable[bytes],
        answer: type[T],
        params: Query = None,
    ) -> T:
        """Sends a body piece by piece and returns the decoded answer.

        What `chunks` raises ends the transfer, and is raised here as it is.
        """
        failed: list[Exception] = []
        whole = False

        async def body() -> AsyncGenerator[bytes, None]:
            nonlocal whole
            try:
                async for chunk in chunks:
                    yield chunk
                whole = True
            except Exception as error:
                failed.append(error)
                raise

        try:
            async with self.session().request(
                method,
                self._address(path, params),
                data=body(),
                headers=self.headers("application/octet-stream"),
            ) as response:
                connection = response.connection
                carrier = connection.transport if connection is not None else None
                raw = await response.read()
                self._loss.heard()
                if not whole and carrier is not None:
                    # Refused early: what is still to be sent would keep the connection open.
                    cut(carrier)
                if response.status >= 400:
                    raise error_of(raw, response.status, self.where)
                return msgspec.msgpack.decode(raw, type=answer)
        except (aiohttp.ClientError, OSError) as error:
            if failed:
                raise failed[0] from None
            raise Unavailable(f"the transfer to {self.where} broke off: {error}") from error

    async def receive(
        self,
        method: str,
        path: str,
        *,
        params: Query = None,
        body: Any = None,
        accept: str | None = None,
    ) -> AsyncGenerator[bytes, None]:
        """Yields an answer's body piece by piece; a body that breaks off raises Unavailable."""
        data = None if body is None else encode(body)
        headers = self.headers(MSGPACK if data is not None else None)
        if accept is not None:
            headers["Accept"] = accept
        try:
            async with self.session().request(
                method,
                self._address(path, params),
                data=_body(data),
                headers=headers,
            ) as response:
                self._loss.heard()
                if response.status >= 400:
                    raise error_of(await response.read(), response.status, self.where)
                if accept not in (None, response.content_type):
                    raise Unavailable(f"{self.where} knows no {accept}: it is of another version")
                async for chunk in response.content.iter_any():
                    yield chunk
        except (aiohttp.ClientError, OSError) as error:
            raise Unavailable(f"the transfer from {self.where} broke off: {error}") from error

    async def fetch(self, path: str, params: Query = None) -> AsyncGenerator[bytes, None]:
        """Yields what comes out of a sandbox; raises why it failed midway, whose fault that ever is."""
        reader = PieceReader()
        async with aclosing(self.receive("GET", path, params=params, accept=PIECES)) as chunks:
            async for chunk in chunks:
                for piece in reader.feed(chunk):
                    yield piece
        if not reader.ended:
            raise reader.error() or Unavailable(f"the transfer from {self.where} has no end")

    async def socket(self, path: str, params: Query = None) -> aiohttp.ClientWebSocketResponse:
        """Opens a WebSocket; messages on it are msgpack."""
        try:
            return await self.session().ws_connect(
                self._address(path, params),
                headers=self.headers(),
                heartbeat=20.0,
                max_msg_size=1 << 20,
            )
        except (aiohttp.ClientError, OSError) as error:
            raise Unavailable(f"cannot open {path} at {self.where}: {error}") from error


def cut(carrier: asyncio.WriteTransport) -> None:
    """Closes a connection at once, whatever is still to be sent; nothing happens if it is gone.

    asyncio's own `abort` fails on a connection that was closed with bytes to send, and has sent them.
    """
    if not carrier.is_closing() or carrier.get_write_buffer_size():
        carrier.abort()


def _body(data: bytes | None) -> bytes | io.BytesIO | None:
    # A long one is sent piece by piece: in one piece it would hold up the loop.
    return io.BytesIO(data) if data is not None and len(data) > WHOLE_BYTES_MAX else data


def encode(body: Any) -> bytes:
    """Returns a body as it goes over the wire; InvalidRequest for what cannot."""
    try:
        return _encoder.encode(body)
    except OverflowError as error:
        raise InvalidRequest(f"a number is out of all bounds: {error}") from None
    except RecursionError:
        raise InvalidRequest("what is to be sent is nested too deep") from None
    except TypeError as error:
        raise InvalidRequest(f"what is to be sent holds what no message can: {error}") from None
    except UnicodeEncodeError as error:
        bad = error.object[error.start : error.end][:40]
        raise InvalidRequest(
            f"{bad!r} is no text: only names of files may hold other bytes than UTF-8; in a shell "
            "line they are written as $'\\377'"
        ) from None


def error_of(raw: bytes, status: int, where: str) -> SkerryError:
    """Returns the error in an answer's body; a body that holds none is a platform fault."""
    for decode in (msgspec.msgpack.decode, msgspec.json.decode):
        try:
            return decode(raw, type=ErrorBody).to_error()
        except msgspec.DecodeError:
            continue
    return Unavailable(f"{where} answered with status {status}: {raw[:200]!r}")
