"""A segment read by the piece gives the same records and problems as one read as a whole."""

from __future__ import annotations

import itertools
import random

import pytest

from skerry.trajectory import walk as module
from skerry.trajectory.journal import Journal
from skerry.trajectory.segment import Fault, Scan, read_segment
from skerry.trajectory.walk import Walk

SIZE = 256 << 10


@pytest.fixture
def data(tmp_path) -> bytes:
    clock = itertools.count(1_000)
    directory = str(tmp_path / "journal")
    journal = Journal.open(directory, now_ns=lambda: next(clock), segment_bytes=SIZE)
    seed = random.Random(7)
    for number in range(150):
        content = seed.randbytes(seed.randrange(2000))
        journal.append(f"s{number % 3}", "kind", {"n": number, "content": content})
    journal.close()
    return read_segment(directory, 1)


def walk(data: bytes, start: int = 64, *, thorough: bool = True) -> tuple[list, Walk]:
    def read(_number: int, offset: int, length: int) -> bytes:
        return data[offset : offset + length]

    walk = Walk(read, 1, start, thorough=thorough)
    return list(walk), walk


@pytest.fixture(params=[64, 1000, 1 << 20])
def _window(request, monkeypatch):
    monkeypatch.setattr(module, "WINDOW_BYTES", request.param)


@pytest.mark.usefixtures("_window")
def test_walk_gives_what_a_whole_scan_gives(data):
    scan = Scan(1, data)
    whole = list(scan)
    found, walked = walk(data)
    assert found == whole
    assert len(found) == 150
    assert (walked.end, walked.problems) == (scan.end, [])


@pytest.mark.usefixtures("_window")
def test_walk_goes_on_from_where_another_one_ended(data):
    found, _ = walk(data)
    rest, walked = walk(data, found[99].end)
    assert rest == found[100:]
    assert walked.end == found[-1].end
    assert walk(data, walked.end)[0] == []


@pytest.mark.usefixtures("_window")
def test_damage_in_the_middle_costs_what_it_hit_and_is_named(data):
    found, _ = walk(data)
    hurt = bytearray(data)
    hurt[found[10].offset + 20] ^= 1
    left, walked = walk(bytes(hurt))
    assert left == found[:10] + found[11:]
    assert [(p.fault, p.offset) for p in walked.problems] == [(Fault.DAMAGED, found[10].offset)]


@pytest.mark.usefixtures("_window")
def test_zeroed_record_in_the_middle_is_damage_and_no_end(data):
    found, _ = walk(data)
    hurt = bytearray(data)
    hurt[found[10].offset : found[10].end] = bytes(found[10].end - found[10].offset)
    left, walked = walk(bytes(hurt))
    assert left == found[:10] + found[11:]
    assert [p.fault for p in walked.problems] == [Fault.DAMAGED]


def test_zeros_over_more_than_a_window_end_a_walk_that_is_not_thorough(data, monkeypatch):
    monkeypatch.setattr(module, "WINDOW_BYTES", 64)
    found, _ = walk(data)
    hurt = bytearray(data)
    hurt[found[10].offset : found[10].end] = bytes(found[10].end - found[10].offset)
    left, walked = walk(bytes(hurt), thorough=False)
    assert (left, walked.problems) == (found[:10], [])
    assert walk(bytes(hurt))[0] == found[:10] + found[11:]


@pytest.mark.usefixtures("_window")
def test_half_a_record_at_the_end_is_a_torn_tail(data):
    found, _ = walk(data)
    cut = data[: found[-1].end - 3]
    left, walked = walk(cut)
    assert left == found[:-1]
    assert [(p.fault, p.offset) for p in walked.problems] == [(Fault.TORN_TAIL, found[-1].offset)]


def test_record_that_claims_to_be_huge_is_damage(data):
    found, _ = walk(data)
    hurt = bytearray(data)
    hurt[found[5].offset : found[5].offset + 4] = (1 << 31).to_bytes(4, "little")
    left, walked = walk(bytes(hurt))
    assert left == found[:5] + found[6:]
    assert [p.fault for p in walked.problems] == [Fault.DAMAGED]


def test_hostile_content_behind_damage_costs_a_bounded_search(monkeypatch):
    monkeypatch.setattr(module, "SEARCH_BYTES_MAX", 1 << 20)
    lure = (100_000).to_bytes(4, "little") + bytes(4) + b"\x96"
    data = bytes(64) + b"\xff" * 16 + lure * 200_000
    calls = []
    real = module.parse_record
    monkeypatch.setattr(module, "parse_record", lambda *a: calls.append(1) or real(*a))
    found, walked = walk(data)
    assert found == []
    assert [p.fault for p in walked.problems] == [Fault.TORN_TAIL]
    assert len(calls) < 20


def test_walk_holds_a_window_and_never_the_segment(data):
    asked = []

    def read(_number: int, offset: int, length: int) -> bytes:
        asked.append(length)
        return data[offset : offset + length]

    assert len(list(Walk(read, 1))) == 150
    assert max(asked[:-1]) <= module.WINDOW_BYTES
