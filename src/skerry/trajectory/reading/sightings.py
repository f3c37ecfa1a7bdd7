"""Which segments of a log hold records of which sandbox."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import msgspec

from skerry.errors import NotFound, ObjectDamaged
from skerry.spec.ids import SANDBOX_PATTERN
from skerry.trajectory.format.index import Mention, SegmentIndex, note
from skerry.trajectory.format.segment import HEADER_BYTES
from skerry.trajectory.reading.sources import Source, scan

ANCHORS_AT_ONCE: Final = 16  # a store over a network takes its time for each
RECORDS_A_BREATH: Final = 64


class Seen(msgspec.Struct):
    """What is known of one sandbox from the indices of segments alone."""

    sandbox: str
    from_ns: int
    to_ns: int
    segments: list[int]
    records: int = 0  # those that were carried over too
    rollout: str | None = None
    job: str | None = None


class Sightings:
    """Built of the indices that were shipped, and of the segments themselves where there is none.

    `refresh` takes in what is new; a segment that is sealed is looked at once. A record of years names
    millions of sandboxes: of each mention 8 bytes are kept, which find the segments of one. What a
    listing needs is read again for it, and kept until `rest`.
    """

    def __init__(self, source: Source, breathe: Callable[[], None] = lambda: None) -> None:
        self._source = source
        self._breathe = breathe
        self._sealed: dict[int, array[int]] = {}  # of each the marks of its sandboxes, ascending
        self._listed: dict[str, Seen] | None = None  # in sealed segments; None: nobody lists
        self._open = _Open(0)
        self.gaps: dict[int, str] = {}  # segments that their node gave up, and why

    def refresh(self) -> None:
        """Takes in what was appended or shipped since the last time."""
        numbers = self._source.numbers()
        gone = self._sealed.keys() - set(numbers)
        if gone:
            self._forget(gone)
        fresh = [number for number in numbers if number not in self._sealed]
        for number, anchor in self._anchored(fresh):
            if anchor is not None and anchor.gap:
                self.gaps[number] = anchor.gap
            if anchor is not None or number != numbers[-1]:
                self._take(number, anchor.subjects if anchor else self._read(number))
            else:
                self._read(number)

    def rest(self) -> None:
        """Lets go of what only a listing needs."""
        self._listed = None

    def _anchored(self, numbers: list[int]) -> Iterator[tuple[int, SegmentIndex | None]]:
        for first in range(0, len(numbers), ANCHORS_AT_ONCE):
            some = numbers[first : first + ANCHORS_AT_ONCE]
            yield from zip(some, self._anchors(some), strict=True)

    def _anchors(self, numbers: list[int]) -> list[SegmentIndex | None]:
        if len(numbers) == 1:
            return [self._anchor(numbers[0])]
        with ThreadPoolExecutor(len(numbers)) as pool:
            return list(pool.map(self._anchor, numbers))

    def _anchor(self, number: int) -> SegmentIndex | None:
        """Returns a segment's index, None if there is none: then the segment itself is read."""
        try:
            return self._source.anchor(number)
        except ObjectDamaged:  # a check names it
            return None

    def segments_of(self, sandbox: str) -> list[int]:
        """Returns the segments with records of a sandbox, oldest first.

        One in 2**64 that are asked for names a segment that has none: who reads it finds nothing.
        """
        if self._listed is not None:
            seen = self._listed.get(sandbox)
            numbers = [] if seen is None else sorted(seen.segments)
        else:
            mark = hash(sandbox)
            numbers = sorted(number for number, marks in self._sealed.items() if _in(marks, mark))
        if sandbox in self._open.sandboxes and self._open.number not in numbers:
            numbers.append(self._open.number)
        return numbers

    def all(self) -> Iterator[Seen]:
        """Gives every sandbox of which there is a record, in no order."""
        listed = self._listed
        if listed is None:
            listed = {}
            for number, anchor in self._anchored(sorted(self._sealed)):
                _enter(listed, number, anchor.subjects if anchor else self._look(number))
            self._listed = listed
        for sandbox, mention in self._open.sandboxes.items():
            if sandbox not in listed:
                yield _join(None, sandbox, self._open.number, mention)
        yield from listed.values()

    def _read(self, number: int) -> dict[str, Mention]:
        """Returns what a segment holds, by looking at what of it was not looked at yet."""
        if self._open.number != number:
            self._open = _Open(number)
        self._open.read_on(self._source, self._breathe)
        return self._open.sandboxes

    def _look(self, number: int) -> dict[str, Mention]:
        """Returns what a sealed segment holds that has no index."""
        whole = _Open(number)
        whole.read_on(self._source, self._breathe)
        return whole.sandboxes

    def _take(self, number: int, mentions: dict[str, Mention]) -> None:
        marks = {hash(sandbox) for sandbox, _ in _sandboxes(mentions)}
        self._sealed[number] = array("q", sorted(marks))
        if self._listed is not None:
            _enter(self._listed, number, mentions)

    def _forget(self, gone: set[int]) -> None:
        for number in gone:
            del self._sealed[number]
        if self._listed is None:
            return
        for sandbox, seen in list(self._listed.items()):
            seen.segments = [number for number in seen.segments if number not in gone]
            if not seen.segments:
                del self._listed[sandbox]


def _in(marks: array[int], mark: int) -> bool:
    index = bisect_left(marks, mark)
    return index < len(marks) and marks[index] == mark


def _sandboxes(mentions: dict[str, Mention]) -> Iterator[tuple[str, Mention]]:
    """Gives the mentions of sandboxes, and of their chapters by the sandbox's name."""
    for subject, mention in mentions.items():
        sandbox = subject.partition(".")[0]
        if SANDBOX_PATTERN.fullmatch(sandbox) is not None:
            yield sandbox, mention


def _enter(listed: dict[str, Seen], number: int, mentions: dict[str, Mention]) -> None:
    """Adds what one more segment holds."""
    for sandbox, mention in _sandboxes(mentions):
        listed[sandbox] = _join(listed.get(sandbox), sandbox, number, mention)


class _Open:
    """What a segment without an index holds, as far as it was read."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.sandboxes: dict[str, Mention] = {}
        self._end = HEADER_BYTES

    def read_on(self, source: Source, breathe: Callable[[], None]) -> None:
        """Reads what was appended since; nothing if the segment is gone, or is no file."""
        records = scan(source, self.number, self._end)
        try:
            for count, found in enumerate(records):
                if count % RECORDS_A_BREATH == 0:
                    breathe()
                sandbox = found.record.subject.partition(".")[0]
                if SANDBOX_PATTERN.fullmatch(sandbox) is not None:
                    note(self.sandboxes, sandbox, found)
        except (NotFound, ObjectDamaged):
            return
        self._end = records.end


def _join(seen: Seen | None, sandbox: str, number: int, mention: Mention) -> Seen:
    """Returns what is known of a sandbox, with what one more segment holds of it."""
    if seen is None:
        seen = Seen(sandbox, mention.from_ns, mention.to_ns, [])
    seen.from_ns = min(seen.from_ns, mention.from_ns)
    seen.to_ns = max(seen.to_ns, mention.to_ns)
    if number not in seen.segments:
        seen.segments.append(number)
    seen.records += mention.records
    seen.rollout = seen.rollout or mention.rollout
    seen.job = seen.job or mention.job
    return seen
