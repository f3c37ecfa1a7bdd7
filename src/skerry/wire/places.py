"""What a stream id of the guest channel names."""

from __future__ import annotations

from typing import NamedTuple

from skerry.wire.guest import FORWARD


class Place(NamedTuple):
    """An operation (0: the connection) or a forwarded connection, and a channel of it."""

    forward: bool
    number: int
    channel: int


def place_of(stream: int) -> Place:
    """Returns what a stream id names."""
    return Place(stream >= FORWARD, (stream & (FORWARD - 1)) >> 2, stream & 3)
