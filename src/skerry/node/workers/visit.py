"""One connection from inside to an uplink: what comes within its time, and what is answered."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

import h11
import msgspec

from skerry.errors import SkerryError
from skerry.network.dial import Stream
from skerry.network.http import Side
from skerry.network.target import Headers
from skerry.node.workers.relay import Refused

HEAD_BYTES_MAX = 32_768
LINGER_S = 2.0  # for a client to read a refusal before its connection is gone
LINGER_BYTES = 1 << 20
AHEAD_BYTES_MAX = 65_536  # that are read of a next request while one is answered
STALL_S = 0.25  # a paused sandbox takes what fits into its sockets; what does not, does not move


class Host(Protocol):
    """The sandbox, as an uplink sees it."""

    def work_time(self) -> float:
        """Returns a time that stands still while the sandbox does."""

    def held_s(self) -> float:
        """Returns for how long it has stood still in all."""

    def paused(self) -> bool:
        """Whether it stands still, or is about to."""

    async def settle(self) -> None:
        """Returns when what was written to it is in its sockets, as far as that fits."""

    async def resume(self) -> None:
        """Returns when it goes on, or cannot."""


class ClientLeft(Exception):
    """The client has closed its connection."""


class Visit:
    """One connection. Times are those in which the sandbox runs."""

    def __init__(self, stream: Stream, host: Host) -> None:
        self.stream = stream
        self.side = Side(h11.SERVER, stream, HEAD_BYTES_MAX)
        self.host = host

    async def event(self, within: float, late: str = "") -> Any:
        """Returns what comes next; Refused, or with no text TimeoutError, if it comes too late.

        Raises RemoteProtocolError for what is no HTTP.
        """
        until = self.host.work_time() + within
        while (left := until - self.host.work_time()) > 0:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left):
                    return await self.side.event()
        if late:
            raise Refused(408, late, "timeout")
        raise TimeoutError

    async def while_there(
        self, work: Coroutine[Any, Any, None], on_left: Callable[[], None]
    ) -> None:
        """Does the work; ends it, with ClientLeft, when the client goes.

        `on_left` is called at the moment when that is seen, before anything else can happen.
        """

        async def watch() -> None:
            ahead = 0
            try:
                while data := await self.stream.read():
                    self.side.http.receive_data(data)
                    ahead += len(data)
                    if (
                        ahead > AHEAD_BYTES_MAX
                    ):  # it does not wait for us: nor do we look for its end
                        await asyncio.Event().wait()
            except SkerryError:
                pass
            on_left()

        task, gone = asyncio.create_task(work), asyncio.create_task(watch())
        try:
            await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise ClientLeft
        finally:
            for one in (task, gone):
                one.cancel()
            await asyncio.wait((task, gone))
        task.result()

    async def refuse(self, refused: Refused) -> None:
        """Answers with an error and ends the connection; does not raise."""
        with contextlib.suppress(SkerryError, TimeoutError):
            async with asyncio.timeout(LINGER_S):
                await self.stream.write(payload(refused))
                await self._finish()

    async def finish(self) -> None:
        """Ends the connection after an answer; does not raise."""
        with contextlib.suppress(SkerryError, TimeoutError):
            async with asyncio.timeout(LINGER_S):
                await self._finish()

    async def _finish(self) -> None:
        """Ends our half and reads on for a moment: a close with unread bytes takes the answer back."""
        await self.stream.write_eof()
        left = LINGER_BYTES
        while left > 0 and (data := await self.stream.read()):
            left -= len(data)


class Answer:
    """The answer to a connection's client. With `resume` the sandbox goes on when it has it.

    What is written is in the client's socket before its process runs again: a timeout that passed
    meanwhile finds the answer there. What does not fit into the sockets follows.
    """

    def __init__(self, visit: Visit) -> None:
        self.status = 0
        self.whole = False
        self._visit = visit

    @property
    def begun(self) -> bool:
        """Whether its head is out."""
        return self.status != 0

    async def head(self, status: int, headers: Headers, length: int, *, resume: bool) -> None:
        """Sends the head."""
        self.status = status
        whole = [*headers, (b"Content-Length", b"%d" % length)]
        await self._send(h11.Response(status_code=status, headers=whole), resume=resume)

    async def piece(self, data: bytes, *, resume: bool) -> None:
        """Sends a piece of the body."""
        await self._send(h11.Data(data=data), resume=resume)

    async def end(self, *, resume: bool) -> None:
        """Ends it."""
        await self._send(h11.EndOfMessage(), resume=False)
        self.whole = True
        host = self._visit.host
        if resume and host.paused():
            await host.settle()
            await host.resume()

    async def _send(self, event: h11.Event, *, resume: bool) -> None:
        """Sends an event; a paused sandbox that can take no more of it is resumed."""
        host = self._visit.host
        if not (resume and host.paused()):
            await self._visit.side.send(event)
            return
        sending = asyncio.ensure_future(self._visit.side.send(event))
        try:
            await asyncio.wait((sending,), timeout=STALL_S)
            if not sending.done():
                await host.resume()
            await sending
        finally:
            sending.cancel()


def payload(refused: Refused) -> bytes:
    """Returns a whole answer with an error in OpenAI's shape."""
    kind = "server_error" if refused.status >= 500 else "invalid_request_error"
    error = {"message": f"skerry: {refused}", "type": kind, "param": None, "code": refused.code}
    body = msgspec.json.encode({"error": error})
    lines = [
        f"HTTP/1.1 {refused.status} {_PHRASES.get(refused.status, 'Refused')}",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
        "Connection: close",
    ]
    if refused.retry:
        lines.append("Retry-After: 1")
    return "\r\n".join((*lines, "", "")).encode() + body


_PHRASES = {
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    408: "Request Timeout",
    413: "Content Too Large",
    429: "Too Many Requests",
    431: "Request Header Fields Too Large",
    501: "Not Implemented",
    502: "Bad Gateway",
    503: "Service Unavailable",
}
