"""Which records of one sandbox make which of its events; what `folding` then writes out.

An event begins with one record and often ends with another one, much later for a command that runs
in the background. So the places of both are remembered, 17 bytes an event and 16 a record, and no
content: a sandbox with 100,000 events costs a reader a few megabytes.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from typing import Any, Final

from skerry.spec.trajectory import Outcome
from skerry.trajectory.format.links import Links
from skerry.trajectory.format.places import place_of
from skerry.trajectory.format.segment import FORGOTTEN, NO_HASH, Found

OPEN: Final = 0  # nothing came of it yet
CLOSED: Final = 1
VOID: Final = 2
OUTCOMES: Final = {OPEN: Outcome.RUNNING, CLOSED: Outcome.DONE, VOID: Outcome.VOID}

# Kinds of which each record is an event of its own, begun and done.
_AT_ONCE: Final = frozenset({"session", "session-ended", "ending"})
_STATES: Final = frozenset({"stopped", "failed"})


class Outline:
    """The events of one sandbox. `take` its records in the order of their seq.

    Invariant: event i begins with the record at begins[i]; the one at ends[i] says what came of it,
    0: none yet.
    """

    def __init__(self, sandbox: str) -> None:
        self.sandbox = sandbox
        self.begins = array("Q")
        self.ends = array("Q")
        self.how = bytearray()
        self.seqs = array("Q")  # of all records
        self.places = array("Q")  # of the same
        self.bytes = 0
        self.head = NO_HASH  # hash of the last record
        self.rollout: str | None = None
        self.job: str | None = None
        self.created_ns = 0
        self.ended_ns = 0
        self.state = ""
        self.began = False  # its first record is there
        self.unbroken = True  # each record follows from the one before it
        self._created = -1  # the event "create" while it is open
        self._open: dict[bytes, int] = {}  # commands and other operations under way, or void
        self._links = Links()

    def __len__(self) -> int:
        return len(self.begins)

    @property
    def complete(self) -> bool:
        """Whether the whole story is there."""
        return self.began and self.unbroken and self.ended_ns > 0

    def outcome(self, index: int) -> Outcome:
        """Returns how an event stands, as far as the outline knows: a record may tell more."""
        how = self.how[index]
        return Outcome.UNKNOWN if how == OPEN and self.ended_ns else OUTCOMES[how]

    def knows(self, seq: int) -> bool:
        """Whether that record was taken: copies are carried from old segments to new ones."""
        index = bisect_left(self.seqs, seq)
        return index < len(self.seqs) and self.seqs[index] == seq

    def take(self, segment: int, found: Found) -> bool:
        """Takes the next record; False, and then nothing was done, if it belongs before others."""
        record = found.record
        if self.seqs and record.seq <= self.seqs[-1]:
            return self.knows(record.seq)
        place = place_of(segment, found.offset)
        self.unbroken = not self._links.follow(found) and self.unbroken
        self.head = found.hash
        self.seqs.append(record.seq)
        self.places.append(place)
        self.bytes += found.end - found.offset
        data = record.data if isinstance(record.data, dict) else {}
        if record.kind == FORGOTTEN:
            if record.subject == self.sandbox:  # not only one of its chapters
                self._over("deleted", record.time_ns)
        else:
            self._event(record.kind, data, place, record.time_ns)
        return True

    def _event(self, kind: str, data: dict[str, Any], place: int, time_ns: int) -> None:
        op = data.get("op")
        key = op if isinstance(op, bytes) else b""
        if kind in ("asked", "doing"):
            self._begin(key, place)
        elif kind == "did" and key not in self._open:  # it was not announced
            self._append(place, place, CLOSED)
        elif kind in ("answered", "did"):
            self._end(key, place, CLOSED)
        elif kind == "void":
            self._end(key, place, VOID)
        elif kind == "began":
            self._create(data, place, time_ns)
        elif kind == "made" and self._created >= 0:
            self._close(self._created, place, CLOSED)
            self._created = -1
        elif kind in _AT_ONCE:
            self._append(place, place, CLOSED)
            if kind == "ending":
                self._ending(data, place, time_ns)

    def _create(self, data: dict[str, Any], place: int, time_ns: int) -> None:
        self.began = True
        self.created_ns = time_ns
        self.state = "live"
        self._created = self._append(place, 0, OPEN)
        spec = data.get("spec")
        fields = spec if isinstance(spec, dict) else {}
        rollout, job = fields.get("rollout"), fields.get("job")
        self.rollout = rollout if isinstance(rollout, str) else None
        self.job = job if isinstance(job, str) else None

    def _ending(self, data: dict[str, Any], place: int, time_ns: int) -> None:
        if self._created >= 0:  # it never came to be
            self._close(self._created, place, CLOSED)
            self._created = -1
        state = data.get("state")
        state = state if isinstance(state, str) and state in _STATES else "stopped"
        self._over("deleted" if data.get("delete") else state, time_ns)

    def _over(self, state: str, time_ns: int) -> None:
        self.state = state
        self.ended_ns = self.ended_ns or time_ns

    def _begin(self, key: bytes, place: int) -> None:
        """An operation is asked for; the same one again if it is open, or never ran."""
        index = self._open.get(key, -1)
        if index < 0:
            self._open[key] = self._append(place, 0, OPEN)
        elif self.how[index] == VOID:
            self._close(index, 0, OPEN)

    def _end(self, key: bytes, place: int, how: int) -> None:
        index = self._open.get(key, -1)
        if index >= 0:
            self._close(index, place, how)
            if how == CLOSED:
                del self._open[key]

    def _append(self, begin: int, end: int, how: int) -> int:
        self.begins.append(begin)
        self.ends.append(end)
        self.how.append(how)
        return len(self.begins) - 1

    def _close(self, index: int, place: int, how: int) -> None:
        self.ends[index] = place
        self.how[index] = how
