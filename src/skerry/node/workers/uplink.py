"""One uplink: the connections from inside to a port at which a worker answers.

Everything that comes is hostile: heads, bodies, times and numbers are bounded, and errors have OpenAI's
shape. A client that waits for an answer is not bounded: it waits for as long as it likes.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

import h11

from skerry.errors import SkerryError
from skerry.network.dial import Stream
from skerry.node.workers.places import Share
from skerry.node.workers.relay import Refused, Relay, Request, checked
from skerry.node.workers.requests import Requests
from skerry.node.workers.visit import Answer, ClientLeft, Host, Visit

HEAD_S = 30.0  # from the first byte of a connection, or the end of an exchange, to a whole head
BODY_S = 30.0  # for a body, and a second for each:
BODY_BYTES_PER_S = 65_536


class Uplink:
    """Serves one port of one sandbox. Invariant: at most `connections_max` connections."""

    def __init__(
        self,
        relay: Relay,
        requests: Requests,
        host: Host,
        share: Share,
        spawn: Callable[..., object],
    ) -> None:
        self._relay = relay
        self._requests = requests
        self._host = host
        self._places = share.places
        self._share = share
        self._spawn = spawn
        self._open = 0

    async def serve(self, stream: Stream) -> None:
        """Serves one connection from inside to its end; never raises for what comes from there."""
        visit = Visit(stream, self._host)
        limit = self._places.config.connections_max
        if self._open >= limit:
            self._places.counts["refused"] += 1
            text = f"{limit} connections of this sandbox are open already"
            await visit.refuse(Refused(503, text, "overloaded", retry=True))
            return
        self._open += 1
        self._places.connections += 1
        try:
            with contextlib.suppress(SkerryError, ClientLeft, h11.LocalProtocolError):
                while await self._exchange(visit):
                    pass
        finally:
            self._open -= 1
            self._places.connections -= 1

    async def _exchange(self, visit: Visit) -> bool:
        """Serves one request; returns whether another may come."""
        guard = asyncio.timeout(None)  # for `Request.refuse`
        request = None
        try:
            async with guard:
                request = await self._head(visit, guard)
                if request is None:
                    await visit.stream.write_eof()
                    return False
                try:
                    await self._read_body(visit, request)
                    whole = await self._answer(visit, request)
                finally:
                    request.drop()
        except h11.RemoteProtocolError as error:
            text = f"this is no request: {error}"
            return await self._refuse(visit, Refused(error.error_status_hint, text, "invalid"))
        except Refused as refused:
            return await self._refuse(visit, refused)
        except TimeoutError:
            if request is not None and request.refused is not None:
                return await self._refuse(visit, request.refused)
            await visit.finish()  # nothing came, or not enough to be told anything
            return False
        if not whole:  # only its breaking off says the truth
            visit.stream.reset()
            return False
        if visit.side.next_cycle():
            return True
        await visit.finish()
        return False

    async def _refuse(self, visit: Visit, refused: Refused) -> bool:
        self._places.counts["refused"] += 1
        await visit.refuse(refused)
        return False

    async def _head(self, visit: Visit, guard: asyncio.Timeout) -> Request | None:
        """Returns a request of which the head is there, None at the end of the connection."""
        head = await visit.event(HEAD_S)
        if not isinstance(head, h11.Request):
            return None
        headers = [(bytes(name), bytes(value)) for name, value in head.headers]
        path = checked(bytes(head.method), bytes(head.target), headers)
        if visit.side.http.they_are_waiting_for_100_continue:
            await visit.side.send(h11.InformationalResponse(status_code=100, headers=[]))
        return Request(bytes(head.method), path, headers, self._share, guard)

    async def _read_body(self, visit: Visit, request: Request) -> None:
        most, began = self._places.config.body_bytes_max, self._host.work_time()
        while True:
            size = len(request.body)
            within = began + BODY_S + size / BODY_BYTES_PER_S - self._host.work_time()
            event = await visit.event(within, late="the body did not come in time")
            if isinstance(event, h11.EndOfMessage):
                return
            if not isinstance(event, h11.Data):
                raise ClientLeft
            if size + len(event.data) > most:
                raise Refused(413, f"the body has more than {most} bytes", "too_large")
            request.take(event.data)

    async def _answer(self, visit: Visit, request: Request) -> bool:
        """Returns whether the whole answer is out; Refused if there is none."""
        relay, answer = self._requests.begin(), Answer(visit)
        held_s, left_early = self._host.held_s(), False
        self._places.counts["requests"] += 1

        def left() -> None:
            nonlocal left_early
            left_early = not answer.whole
            self._requests.left(relay)

        try:
            with self._places.wait():
                await visit.while_there(self._relay.carry(request, relay, answer), left)
        except Refused:
            if not answer.begun:
                raise
            return False
        finally:
            self._requests.left(relay)
        if answer.whole and request.asks and not left_early:
            self._requests.handed(relay, held=self._host.held_s() > held_s)
            self._spawn(self._relay.tell(request))
        return answer.whole
