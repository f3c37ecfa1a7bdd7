"""What HTTP servers of adapters share: bounded bodies, a beginning that is told, an orderly end."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Callable, Iterator
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request


class TooLarge(Exception):
    """A body is longer than it may be."""


def bounded(request: Request, most: int) -> None:
    """Refuses a body that is, or turns out to be, too long: reading it then raises TooLarge."""
    length = request.headers.get("content-length", "")
    if length.isdecimal() and len(length) < 20 and int(length) > most:
        raise TooLarge(f"the body has more than {most} bytes")
    receive, seen = request._receive, 0  # noqa: SLF001 - there is no other place to count

    async def counted() -> Any:
        nonlocal seen
        message = await receive()
        seen += len(message.get("body", b""))
        if seen > most:
            raise TooLarge(f"the body has more than {most} bytes")
        return message

    request._receive = counted  # noqa: SLF001


async def body_of(request: Request, most: int) -> bytes:
    """Returns the whole body; raises TooLarge."""
    bounded(request, most)
    return await request.body()


class _Server(uvicorn.Server):
    """uvicorn would end the program by the signal, before what is served has been cleaned up."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Ends the serving, and nothing else, at an interrupt or TERM."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._leave)
        try:
            yield
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)

    def _leave(self) -> None:
        self.force_exit = self.should_exit  # the second time without waiting for requests
        self.should_exit = True


async def serve(app: Starlette, host: str, port: int, told: Callable[[str, int], None]) -> None:
    """Serves until an interrupt or TERM; `told` is called once it listens, with address and port."""
    server = _Server(uvicorn.Config(app, host=host, port=port, log_level="warning"))
    serving = asyncio.create_task(server.serve())
    while not server.started and not serving.done():  # noqa: ASYNC110 - it has no event
        await asyncio.sleep(0.01)
    if not serving.done():
        where = server.servers[0].sockets[0].getsockname()
        told(where[0], where[1])
    await serving
