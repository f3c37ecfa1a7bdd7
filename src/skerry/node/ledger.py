"""What the node writes into its journal, in the node's own words: of sandboxes, and of commits.

Order is the promise (decision 12): `Began` before the backend is asked, `Made` before the sandbox
is used, `Asked` before START leaves, `Answered` before the answer does, `Ending` before anything is
destroyed, and then the sandbox's stream is forgotten. Records survive the death of this process;
only the death of the host can lose the last ones, and then their instances are gone too.
"""

from __future__ import annotations

import bisect
import logging
from collections.abc import Iterator
from typing import Final, TypeAlias

import msgspec

from skerry.backends.api import Record as InstanceRecord
from skerry.backends.api import View
from skerry.errors import Bug
from skerry.spec.command import CommandSpec, RunResult
from skerry.spec.job import JobSpec
from skerry.spec.layers import ImageConfig, LayerManifest, MountedLayer
from skerry.spec.sandbox import SandboxSpec, State
from skerry.spec.session import SessionSpec
from skerry.trajectory.journal import Journal, Position
from skerry.trajectory.segment import Record
from skerry.wire.http import CommitBody, ErrorBody

CHAPTER_BYTES: Final = 16 << 20

log = logging.getLogger("skerry.node")


class Began(msgspec.Struct, frozen=True, tag="began", omit_defaults=True):
    """A create was admitted: from here on something of the instance may exist."""

    spec: SandboxSpec
    digests: tuple[str, ...]
    created: float
    owner: str | None = None
    image: ImageConfig = ImageConfig()  # what its layers set
    mounts: tuple[MountedLayer, ...] = ()
    parent: str | None = None  # whose disk it began with
    made_of: tuple[LayerManifest, ...] = ()  # the layers, as a commit remembers them
    restored: str | None = None  # the commit that they are
    tenant: str = ""  # tells the tokens apart for which it is
    boot: str = ""  # of the host, and `created` on its monotonic clock:
    born: float = 0.0


class Made(msgspec.Struct, frozen=True, tag="made"):
    """The backend made the instance."""

    record: InstanceRecord
    create_ms: float


class Ending(msgspec.Struct, frozen=True, tag="ending", omit_defaults=True):
    """The instance is being destroyed. With `delete`, nothing stays of the sandbox either."""

    state: State  # the one to come: stopped or failed
    reason: str | None = None
    delete: bool = False
    lost: bool = False  # nobody inside is to blame


class Handles(msgspec.Struct, frozen=True, tag="handles"):
    """Handles below `top` may have been used; a restarted node goes on from there."""

    top: int


class Asked(msgspec.Struct, frozen=True, tag="asked", omit_defaults=True):
    """A command is about to be started.

    Standard input that is too long for a record is empty in `spec`; it is in its spool file.
    """

    op: bytes
    handle: int
    agent_op: bytes  # the id that the agent sees; another one if bash was missing and sh is tried
    fingerprint: bytes
    spec: CommandSpec
    started: float
    stdin_spooled: int = 0  # bytes
    seq: int = 0  # of a session (`spec.session`): its number there


class SessionBegan(msgspec.Struct, frozen=True, tag="session", omit_defaults=True):
    """The shell of a session is about to be started."""

    id: str
    spec: SessionSpec
    shell: str
    op: bytes  # the id that the agent sees
    handle: int
    created: float


class SessionEnded(msgspec.Struct, frozen=True, tag="session-ended"):
    """Nothing of it is left, or its shell never ran."""

    id: str


class Answered(msgspec.Struct, frozen=True, tag="answered", omit_defaults=True):
    """The one answer of a command: exactly one of result and error.

    A stream that is too long for a record is empty in `result`, and named in `spooled`: its spool
    file then stays as long as the sandbox does.
    """

    op: bytes
    started: float
    result: RunResult | None = None
    error: ErrorBody | None = None
    spooled: tuple[int, ...] = ()


class Void(msgspec.Struct, frozen=True, tag="void"):
    """The command never left: it is known not to have run, and a repeat runs it."""

    op: bytes


class Stood(msgspec.Struct, frozen=True, tag="stood", omit_defaults=True):
    """From here on its processes stand still, or run again.

    Recorded after a pause and before a resume: what was not acknowledged as paused runs.
    """

    paused: bool
    by: str = ""  # as `Sandbox.paused_by`


class Acknowledged(msgspec.Struct, frozen=True, tag="acknowledged", omit_defaults=True):
    """A commit: its view is there, and stays until `Packed` says what came of it.

    Without a view it was packed already when this was written.
    """

    sandbox: str
    backend: str
    body: CommitBody
    view: View | None
    digests: tuple[str, ...]  # of the layers below
    time: float
    seconds: float
    freeze_seconds: float
    below: tuple[LayerManifest, ...] = ()  # the same layers, as the commit remembers them


class Packed(msgspec.Struct, frozen=True, tag="packed", omit_defaults=True):
    """The end of a commit: exactly one of manifest and error. Its view is not needed any more."""

    time: float
    manifest: LayerManifest | None = None
    error: ErrorBody | None = None


class Changed(msgspec.Struct, frozen=True, tag="changed"):
    """Its spec from here on; a repeated create is still compared with the one of `Began`."""

    spec: SandboxSpec


class JobMade(msgspec.Struct, frozen=True, tag="job-made"):
    """A job is there. `born` is `created` on the monotonic clock of that boot of the host."""

    spec: JobSpec
    owner: str
    created: float
    boot: str
    born: float


