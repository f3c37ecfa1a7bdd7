"""What the node writes into its journal, in the node's own words: of sandboxes, commits and jobs.

Order is the promise (decision 12): `Began` before the backend is asked, `Made` before the sandbox
is used, `Asked` before START leaves, `Answered` before the answer does, `Doing` before anything else
is changed, `Did` before its answer leaves, `Ending` before anything is destroyed, and then the
sandbox's stream is forgotten. Records survive the death of this process; what else they survive is
the sandbox's durability (node/trail/levels.py).

Subjects are SANDBOX, its further chapters SANDBOX.1, SANDBOX.2, ..., the ids of commits, and job:ID. All
records of a sandbox, over its chapters, are ordered by their seq. A chapter beside the first begins
with `Continued`, which names the last record of the one before. "forgotten" ends a chapter; only that
of SANDBOX itself says that the sandbox is gone. Contents in `Did`, `Doing` and `kept` are written as
trajectory/shipping/contents.py says.
"""

from __future__ import annotations

import bisect
import logging
from collections.abc import Iterator, Sequence
from typing import Any, Final, TypeAlias

import msgspec

from skerry.backends.api import Record as InstanceRecord
from skerry.backends.api import View
from skerry.errors import Bug
from skerry.spec.command import CommandSpec, RunResult
from skerry.spec.job import JobSpec
from skerry.spec.layers import ImageConfig, LayerManifest, MountedLayer
from skerry.spec.sandbox import SandboxSpec, State
from skerry.spec.session import SessionSpec
from skerry.trajectory.format.segment import Record
from skerry.trajectory.journal.journal import Journal, Position
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
    kept: dict[str, Any] = {}  # content of "stdin", if it is too long for `spec`


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
    file then stays as long as the sandbox does; `kept` is what the trajectory has of it.
    """

    op: bytes
    started: float
    result: RunResult | None = None
    error: ErrorBody | None = None
    spooled: tuple[int, ...] = ()
    kept: dict[str, Any] = {}  # contents of "stdout" and "stderr" that are too long for `result`


class Doing(msgspec.Struct, frozen=True, tag="doing", omit_defaults=True):
    """Something that may change the sandbox is about to be done; `Did` with its op tells the end.

    Contents that are still to come are not in `request`.
    """

    op: bytes
    action: str
    request: dict[str, Any]
    started: float


class Did(msgspec.Struct, frozen=True, tag="did", omit_defaults=True):
    """Something was done to the sandbox, or failed: exactly one of result and error.

    Actions are "file.read", "file.write", "file.put", "file.walk", "file.usage", "file." and the name
    of a FileOp, "tree.get", "tree.put", "disk.diff", "disk.tar", "change", "network", "pause",
    "resume", "commit" (acknowledged; its op is the commit's id), "commit.packed", "fork", "forward",
    "connect", "command.signal", "command.cancel", and what a harness posts: "verdict", "model.request",
    "harness.NAME".
    """

    action: str
    request: dict[str, Any] = {}
    op: bytes = b""
    result: dict[str, Any] | None = None
    error: ErrorBody | None = None
    started: float = 0.0
    ended: float = 0.0
    usage: dict[str, Any] = {}  # cpu_seconds, memory_peak_bytes where they are known


class Continued(msgspec.Struct, frozen=True, tag="continued"):
    """The first record of a further chapter: what the chapter before ended with at that moment."""

    chapter: str
    hash: bytes


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
    | Doing
    | Did
    | Continued
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
    Doing: "doing",
    Did: "did",
    Continued: "continued",
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
_IN_CHAPTERS: Final = frozenset({Asked, Answered, Void, Doing, Did})


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

    The chapter SANDBOX holds what its life needs, and what was done first; when it is full, SANDBOX.1,
    SANDBOX.2 and so on hold what is done next. Those may be let go of while the sandbox lives.
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
        subject = self._chapter(sandbox_id) if kind in _IN_CHAPTERS else sandbox_id
        return self._journal.append(subject, _KINDS[kind], entry)

    def append_all(self, sandbox_id: str, entries: Sequence[Did]) -> Position:
        """Records several, all or none, and returns the last's position.

        Raises StorageFailed, and InvalidRequest if they are too long together.
        """
        return self._journal.append_all(self._chapter(sandbox_id), _KINDS[Did], entries)

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
        """Returns the chapter for the next record of what is done, begun if need be."""
        further = self._further.get(sandbox_id)
        number = further[-1] if further else 0
        chapter = f"{sandbox_id}.{number}" if number else sandbox_id
        if self._journal.size(chapter) < CHAPTER_BYTES:
            return chapter
        following = f"{sandbox_id}.{number + 1}"
        link = Continued(chapter, self._journal.head(chapter))
        self._journal.append(following, _KINDS[Continued], link)
        self._further.setdefault(sandbox_id, []).append(number + 1)
        return following

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
