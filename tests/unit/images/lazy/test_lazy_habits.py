"""What is fetched ahead of a reader, and what is remembered of a first run."""

from __future__ import annotations

from array import array

import pytest

from skerry.images.format.profile import decode_profile, encode_profile
from skerry.images.lazy.habits import Habits, merged


def habits(chunks: int = 100, longest: int = 8, record_s: float = 0.0) -> Habits:
    return Habits(chunks, first=2, longest=longest, record_s=record_s)


def test_reader_in_order_gets_growing_windows_up_to_the_longest() -> None:
    of = habits()
    got = [of.seen(range(at, at + 1)) for at in range(40)]
    asked = [chunk for window in got for chunk in window]
    assert asked == sorted(set(asked))  # nothing twice
    assert [len(window) for window in got if window][:2] == [2, 3]
    for at, window in enumerate(got):
        if window:
            assert window.stop - at - 1 <= 8
    assert set(range(4, 40)) <= set(asked)


def test_nothing_is_asked_beyond_the_end() -> None:
    of = habits(chunks=5)
    asked = [chunk for at in range(5) for chunk in of.seen(range(at, at + 1))]
    assert max(asked) == 4


def test_random_reader_gets_nothing() -> None:
    of = habits()
    assert not any(of.seen(range(at, at + 1)) for at in (50, 3, 90, 20, 70, 41, 9))


def test_two_readers_in_order_are_both_seen() -> None:
    of = habits()
    got = [(of.seen(range(at, at + 1)), of.seen(range(60 + at, 61 + at))) for at in range(10)]
    assert any(window for window, _ in got)
    assert any(window for _, window in got)


def test_many_small_reads_of_one_chunk_count_once() -> None:
    of = habits()
    assert not any(of.seen(range(7, 8)) for _ in range(100))


def test_longest_zero_asks_for_nothing() -> None:
    of = habits(longest=0)
    assert not any(of.seen(range(at, at + 1)) for at in range(20))


def test_profile_has_chunks_once_in_the_order_of_first_touch(monkeypatch) -> None:
    now = [10.0]
    monkeypatch.setattr("skerry.images.lazy.habits.time.monotonic", lambda: now[0])
    of = habits(record_s=5.0)
    for chunk in (9, 2, 9, 4, 2):
        of.seen(range(chunk, chunk + 1))
    assert of.recorded() is None  # it may go on
    now[0] = 16.0
    of.seen(range(50, 51))
    data = of.recorded()
    assert data is not None
    assert decode_profile(data, 100) == [9, 2, 4]
    assert of.recorded() is None  # once


@pytest.mark.parametrize("cut", [0, 7, 15, 20])
def test_cut_profile_is_none(cut: int) -> None:
    assert decode_profile(encode_profile(array("I", [1, 2]))[:cut], 100) == []


def test_profile_of_a_larger_blob_is_none() -> None:
    assert decode_profile(encode_profile(array("I", [1, 100])), 100) == []


def test_merged_ranges_hold_all_chunks_in_order_of_first_need() -> None:
    chunks = [9, 1, 3, 30, 8]
    assert list(merged(chunks, 4, gap=1)) == [range(8, 10), range(1, 4), range(30, 31)]
    assert list(merged(chunks, 4)) == [range(8, 10), range(1, 2), range(3, 4), range(30, 31)]


def test_merged_ranges_bridge_no_wider_gap_and_keep_to_their_length() -> None:
    assert list(merged([0, 3, 9], 16, gap=2)) == [range(4), range(9, 10)]
    assert list(merged(range(6), 4)) == [range(4), range(4, 6)]
