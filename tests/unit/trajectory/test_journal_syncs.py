"""What a journal does so that records survive the loss of the host."""

from __future__ import annotations

import os

import pytest

from journals import SMALL
from skerry.errors import StorageFailed
from skerry.trajectory.format.segment import UNNUMBERED
from skerry.trajectory.journal import files
from skerry.trajectory.journal.spare import Spare, make_spare
from trajectory_stories import faults_of


def test_sync_flushes_every_segment_once(opener, monkeypatch):
    journal = opener()
    while len(journal._segments) < 3:
        journal.append("a", "k", "x" * 500)
    files, names = [], []
    real_data, real_all = os.fdatasync, os.fsync
    monkeypatch.setattr(os, "fdatasync", lambda fd: files.append(fd) or real_data(fd))
    monkeypatch.setattr(os, "fsync", lambda fd: names.append(fd) or real_all(fd))
    journal.sync()
    assert (len(files), len(names)) == (3, 1)  # three segments and the directory
    journal.sync()
    assert (len(files), len(names)) == (4, 1)  # the newest


def test_sync_that_failed_is_never_taken_for_done(opener, monkeypatch):
    journal = opener()
    journal.append("a", "k", 1)
    with monkeypatch.context() as broken:
        broken.setattr(os, "fdatasync", lambda fd: (_ for _ in ()).throw(OSError(5, "I/O")))
        with pytest.raises(StorageFailed, match="sync"):
            journal.sync()
    with pytest.raises(StorageFailed, match="sync"):  # the kernel says it once, and forgets
        journal.sync()


def spares(directory: str) -> list[str]:
    return [
        os.path.join(directory, name) for name in os.listdir(directory) if name.endswith(UNNUMBERED)
    ]


def test_segments_of_a_journal_that_is_synced_are_written_out_ahead(opener, directory):
    journal = opener()
    journal.append("a", "k", 1)
    assert not journal.slow
    journal.sync()
    assert journal.slow  # blocks that were never written make each sync a transaction
    journal.prepare()
    (spare,) = spares(directory)
    assert os.stat(spare).st_blocks * 512 >= SMALL
    journal.seal()
    assert not journal.slow
    journal.append("a", "k", 2)
    journal.sync()
    assert [record.data for record in opener().replay()] == [1, 2]


def test_prepared_segment_is_used_and_never_left(opener, directory):
    journal = opener()
    journal.append("a", "k", 1)
    journal.prepare()
    journal.prepare()
    assert len(spares(directory)) == 1
    journal.seal()
    assert spares(directory) == []
    journal.prepare()
    again = opener()
    assert spares(directory) == []
    assert [record.data for record in again.replay()] == [1]


def test_segment_that_is_begun_while_another_is_made_ahead_is_a_file_of_its_own(
    opener, directory, monkeypatch
):
    """The one that is made ahead is made in a thread: its zeros must reach no live segment."""
    journal = opener()
    journal.append("a", "k", 1)
    begun = []

    def made(place: str, size: int, *, zeros: bool = False) -> Spare:
        spare = make_spare(place, size, zeros=zeros)
        if not begun:
            begun.append(1)
            journal.seal()
            journal.append("a", "k", 2)
        return spare

    monkeypatch.setattr(files, "make_spare", made)
    journal.prepare()
    journal.append("a", "k", 3)
    journal.seal()
    journal.append("a", "k", 4)
    assert [record.data for record in opener().replay()] == [1, 2, 3, 4]
    assert faults_of(directory) == []
