"""What a journal knows after a kill, and after damage."""

from __future__ import annotations

import itertools
import os
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from journals import SMALL, state
from skerry.errors import NotFound, StorageFailed
from skerry.spec.trajectory import FindingKind
from skerry.trajectory.format.segment import Fault, segment_path
from skerry.trajectory.journal.journal import Journal
from trajectory_stories import faults_of, sandbox_id


def test_killed_process_is_followed_by_one_that_knows_everything(opener):
    first = opener()
    for i in range(100):
        first.append(f"s{i % 7}", "k", i)
    first.forget("s3")
    expected = state(first)
    second = opener()  # the first was never closed
    assert second.problems == []
    assert state(second) == expected
    assert "s3" not in second.subjects()
    assert second.append("s1", "k", "more").seq == 102
    second.check_invariants()
    assert [r.data for r in second.replay("s1")][-1] == "more"


def test_forgotten_subject_is_gone_for_good_and_may_begin_again(opener, directory):
    journal = opener()
    position = journal.append("a", "k", 1)
    journal.forget("a")
    journal.forget("a")
    with pytest.raises(NotFound):
        journal.read(position)
    journal.append("a", "k", 2)
    again = opener()
    assert [r.data for r in again.replay("a")] == [2]
    assert next(again.replay("a")).prev_hash == bytes(16)
    again.check_invariants()
    assert faults_of(directory) == []


@pytest.mark.parametrize("cut", range(1, 48))
def test_torn_tail_is_cut_off_and_reported(opener, directory, cut):
    journal = opener()
    journal.append("a", "k", "whole")
    journal.append("a", "k", "torn" * 3)
    path = segment_path(directory, 1)
    end = journal._segments.newest.end
    start = end - journal._chains["a"].sizes[1]
    assert end - start == 48
    with open(path, "r+b") as file:
        file.seek(end - cut)
        file.write(bytes(cut))  # as if the end of the write had never come
    assert faults_of(directory) == [(FindingKind.TORN_TAIL, 1, start)]
    again = opener()
    assert [(p.fault, p.segment, p.offset) for p in again.problems] == [(Fault.TORN_TAIL, 1, start)]
    assert [r.data for r in again.replay()] == ["whole"]
    again.append("a", "k", "after")
    again.check_invariants()
    assert faults_of(directory) == []


@pytest.mark.parametrize("position", range(50))
def test_corrupted_byte_anywhere_in_the_last_record_is_noticed(opener, directory, position):
    journal = opener()
    journal.append("a", "k", "whole")
    journal.append("a", "k", "last" * 5)
    size = journal._chains["a"].sizes[1]
    assert size > 50
    with open(segment_path(directory, 1), "r+b") as file:
        file.seek(journal._segments.newest.end - size + position)
        byte = file.read(1)[0]
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 0xFF]))
    again = opener()
    assert [p.fault for p in again.problems] == [Fault.TORN_TAIL]
    assert [r.data for r in again.replay()] == ["whole"]


@pytest.mark.parametrize("position", [0, 4, 8, 20, 40])
def test_damage_in_the_middle_loses_one_record_and_is_reported(opener, directory, position):
    journal = opener()
    for i in range(5):
        journal.append("a", "k", f"number {i} with some length")
    place = journal._chains["a"].places[2] & 0xFFFFFFFF
    with open(segment_path(directory, 1), "r+b") as file:
        file.seek(place + position)
        byte = file.read(1)[0]
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 0xFF]))
    again = opener()
    assert [p.fault for p in again.problems] == [Fault.DAMAGED]
    assert [r.seq for r in again.replay()] == [1, 2, 4, 5]
    after = journal._chains["a"].places[3] & 0xFFFFFFFF
    faults = {(FindingKind.DAMAGED, 1, place), (FindingKind.TAMPERED, 1, after)}
    assert set(faults_of(directory)) == faults
    again.append("a", "k", "goes on")
    assert [r.seq for r in opener().replay()] == [1, 2, 4, 5, 6]


def test_file_truncated_inside_a_record_is_a_torn_tail(opener, directory):
    journal = opener()
    for i in range(3):
        journal.append("a", "k", i)
    os.truncate(segment_path(directory, 1), journal._segments.newest.end - 3)
    again = opener()
    assert [p.fault for p in again.problems] == [Fault.TORN_TAIL]
    assert [r.data for r in again.replay()] == [0, 1]
    assert os.path.getsize(segment_path(directory, 1)) == SMALL
    again.append("a", "k", 3)
    assert faults_of(directory) == []


def test_half_made_segment_is_removed(opener, directory):
    opener().append("a", "k", 1)
    with open(segment_path(directory, 2) + ".new", "wb") as file:
        file.write(b"half")
    assert len(list(opener().replay())) == 1
    assert os.listdir(directory) == ["0000000001.seg"]


ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(["append", "append", "append", "forget", "reopen"]), st.integers(0, 5)
    ),
    max_size=120,
)


@settings(max_examples=60, deadline=None)
@given(actions=ACTIONS)
def test_any_history_is_found_again(actions, tmp_path_factory):
    directory = str(tmp_path_factory.mktemp("history"))
    clock = itertools.count()
    now_ns = clock.__next__
    journal = Journal.open(directory, now_ns=now_ns, segment_bytes=SMALL)
    expected: list = []
    for number, (action, subject) in enumerate(actions):
        name = sandbox_id(subject)
        if action == "append":
            seq = journal.append(name, "k", "d" * (number * 7 % 300)).seq
            expected.append((seq, name, "k", "d" * (number * 7 % 300)))
        elif action == "forget":
            journal.forget(name)
            expected = [record for record in expected if record[1] != name]
        else:
            journal.close()
            journal = Journal.open(directory, now_ns=now_ns, segment_bytes=SMALL)
            assert journal.problems == []
        assert state(journal) == expected
    journal.check_invariants()
    assert faults_of(directory) == []
    journal.close()


def test_journal_of_a_newer_version_is_refused_and_left_as_it_is(opener, directory):
    opener().append("s", "k", 1)
    path = segment_path(directory, 1)
    with open(path, "rb") as file:
        before = file.read()
    header = bytearray(before[:64])
    header[8:10] = (7).to_bytes(2, "little")
    header[12:16] = bytes(4)
    header[12:16] = zlib.crc32(bytes(header)).to_bytes(4, "little")
    newer = bytes(header) + before[64:]
    with open(path, "wb") as file:
        file.write(newer)
    with pytest.raises(StorageFailed, match="version 7"):
        opener()
    with open(path, "rb") as file:
        assert file.read() == newer
    # damage that only looks like another version is damage: what is whole behind it is read
    damaged = before[:8] + b"\x07\x00" + before[10:]
    with open(path, "wb") as file:
        file.write(damaged)
    assert [record.data for record in opener().replay("s")] == [1]
