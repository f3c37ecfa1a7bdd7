"""The streams of the guest channel: what their ids name, and which frames may come on them."""

from __future__ import annotations

from typing import Final, NamedTuple

from skerry.wire.frames import GuestFrame

HANDLE_MAX: Final = (1 << 29) - 1
FORWARD: Final = 1 << 31  # set in the stream ids of forwarded connections
HOST_CONN: Final = 1 << 28  # set in the number of a forwarded connection that the host asked for
CONTROL, STDIN, STDOUT, STDERR = 0, 1, 2, 3  # channels of an operation
RESULT: Final = 1  # the other direction of STDIN's: what comes out of descriptor 4
INWARD, OUTWARD = 1, 2  # channels of a forwarded connection

_CONNECTION: Final = frozenset(
    {
        GuestFrame.HELLO,
        GuestFrame.WELCOME,
        GuestFrame.PING,
        GuestFrame.PONG,
        GuestFrame.HOLD,
        GuestFrame.CELL,
        GuestFrame.CELL_IS,
        GuestFrame.ZYGOTE_IS,
    }
)
_CONTENT: Final = frozenset({GuestFrame.DATA, GuestFrame.EOF})
# Plain numbers: a member of an enum is dear to look up, and this is done for every frame.
_ERROR, _CREDIT, _CONNECT = map(int, (GuestFrame.ERROR, GuestFrame.CREDIT, GuestFrame.CONNECT))
_EDGES: Final = frozenset({GuestFrame.OPENED, GuestFrame.RESET})


class Place(NamedTuple):
    """An operation (0: the connection) or a forwarded connection, and a channel of it."""

    forward: bool
    number: int
    channel: int


def operation_stream(handle: int, channel: int) -> int:
    """Returns the stream id of an operation's channel."""
    return handle << 2 | channel


def forward_stream(conn: int, channel: int) -> int:
    """Returns the stream id of a forwarded connection's channel."""
    return FORWARD | conn << 2 | channel


def place_of(stream: int) -> Place:
    """Returns what a stream id names."""
    return Place(stream >= FORWARD, (stream & (FORWARD - 1)) >> 2, stream & 3)


def may_come(type_: int, stream: int, *, outward: bool) -> bool:
    """Returns whether a frame of this type may come on this stream, from the agent if `outward`."""
    forward, number, channel = stream >= FORWARD, (stream & (FORWARD - 1)) >> 2, stream & 3
    if type_ == _ERROR:
        return True
    if type_ in _CONNECTION:
        return stream == 0
    if type_ in _EDGES:
        return forward and channel == CONTROL
    if type_ == _CONNECT:
        return forward and channel == CONTROL and number >= HOST_CONN
    if type_ in _CONTENT or type_ == _CREDIT:
        if not forward and number == 0:
            return False
        if outward != (type_ in _CONTENT):  # it is about what flows inwards
            return channel == STDIN
        return channel == OUTWARD or (channel != CONTROL and not forward)
    return not forward and number != 0 and channel == CONTROL
