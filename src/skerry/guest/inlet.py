"""What flows into the sandbox: standard input, and the inward half of a forwarded connection.

Bytes are sent within the agent's credit. An inlet that may be resumed holds what the agent has not
yet credited, at most one window, so that a new connection can send it again.
"""

from __future__ import annotations

import asyncio
from typing import Final

from skerry.errors import Conflict, SkerryError
from skerry.guest.channel import Channel, same_error
from skerry.wire import guest
from skerry.wire.frames import DATA_BYTES_MAX, WINDOW, ProtocolError, data_head

PIECE_BYTES: Final = DATA_BYTES_MAX


class Inlet:
    """One inward stream; for one writer at a time.

    Invariants: credited <= sent <= credited + WINDOW; held ends at sent and begins at credited, or
    later where an earlier process sent what lies before; it is None if the inlet cannot be resumed;
    an ended inlet sends nothing.
    """

    __slots__ = (
        "_channel",
        "_credited",
        "_eof",
        "_generation",
        "_held",
        "_lost",
        "_over",
        "_resuming",
        "_stream",
        "_waiters",
        "sent",
    )

    def __init__(self, channel: Channel, generation: int, stream: int, *, resumable: bool) -> None:
        self.sent = 0
        self._channel = channel
        self._generation = generation
        self._stream = stream
        self._credited = 0
        self._held: bytearray | None = bytearray() if resumable else None
        self._eof = False
        self._over = False  # the reader is gone: what is written is thrown away
        self._resuming = False
        self._lost: SkerryError | None = None
        self._waiters: list[asyncio.Future[None]] = []

    @classmethod
    def adopt(
        cls, channel: Channel, generation: int, stream: int, total: int, *, eof: bool
    ) -> Inlet:
        """Returns an inlet that goes on behind `total` bytes, which another process has sent."""
        inlet = cls(channel, generation, stream, resumable=True)
        inlet.sent = total
        inlet._credited = max(0, total - WINDOW)
        inlet._eof = eof
        inlet._resuming = True
        return inlet

    @property
    def open(self) -> bool:
        """Whether what is written now may still be read."""
        return not self._over and not self._eof

    @property
    def finished(self) -> bool:
        """Whether the end was sent, or nobody reads any more."""
        return self._eof or self._over

    async def write(self, data: bytes) -> None:
        """Sends all of it; returns at once, the bytes lost, when nobody reads any more.

        Raises Conflict after `end`, and the channel's error if that is lost first: then `sent`
        says how much was taken.
        """
        view = memoryview(data)
        while view:
            if self._resuming or self.sent >= self._credited + WINDOW or not self._channel.ready:
                await self._room()
            if self._over:
                return
            if self._eof:
                raise Conflict("the input was closed before")
            piece = view[: min(PIECE_BYTES, self._credited + WINDOW - self.sent)]
            if not piece:
                continue
            self._send(self.sent, piece)
            if self._held is not None:
                self._held += piece
            self.sent += len(piece)
            view = view[len(piece) :]

    async def end(self) -> None:
        """Ends the stream; safe to call twice."""
        await self._resumed()
        if self._eof or self._over:
            return
        self._eof = True
        self._send_eof()

    def credit(self, offset: int) -> None:
        """Takes the agent's credit; raises ProtocolError for one that cannot be."""
        if offset > self.sent or (self._resuming and offset < self._credited):
            raise ProtocolError(f"credit up to {offset} of {self.sent} bytes sent")
        if offset > self._credited:
            if self._held:
                del self._held[: max(0, offset - (self.sent - len(self._held)))]
            self._credited = offset
        if self._resuming:
            self._resuming = False
            self._send_again()
        self._wake()

    def close(self) -> None:
        """Nobody reads any more: writers return, what they hold is thrown away."""
        self._over = True
        self._resuming = False
        if self._held:
            self._held.clear()
        self._wake()

    def lose(self, error: SkerryError) -> None:
        """The channel is lost: writers raise, until `resume`."""
        self._lost = error
        self._wake()

    def resume(self, channel: Channel, generation: int) -> None:
        """Goes on over a new channel, once the agent has said by a credit what it has."""
        self._channel, self._generation = channel, generation
        self._lost = None
        self._resuming = not self._over

    async def _room(self) -> None:
        """Returns when a byte may be sent, or the reader is gone."""
        while not self._over:
            if self._lost is not None:
                raise same_error(self._lost)
            if not self._resuming and self.sent < self._credited + WINDOW:
                await self._channel.writable()
                if not self._resuming:
                    return
            else:
                await self._moved()

    async def _resumed(self) -> None:
        while self._resuming and self._lost is None:
            await self._moved()
        if self._lost is not None and not self._over:
            raise same_error(self._lost)

    async def _moved(self) -> None:
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            await waiter
        finally:
            if waiter in self._waiters:
                self._waiters.remove(waiter)

    def _wake(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def _send(self, offset: int, data: bytes | memoryview) -> None:
        head = data_head(self._generation, self._stream, offset, len(data))
        self._channel.send_content(head, data)

    def _send_eof(self) -> None:
        self._channel.send(guest.encode(guest.Eof(self.sent), self._generation, self._stream))

    def _send_again(self) -> None:
        held = bytes(self._held or b"")
        for at in range(0, len(held), PIECE_BYTES):
            self._send(self.sent - len(held) + at, held[at : at + PIECE_BYTES])
        if self._eof:
            self._send_eof()
