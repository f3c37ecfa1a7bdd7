"""The records of one segment from an offset on, in bounded memory, and what is wrong between them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, TypeAlias

from skerry.trajectory.segment import (
    HEADER_BYTES,
    REACH_BYTES,
    RECORD_HEAD_BYTES,
    Fault,
    Found,
    Problem,
    parse_record,
)

Read: TypeAlias = Callable[[int, int, int], bytes]  # of a segment: number, offset, length

WINDOW_BYTES: Final = 256 << 10
SEARCH_BYTES_MAX: Final = 256 << 20  # are looked at for it: hostile content must not cost more
RECORD_BYTES_MAX: Final = 64 << 20  # a longer one is taken for damage


class Walk:
    """As `segment.Scan`, by the piece. Iterate once; `end` and `problems` hold at any time.

    Bytes that are no record are skipped if a valid one lies within reach behind them (damage). Else
    the walk ends there: what is not zeros is a torn tail. A `window` full of zeros is the end; with
    `thorough` zeros are looked behind too.
    """

    def __init__(
        self,
        read: Read,
        number: int,
        start: int = HEADER_BYTES,
        *,
        window: int | None = None,
        thorough: bool = False,
    ) -> None:
        self._window_bytes = window or WINDOW_BYTES
        self._thorough = thorough
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
        head = self._at(self.end, RECORD_HEAD_BYTES)
        length = int.from_bytes(head[:4], "little")
        if len(head) == RECORD_HEAD_BYTES and 0 < length <= RECORD_BYTES_MAX:
            self._at(self.end, RECORD_HEAD_BYTES + length)
            found = parse_record(self._window, self.end - self._base)
            if found is not None:
                base = self._base
                return found._replace(offset=found.offset + base, end=found.end + base)
        return self._skip()

    def _skip(self) -> Found | None:
        """Returns the next valid record behind bytes that are none, and notes the problem."""
        at = self.end
        if not self._thorough and not self._at(at, self._window_bytes).rstrip(b"\0"):
            return None
        data = self._at(at, 2 * REACH_BYTES)
        used, budget = len(data.rstrip(b"\0")), SEARCH_BYTES_MAX
        if used == 0:
            return None
        mark = data.find(b"\x96", RECORD_HEAD_BYTES + 1)
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
            mark = data.find(b"\x96", mark + 1)
        detail = f"{used} bytes at the end are no record"
        self.problems.append(Problem(Fault.TORN_TAIL, self._number, at, detail))
        return None

    def _at(self, offset: int, length: int) -> bytes:
        """Returns that part of the segment, and has it in the window; less only at the end."""
        have = self._base + len(self._window)
        if offset + length > have or offset < self._base:
            kept = self._window[offset - self._base :] if self._base <= offset <= have else b""
            wanted = max(length, self._window_bytes) - len(kept)
            more = self._read(self._number, offset + len(kept), wanted)
            self._window, self._base = kept + more, offset
        start = offset - self._base
        return self._window[start : start + length]
