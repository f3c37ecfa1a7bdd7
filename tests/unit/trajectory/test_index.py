"""The index of a segment says what it holds of whom, and what its bytes are."""

from __future__ import annotations

import hashlib
import itertools

import pytest

from skerry.trajectory.format.index import decode_index, encode_index, index_of
from skerry.trajectory.format.segment import decode_header, read_segment, segment_numbers
from skerry.trajectory.journal.journal import Journal


@pytest.fixture
def directory(tmp_path) -> str:
    return str(tmp_path / "journal")


@pytest.fixture
def journal(directory):
    clock = itertools.count(1_000)
    journal = Journal.open(directory, now_ns=lambda: next(clock), segment_bytes=4096)
    yield journal
    journal.close()


def test_index_names_the_subjects_their_records_and_their_rollouts(journal, directory):
    journal.append("a", "began", {"spec": {"rollout": "r-1", "job": "j"}})
    journal.append("b", "began", {"spec": {}})
    journal.append("a", "asked", {"op": b"1"})
    journal.forget("b")
    index = index_of("nodex", 1, read_segment(directory, 1))
    assert (index.node, index.number, index.first_seq, index.last_seq) == ("nodex", 1, 1, 4)
    assert (index.records, index.from_ns, index.to_ns) == (4, 1000, 1003)
    a, b = index.subjects["a"], index.subjects["b"]
    assert (a.first, a.last, a.records, a.rollout, a.job) == (1, 3, 2, "r-1", "j")
    assert (a.began, a.ended, b.began, b.ended) == (True, False, True, True)
    assert (b.rollout, b.job) == (None, None)
    assert index.head == journal_head(directory)


def journal_head(directory) -> bytes:
    from skerry.trajectory.journal.recovery import examine

    return examine(directory).segments[0].hash


def test_index_of_a_preallocated_segment_is_that_of_its_used_bytes(journal, directory):
    journal.append("a", "kind", "x" * 100)
    data = read_segment(directory, 1)
    index = index_of("nodex", 1, data)
    used = data[: index.size]
    assert len(data) == 4096
    assert len(used) < 400
    assert index_of("nodex", 1, used) == index
    assert index.sha256 == hashlib.sha256(used).hexdigest()


def test_index_names_the_hash_that_the_next_segment_names(journal, directory):
    while len(segment_numbers(directory)) < 3:
        journal.append("a", "kind", "x" * 300)
    indices = [index_of("nodex", n, read_segment(directory, n)) for n in (1, 2, 3)]
    assert [index.previous for index in indices[1:]] == [index.head for index in indices[:2]]
    header = decode_header(read_segment(directory, 2))
    assert header is not None
    assert header.previous_hash == indices[0].head


def test_index_survives_its_encoding_and_other_bytes_are_none(journal, directory):
    journal.append("a", "began", {"spec": {"rollout": "r"}})
    index = index_of("nodex", 1, read_segment(directory, 1))
    data = encode_index(index)
    assert decode_index(data) == index
    assert decode_index(data[:-1]) is None
    assert decode_index(b"") is None
    assert decode_index(data.replace(b"\xa7version\x01", b"\xa7version\x02")) is None


def test_index_of_hostile_records_is_made_all_the_same(journal, directory):
    journal.append("a", "began", {"spec": ["no", "map"]})
    journal.append("b", "began", {"spec": {"rollout": 7, "job": [1]}})
    journal.append("c", "began", None)
    index = index_of("nodex", 1, read_segment(directory, 1))
    assert {name: mention.rollout for name, mention in index.subjects.items()} == dict.fromkeys(
        "abc"
    )
