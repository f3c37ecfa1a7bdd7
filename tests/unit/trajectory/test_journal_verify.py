"""Verification from outside names tampering and truncation, and clears what is only old."""

from __future__ import annotations

import os

import pytest

from skerry.errors import StorageFailed
from skerry.trajectory.journal import Journal
from skerry.trajectory.segment import (
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
from skerry.trajectory.verify import verify

SMALL = 4096
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


def faults(directory) -> list:
    return [(p.fault, p.segment, p.offset) for p in verify(str(directory))]


def test_untouched_journal_has_no_problems(journal, tmp_path):
    assert verify(str(tmp_path)) == []


def test_changed_record_with_a_right_checksum_breaks_its_chain(journal, tmp_path):
    places = journal._chains["a"].places
    rewrite(
        segment_path(tmp_path, 1), places[0] & MASK, lambda body: body.replace(b"xxxx", b"yyyy", 1)
    )
    assert faults(tmp_path)[0] == (Fault.TAMPERED, places[1] >> 32, places[1] & MASK)


def test_changed_last_record_of_a_segment_is_named_by_the_next(journal, tmp_path):
    end = journal._segments.get(1).end
    last = max(
        place & MASK
        for chain in journal._chains.values()
        for place in chain.places
        if place >> 32 == 1
    )
    rewrite(segment_path(tmp_path, 1), last, lambda body: body.replace(b"xxxx", b"yyyy", 1))
    assert (Fault.TAMPERED, 1, end) in faults(tmp_path)


def test_record_taken_out_of_a_chain_is_noticed(journal, tmp_path):
    start = journal._chains["b"].places[1] & MASK
    path = segment_path(tmp_path, 1)
    with open(path, "r+b") as file:
        data = file.read()
        found = parse_record(data, start)
        file.seek(start)
        tail = data[found.end : journal._segments.get(1).end]
        file.write(tail + bytes(found.end - start))
    kinds = {fault for fault, *_ in faults(tmp_path)}
    assert kinds == {Fault.TAMPERED, Fault.TRUNCATED}


def test_shortened_segment_is_noticed(journal, tmp_path):
    path = segment_path(tmp_path, 2)
    last = max(p for c in journal._chains.values() for p in c.places if p >> 32 == 2) & MASK
    os.truncate(path, last)
    found = faults(tmp_path)
    assert (Fault.TRUNCATED, 2, last) in found


def test_missing_segment_is_noticed(journal, tmp_path):
    os.unlink(segment_path(tmp_path, 2))
    found = faults(tmp_path)
    assert (Fault.TRUNCATED, 2, 0) in found
    assert Fault.TAMPERED in {fault for fault, *_ in found}


@pytest.mark.parametrize("position", range(HEADER_BYTES))
def test_changed_header_is_noticed(journal, tmp_path, position):
    with open(segment_path(tmp_path, 2), "r+b") as file:
        file.seek(position)
        byte = file.read(1)[0]
        file.seek(position)
        file.write(bytes([byte ^ 4]))
    assert faults(tmp_path)[0] == (Fault.HEADER, 2, 0)


def test_two_records_with_one_seq_are_noticed(journal, tmp_path):
    record = Record(1, "a", "k", 5, bytes(16), "another")
    body = journal._encode(record)
    journal._segments.write(journal._segments.newest, frame_body(body))
    assert Fault.TAMPERED in {fault for fault, *_ in faults(tmp_path)}


def test_garbage_in_an_old_segment_is_damage_not_a_torn_tail(journal, tmp_path):
    end = journal._segments.get(1).end
    with open(segment_path(tmp_path, 1), "r+b") as file:
        file.seek(end)
        file.write(b"garbage")
    assert faults(tmp_path) == [(Fault.DAMAGED, 1, end)]


def test_forgotten_subject_with_deleted_segments_is_no_crime(tmp_path):
    journal = Journal.open(str(tmp_path), now_ns=lambda: 5, segment_bytes=SMALL)
    for i in range(300):
        journal.append("long", "k", "x" * 60)
        journal.append(f"s{i}", "k", "x" * 60)
        journal.forget(f"s{i}")
        if i % 90 == 89:
            journal.forget("long")
    assert journal._segments.oldest.number > 1
    assert verify(str(tmp_path)) == []
    journal.close()


def test_unreadable_journal_is_a_storage_failure(tmp_path):
    os.mkdir(segment_path(tmp_path, 1))
    with pytest.raises(StorageFailed):
        verify(str(tmp_path))


def test_header_is_read_again_and_a_foreign_version_is_not():
    header = Header(3, 77, 5, 900, b"h" * 16)
    data = encode_header(header)
    assert len(data) == HEADER_BYTES
    assert decode_header(data) == header
    assert decode_header(data[:-1]) is None
    assert decode_header(b"X" + data[1:]) is None
