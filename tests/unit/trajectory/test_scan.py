"""A segment is scanned by the piece, whatever stands in it, and what is wrong with it is named."""

from __future__ import annotations

import itertools
import random

import pytest

from skerry.trajectory.format import scan as module
from skerry.trajectory.format.scan import Scan, scan_bytes
from skerry.trajectory.format.segment import Fault, Record, read_segment, segment_path
from skerry.trajectory.journal.journal import Journal

SIZE = 256 << 10


@pytest.fixture
def records(tmp_path) -> list[Record]:
    """Returns the records of a log in `tmp_path`, just written."""
    clock = itertools.count(1_000)
    directory = str(tmp_path / "journal")
    journal = Journal.open(directory, now_ns=lambda: next(clock), segment_bytes=SIZE)
    seed = random.Random(7)
    for number in range(150):
        content = seed.randbytes(seed.randrange(2000))
        journal.append(f"s{number % 3}", "kind", {"n": number, "content": content})
    appended = list(journal.replay())
    journal.close()
    return appended


@pytest.fixture
def data(tmp_path, records) -> bytes:
    assert len(records) == 150
    return read_segment(str(tmp_path / "journal"), 1)


def scan(data: bytes, start: int = 64, *, thorough: bool = True) -> tuple[list, Scan]:
    def read(_number: int, offset: int, length: int) -> bytes:
        return data[offset : offset + length]

    scan = Scan(read, 1, start, thorough=thorough)
    return list(scan), scan


@pytest.fixture(params=[64, 1000, 1 << 20])
def _window(request, monkeypatch):
    monkeypatch.setattr(module, "WINDOW_BYTES", request.param)


@pytest.mark.usefixtures("_window")
def test_scan_gives_what_was_appended(data, records):
    found, scanned = scan(data)
    assert [one.record for one in found] == records
    assert (scanned.end, scanned.problems) == (len(data.rstrip(b"\0")), [])
    assert list(scan_bytes(1, data)) == found


@pytest.mark.usefixtures("_window")
def test_scan_goes_on_from_where_another_one_ended(data):
    found, _ = scan(data)
    rest, scanned = scan(data, found[99].end)
    assert rest == found[100:]
    assert scanned.end == found[-1].end
    assert scan(data, scanned.end)[0] == []


@pytest.mark.usefixtures("_window")
def test_damage_in_the_middle_costs_what_it_hit_and_is_named(data):
    found, _ = scan(data)
    hurt = bytearray(data)
    hurt[found[10].offset + 20] ^= 1
    left, scanned = scan(bytes(hurt))
    assert left == found[:10] + found[11:]
    assert [(p.fault, p.offset) for p in scanned.problems] == [(Fault.DAMAGED, found[10].offset)]


@pytest.mark.usefixtures("_window")
def test_zeroed_record_in_the_middle_is_damage_and_no_end(data):
    found, _ = scan(data)
    hurt = bytearray(data)
    hurt[found[10].offset : found[10].end] = bytes(found[10].end - found[10].offset)
    left, scanned = scan(bytes(hurt))
    assert left == found[:10] + found[11:]
    assert [p.fault for p in scanned.problems] == [Fault.DAMAGED]


def test_zeros_over_more_than_a_window_end_a_walk_that_is_not_thorough(data, monkeypatch):
    monkeypatch.setattr(module, "WINDOW_BYTES", 64)
    found, _ = scan(data)
    hurt = bytearray(data)
    hurt[found[10].offset : found[10].end] = bytes(found[10].end - found[10].offset)
    left, scanned = scan(bytes(hurt), thorough=False)
    assert (left, scanned.problems) == (found[:10], [])
    assert scan(bytes(hurt))[0] == found[:10] + found[11:]


@pytest.mark.usefixtures("_window")
def test_half_a_record_at_the_end_is_a_torn_tail(data):
    found, _ = scan(data)
    cut = data[: found[-1].end - 3]
    left, scanned = scan(cut)
    assert left == found[:-1]
    assert [(p.fault, p.offset) for p in scanned.problems] == [(Fault.TORN_TAIL, found[-1].offset)]


def test_record_that_claims_to_be_huge_is_damage(data):
    found, _ = scan(data)
    hurt = bytearray(data)
    hurt[found[5].offset : found[5].offset + 4] = (1 << 31).to_bytes(4, "little")
    left, scanned = scan(bytes(hurt))
    assert left == found[:5] + found[6:]
    assert [p.fault for p in scanned.problems] == [Fault.DAMAGED]


def test_hostile_content_behind_damage_costs_a_bounded_search(monkeypatch):
    bounds = module.OTHERS._replace(search=1 << 20)
    lure = (100_000).to_bytes(4, "little") + bytes(4) + b"\x96"
    data = bytes(64) + b"\xff" * 16 + lure * 200_000
    calls = []
    real = module.parse_record
    monkeypatch.setattr(module, "parse_record", lambda *a: calls.append(1) or real(*a))
    scanned = Scan(lambda _, at, length: data[at : at + length], 1, bounds=bounds)
    assert list(scanned) == []
    assert [p.fault for p in scanned.problems] == [Fault.TORN_TAIL]
    assert len(calls) < 20


def test_scan_holds_a_window_and_never_the_segment(data):
    asked = []

    def read(_number: int, offset: int, length: int) -> bytes:
        asked.append(length)
        return data[offset : offset + length]

    assert len(list(Scan(read, 1))) == 150
    assert max(asked[:-1]) <= module.WINDOW_BYTES


def test_record_as_long_as_a_segment_allows_is_found_behind_damage_of_ones_own_log(tmp_path):
    size = 64 << 20
    directory = str(tmp_path / "journal")
    journal = Journal.open(directory, now_ns=lambda: 5, segment_bytes=size)
    journal.append("a", "k", "hit")
    journal.append("a", "k", bytes(size // 4 - 100))
    journal.close()
    path = segment_path(directory, 1)
    with open(path, "r+b") as file:
        file.seek(70)
        file.write(b"\xff\xff")
    (found,) = scan_bytes(1, read_segment(directory, 1))
    assert found.record.seq == 2
    again = Journal.open(directory, now_ns=lambda: 5, segment_bytes=size)
    assert [problem.fault for problem in again.problems] == [Fault.DAMAGED]
    assert [record.seq for record in again.replay()] == [2]
    again.close()
