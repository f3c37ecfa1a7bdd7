"""The byte stream to a guest agent: frames in, frames out, and how it ended.

Knows frames, not operations. Memory is bounded both ways: the decoder holds one incomplete frame,
and what the agent does not read stays in the transport up to `UNSENT_BYTES_MAX`; then the channel
is given up, because an agent that reads nothing cannot be worked with.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, cast

from skerry.errors import SandboxFailed, SkerryError, Unavailable
from skerry.wire.frames import Frame, FrameDecoder, ProtocolError

UNSENT_BYTES_HIGH: Final = 128 * 1024  # writers of content wait above this
UNSENT_BYTES_REFUSE: Final = 1024 * 1024  # new operations are refused above this
UNSENT_BYTES_MAX: Final = 4 * 1024 * 1024
LATE_FRAMES_MAX: Final = 8  # for each, the agent holds an ended operation
LATE_S: Final = 1.0


def same_error(error: SkerryError) -> SkerryError:
    """Returns a fresh copy: one instance raised to several waiters would collect tracebacks."""
    return type(error)(error.message, **error.fields)


class Channel(asyncio.Protocol):
    """One connection. `on_frame` may raise ProtocolError, which ends it; `lost` says how it ended.

    Invariant: `lost` is done exactly when nothing is sent or received any more.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        on_frame: Callable[[Frame], None],
        on_lost: Callable[[SkerryError], None],
    ) -> None:
        self.lost: asyncio.Future[SkerryError] = loop.create_future()
        self.on_frame = on_frame
        self._on_lost = on_lost
        self._decoder = FrameDecoder()
        self._transport: asyncio.Transport | None = None
        self._loop = loop
        self._late: list[bytes] = []  # frames that can wait; sent before any other one
        self._late_since = 0.0
        self._late_timer: asyncio.TimerHandle | None = None
        self._resumed: asyncio.Event | None = None  # while the transport wants no more

    @property
    def congested(self) -> bool:
        """Whether so much is unsent that nothing new should be begun."""
        return self._resumed is not None and self._unsent() > UNSENT_BYTES_REFUSE

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the transport."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=UNSENT_BYTES_HIGH)

    def data_received(self, data: bytes) -> None:
        """Gives each complete frame to `on_frame`, until the channel ends."""
        try:
            for frame in self._decoder.feed(data):
                self.on_frame(frame)
                if self.lost.done():
                    return
        except ProtocolError as error:
            self.end(SandboxFailed(f"the guest agent broke the protocol: {error}"))

    def pause_writing(self) -> None:
        """Called by the transport above `UNSENT_BYTES_HIGH`."""
        if self._resumed is None:
            self._resumed = asyncio.Event()

    def resume_writing(self) -> None:
        """Called by the transport when the agent has read enough."""
        resumed, self._resumed = self._resumed, None
        if resumed is not None:
            resumed.set()

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by the transport."""
        reason = f": {exc}" if exc is not None else ""
        self.end(Unavailable(f"the connection to the guest agent was lost{reason}"))

    def send(self, data: bytes) -> None:
        """Sends a frame; raises the channel's error if it has ended."""
        self._write((data,))

    def send_content(self, head: bytes, content: bytes | memoryview) -> None:
        """Sends a frame whose content is not copied for it: what it lies in must not change."""
        self._write((head, content))

    def _write(self, parts: tuple[bytes | memoryview, ...]) -> None:
        if self.lost.done():
            raise same_error(self.lost.result())
        transport = self._transport
        if transport is None:
            raise Unavailable("the channel to the guest agent is not connected")
        if self._late:
            parts = (b"".join(self._late), *parts)
            self._late.clear()
        if len(parts) == 1:
            transport.write(parts[0])
        else:
            transport.writelines(parts)
        if self._resumed is not None and self._unsent() > UNSENT_BYTES_MAX:
            self.end(Unavailable("the guest agent does not read what is sent to it"))

    def send_late(self, frame: bytes) -> None:
        """Sends a frame that can wait: before the next one, or after LATE_S, or LATE_FRAMES_MAX.

        So it costs no write of its own, and the agent is not woken for it, while there is traffic.
        It is lost without a word if the channel ends before that.
        """
        if self.lost.done():
            return
        if not self._late:
            self._late_since = self._loop.time()
        self._late.append(frame)
        if len(self._late) >= LATE_FRAMES_MAX:
            self.send(b"")
        elif self._late_timer is None:
            self._late_timer = self._loop.call_later(LATE_S, self._late_is_due)

    def _late_is_due(self) -> None:
        """One timer serves all, and is not set again with each frame: that is what it would cost."""
        self._late_timer = None
        if self._late:
            left = self._late_since + LATE_S - self._loop.time()
            if left > 0:
                self._late_timer = self._loop.call_later(left, self._late_is_due)
            else:
                self.send(b"")

    @property
    def ready(self) -> bool:
        """Whether content may be sent now: `writable` would neither wait nor raise."""
        return self._resumed is None and not self.lost.done()

    async def writable(self) -> None:
        """Returns when content may be sent; raises the channel's error if it has ended."""
        # All who wait are woken at once; what the first ones send may be enough already.
        while (resumed := self._resumed) is not None:
            await resumed.wait()
        if self.lost.done():
            raise same_error(self.lost.result())

    def end(self, error: SkerryError) -> None:
        """Closes the connection at once; only the first error counts."""
        if self.lost.done():
            return
        self.lost.set_result(error)
        self._late.clear()
        if self._late_timer is not None:
            self._late_timer.cancel()
        if self._transport is not None:
            self._transport.abort()
        self.resume_writing()
        self._on_lost(error)

    def _unsent(self) -> int:
        return self._transport.get_write_buffer_size() if self._transport is not None else 0
