"""One request from inside, carried to the worker as often as it takes.

It is read whole and sent as a new one, made of its path, its body and few of its headers: worker and
node cannot read it in two ways, and nothing that is said inside reads like the node's word. Whenever the
worker is gone it is sent again, under the same name, until there is an answer or its client leaves. What
of the answer was passed on already is skipped then: the worker's answer is the same each time.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Protocol

from skerry.network.target import Headers
from skerry.node.workers.requests import Requests
from skerry.node.workers.upstream import Reply, WorkerGone, asking
from skerry.wire.relay import REQUEST, RESUME, SANDBOX

SMALL_BYTES_MAX = 1 << 20  # of an answer that comes at once: an error, the list of models
STEP_WITHIN_S = 120.0  # for a worker to record a request, after which it is asked again
PAUSES_S = (0.02, 0.1, 0.3, 1.0)
_PATH = re.compile(rb"/v1/(chat/completions|responses|models(/[A-Za-z0-9._:-]{1,128})?)")
_POSTS = frozenset((b"/v1/chat/completions", b"/v1/responses"))
# The worker's own trouble, which it may be rid of by the next time. An error that a trainer answers with
# is no such thing: it has an ETag, and comes from another path.
_AGAIN = frozenset({500, 502, 503, 504, 507})
_KEPT = (b"authorization", b"content-type", b"x-stainless-retry-count")
_GIVEN = (b"content-type", b"retry-after", b"x-should-retry")

log = logging.getLogger("skerry.node.workers")


class Refused(Exception):
    """What is answered instead of asking the worker; the text is for the client."""

    def __init__(self, status: int, text: str, code: str, *, retry: bool = False) -> None:
        super().__init__(text)
        self.status = status
        self.code = code
        self.retry = retry


class Holds(Protocol):
    """Who counts the bytes of bodies."""

    def hold(self, request: Request, size: int) -> None:
        """A request holds so many bytes more; Refused."""

    def free(self, request: Request, size: int) -> None:
        """A request holds nothing any more."""


class Request:
    """A request from inside. Its body is dropped as soon as the worker has it.

    `guard` is around all that is done with it: when its place is needed for others it ends there, and
    `refused` says why.
    """

    def __init__(
        self, method: bytes, path: bytes, headers: Headers, holds: Holds, guard: asyncio.Timeout
    ) -> None:
        self.method = method
        self.path = path
        self.headers = headers
        self.body = bytearray()
        self.refused: Refused | None = None
        self._holds = holds
        self._guard = guard

    def take(self, data: bytes) -> None:
        """More of its body has come; Refused if there is no room for it."""
        self._holds.hold(self, len(data))
        self.body += data

    def refuse(self, refused: Refused) -> None:
        """Gives its place up now; what is done with it ends as soon as it can."""
        self.refused = refused
        self.drop()
        self._guard.reschedule(asyncio.get_running_loop().time())

    @property
    def asks(self) -> bool:
        """Whether its answer is a model's, which may take for ever."""
        return self.path in _POSTS

    def drop(self) -> None:
        """Lets go of the body; idempotent."""
        self._holds.free(self, len(self.body))
        self.body = bytearray()


class Client(Protocol):
    """Whom the answer is for."""

    async def head(self, status: int, headers: Headers, length: int, *, resume: bool) -> None:
        """Sends the head of the answer."""

    async def piece(self, data: bytes, *, resume: bool) -> None:
        """Sends a piece of its body; with `resume` the sandbox may go on when it takes no more."""

    async def end(self, *, resume: bool) -> None:
        """Ends it; with `resume` the sandbox goes on, now that it has all of it."""


def checked(method: bytes, target: bytes, headers: Headers) -> bytes:
    """Returns the path of a call that workers serve; Refused for all others.

    Nothing else gets to the worker's socket, where other paths mean other things.
    """
    names = [name for name, _ in headers]
    if b"transfer-encoding" in names and b"content-length" in names:
        raise Refused(400, "Transfer-Encoding and Content-Length in one request", "invalid")
    if any(name == b"content-encoding" and value != b"identity" for name, value in headers):
        raise Refused(415, "bodies come uncompressed", "invalid")
    path = target.partition(b"?")[0]
    if _PATH.fullmatch(path) is None:
        raise Refused(
            404, "served are chat/completions, responses and models below /v1", "not_found"
        )
    wanted = b"POST" if path in _POSTS else b"GET"
    if method != wanted:
        raise Refused(405, f"this path takes {wanted.decode()}", "method_not_allowed")
    return path