class JobChanged(msgspec.Struct, frozen=True, tag="job-changed"):
    """A job's spec from here on; a repeated create is still compared with the one of `JobMade`."""

    spec: JobSpec


class JobStood(msgspec.Struct, frozen=True, tag="job-stood", omit_defaults=True):
    """From here on a job is paused by that, or not."""

    paused_by: str | None = None
    moving: bool = False  # its sandboxes are being paused


class JobEnded(msgspec.Struct, frozen=True, tag="job-ended"):
    """A job is over, and its sandboxes are being stopped; with `delete`, nothing stays of them or it."""

    reason: str
    delete: bool
    time: float


Entry: TypeAlias = (
    Began
    | Made
    | Ending
    | Stood
    | Changed
    | Handles
    | SessionBegan
    | SessionEnded
    | Asked
    | Answered
    | Void
    | Acknowledged
    | Packed
    | JobMade
    | JobChanged
    | JobStood
    | JobEnded
)

_KINDS: dict[type[Entry], str] = {
    Began: "began",
    Made: "made",
    Ending: "ending",
    Stood: "stood",
    Changed: "changed",
    Handles: "handles",
    Asked: "asked",
    Answered: "answered",
    Void: "void",
    SessionBegan: "session",
    SessionEnded: "session-ended",
    Acknowledged: "acknowledged",
    Packed: "packed",
    JobMade: "job-made",
    JobChanged: "job-changed",
    JobStood: "job-stood",
    JobEnded: "job-ended",
}
_JOB: Final = "job:"
_OF_COMMANDS: Final = frozenset({Asked, Answered, Void})


def job_subject(job_id: str) -> str:
    """Returns the subject under which a job's entries stand."""
    return _JOB + job_id


def _split(subject: str) -> tuple[str, str]:
    """Returns the subject that a chapter belongs to, and its number; the ids of jobs may hold dots."""
    if subject.startswith(_JOB):
        return subject, ""
    name, _, number = subject.partition(".")
    return name, number


class Ledger:
    """The journal, holding nothing but entries. Its subjects are the chapters of sandboxes.

    The chapter SANDBOX holds what its life needs, and its first commands; when it is full, SANDBOX.1,
    SANDBOX.2 and so on hold the next ones. Those may be let go of while the sandbox lives.
    """

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._further: dict[str, list[int]] = {}  # chapters beside the first, in order
        for subject in journal.subjects():
            sandbox_id, number = _split(subject)
            if number:
                bisect.insort(self._further.setdefault(sandbox_id, []), int(number))

    def append(self, sandbox_id: str, entry: Entry) -> Position:
        """Records an entry; StorageFailed, and then nothing is recorded."""
        kind = type(entry)
        subject = self._chapter(sandbox_id) if kind in _OF_COMMANDS else sandbox_id
        return self._journal.append(subject, _KINDS[kind], entry)

    def read(self, position: Position) -> Entry:
        """Returns an entry again; NotFound."""
        return _entry(self._journal.read(position))

    def replay(self) -> Iterator[tuple[str, Position, Entry]]:
        """Gives the entries of all sandboxes that were not forgotten, in their order.

        Records that this version does not understand are left out, each named in the log: they
        cost one sandbox what they told of it, and never the node its start.
        """
        for record in self._journal.replay():
            position = Position(record.subject, record.seq)
            try:
                entry = _entry(record)
            except Bug as error:
                log.warning("%s: %s: %s", record.subject, record.kind[:40], error.message)
                continue
            yield _split(record.subject)[0], position, entry

    def closed(self, sandbox_id: str) -> list[str]:
        """Returns the chapters that nothing more is written to and that may be let go of."""
        return [f"{sandbox_id}.{number}" for number in self._further.get(sandbox_id, [])[:-1]]

    def let_go(self, sandbox_id: str, chapter: str) -> None:
        """Forgets a closed chapter."""
        self._journal.forget(chapter)
        self._further[sandbox_id].remove(int(chapter.partition(".")[2]))

    def forget(self, sandbox_id: str) -> None:
        """Lets go of everything about a sandbox; idempotent."""
        for number in self._further.get(sandbox_id, ()):
            self._journal.forget(f"{sandbox_id}.{number}")
        self._journal.forget(sandbox_id)
        self._further.pop(sandbox_id, None)

    def _chapter(self, sandbox_id: str) -> str:
        """Returns the chapter for the next record of a command."""
        further = self._further.get(sandbox_id)
        number = further[-1] if further else 0
        chapter = f"{sandbox_id}.{number}" if number else sandbox_id
        if self._journal.size(chapter) < CHAPTER_BYTES:
            return chapter
        self._further.setdefault(sandbox_id, []).append(number + 1)
        return f"{sandbox_id}.{number + 1}"

    def gauges(self) -> dict[str, float]:
        """Returns how large the journal is, and how much was ever written."""
        return {
            "journal_bytes": self._journal.disk_bytes,
            "journal_subjects": len(self._journal.subjects()),
            "journal_records_total": self._journal.records,
            "journal_syncs_total": self._journal.syncs,
        }

    def close(self) -> None:
        """Closes the journal."""
        self._journal.close()


def _entry(record: Record) -> Entry:
    try:
        entry: Entry = msgspec.convert(record.data, Entry)
    except msgspec.ValidationError as error:
        raise Bug(f"record {record.seq} of the journal is no entry: {error}") from error
    return entry
