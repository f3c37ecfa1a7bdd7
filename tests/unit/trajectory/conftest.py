"""Journals over one directory, as successive processes make them."""

from __future__ import annotations

import itertools

import pytest

from journals import SMALL
from skerry.trajectory.journal.journal import Journal


@pytest.fixture
def directory(tmp_path) -> str:
    return str(tmp_path / "journal")


@pytest.fixture
def opener(directory):
    """Returns a maker of journals over one directory, as successive processes make them."""
    clock = itertools.count(1_000)
    made = []

    def make(segment_bytes: int = SMALL, *, keep: bool = False) -> Journal:
        options = {"segment_bytes": segment_bytes, "keep": keep}
        made.append(Journal.open(directory, now_ns=lambda: next(clock), **options))
        return made[-1]

    yield make
    for journal in made:
        journal.close()
