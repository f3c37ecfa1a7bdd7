"""What is wrong with a log is found and called by its name."""

from __future__ import annotations

import os

import pytest

from skerry.images.objects.directory import DirectoryObjects
from skerry.spec.trajectory import FindingKind
from skerry.trajectory.format.index import encode_index, index_of
from skerry.trajectory.format.scan import Scan
from skerry.trajectory.format.segment import (
    frame_body,
    parse_record,
    read_segment,
    segment_numbers,
    segment_path,
)
from skerry.trajectory.format.store import BLOBS, index_key, segment_key
from skerry.trajectory.reading.archive import Archive
from skerry.trajectory.reading.checking import check_log, check_sandbox
from skerry.trajectory.reading.sources import Directory
from trajectory_stories import NODE, Story

K = FindingKind


@pytest.fixture
def story(tmp_path):
    story = Story(str(tmp_path / "journal"), segment_bytes=32 << 10)
    yield story
    story.close()


@pytest.fixture
def store(tmp_path) -> str:
    return str(tmp_path / "store")


def fill(story: Story, runs: int = 100) -> str:
    box = story.create(1)
    for number in range(runs):
        story.run(box, "echo", str(number), stdout=b"x" * 300)
    return box


def local(story: Story, store: str | None = None) -> Archive:
    shelf = DirectoryObjects(store) if store else None
    return Archive(Directory(story.directory, NODE), shelf, lambda: 0.0)


def offline(store: str) -> Archive:
    return Archive(None, DirectoryObjects(store), lambda: 0.0)


def kinds(archive: Archive, box: str) -> tuple[set, set]:
    """Returns what a check of the sandbox finds, and what one of the whole log does."""
    one = {finding.kind for finding in check_sandbox(archive, box).findings}
    (log,) = archive.logs()
    return one, {finding.kind for finding in check_log(archive, log).findings}


def change(path: str, offset: int, data: bytes) -> None:
    os.chmod(path, 0o600)
    with open(path, "r+b") as file:
        file.seek(offset)
        file.write(data)


def places(data: bytes) -> list:
    return list(Scan(lambda _n, offset, length: data[offset : offset + length], 1))


def test_log_as_it_was_written_is_sound(story, store):
    box = fill(story)
    story.end(box)
    check = check_sandbox(local(story), box)
    assert (check.sound, check.complete, check.events) == (True, True, 102)
    assert check.head == story.journal.head(box).hex()
    story.ship(store)
    for archive in (local(story), local(story, store), offline(store)):
        assert kinds(archive, box) == (set(), set())
        (log,) = archive.logs()
        assert check_log(archive, log).records == story.journal.records


def test_flipped_bit_is_damage(story):
    box = fill(story)
    change(segment_path(story.directory, 1), 5000, b"\xff\x00\xff")
    one, whole = kinds(local(story), box)
    assert K.DAMAGED in one
    assert K.DAMAGED in whole
    assert K.TAMPERED in one  # what follows has lost what it follows from


def test_record_rewritten_with_a_right_checksum_is_tampering(story):
    box = fill(story)
    path = segment_path(story.directory, 1)
    data = read_segment(story.directory, 1)
    found = places(data)[10]
    body = bytearray(data[found.offset + 8 : found.end])
    at = body.index(b"echo")
    body[at : at + 4] = b"evil"
    change(path, found.offset, frame_body(bytes(body)))
    assert parse_record(read_segment(story.directory, 1), found.offset) is not None
    assert kinds(local(story), box) == ({K.TAMPERED}, {K.TAMPERED})


def test_whole_segment_rewritten_is_not_what_the_store_was_told(story, store):
    box = fill(story)
    story.ship(store)
    data = bytearray(read_segment(story.directory, 1))
    last = places(bytes(data))[-1]
    body = bytearray(data[last.offset + 8 : last.end])
    body[-1] ^= 1
    change(segment_path(story.directory, 1), last.offset, frame_body(bytes(body)))
    one, whole = kinds(local(story, store), box)
    assert K.NOT_ANCHORED in one
    assert K.NOT_ANCHORED in whole
    assert K.NOT_ANCHORED not in kinds(local(story), box)[0]  # nobody else was told


def test_shipped_segment_that_was_replaced_is_found_by_its_index(story, store):
    box = fill(story)
    shelf = story.ship(store)
    key = segment_key(NODE, 2)
    data = shelf.get(key, 1 << 20)
    found = places(data)[-1]
    shelf.put_bytes(key, data[: found.offset], replace=True)
    one, whole = kinds(offline(store), box)
    assert {K.TRUNCATED, K.NOT_ANCHORED} <= one
    assert {K.TRUNCATED, K.NOT_ANCHORED} <= whole


def test_half_a_record_at_the_end_of_the_open_segment_is_a_torn_tail(story):
    box = fill(story, 5)
    path = segment_path(story.directory, 1)
    last = places(read_segment(story.directory, 1))[-1]
    os.truncate(path, last.end - 3)
    one, whole = kinds(local(story), box)
    assert (one, whole) == ({K.TORN_TAIL}, {K.TORN_TAIL})
    assert K.TORN_TAIL.innocent


