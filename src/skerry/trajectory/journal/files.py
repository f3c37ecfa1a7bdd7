"""The files of a journal: where the next record goes, and what may be deleted. No records are read."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator

from skerry.errors import InvalidRequest, StorageFailed
from skerry.trajectory.format.places import place_of
from skerry.trajectory.format.segment import (
    HEADER_BYTES,
    NO_HASH,
    Header,
    segment_path,
)
from skerry.trajectory.journal.pending import Pending
from skerry.trajectory.journal.spare import Spare, make_segment, make_spare
from skerry.trajectory.journal.table import Segment


class Segments:
    """The segments that are there, oldest first; the newest is written to.

    All but `prepare`, and what `pending` gives, belong to one thread.
    """

    def __init__(self, directory: str, segment_bytes: int) -> None:
        if not 4096 <= segment_bytes <= 1 << 31:
            raise InvalidRequest(f"segments of {segment_bytes} bytes")
        self.directory = directory
        self.segment_bytes = segment_bytes
        self.newest: Segment | None = None
        self.first_ns: int | None = None  # when the first record of the newest one was written
        self.local = False  # somebody relies on `pending`
        self.moved = False  # records were carried over since then
        self._by_number: dict[int, Segment] = {}
        self._spare: Spare | None = None
        self._closed = False
        self._broken: OSError | None = None  # what a sync met
        self._new_names = False  # the directory is not on the disk as it is

    def __len__(self) -> int:
        return len(self._by_number)

    def __iter__(self) -> Iterator[Segment]:
        return iter(self._by_number.values())

    def get(self, number: int) -> Segment | None:
        """Returns one that is there."""
        return self._by_number.get(number)

    @property
    def oldest(self) -> Segment:
        """The oldest; there is one."""
        return next(iter(self._by_number.values()))

    @property
    def disk_bytes(self) -> int:
        """What they take on disk."""
        return sum(segment.size for segment in self._by_number.values())

    @property
    def record_bytes_max(self) -> int:
        """How much may be written at once."""
        return self.segment_bytes // 4

    def adopt(self, segment: Segment) -> None:
        """Takes the next one that an earlier process left."""
        self._by_number[segment.number] = self.newest = segment
        self._new_names = True

    def extend(self, segment: Segment) -> None:
        """Makes the newest one ready to be written to: zeros behind its last record."""
        os.ftruncate(segment.fd, segment.end)
        segment.size = max(self.segment_bytes, segment.end)
        os.posix_fallocate(segment.fd, 0, segment.size)

    def room(self, size: int, seq: int, now_ns: int) -> Segment:
        """Returns one with room for so many bytes; `seq` is that of the record to come."""
        if size > self.record_bytes_max:
            raise InvalidRequest(f"a record of {size} bytes, at most {self.record_bytes_max}")
        segment = self.newest
        if segment is None or segment.end + size > self.segment_bytes:
            segment = self.roll(seq, now_ns)
        return segment

    def write(self, segment: Segment, data: bytes) -> int:
        """Writes at the end of a segment with one call; returns the place. StorageFailed."""
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

    def roll(self, seq: int, now_ns: int) -> Segment:
        """Begins a new segment, and writes to the one before no more; StorageFailed."""
        if self._closed:
            raise StorageFailed("the journal is closed")
        last = self.newest
        number = last.number + 1 if last is not None else 1
        end, digest = (last.end, last.hash) if last is not None else (0, NO_HASH)
        header = Header(number, seq, now_ns, end, digest)
        spare, self._spare = self._spare, None
        if spare is None:
            spare = make_spare(self.directory, self.segment_bytes)
        fd = make_segment(self.directory, header, spare)
        segment = Segment(number, fd, HEADER_BYTES, NO_HASH, self.segment_bytes)
        segment.zeroed = spare.zeroed
        self._by_number[number] = self.newest = segment
        self.first_ns = None
        self._new_names = True
        return segment

    def prepare(self) -> None:
        """Makes the file of the next segment ahead of need, so that no append waits for it.

        Blocks, and may run in another thread, one at a time. Raises StorageFailed.
        """
        if self._spare is None:
            spare = make_spare(self.directory, self.segment_bytes, zeros=self.local)
            if self._closed:  # meanwhile
                spare.drop()
            else:
                self._spare = spare

    @property
    def slow(self) -> bool:
        """Whether somebody relies on syncs, and the newest one makes them slower than need be."""
        return self.local and self.newest is not None and not self.newest.zeroed

    def sealed(self) -> list[tuple[int, int]]:
        """Returns number and end of each that nothing more is written to, oldest first."""
        return [(one.number, one.end) for one in self if one is not self.newest]

    def pending(self) -> Pending:
        """Returns what has to reach the disk for all that was written so far.

        Raises StorageFailed once writing to the disk has failed: nothing is certain from there on.
        """
        if self._broken is not None:
            raise StorageFailed(f"cannot sync the journal: {self._broken.strerror}")
        self.local = True
        behind = [segment for segment in self if not segment.synced]
        names, self._new_names, self.moved = self._new_names, False, False
        return Pending(behind, self.newest, self.directory if names else None, self._not_synced)

    def _not_synced(self, error: OSError) -> None:
        """Takes note of it; a kernel that lost what it could not write says so only once."""
        self._new_names = self.moved = True
        if error.errno == errno.EIO:
            self._broken = error

    def delete(self, segment: Segment) -> bool:
        """Deletes one; False if what was carried out of it cannot be made as durable."""
        try:
            if self.local and self.moved and self.newest is not None:
                os.fdatasync(self.newest.fd)
                self.moved = False
            os.unlink(segment_path(self.directory, segment.number))
        except FileNotFoundError:
            pass
        except OSError:
            return False
        del self._by_number[segment.number]
        os.close(segment.fd)
        return True

    def close(self) -> None:
        """Closes the files; safe to call twice."""
        for segment in self:
            os.close(segment.fd)
        if self._spare is not None:
            os.close(self._spare.fd)
        self._by_number.clear()
        self.newest = self._spare = None
        self._closed = True
