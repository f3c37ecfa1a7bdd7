"""The records of one segment from an offset on, in bounded memory, and what is wrong between them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple, TypeAlias

from skerry.trajectory.format.segment import (
    HEADER_BYTES,
    RECORD_HEAD_BYTES,
    Fault,
    Found,
    Problem,
    parse_record,
)

Read: TypeAlias = Callable[[int, int, int], bytes]  # of a segment: number, offset, length

WINDOW_BYTES: Final = 256 << 10
REACH_BYTES: Final = 8 << 20  # how far behind damage a record is looked for
_MARK: Final = b"\x96"  # what a body begins with: an array of six


class Bounds(NamedTuple):
    """What a scan may cost, whatever hostile content stands in the records."""

    record: int  # a longer one is taken for damage
    found: int  # the longest that is found behind damage
    search: int  # bytes that are looked at to find it


OTHERS: Final = Bounds(64 << 20, REACH_BYTES, 256 << 20)


def own(size: int) -> Bounds:
    """Returns the bounds for a segment of so many bytes that this process, or one like it, wrote.

    Nothing that was appended is missed for its length, and little for the time that it takes.
    """
    return Bounds(size, size, 4 << 30)


class Scan:
    """Iterate once; `end` and `problems` hold at any time: `end` is behind the last valid record.

    Bytes that are no record are skipped if a valid one lies within reach behind them (damage). Else
    the scan ends there: what is not zeros is a torn tail. A window full of zeros is the end; with
    `thorough` zeros are looked behind too, as far as that reach.
    """

    def __init__(
        self,
        read: Read,
        number: int,
        start: int = HEADER_BYTES,
        *,
        window: int | None = None,
        thorough: bool = False,
        bounds: Bounds = OTHERS,
    ) -> None:
        self._window_bytes = window or WINDOW_BYTES
        self._thorough = thorough
        self._bounds = bounds
        self.problems: list[Problem] = []
        self.end = max(start, HEADER_BYTES)
        self._read = read
        self._number = number
        self._base = self.end  # where the window begins
        self._window = b""

    def __iter__(self) -> Iterator[Found]:
        while True:
            found = self._next()
            if found is None:
                return
            self.end = found.end
            yield found

    def _next(self) -> Found | None:
        self._reach(self.end, RECORD_HEAD_BYTES)
        at = self.end - self._base
        length = int.from_bytes(self._window[at : at + 4], "little")
        if 0 < length <= self._bounds.record:
            self._reach(self.end, RECORD_HEAD_BYTES + length)
            base = self._base
            found = parse_record(self._window, self.end - base)
            if found is not None:
                return found._replace(offset=found.offset + base, end=found.end + base)
        return self._skip()

    def _skip(self) -> Found | None:
        """Returns the next valid record behind bytes that are none, and notes the problem."""
        at = self.end
        looked = REACH_BYTES if self._thorough else self._window_bytes
        if not self._at(at, looked).rstrip(b"\0"):
            return None
        data = self._at(at, REACH_BYTES + self._bounds.found)
        used, budget = len(data.rstrip(b"\0")), self._bounds.search
        mark = data.find(_MARK, RECORD_HEAD_BYTES + 1)
        while 0 <= mark < min(used, REACH_BYTES) and budget > 0:
            start = mark - RECORD_HEAD_BYTES
            length = int.from_bytes(data[start : start + 4], "little")
            if mark + length <= len(data):
                budget -= length
                found = parse_record(data, start)
                if found is not None:
                    detail = f"{start} bytes are no record"
                    self.problems.append(Problem(Fault.DAMAGED, self._number, at, detail))
                    return found._replace(offset=at + found.offset, end=at + found.end)
            mark = data.find(_MARK, mark + 1)
        detail = f"{used} bytes at the end are no record"
        self.problems.append(Problem(Fault.TORN_TAIL, self._number, at, detail))
        return None

    def _at(self, offset: int, length: int) -> bytes:
        """Returns that part of the segment; less only at the end."""
        self._reach(offset, length)
        start = offset - self._base
        return self._window[start : start + length]

    def _reach(self, offset: int, length: int) -> None:
        """Has that part of the segment in the window."""
        have = self._base + len(self._window)
        if offset + length > have or offset < self._base:
            kept = self._window[offset - self._base :] if self._base <= offset <= have else b""
            wanted = max(length, self._window_bytes) - len(kept)
            more = self._read(self._number, offset + len(kept), wanted)
            self._window, self._base = kept + more, offset


def scan_bytes(number: int, data: bytes) -> Scan:
    """Returns a scan of a segment that is in memory, of this node's own; it looks behind zeros too."""

    def read(_: int, offset: int, length: int) -> bytes:
        return data[offset : offset + length]

    return Scan(read, number, thorough=True, bounds=own(len(data)))
