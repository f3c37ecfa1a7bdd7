"""What one rollout must not forget, as entries and the state that they add up to. No I/O here.

A rollout is a coroutine that may be run again from its beginning after the process was killed: with the
same memory it comes to where it was. What is outside repeats nothing, for all that it asks there has
ids derived from rollout, attempt and ordinal (`skerry.worker.ids`), and what has no such id (a file
that is read or written) is kept as an entry once it is done. `docs/guide/worker.md` lists every step.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from skerry.errors import Bug
from skerry.integrity.audit import Audit
from skerry.integrity.conduct import Deed, Source
from skerry.spec.layers import MountedLayer
from skerry.spec.rollout import Attempt
from skerry.spec.verdict import Verdict
from skerry.worker.model.book import Asked, Handed, Note

NOTHING = Audit((), (), (), ())


class Submission(msgspec.Struct, frozen=True):
    """What is graded: the audit of a sandbox's diff, and a tar of the kept files.

    `verdict` is set if there is nothing to test: tampered, or refused. `repercussion` says how the
    agent broke its own sandbox, if it did.
    """

    audit: Audit
    tar: bytes
    verdict: Verdict | None = None
    mounts: tuple[MountedLayer, ...] = ()  # of the sandbox that it comes from
    repercussion: str = ""


class Begun(msgspec.Struct, frozen=True, kw_only=True, tag="begun"):
    """An attempt begins. Before it nothing of the attempt exists."""

    attempt: int
    at: float


class Placed(msgspec.Struct, frozen=True, kw_only=True, tag="placed"):
    """The agent's sandbox exists. From here on another one would be a restart."""

    sandbox: str


class Kept(msgspec.Struct, frozen=True, kw_only=True, tag="kept"):
    """A file was read (`content`) or written, as the step of that number."""

    step: int
    content: bytes = b""


class Several(msgspec.Struct, frozen=True, kw_only=True, tag="several"):
    """Notes of the model's side that are on record together or not at all."""

    notes: tuple[Note, ...]


class Given(msgspec.Struct, frozen=True, kw_only=True, tag="given"):
    """The trainer's answer to a request; where `body` is empty it is in a file of its own."""

    ordinal: int
    status: int
    digest: str
    at: float
    active_s: float
    body: bytes = b""


class Told(msgspec.Struct, frozen=True, kw_only=True, tag="told", omit_defaults=True):
    """A model request is in the record of the agent's sandbox.

    `words` is what its answer had the agent do, as much of it as is looked at.
    """

    ordinal: int
    words: str = ""


class Stilled(msgspec.Struct, frozen=True, kw_only=True, tag="stilled"):
    """The sandbox is about to be paused, since requests wait for so long."""

    active_s: float


class Acted(msgspec.Struct, frozen=True, kw_only=True, tag="acted", omit_defaults=True):
    """The agent acts no more: it was done, out of time, or broke something."""

    active_s: float
    expired: bool = False  # its time was used up: what still runs of it is ended
    verdict: Verdict | None = None
    repercussion: str = ""
    deeds: tuple[Deed, ...] = ()  # what conduct is judged by


class Submitted(msgspec.Struct, frozen=True, kw_only=True, tag="submitted"):
    """What is graded lies in a file of its own. The agent's sandbox is not needed any more."""

    digest: str


class Verifying(msgspec.Struct, frozen=True, kw_only=True, tag="verifying"):
    """A fresh sandbox is about to be made for the verification of that number."""

    number: int


class Faulted(msgspec.Struct, frozen=True, tag="faulted", omit_defaults=True):
    """The platform failed an attempt, or a verification; what comes next is another."""

    fault: Attempt
    blames: bool = False  # what was submitted may be at fault: if it is always so, it is


Entry: TypeAlias = (
    Note
    | Begun
    | Placed
    | Kept
    | Several
    | Given
    | Told
    | Stilled
    | Acted
    | Submitted
    | Verifying
    | Faulted
)


