"""One node over HTTP: requests, typed errors, repeats that are safe to make.

A request that carries an operation id or an idempotency key is repeated after a lost connection, so
a node that restarts under a command costs the caller time, not the result (decisions 12 to 14).
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import random
import socket
from collections.abc import AsyncGenerator, AsyncIterable
from contextlib import aclosing
from typing import Any, TypeVar, overload
from urllib.parse import urlencode
from weakref import WeakKeyDictionary

import aiohttp
import msgspec
from yarl import URL

from skerry.errors import Bug, SkerryError, Unavailable
from skerry.sdk.debts import Debts
from skerry.wire.http import MSGPACK, OWNER_HEADER, ErrorBody
from skerry.wire.pieces import PIECES, PieceReader

T = TypeVar("T")
Query = dict[str, str] | list[tuple[str, str]] | None

CONNECT_TIMEOUT_S = 10.0
RECONNECT_FOR_S = 60.0  # how long a repeatable request looks for a node that went away
HELD_S = 15.0  # a request that was lost after more than this had reached the node
RETRY_FIRST_S = 0.05
RETRY_MAX_S = 2.0
# Idle for 20 s, then asked every 10 s, lost after four questions without an answer.
KEEP_ALIVE = (("TCP_KEEPIDLE", 20), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 4))
READ_BYTES = 1 << 20  # of an answer are held, at most twice that
WHOLE_BYTES_MAX = 256 * 1024

_encode = msgspec.msgpack.Encoder().encode


class _Session:
    """A session that closes itself when its loop ends.

    Loops end their asynchronous generators before they close (asyncio.run does); no other call
    tells of a loop's end.
    """

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self.session = session
        self._keeper = self._keep()
        with contextlib.suppress(StopIteration):
            self._keeper.__anext__().send(None)  # from here on the loop knows it

    async def _keep(self) -> AsyncGenerator[None]:
        try:
            yield
        finally:
            await self.session.close()


class Transport:
    """Connections to one node; usable from several event loops in turn.

    Invariant: a session is only used on the loop that made it, and closed before that is.
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
        self._sessions: WeakKeyDictionary[asyncio.AbstractEventLoop, _Session] = WeakKeyDictionary()

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

    def session(self) -> aiohttp.ClientSession:
        """Returns the session of the running loop, made at need."""
        if self.closed:
            raise RuntimeError("the client is closed; open a new one with connect()")
        loop = asyncio.get_running_loop()
        held = self._sessions.get(loop)
        if held is None or held.session.closed:
            # No limit: a command holds its connection for as long as it runs, and a hidden limit
            # would stall the hundred-and-first one.
            connector: aiohttp.BaseConnector
            if self.socket_path is not None:
                connector = aiohttp.UnixConnector(path=self.socket_path, limit=0)
            else:
                connector = aiohttp.TCPConnector(
                    limit=0, ttl_dns_cache=30, socket_factory=_kept_alive
                )
            session = aiohttp.ClientSession(
                connector=connector,
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S),
                cookie_jar=aiohttp.DummyCookieJar(),  # a node sets none; looking costs each request
                auto_decompress=False,
                read_bufsize=READ_BYTES,
                skip_auto_headers=("User-Agent", "Accept-Encoding"),
            )
            held = self._sessions[loop] = _Session(session)
        return held.session

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
        held = self._sessions.pop(asyncio.get_running_loop(), None)
        if held is not None:
            await held.session.close()
        self._sessions.clear()

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
        the same request again, for a minute from the loss.
        """
        data = content if body is None else _encode(body)
        raw = await self._exchange(method, path, data, params, repeatable=repeatable)
        if answer is None:
            return None
        try:
            return msgspec.msgpack.decode(raw, type=answer)
        except msgspec.DecodeError as error:
            raise Bug(
                f"{self.where} answered {method} {path} with something else: {error}"
            ) from error

    async def _exchange(
        self,
        method: str,
        path: str,
        data: bytes | None,
        params: Query,
        *,
        repeatable: bool,
    ) -> bytes:
        loop = asyncio.get_running_loop()
        give_up = loop.time() + RECONNECT_FOR_S
        pause = RETRY_FIRST_S
        while True:
            began = loop.time()
            try:
                async with self.session().request(
                    method,
                    self._address(path, params),
                    data=_body(data),
                    headers=self.headers(MSGPACK if data is not None else None),
                ) as response:
                    raw = await response.read()
                    if response.status >= 400:
                        raise error_of(raw, response.status, self.where)
                    return raw
            except Unavailable as error:
                # Said by a node that ends, or has restarted: nothing was done, or it is on record.
                # One that is being drained does not change its mind soon: the caller must know.
                again = repeatable and "retry_after_s" in error.fields
                again = again and error.fields.get("reason") != "draining"
                give_up = _patience(give_up, began, loop.time())
                if not again or loop.time() + pause > give_up:
                    raise
            except (aiohttp.ClientError, OSError, TimeoutError) as error:
                give_up = _patience(give_up, began, loop.time())
                if not repeatable or loop.time() + pause > give_up:
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
                if not whole and carrier is not None:
                    # Refused early: what is still to be sent would keep the connection open.
                    carrier.abort()
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
        data = None if body is None else _encode(body)
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


def _patience(give_up: float, began: float, now: float) -> float:
    """Returns until when to look for the node: the minute counts from the loss of a long request."""
    return now + RECONNECT_FOR_S if now - began > HELD_S else give_up


def _kept_alive(address: tuple[Any, ...]) -> socket.socket:
    """Returns a socket that notices within about a minute that the other host is gone.

    A command may say nothing for hours; without probes (RFC 9293 section 3.8.4) its caller would
    wait for ever for a host that lost power, or behind a NAT that has forgotten the connection.
    """
    family, kind, number, _, _ = address
    sock = socket.socket(family, kind, number)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in KEEP_ALIVE:
        if hasattr(socket, name):  # macOS has other names for some
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return sock


def _body(data: bytes | None) -> bytes | io.BytesIO | None:
    # A long one is sent piece by piece: in one piece it would hold up the loop.
    return io.BytesIO(data) if data is not None and len(data) > WHOLE_BYTES_MAX else data


def error_of(raw: bytes, status: int, where: str) -> SkerryError:
    """Returns the error in an answer's body; a body that holds none is a platform fault."""
    for decode in (msgspec.msgpack.decode, msgspec.json.decode):
        try:
            return decode(raw, type=ErrorBody).to_error()
        except msgspec.DecodeError:
            continue
    return Unavailable(f"{where} answered with status {status}: {raw[:200]!r}")