class Relay:
    """Carries the requests of one sandbox to one worker."""

    def __init__(
        self,
        sandbox: str,
        requests: Requests,
        ready: Callable[[], Awaitable[str]],
        count: Callable[[str], None],
    ) -> None:
        self._sandbox = sandbox.encode()
        self._requests = requests
        self._ready = ready
        self._count = count

    async def carry(self, request: Request, relay: str, client: Client) -> None:
        """Returns when the answer was passed on; `relay` is the request's name among them.

        Raises Refused, and what the client's methods raise. Never gives up by itself.
        """
        if not request.asks:
            await self._pass_small(request, relay, client)
            return
        refusal = await self._record(request, relay)
        if refusal is not None:
            await _give(client, *refusal)
            return
        request.drop()
        await self._pass_on(request, relay, client)

    async def tell(self, request: Request) -> None:
        """Tells the worker what was handed over, once; else the next request does."""
        untold = self._requests.untold()
        try:
            async with asyncio.timeout(STEP_WITHIN_S):
                path, headers = await self._ready(), self._headers(request, "")
                async with asking(path, b"POST", b"/model/handed", headers) as reply:
                    if reply.status < 300:
                        self._requests.told(untold)
        except (WorkerGone, TimeoutError):
            pass

    # -- steps ----------------------------------------------------------------------------------------

    async def _record(self, request: Request, relay: str) -> tuple[int, Headers, bytes] | None:
        """Returns when the worker has the request on record; or what it answers instead."""
        seen = 0
        async for path in self._tries():
            untold = self._requests.untold()
            try:
                async with (
                    asyncio.timeout(STEP_WITHIN_S),
                    asking(
                        path,
                        b"POST",
                        b"/model" + request.path,
                        self._headers(request, relay),
                        bytes(request.body),
                    ) as reply,
                ):
                    if reply.status == 202:
                        self._requests.told(untold)
                        return None
                    body = await reply.whole(SMALL_BYTES_MAX)
                    if reply.status not in _AGAIN:
                        return reply.status, _given(reply), body
                    if seen != reply.status:
                        seen = reply.status
                        log.warning("a model request waits: worker says %d: %.300r", seen, body)
            except (WorkerGone, TimeoutError):
                self._count("resent")
        raise AssertionError  # it tries for ever

    async def _pass_on(self, request: Request, relay: str, client: Client) -> None:
        """Waits for the answer and passes it on, from where an earlier try broke off."""
        answer = _Answer(client)
        async for path in self._tries():
            try:
                async with asking(
                    path, b"GET", b"/model/wait", self._headers(request, relay)
                ) as reply:
                    if reply.status in _AGAIN and reply.header(b"etag") is None:
                        continue
                    await answer.take(reply)
            except WorkerGone:
                self._count("resent")
                continue
            await client.end(resume=answer.resume)
            return

    async def _pass_small(self, request: Request, relay: str, client: Client) -> None:
        async for path in self._tries():
            try:
                async with (
                    asyncio.timeout(STEP_WITHIN_S),
                    asking(
                        path, b"GET", b"/model" + request.path, self._headers(request, relay)
                    ) as reply,
                ):
                    body = await reply.whole(SMALL_BYTES_MAX)
            except (WorkerGone, TimeoutError):
                self._count("resent")
                continue
            await _give(client, reply.status, _given(reply), body)
            return

    async def _tries(self) -> AsyncIterator[str]:
        """Gives the worker's socket for each try, with growing pauses, for ever."""
        number = 0
        while True:
            yield await self._ready()
            await asyncio.sleep(PAUSES_S[min(number, len(PAUSES_S) - 1)])
            number += 1

    def _headers(self, request: Request, relay: str) -> Headers:
        kept = [(name, value) for name, value in request.headers if name in _KEPT]
        return [
            *kept,
            (SANDBOX.encode(), self._sandbox),
            (REQUEST.encode(), relay.encode()),
            *self._requests.headers(),
        ]


class _Answer:
    """An answer on its way through: its head once, and each byte of its body once."""

    def __init__(self, client: Client) -> None:
        self.resume = False
        self._client = client
        self._known: tuple[int, int, bytes | None] | None = None  # status, length, ETag
        self._passed = 0

    async def take(self, reply: Reply) -> None:
        """Passes on what is new of a try's answer; WorkerGone if it breaks off.

        Raises Refused if it is not the answer whose beginning was passed on, or is none.
        """
        length = reply.header(b"content-length") or b""
        if not length.isdigit():
            raise WorkerGone("its answer has no length")
        seen = (reply.status, int(length), reply.header(b"etag"))
        if reply.status == 404 and seen[2] is None:
            raise Refused(
                503, "the worker has lost its record of this request", "unavailable", retry=True
            )
        self.resume = reply.header(RESUME.lower().encode()) == b"1"
        if self._known is None:
            await self._client.head(seen[0], _given(reply), seen[1], resume=self.resume)
            self._known = seen
        elif self._known != seen:
            raise Refused(502, "the worker's answer has changed", "unavailable")
        skip = self._passed
        async for piece in reply.body():
            new = piece[skip:]
            skip = max(0, skip - len(piece))
            if new:
                await self._client.piece(new, resume=self.resume)
                self._passed += len(new)


async def _give(client: Client, status: int, headers: Headers, body: bytes) -> None:
    await client.head(status, headers, len(body), resume=False)
    await client.piece(body, resume=False)
    await client.end(resume=False)


def _given(reply: Reply) -> Headers:
    found = ((name, reply.header(name)) for name in _GIVEN)
    return [(name, value) for name, value in found if value is not None]
