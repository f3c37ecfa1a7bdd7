"""The node's journal: what was asked and what came of it, recorded before it is answered.

An append is one write and survives SIGKILL of this process (level `process`); `sync` makes what was
appended survive the loss of the host (level `local`). Each subject (a sandbox, an operation) has
its own hash chain. `forget` ends a subject. Segments are deleted from the oldest on; records in
them whose subjects still live are carried over first, unchanged and a little with each append, so
that an old sandbox never pins the disk: the journal takes at most about twice its living records
and a few segments. A journal that is kept (`keep`) deletes a segment only after `release`: until then
its records are a trajectory that nobody else has yet. The format is drawn in
`format/segment.py`; `reading/` reads it from outside.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, Self

import msgspec

from skerry.errors import Bug, InvalidRequest, NotFound, StorageFailed
from skerry.trajectory.format.places import OFFSET_BITS, OFFSET_MASK, place_of
from skerry.trajectory.format.segment import (
    DEPTH_MAX,
    FORGOTTEN,
    HEADER_BYTES,
    NO_HASH,
    UNNUMBERED,
    Fault,
    Found,
    Problem,
    Record,
    body_hash,
    frame_body,
    is_deep,
    pread_record,
    refuse_newer,
    segment_path,
)
from skerry.trajectory.journal.files import Segments
from skerry.trajectory.journal.living import next_living
from skerry.trajectory.journal.pending import Pending
from skerry.trajectory.journal.recovery import Examination, examine
from skerry.trajectory.journal.table import Chain, Position, Segment

SEGMENT_BYTES: Final = 32 * 1024 * 1024
SEGMENTS_KEPT: Final = 4  # nothing is carried over while there are no more
CARRY_BYTES: Final = 64 * 1024  # of an old segment are looked at with each append
SMALL_BYTES: Final = 1 << 20  # a segment that was sealed early counts as that large


class Journal:
    """An open journal; for one process and one thread (what `pending` gives may run in another).

    Invariant: every record of a living subject is at its place in the table; the record that
    forgets a subject is in no older segment than any other record of that subject.
    """

    def __init__(
        self, directory: str, now_ns: Callable[[], int], segment_bytes: int, *, keep: bool = False
    ) -> None:
        self.problems: list[Problem] = []  # what `open` found
        self._now_ns = now_ns
        self._segments = Segments(directory, segment_bytes)
        self._seq = 0  # of the last record
        self._chains: dict[str, Chain] = {}
        self._carrying = False  # the oldest segment is being emptied
        self._keep = keep
        self._released = 0  # if kept: up to this one segments are no longer needed
        self.syncs = 0  # how often that was asked for
        self._encode = msgspec.msgpack.Encoder().encode

    @classmethod
    def open(
        cls,
        directory: str,
        *,
        now_ns: Callable[[], int],
        segment_bytes: int = SEGMENT_BYTES,
        keep: bool = False,
    ) -> Self:
        """Returns the journal of a directory, made if it is not there.

        A torn tail is cut off, damage is left where it is and skipped; `problems` names both.
        Raises StorageFailed.
        """
        journal = cls(directory, now_ns, segment_bytes, keep=keep)
        try:
            os.makedirs(directory, mode=0o700, exist_ok=True)
            refuse_newer(directory)
            for name in os.listdir(directory):
                if name.endswith(UNNUMBERED):
                    os.unlink(os.path.join(directory, name))
            journal._recover(examine(directory))
        except OSError as error:
            journal.close()
            raise StorageFailed(f"cannot open the journal {directory}: {error}") from error
        return journal

    def append(self, subject: str, kind: str, data: Any) -> Position:
        """Records; the record survives this process when this returns.

        Raises StorageFailed, and then nothing was recorded; InvalidRequest for more than a
        quarter of a segment, or what is nested too deep to be read again.
        """
        chain = self._chains.get(subject)
        prev_hash = chain.hash if chain is not None else NO_HASH
        now_ns = self._now_ns()
        body = self._body(self._seq + 1, subject, kind, now_ns, prev_hash, data)
        record = frame_body(body)
        return self._write(subject, chain, now_ns, record, ((len(record), body_hash(body)),))

    def append_all(self, subject: str, kind: str, items: Sequence[Any]) -> Position:
        """Records several of one kind with one write: all of them, or none; returns the last's.

        Raises as `append` does.
        """
        chain = self._chains.get(subject)
        prev_hash = chain.hash if chain is not None else NO_HASH
        now_ns, seq = self._now_ns(), self._seq
        told, parts = [], []
        for data in items:
            seq += 1
            body = self._body(seq, subject, kind, now_ns, prev_hash, data)
            prev_hash = body_hash(body)
            record = frame_body(body)
            told.append((len(record), prev_hash))
            parts.append(record)
        return self._write(subject, chain, now_ns, b"".join(parts), told)

    def _body(self, *fields: Any) -> bytes:
        body = self._encode(fields)
        if is_deep(body):
            raise InvalidRequest(f"a record is nested more than {DEPTH_MAX} deep")
        return body

    def read(self, position: Position) -> Record:
        """Returns a record of a living subject; raises NotFound."""
        chain = self._chains.get(position.subject)
        index = chain.index(position.seq) if chain is not None else -1
        if chain is None or index < 0:
            raise NotFound(f"the journal has no record {position.seq} of {position.subject!r}")
        return self._found(chain.places[index]).record

    def replay(self, subject: str | None = None) -> Iterator[Record]:
        """Yields the records of all living subjects, or of one, in the order of appending.

        What is appended or forgotten meanwhile may or may not show.
        """
        chains = list(self._chains.values())
        if subject is not None:
            chains = [self._chains[subject]] if subject in self._chains else []
        order = [(seq, chain) for chain in chains for seq in chain.seqs]
        order.sort(key=lambda pair: pair[0])
        for seq, of_subject in order:
            place = of_subject.places[of_subject.index(seq)]
            if self._segments.get(place >> OFFSET_BITS) is not None:
                yield self._found(place).record

    def subjects(self) -> list[str]:
        """Returns the living subjects."""
        return list(self._chains)

    def head(self, subject: str) -> bytes:
        """Returns the hash of a subject's last record, for anchoring; 16 zero bytes if it has none."""
        chain = self._chains.get(subject)
        return chain.hash if chain is not None else NO_HASH

    def size(self, subject: str) -> int:
        """Returns how many bytes the records of a subject take."""
        chain = self._chains.get(subject)
        return chain.bytes if chain is not None else 0

    def forget(self, subject: str) -> None:
        """Ends a subject, durably as any record; its records may be deleted from now on.

        An unknown subject is nothing to forget. Raises StorageFailed.
        """
        if subject not in self._chains:
            return
        self.append(subject, FORGOTTEN, None)
        chain = self._chains.pop(subject)
        for place, size in zip(chain.places, chain.sizes, strict=True):
            self._segment(place).live -= size
        self._shrink()

    def sync(self) -> None:
        """What was appended before survives the loss of the host. Blocks. Raises StorageFailed."""
        self.pending().carry_out()

    def pending(self) -> Pending:
        """Returns what has to reach the disk for all that was appended so far; any thread may do it.

        Raises StorageFailed.
        """
        self.syncs += 1
        return self._segments.pending()

    # --- sealing -------------------------------------------------------------------------------

    def mark(self) -> tuple[int, int]:
        """Returns number and end of the segment that is appended to; (0, 0) before the first record."""
        newest = self._segments.newest
        return (newest.number, newest.end) if newest is not None else (0, 0)

    def written(self) -> int:
        """Returns the number of the newest segment that has records, 0 if there is none."""
        number, end = self.mark()
        return number if end > HEADER_BYTES else max(0, number - 1)

    def age_ns(self) -> int:
        """Returns how long ago the first record of the newest segment was appended; 0: it has none."""
        first_ns = self._segments.first_ns
        return 0 if first_ns is None else max(0, self._now_ns() - first_ns)

    def seal(self) -> None:
        """Nothing more is written to the newest segment, if it has records. Raises StorageFailed."""
        newest = self._segments.newest
        if newest is not None and newest.end > HEADER_BYTES:
            self._segments.roll(self._seq + 1, self._now_ns())
            self._shrink()

    def sealed(self) -> list[tuple[int, int]]:
        """Returns number and end of each segment that nothing more is written to, oldest first."""
        return self._segments.sealed()

    def shortened(self, number: int) -> None:
        """The zeros behind a sealed segment's last record were given back."""
        segment = self._segments.get(number)
        if segment is not None and segment is not self._segments.newest:
            segment.size = segment.end

    def release(self, number: int) -> None:
        """Up to this one they are kept elsewhere, or given up: they go when nothing in them lives."""
        if number > self._released:
            self._released = number
            self._shrink()

    @property
    def slow(self) -> bool:
        """Whether syncs were faster after `prepare` and `seal`."""
        return self._segments.slow

    def prepare(self) -> None:
        """Makes the file of the next segment ahead of need, so that no append waits for it.

        Blocks, and may run in another thread, one at a time. Raises StorageFailed.
        """
        self._segments.prepare()

    def close(self) -> None:
        """Closes the files; safe to call twice. Nothing may be asked of the journal afterwards."""
        self._segments.close()

    @property
    def records(self) -> int:
        """The number of the last record."""
        return self._seq

    @property
    def disk_bytes(self) -> int:
        """What the segments take on disk."""
        return self._segments.disk_bytes

    @property
    def record_bytes_max(self) -> int:
        """How long a record may be, or all of `append_all` together."""
        return self._segments.record_bytes_max

    def check_invariants(self) -> None:
        """Raises AssertionError if the table does not fit the files; for tests."""
        live = {segment.number: 0 for segment in self._segments}
        for subject, chain in self._chains.items():
            before = NO_HASH
            for seq, place, size in zip(chain.seqs, chain.places, chain.sizes, strict=True):
                found = self._found(place)
                assert (found.record.subject, found.record.seq) == (subject, seq)  # noqa: S101
                assert found.end - found.offset == size  # noqa: S101
                assert found.record.prev_hash == before  # noqa: S101
                before = found.hash
                live[place >> OFFSET_BITS] += size
            assert chain.hash == before  # noqa: S101
        assert live == {segment.number: segment.live for segment in self._segments}  # noqa: S101

    # --- writing ---

    def _write(
        self,
        subject: str,
        chain: Chain | None,
        now_ns: int,
        records: bytes,
        told: Sequence[tuple[int, bytes]],
    ) -> Position:
        """Appends records of one subject; `told` are their sizes and hashes."""
        segment = self._room(len(records), now_ns)
        place = self._segments.write(segment, records)
        if self._segments.first_ns is None:
            self._segments.first_ns = now_ns
        if chain is None:
            chain = self._chains[subject] = Chain()
        for size, digest in told:
            self._seq += 1
            chain.add(self._seq, place, size, digest)
            place += size
        segment.hash = chain.hash
        segment.live += len(records)
        if self._carrying:
            self._carry()
        return Position(subject, self._seq)

    def _room(self, size: int, now_ns: int) -> Segment:
        before = self._segments.newest
        segment = self._segments.room(size, self._seq + 1, now_ns)
        if segment is not before:
            self._shrink()
        return segment

    # --- giving back ---------------------------------------------------------------------------

    def _shrink(self) -> None:
        """Deletes oldest segments without life; decides whether the next is to be emptied."""
        segments = self._segments
        small = min(SMALL_BYTES, segments.segment_bytes)
        while len(segments) > 1:
            oldest = segments.oldest
            if self._keep and oldest.number > self._released:
                break
            if oldest.live:
                live = sum(segment.live for segment in segments)
                room = sum(max(segment.size, small) for segment in segments)
                room -= SEGMENTS_KEPT * segments.segment_bytes
                self._carrying = 0 < live * 2 <= room
                return
            if not segments.delete(oldest):
                break
        self._carrying = False

    def _carry(self) -> None:
        """Writes the living records in the next bytes of the oldest segment again.

        Failing is no failure of the append that it was called from: it is tried again, and given
        up until the next segment if a record cannot be read any more.
        """
        oldest = self._segments.oldest
        if oldest is self._segments.newest:
            self._carrying = False
            return
        try:
            stop = min(oldest.end, oldest.carried + CARRY_BYTES)
            while oldest.live and oldest.carried < stop:
                found = next_living(oldest, self._chains, self._segments.segment_bytes)
                if found is None:
                    break
                self._move(oldest, found)
            if oldest.live == 0:
                self._shrink()
        except StorageFailed:
            return
        except Bug:
            self._carrying = False

    def _move(self, oldest: Segment, found: Found) -> None:
        """Writes one living record again, and lets the table point there."""
        size = found.end - found.offset
        data = os.pread(oldest.fd, size, found.offset)
        segment = self._room(size, self._now_ns())
        place = self._segments.write(segment, data)
        chain = self._chains[found.record.subject]
        chain.places[chain.index(found.record.seq)] = place
        segment.hash = found.hash
        segment.live += size
        oldest.live -= size
        oldest.carried = found.end
        self._segments.moved = True

    # --- reading -------------------------------------------------------------------------------

    def _found(self, place: int) -> Found:
        return pread_record(self._segment(place).fd, place & OFFSET_MASK)

    def _segment(self, place: int) -> Segment:
        segment = self._segments.get(place >> OFFSET_BITS)
        if segment is None:
            raise Bug(f"the journal has no segment {place >> OFFSET_BITS}")
        return segment

    def _recover(self, found: Examination) -> None:
        """Builds the table from what the files hold, and cuts off a torn tail."""
        self.problems = found.problems
        self._seq = found.last_seq
        for read in found.segments:
            path = segment_path(self._segments.directory, read.number)
            # One that was sealed may belong to a store by now, which lets nobody write to it.
            mode = os.O_RDWR if read is found.segments[-1] else os.O_RDONLY
            fd = os.open(path, mode | os.O_CLOEXEC)
            self._segments.adopt(Segment(read.number, fd, read.end, read.hash, read.size))
        for subject, entries in found.lives().items():
            chain = self._chains[subject] = Chain()
            for entry in entries:
                place = place_of(entry.segment, entry.offset)
                chain.add(entry.seq, place, entry.size, entry.hash)
                self._segment(place).live += entry.size
        newest = self._segments.newest
        if newest is not None:
            last = found.problems[-1] if found.problems else None
            torn = last is not None and last.fault is Fault.TORN_TAIL
            if torn or newest.size < self._segments.segment_bytes:
                self._segments.extend(newest)
            if newest.end > HEADER_BYTES:
                self._segments.first_ns = self._now_ns()
        self._shrink()


__all__ = ["Journal", "Position"]
