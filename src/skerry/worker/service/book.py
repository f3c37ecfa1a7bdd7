"""The worker's book: what it must know after it was killed. Nothing else of it is state.

    STATE/
      lock                       held while a worker runs here
      journal/                   segments (trajectory/format/segment.py draws the format), version 1
      jobs/JOB/
        submit                   msgpack: Sheet, what was submitted
        environments             msgpack: pinned layers, rules and fixes of the tasks, once they are made
        rollouts.jsonl  blobs/   what happened, for people (trajectory/rollouts/job_log.py)
        open/NUMBER/             of a rollout that has begun and not ended: bodies too long for the
                                 journal (ATTEMPT.ORDINAL.asked, .given) and `submission`

The journal has a subject for each job (taken, ended rollouts, leaving) and for each rollout that has
begun and not ended. An entry is there before anything comes of it; a file is there before the entry
that names it. Level `process`: what is written survives the death of the worker, not of the host, with
which the sandboxes die as well.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from skerry.errors import Conflict, SkerryError, StorageFailed
from skerry.spec.rollout import RolloutRecord
from skerry.spec.worker import Submit
from skerry.trajectory.format.segment import Record
from skerry.trajectory.journal.journal import Journal, Position
from skerry.worker.service.files import put
from skerry.worker.service.remembered import Remembered

log = logging.getLogger("skerry.worker")


class Sheet(msgspec.Struct, frozen=True, kw_only=True):
    """A job as it was submitted; `secret` is what its agents' keys are derived from."""

    submit: Submit
    created: float
    secret: bytes
    tenant: str = ""  # whose it is; "": of whoever reaches the node's own socket
    version: int = 1


class JobTaken(msgspec.Struct, frozen=True, kw_only=True, tag="taken"):
    """The job is the worker's; what it is stands in the file of that sha256."""

    digest: str


class RolloutEnded(msgspec.Struct, frozen=True, kw_only=True, tag="ended"):
    """The end of a rollout. What was known of it otherwise is let go of."""

    number: int
    record: RolloutRecord


class JobLeaving(msgspec.Struct, frozen=True, kw_only=True, tag="leaving"):
    """The job was deleted: its sandboxes are being destroyed, and then it is forgotten."""


JobEntry: TypeAlias = JobTaken | RolloutEnded | JobLeaving


class JobBook:
    """One job in the book. Invariant: no number is in both `open` and `ends`."""

    def __init__(self, book: Book, sheet: Sheet) -> None:
        self._book = book
        self.sheet = sheet
        self.folder = book.folder(sheet.submit.job)
        self.open: dict[int, Remembered] = {}
        self.ends: dict[int, Position] = {}  # in the order in which they ended
        self.leaving = False

    @property
    def name(self) -> str:
        """The job's id."""
        return self.sheet.submit.job

    def memory(self, number: int) -> Remembered:
        """Returns the memory of a rollout that has not ended; an empty one if it has not begun."""
        if number not in self.open:
            self.open[number] = self._book.remembered(self.name, number)
        return self.open[number]

    def end(self, number: int, record: RolloutRecord) -> None:
        """Records a rollout's end and lets go of all else of it; StorageFailed, and then it is not."""
        entry = RolloutEnded(number=number, record=record)
        self.ends[number] = self._book.journal.append(f"j:{self.name}", "ended", entry)
        memory = self.open.pop(number, None)
        if memory is not None:
            memory.remove()

    def record(self, number: int) -> RolloutRecord:
        """Returns the end of a rollout that has one."""
        entry = _entry(self._book.journal.read(self.ends[number]), JobEntry)
        assert isinstance(entry, RolloutEnded)  # noqa: S101
        return entry.record

    def leave(self) -> None:
        """Records that the job is being deleted."""
        if not self.leaving:
            self._book.journal.append(f"j:{self.name}", "leaving", JobLeaving())
            self.leaving = True

    def check_invariants(self) -> None:
        """Raises AssertionError if something does not hold; for tests."""
        assert not self.open.keys() & self.ends.keys()  # noqa: S101
        for memory in self.open.values():
            memory.check_invariants()


