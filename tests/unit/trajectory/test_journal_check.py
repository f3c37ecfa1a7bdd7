"""Verification from outside names tampering and truncation, and clears what is only old."""

from __future__ import annotations

import os

import pytest

from journals import SMALL
from skerry.errors import StorageFailed
from skerry.spec.trajectory import FindingKind
from skerry.trajectory.format.segment import (
    HEADER_BYTES,
    Fault,
    Header,
    Record,
    decode_header,
    encode_header,
    frame_body,
    parse_record,
    segment_path,
)
from skerry.trajectory.journal.journal import Journal
from trajectory_stories import faults_of, sandbox_id

K = FindingKind
MASK = 0xFFFFFFFF


@pytest.fixture
def journal(tmp_path):
    journal = Journal.open(str(tmp_path), now_ns=lambda: 5, segment_bytes=SMALL)
    while len(journal._segments) < 3:
        for subject in "ab":
            journal.append(subject, "k", "x" * 100)
    yield journal
    journal.close()


def rewrite(path: str, offset: int, change) -> None:
    """Replaces a record by a changed one of the same size, with a right checksum."""
    with open(path, "r+b") as file:
        data = file.read()
        found = parse_record(data, offset)
        body = data[offset + 8 : found.end]
        changed = change(body)
        assert len(changed) == len(body)
        file.seek(offset)
        file.write(frame_body(changed))


def test_untouched_journal_has_no_problems(journal, tmp_path):
    assert faults_of(str(tmp_path)) == []


def test_changed_record_with_a_right_checksum_breaks_its_chain(journal, tmp_path):
    places = journal._chains["a"].places
    rewrite(
        segment_path(tmp_path, 1), places[0] & MASK, lambda body: body.replace(b"xxxx", b"yyyy", 1)
    )
    assert faults_of(str(tmp_path))[0] == (K.TAMPERED, places[1] >> 32, places[1] & MASK)


def test_changed_last_record_of_a_segment_is_named_by_the_next(journal, tmp_path):
    end = journal._segments.get(1).end
    last = max(
        place & MASK
        for chain in journal._chains.values()
        for place in chain.places
        if place >> 32 == 1
    )
    rewrite(segment_path(tmp_path, 1), last, lambda body: body.replace(b"xxxx", b"yyyy", 1))
    assert (K.TAMPERED, 1, end) in faults_of(str(tmp_path))


def test_record_taken_out_of_a_chain_is_noticed(journal, tmp_path):
    start = journal._chains["b"].places[1] & MASK
    path = segment_path(tmp_path, 1)
    with open(path, "r+b") as file:
        data = file.read()
        found = parse_record(data, start)
        file.seek(start)
        tail = data[found.end : journal._segments.get(1).end]
        file.write(tail + bytes(found.end - start))
    kinds = {fault for fault, *_ in faults_of(str(tmp_path))}
    assert kinds == {K.TAMPERED, K.TRUNCATED}


def test_shortened_segment_is_noticed(journal, tmp_path):
    path = segment_path(tmp_path, 2)
    last = max(p for c in journal._chains.values() for p in c.places if p >> 32 == 2) & MASK
    os.truncate(path, last)
    found = faults_of(str(tmp_path))
    assert (K.TRUNCATED, 2, last) in found


def test_missing_segment_is_noticed(journal, tmp_path):
    os.unlink(segment_path(tmp_path, 2))
    found = faults_of(str(tmp_path))
    assert (K.TRUNCATED, 2, None) in found
    assert K.TAMPERED in {fault for fault, *_ in found}


@pytest.mark.parametrize("position", range(HEADER_BYTES))
def test_changed_header_is_noticed(journal, tmp_path, position):
    with open(segment_path(tmp_path, 2), "r+b") as file:
        file.seek(position)
        byte = file.read(1)[0]
        file.seek(position)
        file.write(bytes([byte ^ 4]))
    assert faults_of(str(tmp_path))[0] == (K.HEADER, 2, 0)


@pytest.mark.parametrize("seq", [1, 5, -1])
def test_two_records_with_one_seq_are_noticed(tmp_path, seq):
    sandbox = sandbox_id(1)
    journal = Journal.open(str(tmp_path), now_ns=lambda: 5, segment_bytes=SMALL)
    for number in range(10):
        journal.append(sandbox, "k", number)
    end = journal.mark()[1]
    assert faults_of(str(tmp_path)) == []
    (first, *_, last) = records = list(journal.replay())
    prev_hash = {1: first, 5: records[4], -1: last}[seq].prev_hash
    record = Record(seq if seq > 0 else last.seq, sandbox, "k", 5, prev_hash, "another")
    journal._segments.write(journal._segments.newest, frame_body(journal._encode(record)))
    journal.close()
    assert K.TAMPERED in {fault for fault, *_ in faults_of(str(tmp_path))}
    again = Journal.open(str(tmp_path), now_ns=lambda: 5, segment_bytes=SMALL)
    assert [(p.fault, p.offset) for p in again.problems] == [(Fault.TAMPERED, end)]
    again.close()


def test_garbage_in_an_old_segment_is_damage_not_a_torn_tail(journal, tmp_path):
    end = journal._segments.get(1).end
    with open(segment_path(tmp_path, 1), "r+b") as file:
        file.seek(end)
        file.write(b"garbage")
    assert faults_of(str(tmp_path)) == [(K.DAMAGED, 1, end)]


def test_forgotten_subject_with_deleted_segments_is_no_crime(tmp_path):
    journal = Journal.open(str(tmp_path), now_ns=lambda: 5, segment_bytes=SMALL)
    for i in range(300):
        journal.append("long", "k", "x" * 60)
        journal.append(f"s{i}", "k", "x" * 60)
        journal.forget(f"s{i}")
        if i % 90 == 89:
            journal.forget("long")
    assert journal._segments.oldest.number > 1
    assert faults_of(str(tmp_path)) == []
    journal.close()


def test_forgotten_sandbox_that_is_gone_in_part_is_no_crime_and_a_living_one_is(tmp_path):
    """Living records are carried over as they are met, so some lie behind newer ones of their chain."""
    journal = Journal.open(str(tmp_path), now_ns=lambda: 5, segment_bytes=SMALL)
    dead, living = sandbox_id(1), sandbox_id(2)
    for i in range(300):
        for sandbox in (dead, living):
            if i % 7 == 0:
                journal.append(sandbox, "k", i)
        journal.append(f"s{i}", "k", "x" * 60)
        journal.forget(f"s{i}")
        if i == 200:
            journal.forget(dead)
        assert faults_of(str(tmp_path)) == []
    assert journal._segments.oldest.number > 1
    chain = journal._chains[living]
    place = chain.places[len(chain.places) // 2]
    rewrite(segment_path(tmp_path, place >> 32), place & MASK, lambda body: body[:-1] + b"\x01")
    assert K.TAMPERED in {fault for fault, *_ in faults_of(str(tmp_path))}
    journal.close()


def test_unreadable_journal_is_a_storage_failure(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StorageFailed):
        faults_of(str(tmp_path / "file"))


def test_header_is_read_again_and_a_foreign_version_is_not():
    header = Header(3, 77, 5, 900, b"h" * 16)
    data = encode_header(header)
    assert len(data) == HEADER_BYTES
    assert decode_header(data) == header
    assert decode_header(data[:-1]) is None
    assert decode_header(b"X" + data[1:]) is None
