"""What the journal tells of each sandbox, put together from its entries. No I/O but reading it."""

from __future__ import annotations

from dataclasses import dataclass, field

from skerry.node import ledger
from skerry.node.commands.answers import past_of
from skerry.node.commands.operation import Past
from skerry.node.life.sandbox import HANDLES_BLOCK
from skerry.spec.command import CommandSpec
from skerry.trajectory.journal import Position


@dataclass
class Story:
    """What the journal tells of one sandbox. Commands are in the order of their beginning."""

    began: ledger.Began | None = None
    made: ledger.Made | None = None
    ending: ledger.Ending | None = None
    paused: bool = False
    changed: ledger.Changed | None = None
    handle_top: int = HANDLES_BLOCK
    pending: dict[bytes, ledger.Asked] = field(default_factory=dict)
    chapters: dict[bytes, str] = field(default_factory=dict)  # of what is pending
    past: dict[str, Past] = field(default_factory=dict)
    sessions: dict[str, ledger.SessionBegan] = field(default_factory=dict)
    seqs: dict[str, int] = field(default_factory=dict)  # the newest command of each session

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
                self.paused = entry.paused
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


def read_stories(entries: ledger.Ledger) -> tuple[dict[str, Story], dict[str, CommitStory]]:
    """Returns what the journal holds, by sandbox and by commit, oldest first."""
    stories: dict[str, Story] = {}
    commits: dict[str, CommitStory] = {}
    for subject, position, entry in entries.replay():
        match entry:
            case ledger.Acknowledged():
                commits[subject] = CommitStory(entry)
            case ledger.Packed():
                if subject in commits:
                    commits[subject].packed = entry
            case _:
                stories.setdefault(subject, Story()).take(position, entry)
    return stories, commits
