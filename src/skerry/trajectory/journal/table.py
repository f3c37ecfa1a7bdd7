"""What a journal keeps in memory: where the records of living subjects are. No I/O."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from typing import NamedTuple

from skerry.trajectory.format.segment import HEADER_BYTES, NO_HASH


class Position(NamedTuple):
    """Names a record for as long as its subject lives, wherever it is carried to."""

    subject: str
    seq: int


class Chain:
    """A living subject. Invariants: seqs ascends; the record seqs[i] has sizes[i] bytes at places[i]."""

    __slots__ = ("bytes", "hash", "places", "seqs", "sizes")

    def __init__(self) -> None:
        self.hash = NO_HASH
        self.bytes = 0  # the sum of sizes
        self.seqs = array("Q")
        self.places = array("Q")  # segment number << 32 | offset
        self.sizes = array("I")

    def add(self, seq: int, place: int, size: int, digest: bytes) -> None:
        """Takes the next record."""
        self.seqs.append(seq)
        self.places.append(place)
        self.sizes.append(size)
        self.bytes += size
        self.hash = digest

    def index(self, seq: int) -> int:
        """Returns where a record is in the arrays, -1 if it is not there."""
        index = bisect_left(self.seqs, seq)
        return index if index < len(self.seqs) and self.seqs[index] == seq else -1


class Segment:
    """A segment that is there. `live` counts the bytes of records of living subjects in it."""

    __slots__ = ("carried", "end", "fd", "hash", "live", "number", "size", "synced", "zeroed")

    def __init__(self, number: int, fd: int, end: int, digest: bytes, size: int) -> None:
        self.number = number
        self.fd = fd
        self.end = end
        self.hash = digest  # of its last record
        self.size = size  # of its file
        self.live = 0
        self.carried = HEADER_BYTES  # Invariant: nothing living lies below
        self.synced = False
        self.zeroed = False  # its zeros are on the disk
