"""Reads records again and says what is wrong with them, each thing by its name.

Found out is what was changed, cut off or taken away, also by who has the node's own disk, as far as
another party was told: the store's index of each sealed segment, and the header of the next one. Not
found out is who rewrites store and node together (decision 40).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from skerry.errors import LayerDamaged, NotFound, ObjectDamaged, StorageFailed
from skerry.spec.trajectory import FindingKind, TrajectoryCheck, blobs_of
from skerry.trajectory.format.index import SegmentIndex
from skerry.trajectory.format.segment import (
    HEADER_BYTES,
    NO_HASH,
    Found,
    Header,
    decode_header,
)
from skerry.trajectory.reading.archive import Archive
from skerry.trajectory.reading.blobs import Blobs
from skerry.trajectory.reading.chains import Chains, check_chain
from skerry.trajectory.reading.findings import Findings
from skerry.trajectory.reading.log import Log
from skerry.trajectory.reading.outline import Outline
from skerry.trajectory.reading.sources import Source, scan

PIECE_BYTES: Final = 1 << 20
ABSENT_MAX: Final = 64  # missing segments in a row that are told one by one


class Pass:
    """One reading of segments, oldest first."""

    def __init__(self, source: Source, findings: Findings, breathe: Callable[[], None]) -> None:
        self.records = 0
        self._source = source
        self._findings = findings
        self._breathe = breathe

    def segments(self, numbers: Iterable[int], newest: int) -> Iterator[tuple[int, Found]]:
        """Yields each valid record with its segment's number, and notes what is wrong around them."""
        for number in numbers:
            anchor = self._anchor(number)
            if anchor is not None and anchor.gap:
                continue  # told by `_missing`
            try:
                newest_of_all = number == newest and anchor is None  # it may be written to
                yield from self._segment(number, anchor, newest=newest_of_all)
            except NotFound as error:
                self._findings.add(FindingKind.TRUNCATED, error.message, segment=number)
            except ObjectDamaged as error:
                self._findings.add(FindingKind.DAMAGED, error.message, segment=number)

    def _anchor(self, number: int) -> SegmentIndex | None:
        """Returns what the store was told of a segment, as far as that is there."""
        try:
            return self._source.anchor(number)
        except ObjectDamaged as error:
            self._findings.add(FindingKind.DAMAGED, error.message, segment=number)
            return None

    def _segment(
        self, number: int, anchor: SegmentIndex | None, *, newest: bool
    ) -> Iterator[tuple[int, Found]]:
        header = decode_header(self._source.read(number, 0, HEADER_BYTES))
        if header is None or header.number != number:
            detail = "it has no valid header"
            self._findings.add(FindingKind.HEADER, detail, segment=number, offset=0)
        records = scan(self._source, number, thorough=True)
        digest = NO_HASH
        for found in records:
            digest = found.hash
            self.records += 1
            if self.records % 64 == 0:
                self._breathe()
            yield number, found
        for problem in records.problems:
            kind = FindingKind(str(problem.fault))
            if kind is FindingKind.TORN_TAIL and not newest:
                kind = FindingKind.DAMAGED
            self._findings.add(kind, problem.detail, segment=number, offset=problem.offset)
        self._check_anchor(number, anchor, records.end)
        if not newest:
            self._check_joint(number, records.end, digest)

    def _check_anchor(self, number: int, anchor: SegmentIndex | None, end: int) -> None:
        """Compares a sealed segment with what the store was told of it."""
        if anchor is None:
            return
        check, offset = hashlib.sha256(), 0
        while offset < end:
            piece = self._source.read(number, offset, min(PIECE_BYTES, end - offset))
            if not piece:
                break
            check.update(piece)
            offset += len(piece)
            self._breathe()
        if end < anchor.size:
            detail = f"it ends at {end}, and was shipped with {anchor.size} bytes"
            self._findings.add(FindingKind.TRUNCATED, detail, segment=number, offset=end)
        if check.hexdigest() != anchor.sha256:
            detail = "it is not the segment that the store was told of"
            self._findings.add(FindingKind.NOT_ANCHORED, detail, segment=number)

    def _check_joint(self, number: int, end: int, digest: bytes) -> None:
        """Compares the end of a segment with what the header of the next one says of it."""
        following = self._header(number + 1)
        if following is None or following.previous_end == 0:
            return
        if end < following.previous_end:
            detail = f"it ends at {end}, it once ended at {following.previous_end}"
            self._findings.add(FindingKind.TRUNCATED, detail, segment=number, offset=end)
        elif (end, digest) != (following.previous_end, following.previous_hash):
            detail = "its last record is not the one that the next segment names"
            self._findings.add(FindingKind.TAMPERED, detail, segment=number, offset=end)

    def _header(self, number: int) -> Header | None:
        try:
            return decode_header(self._source.read(number, 0, HEADER_BYTES))
        except (NotFound, ObjectDamaged):
            return None