def test_torn_end_of_an_older_segment_is_no_crash(story):
    box = fill(story)
    last = places(read_segment(story.directory, 1))[-1]
    os.truncate(segment_path(story.directory, 1), last.end - 3)
    one, whole = kinds(local(story), box)
    assert {K.DAMAGED, K.TRUNCATED} <= one
    assert {K.DAMAGED, K.TRUNCATED} <= whole
    assert K.TORN_TAIL not in one


def test_shortened_or_missing_segment_is_truncation(story):
    box = fill(story)
    last = places(read_segment(story.directory, 2))[-1]
    os.truncate(segment_path(story.directory, 2), last.offset)
    one, whole = kinds(local(story), box)
    assert K.TRUNCATED in one
    assert K.TRUNCATED in whole
    os.unlink(segment_path(story.directory, 2))
    one, whole = kinds(local(story), box)
    assert K.TRUNCATED in one
    assert K.TRUNCATED in whole


def test_missing_beginning_of_a_sandbox_is_truncation(story):
    box = fill(story)
    os.unlink(segment_path(story.directory, 1))
    check = check_sandbox(local(story), box)
    assert [f.detail for f in check.findings if "beginning" in f.detail]
    assert not check.complete


def test_destroyed_header_is_named(story):
    box = fill(story)
    change(segment_path(story.directory, 2), 0, b"X")
    one, whole = kinds(local(story), box)
    assert K.HEADER in one
    assert K.HEADER in whole


def test_missing_and_changed_contents_are_named(story, store):
    box = story.create(1)
    contents = [story.blob(store, bytes([n]) * 9000) for n in range(3)]
    for one in contents:
        story.journal.append(box, "did", {"action": "file.write", "request": {"content": one}})
    shelf = story.ship(store)
    archive = offline(store)
    assert kinds(archive, box) == (set(), set())
    assert check_sandbox(archive, box).blobs == 3
    shelf.delete(BLOBS + contents[0]["blob"])
    shelf.put_bytes(BLOBS + contents[1]["blob"], b"other", replace=True)
    check = check_sandbox(archive, box)
    named = {(finding.kind, finding.blob) for finding in check.findings}
    assert named == {
        (K.MISSING_BLOB, contents[0]["blob"]),
        (K.CHANGED_BLOB, contents[1]["blob"]),
    }
    assert kinds(archive, box)[1] == {K.MISSING_BLOB, K.CHANGED_BLOB}


def test_gap_that_the_node_recorded_is_told_as_one(story, store):
    import msgspec

    box = fill(story)
    shelf = story.ship(store)
    index = index_of(NODE, 2, read_segment(story.directory, 2))
    gap = msgspec.structs.replace(index, subjects={}, gap="the store was away for too long")
    shelf.put_bytes(index_key(NODE, 2), encode_index(gap), replace=True)
    shelf.delete(segment_key(NODE, 2))
    check = check_sandbox(offline(store), box)
    gaps = [finding for finding in check.findings if finding.kind is K.GAP]
    assert [(g.segment, g.detail) for g in gaps] == [(2, "the store was away for too long")]
    (log,) = offline(store).logs()
    whole = check_log(offline(store), log)
    assert [f.segment for f in whole.findings if f.kind is K.GAP] == [2]


def test_log_whose_old_segments_were_deleted_and_carried_over_is_sound(tmp_path):
    story = Story(str(tmp_path / "journal"), segment_bytes=16 << 10)
    old = story.create(1)
    for number in range(20):
        story.run(old, "old", str(number))
    other = 2
    while 1 in segment_numbers(story.directory):
        box = story.create(other)
        for number in range(20):
            story.run(box, "new", str(number))
        story.run(old, "between")
        story.end(box)
        story.ledger.forget(box)
        other += 1
    assert kinds(local(story), old) == (set(), set())
    story.close()


def test_findings_are_bounded(story, monkeypatch):
    from skerry.trajectory.reading import findings

    monkeypatch.setattr(findings, "FINDINGS_MAX", 3)
    box = story.create(1)
    for number in range(50):
        digest = f"{number:064x}"
        content = {"blob": digest, "bytes": 1}
        story.journal.append(box, "did", {"action": "x", "request": {"content": content}})
    assert len(check_sandbox(local(story), box).findings) == 3


def test_segments_that_go_while_a_sandbox_is_checked_are_told_as_missing(story, store):
    box = fill(story)
    shelf = story.ship(store)
    numbers = segment_numbers(story.directory)
    reader = offline(store)
    assert check_sandbox(reader, box).findings == ()
    (log,) = reader.logs()
    whole, left = log.at, [20]

    def at(place: int):
        left[0] -= 1
        if not left[0]:  # retention is under way, and what was listed is a moment old
            for number in numbers[1:]:
                shelf.delete(segment_key(NODE, number))
                log._blocks.forget(number)
        return whole(place)

    log.at = at
    assert {one.kind for one in check_sandbox(reader, box).findings} == {K.TRUNCATED}
