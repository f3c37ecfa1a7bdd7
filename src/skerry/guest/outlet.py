"""One output stream of an operation: what came, and how much more may."""

from __future__ import annotations

from typing import Final

from skerry.wire.frames import WINDOW, ProtocolError

GRANT_STEP: Final = WINDOW // 2  # below this much output no credit is needed, nor a safe write


class Outlet:
    """One output stream. Invariant: granted <= received <= limit; limit is where the window ends."""

    __slots__ = ("ended", "granted", "limit", "received")

    def __init__(self, offset: int) -> None:
        self.received = offset
        self.granted = offset
        self.limit = offset + WINDOW
        self.ended = False

    def take(self, offset: int, size: int) -> int:
        """Returns the new end of the stream; raises ProtocolError for a gap or an excess."""
        end = offset + size
        if offset != self.received or end > self.limit or self.ended:
            raise ProtocolError(f"output {offset}..{end}, expected {self.received}..{self.limit}")
        self.received = end
        return end

    def end(self, total: int) -> None:
        """Takes the stream's end; raises ProtocolError for one elsewhere, or a second."""
        if self.ended or total != self.received:
            raise ProtocolError(f"end of output at {total} after {self.received} bytes")
        self.ended = True

    def grant(self, offset: int) -> bool:
        """Moves the window; True if a CREDIT must be sent."""
        offset = min(offset, self.received)
        if offset <= self.granted:
            return False
        self.granted = offset
        self.limit = max(self.limit, offset + WINDOW)
        return True
