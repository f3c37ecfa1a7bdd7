"""What an operation writes to descriptor 4: a third output, with a sink of its own."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from skerry.errors import SkerryError
from skerry.guest.api import OutputSink, Stream
from skerry.guest.outlet import GRANT_STEP, Outlet
from skerry.wire import guest


class ResultFlow:
    """Gives the bytes to the sink, as its stdout, and grants credit for those that are safe there."""

    __slots__ = ("_fail", "_granting", "_outlet", "_over", "_send", "_sink", "_spawn")

    def __init__(
        self,
        sink: OutputSink,
        send: Callable[[guest.Message], None],
        fail: Callable[[SkerryError], None],
        spawn: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        self._sink: OutputSink | None = sink
        self._send = send
        self._fail = fail
        self._spawn = spawn
        self._outlet = Outlet(0)
        self._granting = False
        self._over = False

    @property
    def received(self) -> int:
        """How many bytes came."""
        return self._outlet.received

    def take(self, message: guest.Data | guest.Eof) -> None:
        """Takes bytes or the end; raises ProtocolError."""
        outlet = self._outlet
        if isinstance(message, guest.Eof):
            outlet.end(message.total)
            return
        end = outlet.take(message.offset, len(message.data))
        if self._sink is None:
            self._grant_up_to(end)
            return
        try:
            self._sink.write(Stream.STDOUT, message.offset, message.data)
        except SkerryError as error:
            self._fail(error)
            return
        if end - outlet.granted >= GRANT_STEP and not self._granting:
            self._granting = True
            self._spawn(self._grant())

    def discard(self) -> None:
        """Throws away what is still to come."""
        self._sink = None
        self._grant_up_to(self._outlet.received)

    def close(self) -> None:
        """Nothing more will come."""
        self._over = True

    async def _grant(self) -> None:
        try:
            while self._sink is not None and not self._over:
                await self._sink.drain()
                if self._sink is None or not self._grant_up_to(
                    self._sink.safe_offset(Stream.STDOUT)
                ):
                    return
        except SkerryError as error:
            self._fail(error)
        finally:
            self._granting = False

    def _grant_up_to(self, offset: int) -> bool:
        """Sends credit; True if more may be due at once."""
        outlet = self._outlet
        if self._over or outlet.received - outlet.granted < GRANT_STEP or not outlet.grant(offset):
            return False
        self._send(guest.Credit(outlet.granted))
        return True