class Memory:
    """The state that the entries of one rollout add up to.

    This one forgets with the process. A durable one overrides `_write`, which returns once the entry
    survives the process, and what keeps a submission. Invariant: everything but `started` is of the
    attempt under way; `submission` is set at most after `acted`.
    """

    durable = False

    def __init__(self) -> None:
        self.started = 0.0  # the first attempt
        self.began = 0.0
        self.attempt = -1
        self.faults: list[Faulted] = []
        self.verifying = -1
        self.submission: Submission | None = None
        self._clear()

    def _clear(self) -> None:
        self.sandbox: str | None = None
        self.kept: dict[int, bytes] = {}
        self.digests: list[str] = []  # of the model requests, by ordinal
        self.asked_at: list[float] = []
        self.given: dict[int, Given] = {}  # without their bodies
        self.told: set[int] = set()  # the ordinals that are in the record of the sandbox
        self.words: dict[int, str] = {}  # of answers, in their order; bounded by who notes them
        self.stilled = False  # its sandbox may have been paused, and not resumed since
        self.open: set[int] = set()  # the ordinals that have no answer
        self.active_s = 0.0
        self.acted: Acted | None = None

    def note(self, entry: Entry) -> None:
        """Records an entry and takes it in: it is durable then. Raises NotRecorded if it cannot be."""
        self._write(entry)
        self.apply(entry)

    def _write(self, entry: Entry) -> None:
        """Keeps an entry."""

    def submit(self, submission: Submission) -> None:
        """Records what is graded."""
        self.submission = submission

    def apply(self, entry: Entry) -> None:
        """Takes in an entry that is on record."""
        match entry:
            case Begun():
                self._clear()
                self.attempt, self.began = entry.attempt, entry.at
                self.started = self.started or entry.at
            case Placed():
                self.sandbox = entry.sandbox
            case Kept():
                self.kept[entry.step] = entry.content
            case Asked():
                if entry.ordinal != self.asked:
                    raise Bug(f"request {entry.ordinal} follows {self.asked - 1}")
                self.open.add(entry.ordinal)
                self.digests.append(entry.digest)
                self.asked_at.append(entry.at)
            case Several():
                for note in entry.notes:
                    self.apply(note)
            case Handed():
                self.stilled = False
            case Given():
                self.given[entry.ordinal] = msgspec.structs.replace(entry, body=b"")
                self.open.discard(entry.ordinal)
                self.active_s = entry.active_s
            case Told():
                self.told.add(entry.ordinal)
                if entry.words:
                    self.words[entry.ordinal] = entry.words
            case Stilled():
                self.stilled = True
                self.active_s = entry.active_s
            case Acted():
                self.acted, self.active_s = entry, entry.active_s
            case Verifying():
                self.verifying = entry.number
            case Faulted():
                self.faults.append(entry)
            case _:
                pass  # a submission is read from its file; the rest is for the model's side

    def answers(self) -> list[Deed]:
        """Returns what the model had its agent do, for the rules of conduct."""
        return [
            Deed(text=text, source=Source.ANSWER, number=ordinal)
            for ordinal, text in self.words.items()
        ]

    @property
    def asked(self) -> int:
        """How many model requests the attempt has made."""
        return len(self.digests)

    def check_invariants(self) -> None:
        """Raises AssertionError if the state contradicts itself; for tests."""
        assert self.submission is None or self.acted is not None  # noqa: S101
        assert self.open.isdisjoint(self.given)  # noqa: S101
        assert self.open | self.given.keys() == set(range(self.asked))  # noqa: S101
        assert self.told <= set(range(self.asked))  # noqa: S101
        assert self.attempt >= 0 or not (self.sandbox or self.asked or self.kept)  # noqa: S101


class Standstill(Exception):
    """The rollout stops where it is, with its sandbox as it is, and is run again later."""


class NotRecorded(Standstill):
    """An entry could not be made durable: nothing may come of it."""


class NodeAway(Standstill):
    """The node does not answer, or has no room: nothing is known to be lost."""