class Book:
    """The book of one worker. One process at a time has it."""

    def __init__(self, state: Path, journal: Journal, lock: int) -> None:
        self.state = state
        self.journal = journal
        self.jobs: dict[str, JobBook] = {}
        self._lock = lock

    @classmethod
    def open(cls, state: Path, *, now_ns: Callable[[], int], segment_bytes: int = 32 << 20) -> Book:
        """Returns the book, with all that is on record; Conflict if another process has it.

        What an earlier deletion or end did not come to is done first. Raises StorageFailed.
        """
        try:
            state.mkdir(parents=True, exist_ok=True, mode=0o700)
            lock = os.open(state / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StorageFailed(f"{state}: {error.strerror}") from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(lock)
            raise Conflict(f"another worker has {state}") from error
        try:
            journal = Journal.open(
                str(state / "journal"), now_ns=now_ns, segment_bytes=segment_bytes
            )
        except SkerryError:
            os.close(lock)
            raise
        book = cls(state, journal, lock)
        try:
            book._recover()
        except BaseException:
            book.close()
            raise
        return book

    def close(self) -> None:
        """Closes the files; nothing may be asked of it afterwards."""
        self.journal.close()
        os.close(self._lock)

    def folder(self, job: str) -> Path:
        """Returns where a job's files are."""
        return self.state / "jobs" / job

    def take(self, sheet: Sheet) -> JobBook:
        """Records a new job and returns its book; StorageFailed, and then there is none."""
        job = sheet.submit.job
        data = msgspec.msgpack.encode(sheet)
        folder = self.folder(job)
        try:
            if folder.exists():
                shutil.rmtree(folder)  # of one that was never taken
            folder.mkdir(parents=True)
        except OSError as error:
            raise StorageFailed(f"{folder}: {error.strerror}") from error
        put(folder / "submit", data)
        taken = JobTaken(digest=hashlib.sha256(data).hexdigest())
        self.journal.append(f"j:{job}", "taken", taken)
        self.jobs[job] = JobBook(self, sheet)
        return self.jobs[job]

    def forget(self, job: str) -> None:
        """Lets go of a job that is leaving, with all its files."""
        for memory in self.jobs[job].open.values():
            memory.remove()
        shutil.rmtree(self.folder(job), ignore_errors=True)
        self.journal.forget(f"j:{job}")
        del self.jobs[job]

    def remembered(self, job: str, number: int) -> Remembered:
        """Returns an empty memory for a rollout."""
        folder = self.folder(job) / "open" / str(number)
        return Remembered(self.journal, f"r:{job}:{number}", folder)

    def _recover(self) -> None:
        orphans: set[str] = set()
        for record in self.journal.replay():
            kind, _, rest = record.subject.partition(":")
            job, _, number = rest.partition(":")
            if kind == "j":
                if not self._recover_job(job, record):
                    orphans.add(record.subject)
            elif job in self.jobs and int(number) not in self.jobs[job].ends:
                self.jobs[job].memory(int(number)).take_again(record)
            else:
                orphans.add(record.subject)
        for one in self.jobs.values():
            for ended in one.open.keys() & one.ends.keys():  # killed between end and removal
                one.open.pop(ended).remove()
        for subject in orphans:
            self.journal.forget(subject)
        self._sweep()

    def _recover_job(self, job: str, record: Record) -> bool:
        """Takes in an entry of a job; False if the job is lost."""
        entry = _entry(record, JobEntry)
        if isinstance(entry, JobTaken):
            sheet = self._sheet(job, entry.digest)
            if sheet is not None:
                self.jobs[job] = JobBook(self, sheet)
        elif job in self.jobs:
            if isinstance(entry, RolloutEnded):
                self.jobs[job].ends[entry.number] = Position(record.subject, record.seq)
            else:
                self.jobs[job].leaving = True
        return job in self.jobs

    def _sheet(self, job: str, digest: str) -> Sheet | None:
        try:
            data = (self.folder(job) / "submit").read_bytes()
            if hashlib.sha256(data).hexdigest() != digest:
                raise StorageFailed("it is not what was submitted")
            return msgspec.msgpack.decode(data, type=Sheet)
        except (OSError, SkerryError, msgspec.DecodeError) as error:
            log.warning("the job %s is lost: %s", job, error)
            return None

    def _sweep(self) -> None:
        """Removes the files of jobs and rollouts that are not in the book any more."""
        for folder in _children(self.state / "jobs"):
            one = self.jobs.get(folder.name)
            if one is None:
                shutil.rmtree(folder, ignore_errors=True)
                continue
            for path in _children(folder / "open"):
                if not path.name.isdecimal() or int(path.name) not in one.open:
                    shutil.rmtree(path, ignore_errors=True)


def _children(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except FileNotFoundError:
        return []


def _entry(record: Record, kind: Any) -> Any:
    return msgspec.convert(record.data, kind)
