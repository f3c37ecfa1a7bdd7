"""What the journal tells of each sandbox, put together from its entries. No I/O but reading it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from skerry.node import ledger
from skerry.node.commands.answers import past_of
from skerry.node.commands.operation import Past
from skerry.node.life.sandbox import HANDLES_BLOCK
from skerry.spec.command import CommandSpec
from skerry.trajectory.journal.journal import Position


@dataclass
class Story:
    """What the journal tells of one sandbox. Commands are in the order of their beginning."""

    began: ledger.Began | None = None
    made: ledger.Made | None = None
    ending: ledger.Ending | None = None
    paused: bool = False
    paused_by: str = ""
    changed: ledger.Changed | None = None
    handle_top: int = HANDLES_BLOCK
    pending: dict[bytes, ledger.Asked] = field(default_factory=dict)
    chapters: dict[bytes, str] = field(default_factory=dict)  # of what is pending
    past: dict[str, Past] = field(default_factory=dict)
    sessions: dict[str, ledger.SessionBegan] = field(default_factory=dict)
    seqs: dict[str, int] = field(default_factory=dict)  # the newest command of each session
    doing: dict[bytes, ledger.Doing] = field(default_factory=dict)
    acts: dict[str, Position] = field(default_factory=dict)  # of the `Did` of each operation id

    def take(self, position: Position, entry: ledger.Entry) -> None:
        """Takes the next entry."""
        match entry:
            case ledger.Began():
                self.began = entry
            case ledger.Made():
                self.made = entry
            case ledger.Ending():
                self.ending = entry
            case ledger.Stood():
                self.paused, self.paused_by = entry.paused, entry.by
            case ledger.Changed():
                self.changed = entry
            case ledger.Handles():
                self.handle_top = max(self.handle_top, entry.top)
            case ledger.SessionBegan():
                self.sessions[entry.id] = entry
                self.seqs.pop(entry.id, None)
            case ledger.SessionEnded():
                self.sessions.pop(entry.id, None)
            case ledger.Asked():
                if entry.spec.session is not None:
                    newest = self.seqs.get(entry.spec.session, 0)
                    self.seqs[entry.spec.session] = max(newest, entry.seq)
                self.pending[entry.op] = entry
                self.chapters[entry.op] = position.subject
            case ledger.Doing():
                self.doing[entry.op] = entry
            case ledger.Did():
                self.doing.pop(entry.op, None)
                if entry.op:
                    self.acts[entry.op.hex()] = position
            case ledger.Void():
                self.pending.pop(entry.op, None)
            case ledger.Answered():
                asked = self.pending.pop(entry.op, None)
                chapter = self.chapters.pop(entry.op, position.subject)
                fingerprint, spec = (
                    (b"", CommandSpec()) if asked is None else (asked.fingerprint, asked.spec)
                )
                past = past_of(chapter, fingerprint, spec, entry, position)
                self.past[entry.op.hex()] = past


@dataclass
class CommitStory:
    """What the journal tells of one commit."""

    acknowledged: ledger.Acknowledged
    packed: ledger.Packed | None = None


JobEntry: TypeAlias = ledger.JobMade | ledger.JobChanged | ledger.JobStood | ledger.JobEnded


@dataclass
class JobStory:
    """What the journal tells of one job."""

    made: ledger.JobMade | None = None
    changed: ledger.JobChanged | None = None
    stood: ledger.JobStood | None = None
    ended: ledger.JobEnded | None = None


class Stories(NamedTuple):
    """What the journal holds, oldest first."""

    sandboxes: dict[str, Story]
    commits: dict[str, CommitStory]
    jobs: dict[str, JobStory]  # by job id


def read_stories(entries: ledger.Ledger) -> Stories:
    """Returns what the journal holds, by sandbox, by commit and by job."""
    stories: dict[str, Story] = {}
    commits: dict[str, CommitStory] = {}
    jobs: dict[str, JobStory] = {}
    for subject, position, entry in entries.replay():
        match entry:
            case ledger.Acknowledged():
                commits[subject] = CommitStory(entry)
            case ledger.Packed():
                if subject in commits:
                    commits[subject].packed = entry
            case ledger.JobMade() | ledger.JobChanged() | ledger.JobStood() | ledger.JobEnded():
                job_id = subject.removeprefix(ledger.job_subject(""))
                _take(jobs.setdefault(job_id, JobStory()), entry)
            case _:
                stories.setdefault(subject, Story()).take(position, entry)
    return Stories(stories, commits, jobs)


def _take(story: JobStory, entry: JobEntry) -> None:
    match entry:
        case ledger.JobMade():
            story.made = entry
        case ledger.JobChanged():
            story.changed = entry
        case ledger.JobStood():
            story.stood = entry
        case ledger.JobEnded():
            story.ended = entry
