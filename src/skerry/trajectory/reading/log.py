"""Trajectories of one node's log: which there are, and the events of each, by the page.

Reading is streaming: what is kept of a sandbox are the places of its records, of segments a few
pieces, of what is asked for one page. A living log may be read while it is written to: each call
takes in what was appended since the one before.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import msgspec

from skerry.errors import NotFound, ObjectDamaged, StorageFailed
from skerry.spec.trajectory import EVENTS_PAGE_MAX, Event, EventPage, TrajectoryInfo
from skerry.trajectory.format.places import OFFSET_BITS, OFFSET_MASK, place_of
from skerry.trajectory.format.scan import Scan
from skerry.trajectory.format.segment import HEADER_BYTES, RECORD_HEAD_BYTES, Found, parse_record
from skerry.trajectory.reading.folding import fold
from skerry.trajectory.reading.outline import Outline
from skerry.trajectory.reading.sightings import Seen, Sightings
from skerry.trajectory.reading.sources import Blocks, Source, scan

PAGE_BYTES_MAX: Final = 8 << 20
OUTLINES_KEPT: Final = 4096
EVENTS_KEPT: Final = 500_000  # of all outlines that are kept, but for the last one used
RECORDS_AT_ONCE: Final = 500_000  # that a pass for several sandboxes keeps the places of

_encode = msgspec.msgpack.Encoder().encode


class Traced:
    """An outline, and up to where the log was read for it."""

    def __init__(self, sandbox: str) -> None:
        self.outline = Outline(sandbox)
        self.number = 0  # of the last segment that was read
        self.end = HEADER_BYTES  # offset behind its last record


class Log:
    """One node's log. For one thread at a time.

    `breathe` is called every few records, so that a reader in a thread lets others have a turn.
    """

    def __init__(self, source: Source, breathe: Callable[[], None] = lambda: None) -> None:
        self.source = source
        self._blocks = Blocks(source)
        self._breathe = breathe
        self._sightings = Sightings(source, breathe)
        self._kept: OrderedDict[str, Traced] = OrderedDict()

    @property
    def node(self) -> str:
        """Whose log it is."""
        return self.source.node

    def sightings(self) -> Sightings:
        """Returns which segments hold something of which sandbox, as of now."""
        self._sightings.refresh()
        return self._sightings

    def rest(self) -> None:
        """Lets go of what is quickly read again."""
        self._blocks.clear()
        self._kept.clear()
        self._sightings.rest()

    def outline(self, sandbox: str) -> Outline:
        """Returns a sandbox's outline, as of now; raises NotFound if nothing of it is on record."""
        self.sightings()
        (outline,) = self._outlines([sandbox])
        if not outline.seqs:
            raise NotFound(f"no trajectory of {sandbox[:64]!r} on record")
        return outline

    def look_at(self, sandboxes: Sequence[str]) -> None:
        """Has the outlines of several ready, as far as they are kept: each segment is read once."""
        for first in range(0, len(sandboxes), OUTLINES_KEPT):
            self._outlines(sandboxes[first : first + OUTLINES_KEPT])

    def _outlines(self, sandboxes: Sequence[str]) -> list[Outline]:
        """Returns the outlines of several, each segment read once; empty for what is not there."""
        seen = self._sightings
        traced: dict[str, Traced] = {}
        wanted: dict[int, list[Traced]] = {}
        for sandbox in sandboxes:
            numbers = seen.segments_of(sandbox)
            known = self._kept.pop(sandbox, None) or Traced(sandbox)
            places = known.outline.places
            if places and numbers and places[0] >> OFFSET_BITS < numbers[0]:
                known = Traced(sandbox)  # what it began with is not in this log any more
            traced[sandbox] = known
            for number in numbers:
                if number >= known.number:
                    wanted.setdefault(number, []).append(known)
        disordered: set[str] = set()
        for number in sorted(wanted):
            self._read_on(wanted[number], number, disordered)
        for sandbox in disordered:
            traced[sandbox] = self._sorted(sandbox, seen.segments_of(sandbox))
        for one in traced.values():
            if one.outline.seqs:
                self._keep(one)
        return [traced[sandbox].outline for sandbox in sandboxes]

    def info(self, sandbox: str) -> TrajectoryInfo:
        """Returns what is known of a trajectory; NotFound."""
        return self._told(self.outline(sandbox))

    def infos(self, found: Sequence[Seen]) -> Iterator[TrajectoryInfo]:
        """Yields the same of several; from the indices alone if the segments of one are gone."""
        some: list[Seen] = []
        records = 0
        for one in found:
            if some and records + one.records > RECORDS_AT_ONCE:
                yield from self._some(some)
                some, records = [], 0
            some.append(one)
            records += one.records
        yield from self._some(some)

    def _some(self, some: Sequence[Seen]) -> Iterator[TrajectoryInfo]:
        for seen, outline in zip(some, self._outlines([one.sandbox for one in some]), strict=True):
            info = self._told(outline)
            if not outline.seqs:
                info = msgspec.structs.replace(
                    info, rollout=seen.rollout, job=seen.job, created=seen.from_ns / 1e9
                )
            yield info

    def _told(self, outline: Outline) -> TrajectoryInfo:
        return TrajectoryInfo(
            sandbox=outline.sandbox,
            rollout=outline.rollout,
            job=outline.job,
            node=self.node,
            created=outline.created_ns / 1e9,
            ended=outline.ended_ns / 1e9 if outline.ended_ns else None,
            events=len(outline),
            state=outline.state,
            complete=outline.complete,
            bytes=outline.bytes,
        )

    def page(self, sandbox: str, start: int = 0, limit: int = EVENTS_PAGE_MAX) -> EventPage:
        """Returns events from an ordinal on; NotFound."""
        try:
            return self._page(sandbox, start, limit)
        except (NotFound, StorageFailed):
            if self._kept.pop(sandbox, None) is None:
                raise
        return self._page(sandbox, start, limit)  # a segment went, and its records were carried on

    def _page(self, sandbox: str, start: int, limit: int) -> EventPage:
        outline = self.outline(sandbox)
        events: list[Event] = []
        room = PAGE_BYTES_MAX
        for index in range(start, min(start + limit, len(outline))):
            event = fold(outline, index, self.at)
            size = len(_encode(event))
            if events and size > room:
                break
            room -= size
            events.append(event)
            if index % 16 == 0:
                self._breathe()
        after = start + len(events)
        return EventPage(tuple(events), after if after < len(outline) else None)

    def events(self, sandbox: str) -> Iterator[Event]:
        """Yields all events of a sandbox, in order; NotFound."""
        following: int | None = 0
        while following is not None:
            page = self.page(sandbox, following)
            yield from page.events
            following = page.next

    def records(self, sandbox: str) -> Iterator[Found]:
        """Yields the records of a sandbox in the order of their seq, each once; NotFound."""
        for place in self.outline(sandbox).places:
            yield self.at(place)

    def at(self, place: int) -> Found:
        """Returns the record at a place; StorageFailed if there is none (any more)."""
        number, offset = place >> OFFSET_BITS, place & OFFSET_MASK
        found = self._parse(number, offset)
        if found is None:  # appended after its piece was read
            self._blocks.forget(number)
            found = self._parse(number, offset)
        if found is None:
            raise StorageFailed(f"the record at {offset} of segment {number} was lost meanwhile")
        return found._replace(offset=offset, end=offset + found.end)

    def _parse(self, number: int, offset: int) -> Found | None:
        head = self._blocks.read(number, offset, RECORD_HEAD_BYTES)
        length = int.from_bytes(head[:4], "little")
        return parse_record(self._blocks.read(number, offset, RECORD_HEAD_BYTES + length), 0)

    def _read_on(self, some: list[Traced], number: int, disordered: set[str]) -> None:
        """Takes in the rest of a segment for several; notes whose records do not lie in order."""
        starts = {
            one.outline.sandbox: (one, one.end if one.number == number else HEADER_BYTES)
            for one in some
        }
        records = scan(self.source, number, min(start for _, start in starts.values()))
        try:
            for count, found in enumerate(records):
                if count % 64 == 0:
                    self._breathe()
                sandbox = found.record.subject.partition(".")[0]
                one, start = starts.get(sandbox, (None, 0))
                if one is None or found.offset < start or sandbox in disordered:
                    continue
                if not one.outline.take(number, found):
                    disordered.add(sandbox)
        except (
            NotFound,
            ObjectDamaged,
        ):  # its index says that it was there: the rest is read all the same
            for one in some:
                one.outline.unbroken = False
        for one in some:
            one.number, one.end = number, records.end

    def _sorted(self, sandbox: str, numbers: list[int]) -> Traced:
        """Returns the outline of records that do not lie in order: old ones were carried over."""
        places: dict[int, int] = {}
        traced = Traced(sandbox)
        for number in numbers:
            records = scan(self.source, number)
            try:
                for found in self._of(records, sandbox):
                    places[found.record.seq] = place_of(number, found.offset)
            except (NotFound, ObjectDamaged):
                traced.outline.unbroken = False
            traced.number, traced.end = number, records.end
        for place in array("Q", [places[seq] for seq in sorted(places)]):
            traced.outline.take(place >> OFFSET_BITS, self.at(place))
            self._breathe()
        return traced

    def _of(self, records: Scan, sandbox: str) -> Iterator[Found]:
        chapter = sandbox + "."
        for count, found in enumerate(records):
            if count % 64 == 0:
                self._breathe()
            subject = found.record.subject
            if subject == sandbox or subject.startswith(chapter):
                yield found

    def _keep(self, traced: Traced) -> None:
        self._kept[traced.outline.sandbox] = traced
        total = sum(len(one.outline) for one in self._kept.values())
        while len(self._kept) > 1 and (len(self._kept) > OUTLINES_KEPT or total > EVENTS_KEPT):
            _, gone = self._kept.popitem(last=False)
            total -= len(gone.outline)
