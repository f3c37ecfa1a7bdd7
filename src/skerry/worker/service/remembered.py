"""The memory of one rollout, in the journal and in files of its own."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import shutil
from collections.abc import Iterator
from pathlib import Path

import msgspec

from skerry.errors import InvalidRequest, NotFound, SkerryError, StorageFailed
from skerry.trajectory.format.segment import Record
from skerry.trajectory.journal.journal import Journal, Position
from skerry.worker.memory import Entry, Given, Memory, NotRecorded, Several, Submission, Submitted
from skerry.worker.model.book import Asked, Note
from skerry.worker.service.files import put

log = logging.getLogger("skerry.worker")
INLINE_BYTES = 16 << 10  # of a body; longer ones have files of their own


class Remembered(Memory):
    """A durable memory: `note` and `submit` return once it is on record, or raise NotRecorded.

    Invariant: a body lies in its entry, or else in its file, which was written before the entry.
    """

    durable = True

    def __init__(self, journal: Journal, subject: str, folder: Path) -> None:
        self._journal = journal
        self._subject = subject
        self._folder = folder
        self._noted: list[Position] = []  # what the model's side noted in this attempt, in order
        self._answers: dict[int, Position] = {}
        self._asked: dict[int, Position] = {}
        self._ahead: dict[Path, bytes] = {}  # what `write_ahead` has written
        super().__init__()

    def _clear(self) -> None:
        super()._clear()
        self._noted.clear()
        self._ahead.clear()
        self._answers.clear()
        self._asked.clear()

    # --- writing ---------------------------------------------------------------------------------

    def note(self, entry: Entry) -> None:
        """Records an entry and takes it in; NotRecorded, and then it is not."""
        try:
            slim = self._slim(entry)
            position = self._journal.append(self._subject, type(slim).__name__.lower(), slim)
        except (StorageFailed, InvalidRequest) as error:
            raise NotRecorded(error.message) from error
        self.apply(slim)
        self._place(slim, position)

    async def write_ahead(self, entry: Asked) -> None:
        """Writes a long body in a thread, for a `note` that follows; StorageFailed."""
        path = self._body(entry)
        await asyncio.to_thread(put, path, entry.body)
        self._ahead[path] = entry.body

    def submit(self, submission: Submission) -> None:
        """Records what is graded, in a file of its own."""
        data = msgspec.msgpack.encode(submission)
        try:
            put(self._folder / "submission", data)
        except StorageFailed as error:
            raise NotRecorded(error.message) from error
        self.note(Submitted(digest=hashlib.sha256(data).hexdigest()))
        self.submission = submission

    def _slim(self, entry: Entry) -> Entry:
        """Returns the entry as it stands in the journal: without long bodies, which are in files."""
        if isinstance(entry, Several):
            return Several(notes=tuple(self._slim(note) for note in entry.notes))  # type: ignore[misc]
        if isinstance(entry, Asked | Given) and len(entry.body) > INLINE_BYTES:
            path = self._body(entry)
            if self._ahead.pop(path, None) is not entry.body:
                put(path, entry.body)
            return msgspec.structs.replace(entry, body=b"")
        return entry

    def _body(self, entry: Asked | Given) -> Path:
        kind = "asked" if isinstance(entry, Asked) else "given"
        return self._folder / f"{self.attempt}.{entry.ordinal}.{kind}"

    # --- reading ---------------------------------------------------------------------------------

    def take_again(self, record: Record) -> None:
        """Takes in an entry after a restart; one that is not understood is left out, and named."""
        try:
            entry: Entry = msgspec.convert(record.data, Entry)
            self.apply(entry)
        except (msgspec.ValidationError, SkerryError) as error:
            log.warning("record %d of %s: %s", record.seq, record.subject, error)
            return
        self._place(entry, Position(record.subject, record.seq))
        if isinstance(entry, Submitted):
            self.submission = self._submission(entry.digest)

    def _place(self, entry: Entry, position: Position) -> None:
        if isinstance(entry, Given):
            self._answers[entry.ordinal] = position
        elif isinstance(entry, Note | Several):
            self._noted.append(position)
            for note in entry.notes if isinstance(entry, Several) else (entry,):
                if isinstance(note, Asked):
                    self._asked[note.ordinal] = position

    def notes(self) -> Iterator[Note]:
        """Yields what the model's side noted in this attempt, in order, without long bodies."""
        for position in list(self._noted):
            yield from self._notes_at(position)

    def request(self, ordinal: int) -> Asked:
        """Returns a model request of this attempt, whole; NotFound."""
        if ordinal not in self._asked:
            raise NotFound(f"the request {ordinal} was never made")
        for note in self._notes_at(self._asked[ordinal]):
            if isinstance(note, Asked) and note.ordinal == ordinal:
                return msgspec.structs.replace(note, body=self._whole(note))
        raise NotFound(f"the request {ordinal} was never made")

    def answer(self, ordinal: int) -> Given:
        """Returns the answer to a model request, whole; NotFound if there is none."""
        if ordinal not in self._answers:
            raise NotFound(f"the request {ordinal} has no answer")
        entry = msgspec.convert(self._journal.read(self._answers[ordinal]).data, Given)
        return msgspec.structs.replace(entry, body=self._whole(entry))

    def _notes_at(self, position: Position) -> Iterator[Note]:
        entry = msgspec.convert(self._journal.read(position).data, Entry)
        yield from entry.notes if isinstance(entry, Several) else (entry,)

    def _whole(self, entry: Asked | Given) -> bytes:
        if entry.body:
            return entry.body
        try:
            return self._body(entry).read_bytes()
        except OSError as error:
            raise StorageFailed(f"{self._body(entry)}: {error.strerror}") from error

    def _submission(self, digest: str) -> Submission | None:
        """Returns what is graded; None if the file is not what it was: then it is made anew."""
        try:
            data = (self._folder / "submission").read_bytes()
            if hashlib.sha256(data).hexdigest() == digest:
                return msgspec.msgpack.decode(data, type=Submission)
        except (OSError, msgspec.DecodeError) as error:
            log.warning("%s: the submission is lost: %s", self._subject, error)
        return None

    def remove(self) -> None:
        """Lets go of all of it. Files that are left by a death in between are swept at the start."""
        self._journal.forget(self._subject)
        shutil.rmtree(self._folder, ignore_errors=True)
