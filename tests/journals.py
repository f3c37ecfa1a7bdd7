"""Small journals, for tests."""

from __future__ import annotations

from skerry.trajectory.journal.journal import Journal

SMALL = 4096  # of a segment: the least that a journal takes


def state(journal: Journal) -> list:
    """Returns all that lives in it."""
    return [(r.seq, r.subject, r.kind, r.data) for r in journal.replay()]
