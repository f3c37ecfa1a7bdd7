"""A journal's disk: bounded under churn, and kept until what is in it is elsewhere."""

from __future__ import annotations

import itertools
import os
from collections import deque

import pytest

from journals import SMALL, state
from skerry.trajectory.format.segment import segment_numbers, segment_path
from skerry.trajectory.journal import journal as journal_module
from skerry.trajectory.journal.files import Segments
from skerry.trajectory.journal.journal import Position
from trajectory_stories import faults_of


def test_disk_stays_bounded_under_churn_with_one_long_life(opener, directory):
    journal = opener()
    journal.append("old", "k", "from the beginning")
    for i in range(3_000):
        journal.append(f"s{i}", "intent", "x" * 50)
        journal.append(f"s{i}", "result", "y" * 50)
        journal.forget(f"s{i}")
        if i % 500 == 0:
            journal.append("old", "k", i)
        assert journal.disk_bytes <= 7 * SMALL
    journal.check_invariants()
    assert next(r.data for r in journal.replay("old")) == "from the beginning"
    assert len(list(journal.replay("old"))) == 7
    assert len(os.listdir(directory)) * SMALL == journal.disk_bytes
    assert faults_of(directory) == []
    again = opener()
    assert again.problems == []
    assert state(again) == state(journal)
    again.check_invariants()


def test_disk_stays_within_twice_the_living_and_a_few_segments(opener):
    journal = opener()
    for i in range(4_000):
        journal.append(f"s{i}", "k", "z" * 40)
        if i >= 200:
            journal.forget(f"s{i - 200 if i % 3 else i}")
    live = sum(sum(chain.sizes) for chain in journal._chains.values())
    journal.check_invariants()
    assert journal.disk_bytes <= 2 * live + 8 * SMALL


def test_journal_that_is_kept_and_released_takes_no_more_in_an_hour_than_in_minutes(
    opener, directory, monkeypatch
):
    """The proportions are those of a node: a segment is emptied by 512 appends and holds thousands."""
    segment = 256 << 10
    monkeypatch.setattr(journal_module, "CARRY_BYTES", segment // 512)
    monkeypatch.setattr(journal_module, "SMALL_BYTES", segment)
    journal = opener(keep=True, segment_bytes=segment)
    living, most = deque(), 0
    for i in range(6_000):
        journal.append(f"s{i}", "k", "x" * 600)
        journal.forget(f"s{i}")
        if i % 100 == 0:  # as commits do, which are remembered for a while
            journal.append(f"c{i}", "k", "y" * 200)
            living.append(f"c{i}")
            if len(living) > 50:
                journal.forget(living.popleft())
        if i % 20 == 0:  # what a node does each second
            if journal.mark()[1] > segment // 2:
                journal.prepare()
            if sealed := journal.sealed():
                journal.release(sealed[-1][0])
        with os.scandir(directory) as files:
            most = max(most, sum(file.stat().st_size for file in files))
    assert journal.mark()[0] > 12
    assert most <= (journal_module.SEGMENTS_KEPT + 2) * segment


@pytest.mark.parametrize("steps", [1, 2, 3, 100])
def test_crash_while_records_are_carried_over_loses_and_doubles_nothing(
    opener, directory, monkeypatch, steps
):
    monkeypatch.setattr(journal_module, "CARRY_BYTES", 200)
    monkeypatch.setattr(Segments, "delete", lambda self, segment: False)  # killed just before
    journal = opener()
    for i in range(20):
        journal.append("old", "k", f"{i}" * 30)
    for i in itertools.count():
        journal.append(f"s{i}", "k", "x" * 200)
        journal.forget(f"s{i}")
        if journal._carrying:
            break
    for i in range(steps):
        journal.append("old", "k", i)
    here = [place >> 32 == 1 for place in journal._chains["old"].places[:20]]
    assert any(here) == (steps < 100)
    assert not all(here)
    assert os.path.exists(segment_path(directory, 1))
    again = opener()
    assert again.problems == []
    assert state(again) == state(journal)
    again.check_invariants()
    assert faults_of(directory) == []


def test_damage_in_an_old_segment_does_not_stop_carrying(opener, directory):
    journal = opener()
    for i in range(20):
        journal.append("old", "k", f"{i}" * 30)
    place = journal._chains["old"].places[10] & 0xFFFFFFFF
    with open(segment_path(directory, 1), "r+b") as file:
        file.seek(place)
        file.write(b"\xff" * 12)
    again = opener()
    assert len(again.problems) == 1
    for i in range(400):
        again.append(f"s{i}", "k", "x" * 100)
        again.forget(f"s{i}")
    assert not os.path.exists(segment_path(directory, 1))
    assert len(list(again.replay("old"))) == 19
    assert again.disk_bytes <= 7 * SMALL


def test_record_that_rots_while_the_journal_is_open_stops_no_append(opener, directory):
    journal = opener()
    for i in range(20):
        journal.append("old", "k", f"{i}" * 30)
    place = journal._chains["old"].places[10] & 0xFFFFFFFF
    with open(segment_path(directory, 1), "r+b") as file:
        file.seek(place)
        file.write(b"\xff" * 12)
    for i in range(400):
        journal.append(f"s{i}", "k", "x" * 100)
        journal.forget(f"s{i}")
    assert journal.read(Position("old", 5)).data == "4" * 30


def test_kept_segments_stay_until_they_are_released(opener, directory):
    journal = opener(keep=True)
    for i in range(60):
        journal.append(f"s{i}", "k", "x" * 500)
        journal.forget(f"s{i}")
    numbers = segment_numbers(directory)
    assert numbers[0] == 1
    assert len(numbers) > 8
    assert [number for number, _ in journal.sealed()] == numbers[:-1]
    journal.release(3)
    assert segment_numbers(directory)[0] == 4
    journal.release(numbers[-1])
    assert segment_numbers(directory) == numbers[-1:]


def test_kept_segment_with_life_is_carried_over_once_it_is_released(opener, directory):
    journal = opener(keep=True)
    journal.append("old", "k", "kept")
    for i in range(60):
        journal.append(f"s{i}", "k", "x" * 500)
        journal.forget(f"s{i}")
    assert segment_numbers(directory)[0] == 1
    journal.release(segment_numbers(directory)[-1])
    journal.append("old", "k", "more")
    assert segment_numbers(directory)[0] > 1
    assert [record.data for record in journal.replay("old")] == ["kept", "more"]
    journal.check_invariants()


def test_sealed_segment_is_not_written_to_again_also_after_a_restart(opener, directory):
    journal = opener(keep=True)
    journal.append("a", "k", 1)
    assert journal.age_ns() >= 0
    journal.seal()
    number, end = journal.sealed()[0]
    os.truncate(segment_path(directory, number), end)
    os.chmod(segment_path(directory, number), 0o444)
    journal.shortened(number)
    journal.seal()  # nothing is in the new one
    assert journal.mark()[0] == 2
    again = opener(keep=True)
    assert again.problems == []
    again.append("a", "k", 2)
    assert os.path.getsize(segment_path(directory, number)) == end
    assert [record.data for record in again.replay("a")] == [1, 2]
    assert faults_of(directory) == []
