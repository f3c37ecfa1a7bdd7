"""The messages of ports and forwarded connections (native/PROTOCOL.md)."""

from __future__ import annotations

from skerry.wire.fields import Message, number
from skerry.wire.frames import GuestFrame, Tag
from skerry.wire.streams import HANDLE_MAX


class Listen(Message, frozen=True):
    """Listens on a port of both loopback addresses inside."""

    CODE = GuestFrame.LISTEN
    PARTS = (number("port", Tag.PORT, 1, 65_535),)
    port: int


class Unlisten(Message, frozen=True):
    """Ends a listener."""

    CODE = GuestFrame.UNLISTEN


class Connect(Message, frozen=True):
    """Asks for a connection to a port inside: 127.0.0.1, then ::1; OPENED or ERROR answers."""

    CODE = GuestFrame.CONNECT
    PARTS = (number("port", Tag.PORT, 1, 65_535),)
    port: int


class Opened(Message, frozen=True):
    """A connection was accepted by the listener with this handle, or made as the host asked (None)."""

    CODE = GuestFrame.OPENED
    PARTS = (
        number("handle", Tag.HANDLE, 1, HANDLE_MAX, optional=True),
        number("port", Tag.PORT, 1, 65_535),
    )
    handle: int | None = None
    port: int = 0


class Reset(Message, frozen=True):
    """Aborts a forwarded connection."""

    CODE = GuestFrame.RESET
