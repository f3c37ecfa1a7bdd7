"""Places of records, as one number each: what tables of millions of them hold."""

from __future__ import annotations

from typing import Final

OFFSET_BITS: Final = 32
OFFSET_MASK: Final = (1 << OFFSET_BITS) - 1


def place_of(segment: int, offset: int) -> int:
    """Returns a place: a segment's number and an offset in it, as one number."""
    return segment << OFFSET_BITS | offset
