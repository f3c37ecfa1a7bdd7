"""Whether the chains of a log hold, in whatever order their records lie.

A record that still lives when its segment is deleted is carried over: the same bytes again, behind
newer ones. So a chain is followed as it comes, and where that does not do, in the order of the seq.
"""

from __future__ import annotations

import sys
from array import array

from skerry.errors import NotFound
from skerry.spec.ids import SANDBOX_PATTERN
from skerry.spec.trajectory import FindingKind
from skerry.trajectory.format.links import Links
from skerry.trajectory.format.places import OFFSET_BITS, OFFSET_MASK, place_of
from skerry.trajectory.format.segment import FORGOTTEN, HEADER_BYTES, Found, decode_header
from skerry.trajectory.reading.findings import Findings
from skerry.trajectory.reading.log import Log


class Copies:
    """Records of one sandbox that lie behind newer ones of it."""

    def __init__(self) -> None:
        self.seqs = array("Q")
        self.places = array("Q")

    def add(self, number: int, found: Found) -> None:
        """Takes note of one."""
        self.seqs.append(found.record.seq)
        self.places.append(place_of(number, found.offset))


class Chains:
    """Follows the chains of all subjects of a log. `take` its records as they lie, then `finish`."""

    def __init__(self, log: Log, numbers: list[int], findings: Findings) -> None:
        self._log = log
        self._findings = findings
        self._oldest = _oldest_seq(log, numbers)
        self._links = Links()
        self._last: dict[str, int] = {}  # seq of the last record of each subject
        self._disordered: dict[str, Copies] = {}

    def take(self, number: int, found: Found) -> None:
        """Takes the next record of the log."""
        record = found.record
        before, why = self._last.get(record.subject, 0), ""
        if record.seq > before:
            why = self._links.follow(found)
            self._last[record.subject] = record.seq
        else:
            self._of(record.subject).add(number, found)
        if why and before + 1 < self._oldest:
            self._of(record.subject)  # what is between may come as a copy
        elif why:
            name = _sandbox(record.subject)
            sandbox = name if SANDBOX_PATTERN.fullmatch(name) is not None else None
            where = {"segment": number, "offset": found.offset}
            self._findings.add(FindingKind.TAMPERED, why, sandbox=sandbox, **where)

    def finish(self) -> None:
        """Follows those of sandboxes whose records do not lie in the order of their seq."""
        found = {
            sandbox: copies
            for sandbox, copies in sorted(self._disordered.items())
            if SANDBOX_PATTERN.fullmatch(sandbox) is not None
        }
        self._log.look_at(list(found))
        for sandbox, copies in found.items():
            check_chain(self._log, sandbox, self._findings, self._oldest, copies)

    def _of(self, subject: str) -> Copies:
        return self._disordered.setdefault(_sandbox(subject), Copies())


def check_chain(
    log: Log, sandbox: str, findings: Findings, oldest: int = 0, copies: Copies | None = None
) -> None:
    """Follows a sandbox's records in the order of their seq, wherever they lie.

    Records with a smaller seq than `oldest` lay in segments that are not there any more: those of a
    subject that was forgotten before they could be carried over are gone, and that is no crime. What
    is said to be a copy has to be one. Segments may go while it reads.
    """
    try:
        _follow(log, sandbox, findings, oldest, copies)
    except NotFound:
        detail = "segments with its records were removed meanwhile"
        findings.add(FindingKind.TRUNCATED, detail, sandbox=sandbox)


def _follow(log: Log, sandbox: str, findings: Findings, oldest: int, copies: Copies | None) -> None:
    links = Links()
    doubts: dict[str, list[tuple[str, dict[str, int]]]] = {}  # until their subject is forgotten
    hashes = dict.fromkeys(copies.seqs, b"") if copies is not None else {}
    before = 0
    for index, place in enumerate(log.outline(sandbox).places):
        found = log.at(place)
        record, why = found.record, links.follow(found)
        where = _where(place)
        if record.seq in hashes:
            hashes[record.seq] = found.hash
        if why and index == 0 and not oldest:
            detail = f"its beginning is missing: the first record is {record.seq}"
            findings.add(FindingKind.TRUNCATED, detail, sandbox=sandbox)
        elif why and before + 1 < oldest:
            doubts.setdefault(record.subject, []).append((why, where))
        elif why:
            findings.add(FindingKind.TAMPERED, why, sandbox=sandbox, **where)
        if record.kind == FORGOTTEN:
            doubts.pop(record.subject, None)
        before = record.seq
    for why, where in (doubt for some in doubts.values() for doubt in some):
        findings.add(FindingKind.TAMPERED, why, sandbox=sandbox, **where)
    for seq, place in zip(copies.seqs, copies.places, strict=True) if copies is not None else ():
        if log.at(place).hash != hashes[seq]:
            detail = f"two different records with seq {seq}"
            findings.add(FindingKind.TAMPERED, detail, sandbox=sandbox, **_where(place))


def _where(place: int) -> dict[str, int]:
    return {"segment": place >> OFFSET_BITS, "offset": place & OFFSET_MASK}


def _sandbox(subject: str) -> str:
    """Returns whose subject it is: chapters of a sandbox have its name too."""
    return subject.partition(".")[0]


def _oldest_seq(log: Log, numbers: list[int]) -> int:
    """Returns the seq below which no record is new in what is there; 0: nothing is missing before.

    Where the first header is damaged, which is a finding of its own, nothing is certain.
    """
    if not numbers or numbers[0] <= 1:
        return 0
    try:
        header = decode_header(log.source.read(numbers[0], 0, HEADER_BYTES))
    except NotFound:
        header = None
    return header.first_seq if header is not None else sys.maxsize
