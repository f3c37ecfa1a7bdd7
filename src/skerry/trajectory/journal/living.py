"""Which records of a segment still live: what must be carried over before it may be deleted."""

from __future__ import annotations

import os
from collections.abc import Mapping

from skerry.trajectory.format.places import OFFSET_MASK, place_of
from skerry.trajectory.format.segment import RECORD_HEAD_BYTES, Found, parse_record, pread_record
from skerry.trajectory.journal.table import Chain, Segment


def next_living(segment: Segment, chains: Mapping[str, Chain], longest: int) -> Found | None:
    """Returns the first living record at or behind `carried`, which is moved up to it.

    `longest` bounds a record's bytes. Raises Bug if a record that the table names cannot be read.
    """
    at = segment.carried
    while at < segment.end:
        found = pread_record(segment.fd, at) if _is_record(segment, at, longest) else None
        if found is None:
            break
        chain = chains.get(found.record.subject)
        index = chain.index(found.record.seq) if chain is not None else -1
        place = place_of(segment.number, at)
        if chain is not None and index >= 0 and chain.places[index] == place:
            segment.carried = at
            return found
        at = segment.carried = found.end
    return _next_in_table(segment, chains, at)


def _next_in_table(segment: Segment, chains: Mapping[str, Chain], at: int) -> Found | None:
    """As `next_living`, where damaged bytes hide the next record: from the table."""
    low = place_of(segment.number, at)
    high = place_of(segment.number, OFFSET_MASK)
    places = [place for chain in chains.values() for place in chain.places if low <= place < high]
    if not places:
        segment.carried = segment.end
        return None
    segment.carried = min(places) & OFFSET_MASK
    return pread_record(segment.fd, segment.carried)


def _is_record(segment: Segment, at: int, longest: int) -> bool:
    size = int.from_bytes(os.pread(segment.fd, 4, at), "little") + RECORD_HEAD_BYTES
    return size <= longest and parse_record(os.pread(segment.fd, size, at), 0) is not None
