"""Reads a whole journal from outside: what lives in it, and what is wrong with it.

Found out: bytes that are no record, a shortened or missing segment, a record that was changed or
taken out of a chain. Not found out: a journal cut at its very end, or rewritten as a whole; against
that, heads of chains are anchored with another party (decision 40). The records of a subject that
was forgotten may be gone in part, because old segments are deleted.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from typing import NamedTuple

from skerry.trajectory.segment import (
    FORGOTTEN,
    NO_HASH,
    Fault,
    Found,
    Header,
    Problem,
    Scan,
    decode_header,
    read_segment,
    segment_numbers,
)


class Entry(NamedTuple):
    """A record, without its data."""

    seq: int
    subject: str
    forgets: bool
    prev_hash: bytes
    hash: bytes
    segment: int
    offset: int
    size: int


class Read(NamedTuple):
    """A segment as it was read."""

    number: int
    end: int
    hash: bytes  # of the last record
    size: int
    first_seq: int


class Examination:
    """What `examine` finds. Entries with one seq are copies; the last in the files counts."""

    def __init__(self) -> None:
        self.segments: list[Read] = []
        self.problems: list[Problem] = []
        self.entries: dict[int, Entry] = {}

    @property
    def last_seq(self) -> int:
        """The highest seq that was ever given, as far as can be seen."""
        firsts = [segment.first_seq - 1 for segment in self.segments]
        return max([0, *firsts, *self.entries])

    def lives(self) -> dict[str, list[Entry]]:
        """Returns the records of each living subject, in order."""
        lives: dict[str, list[Entry]] = {}
        for seq in sorted(self.entries):
            entry = self.entries[seq]
            if entry.forgets:
                lives.pop(entry.subject, None)
            else:
                lives.setdefault(entry.subject, []).append(entry)
        return lives


def verify(directory: str) -> list[Problem]:
    """Returns everything that is wrong with a journal; raises StorageFailed if it is unreadable."""
    found = examine(directory)
    return found.problems + _broken_chains(found.entries)


def examine(directory: str) -> Examination:
    """Reads all segments, oldest first; raises StorageFailed."""
    found = Examination()
    numbers = segment_numbers(directory)
    for number in numbers:
        data = read_segment(directory, number)
        header = decode_header(data)
        if header is None or header.number != number:
            detail = f"segment {number} has no valid header"
            found.problems.append(Problem(Fault.HEADER, number, 0, detail))
        _check_joint(found, number, header)
        _take(found, number, data, header, newest=number == numbers[-1])
    return found


def _take(
    found: Examination, number: int, data: bytes, header: Header | None, *, newest: bool
) -> None:
    """Adds what one segment holds."""
    scan = Scan(number, data)
    last = NO_HASH
    for item in scan:
        entry = _entry(number, item)
        last = item.hash
        copy = found.entries.get(entry.seq)
        if copy is not None and copy.hash != entry.hash:
            detail = f"two different records with seq {entry.seq}"
            found.problems.append(Problem(Fault.TAMPERED, number, item.offset, detail))
        found.entries[entry.seq] = entry
    for problem in scan.problems:
        torn = problem.fault is Fault.TORN_TAIL and not newest
        fault = Fault.DAMAGED if torn else problem.fault
        found.problems.append(Problem(fault, number, problem.offset, problem.detail))
    first_seq = header.first_seq if header is not None else 0
    found.segments.append(Read(number, scan.end, last, len(data), first_seq))


def _entry(number: int, item: Found) -> Entry:
    record = item.record
    return Entry(
        record.seq,
        record.subject,
        record.kind == FORGOTTEN,
        record.prev_hash,
        item.hash,
        number,
        item.offset,
        item.end - item.offset,
    )


def _check_joint(found: Examination, number: int, header: Header | None) -> None:
    """Notes a predecessor that is missing, or does not end as this segment says."""
    if not found.segments:
        return
    before = found.segments[-1]
    if before.number != number - 1:
        detail = f"segments {before.number + 1} to {number - 1} are missing"
        found.problems.append(Problem(Fault.TRUNCATED, before.number + 1, 0, detail))
    elif header is None:
        return
    elif before.end < header.previous_end:
        detail = f"the segment ends at {before.end}, it once ended at {header.previous_end}"
        found.problems.append(Problem(Fault.TRUNCATED, before.number, before.end, detail))
    elif (before.end, before.hash) != (header.previous_end, header.previous_hash):
        detail = "the last record is not the one that the next segment names"
        found.problems.append(Problem(Fault.TAMPERED, before.number, before.end, detail))


def _broken_chains(entries: dict[int, Entry]) -> list[Problem]:
    seqs = sorted(entries)
    lives: dict[str, list[list[Entry]]] = {}
    for seq in seqs:
        entry = entries[seq]
        of_subject = lives.setdefault(entry.subject, [[]])
        of_subject[-1].append(entry)
        if entry.forgets:
            of_subject.append([])
    problems: list[Problem] = []
    for of_subject in lives.values():
        for life in of_subject:
            problems += _broken_links(life, seqs)
    return sorted(problems, key=lambda problem: (problem.segment, problem.offset))


def _broken_links(life: list[Entry], seqs: list[int]) -> Iterable[Problem]:
    """Yields each record that does not follow from the one before it in one life of a subject."""
    dead = bool(life) and life[-1].forgets
    before, digest = 0, NO_HASH
    for entry in life:
        between = bisect_left(seqs, entry.seq) - bisect_left(seqs, before + 1)
        excused = dead and between < entry.seq - before - 1  # deleted with an old segment
        if entry.prev_hash != digest and not excused:
            detail = f"record {entry.seq} of {entry.subject!r} does not follow from {before}"
            yield Problem(Fault.TAMPERED, entry.segment, entry.offset, detail)
        before, digest = entry.seq, entry.hash
