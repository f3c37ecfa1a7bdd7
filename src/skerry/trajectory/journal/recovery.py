"""Reads a whole journal when it is opened: what lives in it, and what is wrong with it.

Found out: bytes that are no record, a shortened or missing segment, a last record that is not the
one that the next segment names. Chains are not followed here, for what they convict lives on all the
same: `skerry.trajectory.reading.checking` does that.
"""

from __future__ import annotations

import os
from typing import Final, NamedTuple

from skerry.errors import StorageFailed
from skerry.trajectory.format.scan import Scan, own
from skerry.trajectory.format.segment import (
    FORGOTTEN,
    HEADER_BYTES,
    NO_HASH,
    Fault,
    Found,
    Header,
    Problem,
    decode_header,
    segment_numbers,
    segment_path,
)

PIECE_BYTES: Final = 1 << 20  # of a segment are read at once


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


def examine(directory: str) -> Examination:
    """Reads all segments, oldest first; raises StorageFailed."""
    found = Examination()
    numbers = segment_numbers(directory)
    for number in numbers:
        try:
            with open(segment_path(directory, number), "rb", buffering=0) as file:
                _take(found, number, file.fileno(), newest=number == numbers[-1])
        except OSError as error:
            path = segment_path(directory, number)
            raise StorageFailed(f"cannot read {path}: {error.strerror}") from error
    return found


def _take(found: Examination, number: int, fd: int, *, newest: bool) -> None:
    """Adds what one segment holds."""

    def read(_: int, offset: int, length: int) -> bytes:
        return os.pread(fd, length, offset)

    size = os.fstat(fd).st_size
    header = decode_header(read(number, 0, HEADER_BYTES))
    if header is None or header.number != number:
        detail = f"segment {number} has no valid header"
        found.problems.append(Problem(Fault.HEADER, number, 0, detail))
    _check_joint(found, number, header)
    scan = Scan(read, number, window=PIECE_BYTES, thorough=True, bounds=own(size))
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
    found.segments.append(Read(number, scan.end, last, size, first_seq))


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
