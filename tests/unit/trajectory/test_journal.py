"""The journal: what is appended is read, replayed, forgotten, and refused where it cannot be written."""

from __future__ import annotations

import os

import pytest

from skerry.errors import InvalidRequest, StorageFailed
from skerry.trajectory.journal.journal import Journal, Position
from trajectory_stories import faults_of


def test_appended_records_are_read_by_position_and_replayed_in_order(opener):
    journal = opener()
    first = journal.append("a", "intent", {"argv": [b"true"], "n": 1})
    second = journal.append("b", "intent", None)
    third = journal.append("a", "result", [1, "two", 3.0])
    assert (first, third) == (Position("a", 1), Position("a", 3))
    record = journal.read(first)
    assert (record.kind, record.time_ns, record.data) == (
        "intent",
        1000,
        {"argv": [b"true"], "n": 1},
    )
    assert journal.read(second).data is None
    assert [r.seq for r in journal.replay()] == [1, 2, 3]
    assert [r.seq for r in journal.replay("a")] == [1, 3]
    assert [r.seq for r in journal.replay("nobody")] == []
    assert journal.subjects() == ["a", "b"]
    journal.check_invariants()


def test_chain_of_each_subject_names_the_record_before(opener):
    journal = opener()
    positions = [journal.append(s, "k", i) for i, s in enumerate("abab")]
    a0, b0, a1, b1 = (journal.read(p) for p in positions)
    assert a0.prev_hash == b0.prev_hash == bytes(16)
    assert a1.prev_hash != b1.prev_hash
    assert journal.head("a") not in (a1.prev_hash, bytes(16))
    assert journal.head("nobody") == bytes(16)


def test_append_is_one_write(opener, monkeypatch):
    journal = opener()
    journal.append("a", "k", None)
    calls = []
    real = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda *args: calls.append(args) or real(*args))
    monkeypatch.setattr(os, "fdatasync", None)
    monkeypatch.setattr(os, "fsync", None)
    journal.append("a", "k", "x" * 100)
    assert len(calls) == 1


def test_records_written_together_are_all_there_or_none(opener, monkeypatch):
    journal = opener()
    journal.append("a", "k", 0)
    assert journal.append_all("a", "k", [1, 2, 3]) == Position("a", 4)
    assert [record.data for record in journal.replay("a")] == [0, 1, 2, 3]
    real = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: real(fd, data[: len(data) // 2], at))
    with pytest.raises(StorageFailed, match="full"):
        journal.append_all("a", "k", [4, 5, 6])
    monkeypatch.undo()
    journal.check_invariants()
    assert [record.data for record in opener().replay("a")] == [0, 1, 2, 3]


def test_full_disk_is_a_storage_failure_and_records_nothing(opener, directory, monkeypatch):
    journal = opener()
    journal.append("a", "k", 1)

    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        with pytest.raises(StorageFailed, match="No space"):
            journal.append("b", "k", 2)
    with monkeypatch.context() as patch:
        patch.setattr(
            os, "pwrite", lambda fd, data, offset: os.pwritev(fd, [data[:5]], offset) or 5
        )
        with pytest.raises(StorageFailed, match="full"):
            journal.append("b", "k", 2)
    assert journal.subjects() == ["a"]
    assert faults_of(directory) == []
    assert journal.append("b", "k", 3).seq == 2
    journal.check_invariants()
    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", full)

        def fill() -> None:
            for _ in range(100):
                journal.append("b", "k", "x" * 500)

        with pytest.raises(StorageFailed, match="cannot make"):
            fill()
    assert [name for name in os.listdir(directory) if name.endswith(".new")] == []
    journal.append("b", "k", "room again" * 50)
    journal.check_invariants()


def test_directory_that_cannot_be_made_is_a_storage_failure(tmp_path):
    blocker = tmp_path / "file"
    blocker.write_text("")
    with pytest.raises(StorageFailed):
        Journal.open(str(blocker / "journal"), now_ns=lambda: 0)


def test_record_beyond_a_quarter_segment_is_refused(opener):
    journal = opener()
    with pytest.raises(InvalidRequest, match="at most 1024"):
        journal.append("a", "k", "x" * 1100)
    assert journal.subjects() == []
    with pytest.raises(InvalidRequest):
        Journal.open("/nonexistent", now_ns=lambda: 0, segment_bytes=100)


def test_closed_journal_takes_nothing_and_harms_nothing(opener):
    journal = opener()
    journal.append("a", "k", 1)
    journal.close()
    with pytest.raises(StorageFailed, match="closed"):
        journal.append("a", "k", 2)
    assert [record.data for record in opener().replay()] == [1]