def check_sandbox(archive: Archive, sandbox: str) -> TrajectoryCheck:
    """Checks all that is recorded of a sandbox, and its long contents; raises NotFound."""
    log = archive.whole_log_of(sandbox)
    numbers = log.sightings().segments_of(sandbox)
    if not numbers:
        raise NotFound(f"no trajectory of {sandbox} on record")
    try:
        outline = log.outline(sandbox)
    except NotFound:  # all that mention it are gone, and that is what will be said
        outline = Outline(sandbox)
    findings = Findings(log.node)
    present = log.source.numbers()
    _missing(log, range(numbers[0], numbers[-1]), present, findings)
    reading = Pass(log.source, findings, archive.breathe)
    blobs: set[str] = set()
    for _, found in reading.segments(numbers, present[-1] if present else 0):
        subject = found.record.subject
        if subject == sandbox or subject.startswith(sandbox + "."):
            blobs.update(blobs_of(found.record.data))
    _not_away(log)
    if outline.seqs:
        check_chain(log, sandbox, findings)
    _check_blobs(archive.blobs, blobs, findings, archive.breathe)
    return TrajectoryCheck(
        sandbox=sandbox,
        node=log.node,
        segments=len(numbers),
        records=len(outline.seqs),
        events=len(outline),
        blobs=len(blobs),
        head=outline.head.hex(),
        complete=outline.complete,
        findings=tuple(findings.all),
    )


def check_log(archive: Archive, log: Log) -> TrajectoryCheck:
    """Checks everything that one node recorded."""
    findings = Findings(log.node)
    numbers = log.source.numbers()
    log.sightings()
    if numbers:
        _missing(log, range(numbers[0], numbers[-1] + 1), numbers, findings)
    reading = Pass(log.source, findings, archive.breathe)
    chains = Chains(log, numbers, findings)
    blobs: set[str] = set()
    head = NO_HASH
    for number, found in reading.segments(numbers, numbers[-1] if numbers else 0):
        head = found.hash
        blobs.update(blobs_of(found.record.data))
        chains.take(number, found)
    _not_away(log)
    chains.finish()
    _check_blobs(archive.blobs, blobs, findings, archive.breathe)
    return TrajectoryCheck(
        node=log.node,
        segments=len(numbers),
        records=reading.records,
        blobs=len(blobs),
        head=head.hex(),
        findings=tuple(findings.all),
    )


def _missing(log: Log, wanted: range, present: list[int], findings: Findings) -> None:
    """Notes the segments that should be there and are not; a gap is in the node's own words."""
    gaps = log.sightings().gaps
    following = wanted.start
    for number in sorted({number for number in (*present, *gaps) if number in wanted}):
        _absent(range(following, number), findings)
        if number in gaps:
            findings.add(FindingKind.GAP, gaps[number], segment=number)
        following = number + 1
    _absent(range(following, wanted.stop), findings)


def _absent(numbers: range, findings: Findings) -> None:
    """Notes segments that are not there; in one if they are many, for a number costs nothing."""
    if len(numbers) > ABSENT_MAX:
        detail = f"the segments up to {numbers[-1]} are missing"
        findings.add(FindingKind.TRUNCATED, detail, segment=numbers[0])
        return
    for number in numbers:
        findings.add(FindingKind.TRUNCATED, "the segment is missing", segment=number)


def _not_away(log: Log) -> None:
    if log.source.away:
        raise StorageFailed(
            "the store cannot be reached: what it was told of the segments cannot be compared"
        )


def _check_blobs(
    blobs: Blobs, wanted: set[str], findings: Findings, breathe: Callable[[], None]
) -> None:
    for digest in sorted(wanted):
        try:
            for _ in blobs.pieces(digest):
                breathe()
        except NotFound:
            findings.add(FindingKind.MISSING_BLOB, "the content is not there", blob=digest)
        except ObjectDamaged as error:
            findings.add(FindingKind.CHANGED_BLOB, error.message, blob=digest)
        except LayerDamaged:
            findings.add(FindingKind.CHANGED_BLOB, "the content is another one", blob=digest)
