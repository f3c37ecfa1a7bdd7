"""The node's journal: what was asked and what came of it, recorded before it is answered.

An append is one write and survives SIGKILL of this process (level `process`); `sync` makes what was
appended survive the loss of the host (level `local`). Each subject (a sandbox, an operation) has
its own hash chain. `forget` ends a subject. Segments are deleted from the oldest on; records in
them whose subjects still live are carried over first, unchanged and a little with each append, so
that an old sandbox never pins the disk: the journal takes at most about twice its living records
and a few segments. The format is drawn in `segment.py`; `verify` reads it from outside.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Any, Final, Self

import msgspec

from skerry.errors import Bug, InvalidRequest, NotFound, StorageFailed
from skerry.trajectory.living import next_living
from skerry.trajectory.segment import (
    FORGOTTEN,
    HEADER_BYTES,
    NO_HASH,
    Fault,
    Found,
    Header,
    Problem,
    Record,
    body_hash,
    frame_body,
    make_segment,
    pread_record,
    refuse_newer,
    segment_path,
)
from skerry.trajectory.table import OFFSET_BITS, OFFSET_MASK, Chain, Position, Segment, place_of
from skerry.trajectory.verify import Examination, examine, verify

SEGMENT_BYTES: Final = 32 * 1024 * 1024
SEGMENTS_KEPT: Final = 4  # nothing is carried over while there are no more
CARRY_BYTES: Final = 64 * 1024  # of an old segment are looked at with each append


class Journal:
    """An open journal; for one process and one thread (`sync` may run in another).

    Invariant: every record of a living subject is at its place in the table; the record that
    forgets a subject is in no older segment than any other record of that subject.
    """

    def __init__(self, directory: str, now_ns: Callable[[], int], segment_bytes: int) -> None:
        self.problems: list[Problem] = []  # what `open` found
        self._directory = directory
        self._now_ns = now_ns
        self._segment_bytes = segment_bytes
        self._segments: dict[int, Segment] = {}  # oldest first
        self._newest: Segment | None = None
        self._number = 0  # of the newest segment that ever was
        self._seq = 0  # of the last record
        self._chains: dict[str, Chain] = {}
        self._carrying = False  # the oldest segment is being emptied
        self._local = False  # somebody relies on `sync`
        self.syncs = 0  # how often that was asked for
        self._encode = msgspec.msgpack.Encoder().encode

    @classmethod
    def open(
        cls, directory: str, *, now_ns: Callable[[], int], segment_bytes: int = SEGMENT_BYTES
    ) -> Self:
        """Returns the journal of a directory, made if it is not there.

        A torn tail is cut off, damage is left where it is and skipped; `problems` names both.
        Raises StorageFailed.
        """
        if not 4096 <= segment_bytes <= 1 << 31:
            raise InvalidRequest(f"segments of {segment_bytes} bytes")
        journal = cls(directory, now_ns, segment_bytes)
        try:
            os.makedirs(directory, mode=0o700, exist_ok=True)
            refuse_newer(directory)
            for name in os.listdir(directory):
                if name.endswith(".seg.new"):
                    os.unlink(os.path.join(directory, name))
            journal._recover(examine(directory))
        except OSError as error:
            journal.close()
            raise StorageFailed(f"cannot open the journal {directory}: {error}") from error
        return journal

    def append(self, subject: str, kind: str, data: Any) -> Position:
        """Records; the record survives this process when this returns.

        Raises StorageFailed, and then nothing was recorded; InvalidRequest for more than a
        quarter of a segment.
        """
        chain = self._chains.get(subject)
        prev_hash = chain.hash if chain is not None else NO_HASH
        seq = self._seq + 1
        body = self._encode((seq, subject, kind, self._now_ns(), prev_hash, data))
        record = frame_body(body)
        segment = self._room(len(record))
        place = self._write(segment, record)
        self._seq = seq
        if chain is None:
            chain = self._chains[subject] = Chain()
        digest = body_hash(body)
        chain.add(seq, place, len(record), digest)
        segment.hash = digest
        segment.live += len(record)
        if self._carrying:
            self._carry()
        return Position(subject, seq)

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
            if place >> OFFSET_BITS in self._segments:
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
            self._segments[place >> OFFSET_BITS].live -= size
        self._shrink()

    def sync(self) -> None:
        """What was appended before survives the loss of the host. Blocks; may run in a thread.

        Raises StorageFailed.
        """
        self._local = True
        self.syncs += 1
        newest = self._newest
        try:
            for segment in list(self._segments.values()):
                if not segment.synced:
                    with contextlib.suppress(FileNotFoundError):  # deleted meanwhile
                        _sync_file(segment_path(self._directory, segment.number))
                    segment.synced = segment is not newest
            _sync_file(self._directory)
        except OSError as error:
            raise StorageFailed(f"cannot sync the journal: {error.strerror}") from error

    def close(self) -> None:
        """Closes the files; safe to call twice. Nothing may be asked of the journal afterwards."""
        for segment in self._segments.values():
            os.close(segment.fd)
        self._segments.clear()
        self._newest = None

    @property
    def records(self) -> int:
        """The number of the last record."""
        return self._seq

    @property
    def disk_bytes(self) -> int:
        """What the segments take on disk."""
        return len(self._segments) * self._segment_bytes

    def check_invariants(self) -> None:
        """Raises AssertionError if the table does not fit the files; for tests."""
        live = dict.fromkeys(self._segments, 0)
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
        assert live == {n: s.live for n, s in self._segments.items()}  # noqa: S101

    # --- writing -------------------------------------------------------------------------------

    def _room(self, size: int) -> Segment:
        """Returns a segment with room for so many bytes at its end."""
        if size > self._segment_bytes // 4:
            raise InvalidRequest(f"a record of {size} bytes, at most {self._segment_bytes // 4}")
        segment = self._newest
        if segment is None or segment.end + size > self._segment_bytes:
            segment = self._roll()
        return segment

    def _write(self, segment: Segment, data: bytes) -> int:
        """Writes at the end of a segment with one call; returns the place."""
        offset = segment.end
        try:
            written = os.pwrite(segment.fd, data, offset)
        except OSError as error:
            raise StorageFailed(f"cannot write the journal: {error.strerror}") from error
        if written != len(data):
            with contextlib.suppress(OSError):
                os.ftruncate(segment.fd, offset)  # half a record would be a torn tail
            raise StorageFailed("cannot write the journal: the disk is full")
        segment.end = offset + written
        return place_of(segment.number, offset)

    def _roll(self) -> Segment:
        """Begins a new segment."""
        last, number = self._newest, self._number + 1
        end, digest = (last.end, last.hash) if last is not None else (0, NO_HASH)
        header = Header(number, self._seq + 1, self._now_ns(), end, digest)
        fd = make_segment(self._directory, header, self._segment_bytes)
        segment = Segment(number, fd, HEADER_BYTES, NO_HASH)
        self._segments[number] = self._newest = segment
        self._number = number
        self._shrink()
        return segment

    # --- giving back ---------------------------------------------------------------------------

    def _shrink(self) -> None:
        """Deletes oldest segments without life; decides whether the next is to be emptied."""
        while len(self._segments) > 1:
            oldest = next(iter(self._segments.values()))
            if oldest.live:
                live = sum(segment.live for segment in self._segments.values())
                room = (len(self._segments) - SEGMENTS_KEPT) * self._segment_bytes
                self._carrying = 0 < live * 2 <= room
                return
            if not self._delete(oldest):
                break
        self._carrying = False

    def _carry(self) -> None:
        """Writes the living records in the next bytes of the oldest segment again.

        Failing is no failure of the append that it was called from: it is tried again, and given
        up until the next segment if a record cannot be read any more.
        """
        oldest = next(iter(self._segments.values()))
        if oldest is self._newest:
            self._carrying = False
            return
        try:
            stop = min(oldest.end, oldest.carried + CARRY_BYTES)
            while oldest.live and oldest.carried < stop:
                found = next_living(oldest, self._chains, self._segment_bytes)
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
        segment = self._newest
        if segment is None or segment.end + size > self._segment_bytes:
            segment = self._roll()
        place = self._write(segment, data)
        chain = self._chains[found.record.subject]
        chain.places[chain.index(found.record.seq)] = place
        segment.hash = found.hash
        segment.live += size
        oldest.live -= size
        oldest.carried = found.end

    def _delete(self, segment: Segment) -> bool:
        """Deletes a segment; False if what was carried out of it cannot be made as durable."""
        try:
            if self._local and self._newest is not None:
                os.fdatasync(self._newest.fd)
            os.unlink(segment_path(self._directory, segment.number))
        except FileNotFoundError:
            pass
        except OSError:
            return False
        del self._segments[segment.number]
        os.close(segment.fd)
        return True

    # --- reading -------------------------------------------------------------------------------

    def _found(self, place: int) -> Found:
        return pread_record(self._segments[place >> OFFSET_BITS].fd, place & OFFSET_MASK)

    def _recover(self, found: Examination) -> None:
        """Builds the table from what the files hold, and cuts off a torn tail."""
        self.problems = found.problems
        self._seq = found.last_seq
        for read in found.segments:
            path = segment_path(self._directory, read.number)
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            segment = Segment(read.number, fd, read.end, read.hash)
            self._segments[read.number] = self._newest = segment
            self._number = read.number
        for subject, entries in found.lives().items():
            chain = self._chains[subject] = Chain()
            for entry in entries:
                place = place_of(entry.segment, entry.offset)
                chain.add(entry.seq, place, entry.size, entry.hash)
                self._segments[entry.segment].live += entry.size
        if self._newest is not None:
            self._trim(self._newest, found)
        self._shrink()

    def _trim(self, newest: Segment, found: Examination) -> None:
        """Makes the newest segment ready for appending: zeros behind its last record."""
        last = found.problems[-1] if found.problems else None
        torn = last is not None and last.fault is Fault.TORN_TAIL
        if torn or found.segments[-1].size < self._segment_bytes:
            os.ftruncate(newest.fd, newest.end)
            os.posix_fallocate(newest.fd, 0, max(self._segment_bytes, newest.end))


def _sync_file(path: str) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


__all__ = [
    "FORGOTTEN",
    "Journal",
    "Position",
    "Problem",
    "Record",
    "verify",
]
