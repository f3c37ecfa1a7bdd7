"""The journal: what is appended is found again, after a kill, and on a bounded disk."""

from __future__ import annotations

import itertools
import os
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skerry.errors import InvalidRequest, NotFound, StorageFailed
from skerry.trajectory import journal as journal_module
from skerry.trajectory import segments
from skerry.trajectory.journal import Journal, Position
from skerry.trajectory.segment import (
    UNNUMBERED,
    Fault,
    Spare,
    make_spare,
    segment_numbers,
    segment_path,
)
from skerry.trajectory.segments import Segments
from skerry.trajectory.verify import verify

SMALL = 4096


@pytest.fixture
def directory(tmp_path) -> str:
    return str(tmp_path / "journal")


@pytest.fixture
def opener(directory):
    """Returns a maker of journals over one directory, as successive processes make them."""
    clock = itertools.count(1_000)
    made = []

    def make(segment_bytes: int = SMALL, *, keep: bool = False) -> Journal:
        options = {"segment_bytes": segment_bytes, "keep": keep}
        made.append(Journal.open(directory, now_ns=lambda: next(clock), **options))
        return made[-1]

    yield make
    for journal in made:
        journal.close()


def state(journal: Journal) -> list:
    return [(r.seq, r.subject, r.kind, r.data) for r in journal.replay()]


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
    assert verify(directory) == []


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
    problems = verify(directory)
    again = opener()
    assert again.problems == problems
    assert [p.fault for p in problems] == [Fault.TORN_TAIL]
    assert (problems[0].segment, problems[0].offset) == (1, start)
    assert [r.data for r in again.replay()] == ["whole"]
    again.append("a", "k", "after")
    again.check_invariants()
    assert verify(directory) == []


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
    faults = [(p.fault, p.offset) for p in verify(directory)]
    after = journal._chains["a"].places[3] & 0xFFFFFFFF
    assert faults == [(Fault.DAMAGED, place), (Fault.TAMPERED, after)]
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
    assert verify(directory) == []


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
    assert verify(directory) == []
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
    assert verify(directory) == []


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


ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(["append", "append", "append", "forget", "reopen"]), st.integers(0, 5)
    ),
    max_size=120,
)


@settings(max_examples=60, deadline=None)
@given(ACTIONS)
def test_any_history_is_found_again(actions):
    root = os.environ["JOURNAL_ROOT"]
    directory = os.path.join(root, str(len(os.listdir(root))))
    clock = itertools.count()
    now_ns = clock.__next__
    journal = Journal.open(directory, now_ns=now_ns, segment_bytes=SMALL)
    expected: list = []
    for number, (action, subject) in enumerate(actions):
        name = f"s{subject}"
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
    assert verify(directory) == []
    journal.close()


@pytest.fixture(autouse=True)
def _root(tmp_path, monkeypatch):
    root = tmp_path / "root"
    root.mkdir()
    monkeypatch.setenv("JOURNAL_ROOT", str(root))


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
    assert verify(directory) == []
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


def test_half_made_segment_is_removed(opener, directory):
    opener().append("a", "k", 1)
    with open(segment_path(directory, 2) + ".new", "wb") as file:
        file.write(b"half")
    assert len(list(opener().replay())) == 1
    assert os.listdir(directory) == ["0000000001.seg"]


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
    assert verify(directory) == []


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


def test_closed_journal_takes_nothing_and_harms_nothing(opener):
    journal = opener()
    journal.append("a", "k", 1)
    journal.close()
    with pytest.raises(StorageFailed, match="closed"):
        journal.append("a", "k", 2)
    assert [record.data for record in opener().replay()] == [1]


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

    monkeypatch.setattr(segments, "make_spare", made)
    journal.prepare()
    journal.append("a", "k", 3)
    journal.seal()
    journal.append("a", "k", 4)
    assert [record.data for record in opener().replay()] == [1, 2, 3, 4]
    assert verify(directory) == []


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
