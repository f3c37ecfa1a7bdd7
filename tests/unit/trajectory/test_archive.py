"""Trajectories of a store, of a node's own log, and of both together."""

from __future__ import annotations

import gc
import os
import shutil

import pytest

from skerry.errors import InvalidRequest, LayerDamaged, NotFound, StorageFailed
from skerry.images.objects.directory import DirectoryObjects
from skerry.spec.trajectory import FindingKind
from skerry.trajectory.format.index import decode_index, encode_index
from skerry.trajectory.format.segment import read_segment, segment_numbers, segment_path
from skerry.trajectory.format.store import index_key, segment_key
from skerry.trajectory.reading import log as reading
from skerry.trajectory.reading.archive import Archive, Wanted
from skerry.trajectory.reading.checking import check_sandbox
from skerry.trajectory.reading.sightings import Seen
from skerry.trajectory.reading.sources import BLOCKS_KEPT, Directory
from trajectory_stories import NODE, Story, sandbox_id

ANY = Wanted()


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def story(tmp_path):
    story = Story(str(tmp_path / "journal"), segment_bytes=32 << 10)
    yield story
    story.close()


@pytest.fixture
def store(tmp_path) -> str:
    return str(tmp_path / "store")


def offline(root: str) -> Archive:
    return Archive(None, DirectoryObjects(root), Clock())


def fill(story: Story, count: int = 3, runs: int = 40) -> list[str]:
    boxes = [story.create(number, rollout=f"r-{number}") for number in range(count)]
    for number in range(runs):
        for box in boxes:
            story.run(box, "echo", str(number), stdout=b"x" * 300)
    return boxes


def test_what_was_shipped_is_read_without_its_node(story, store):
    boxes = fill(story)
    own = Archive(Directory(story.directory, NODE), None, Clock())
    wanted = [list(own.events(box)) for box in boxes]
    story.ship(store)
    shutil.rmtree(story.directory)
    archive = offline(store)
    assert [list(archive.events(box)) for box in boxes] == wanted
    page = archive.select(ANY, 10)
    assert [item.sandbox for item in page.items] == boxes
    assert [item.events for item in page.items] == [41, 41, 41]
    assert archive.select(Wanted(rollout="r-1"), 10).items[0].sandbox == boxes[1]


def test_own_log_and_store_are_one(story, store):
    boxes = fill(story)
    wanted = list(Archive(Directory(story.directory, NODE), None, Clock()).events(boxes[0]))
    shelf = story.ship(store, last=False)
    for number in segment_numbers(story.directory)[:-1]:
        os.unlink(segment_path(story.directory, number))
    archive = Archive(Directory(story.directory, NODE), shelf, Clock())
    assert list(archive.events(boxes[0])) == wanted
    assert archive.info(boxes[0]).events == 41


def test_segment_that_went_to_the_store_a_moment_ago_is_not_missed(story, store):
    boxes = fill(story)
    shelf = DirectoryObjects(store)
    archive = Archive(Directory(story.directory, NODE), shelf, Clock())
    assert archive.info(boxes[0]).events == 41  # nothing is in the store, which was listed now
    story.ship(store, last=False)
    for number in segment_numbers(story.directory)[:-1]:
        os.unlink(segment_path(story.directory, number))
    other = story.create(9)
    assert archive.info(other).events == 1
    assert archive.info(boxes[0]).events == 41
    assert len(list(archive.events(boxes[0]))) == 41


def test_own_whole_record_is_read_while_the_store_is_away(story):
    class Away:
        def _fail(self, *_: object) -> None:
            raise StorageFailed("away")

        get = read = list = local_path = _fail

    boxes = fill(story)
    archive = Archive(Directory(story.directory, NODE), Away(), Clock())
    assert len(list(archive.events(boxes[0]))) == 41
    assert len(archive.select(ANY, 10).items) == 3
    for _ in range(2):
        with pytest.raises(StorageFailed):
            archive.info("sbbbbb" + "a" * 15)
    with pytest.raises(StorageFailed, match="cannot be compared"):
        check_sandbox(archive, boxes[0])


def test_new_segments_in_a_store_are_seen_after_a_moment(story, store):
    box = story.create(1)
    clock = Clock()
    archive = Archive(None, story.ship(store), clock)
    assert archive.info(box).events == 1
    for _ in range(100):
        story.run(box, "true", stdout=b"x" * 500)
    story.ship(store)
    clock.now += 10
    assert archive.info(box).events == 101


def test_tail_of_a_segment_that_is_still_open_is_read_from_its_pieces(story, store):
    box = story.create(1)
    story.run(box, "a")
    data = read_segment(story.directory, 1).rstrip(b"\0")
    shelf = DirectoryObjects(store)
    for start, end in ((0, 300), (200, 700), (700, len(data))):  # they may overlap
        key = f"trajectories/{NODE}/0000000001.tail/{start:010d}"
        shelf.put_bytes(key, data[start:end], replace=True)
    assert [e.action for e in offline(store).events(box)] == ["create", "run"]


def test_pages_of_a_listing_go_on_where_the_one_before_ended(story, store):
    boxes = [story.create(number) for number in range(25)]
    archive = Archive(Directory(story.directory, NODE), None, Clock())
    seen, cursor = [], None
    while True:
        page = archive.select(ANY, 10, cursor)
        seen += [item.sandbox for item in page.items]
        if page.cursor is None:
            break
        cursor = page.cursor
    assert seen == boxes
    with pytest.raises(InvalidRequest):
        archive.select(ANY, 10, "1.2")


def test_only_segments_that_mention_a_sandbox_are_opened(story, store):
    first = story.create(9)
    story.run(first, "a")
    story.end(first)
    fill(story, 3, 100)
    shelf = story.ship(store)
    numbers = segment_numbers(story.directory)
    assert len(numbers) > 4
    opened = []
    real = shelf.read

    def read(key: str, offset: int, length: int) -> bytes:
        opened.append(key)
        return real(key, offset, length)

    shelf.read = read
    archive = Archive(None, shelf, Clock())
    assert archive.info(first).complete
    assert set(opened) == {segment_key(NODE, numbers[0])}


def test_gap_that_was_recorded_leaves_the_rest_readable(story, store):
    boxes = fill(story)
    shelf = story.ship(store)
    index = decode_index(shelf.get(index_key(NODE, 2), 1 << 20))
    import msgspec

    gap = msgspec.structs.replace(index, subjects={}, gap="the disk was full")
    shelf.put_bytes(index_key(NODE, 2), encode_index(gap), replace=True)
    shelf.delete(segment_key(NODE, 2))
    info = offline(store).info(boxes[0])
    assert 0 < info.events < 41
    assert not offline(store).log_of(boxes[0]).outline(boxes[0]).unbroken


def test_contents_are_found_beside_the_log_and_in_the_store(story, store, tmp_path):
    kept = story.blob(store, b"shipped" * 1000)
    local = tmp_path / "blobs"
    local.mkdir()
    (local / ("0" * 64)).write_bytes(b"another one")
    archive = Archive(None, DirectoryObjects(store), Clock(), own_blobs=str(local))
    assert b"".join(archive.blobs.pieces(kept["blob"])) == b"shipped" * 1000
    with pytest.raises(LayerDamaged):
        list(archive.blobs.pieces("0" * 64))
    with pytest.raises(NotFound):
        list(archive.blobs.pieces("1" * 64))
    with pytest.raises(InvalidRequest):
        list(archive.blobs.pieces("../etc"))


def test_sandbox_of_another_node_is_looked_for_in_the_store_alone(story, store):
    fill(story, 1, 1)
    archive = Archive(Directory(story.directory, NODE), story.ship(store), Clock())
    with pytest.raises(NotFound):
        archive.info("sbbbbb" + "a" * 15)
    assert archive.select(Wanted(sandbox="sbbbbb" + "a" * 15), 10).items == ()
    assert archive.select(Wanted(sandbox=sandbox_id(0)), 10).items[0].sandbox == sandbox_id(0)


def test_segment_that_is_gone_from_the_store_costs_what_was_in_it(story, store):
    boxes = fill(story)
    shelf = story.ship(store)
    shelf.delete(segment_key(NODE, 2))
    archive = offline(store)
    info = archive.info(boxes[0])
    assert 0 < info.events < 41
    assert not info.complete
    check = check_sandbox(archive, boxes[0])
    assert FindingKind.TRUNCATED in {finding.kind for finding in check.findings}


def test_sandbox_of_which_every_segment_is_gone_is_truncated_and_not_unknown(story, store):
    box = story.create(9)
    story.run(box, "a")
    shelf = story.ship(store)
    shelf.delete(segment_key(NODE, 1))
    check = check_sandbox(offline(store), box)
    assert [finding.kind for finding in check.findings] == [FindingKind.TRUNCATED]
    assert (check.complete, check.events) == (False, 0)
    (info,) = offline(store).select(ANY, 10).items
    assert (info.sandbox, info.complete, info.events) == (box, False, 0)
    with pytest.raises(NotFound):
        check_sandbox(offline(store), sandbox_id(5))


def test_listing_reads_each_segment_once_for_all_sandboxes_in_it(story, store, monkeypatch):
    boxes = fill(story, 30, 10)
    shelf = story.ship(store)
    asked = []
    real = shelf.read

    def read(key: str, offset: int, length: int) -> bytes:
        asked.append((key, offset))
        return real(key, offset, length)

    shelf.read = read
    archive = Archive(None, shelf, Clock())
    page = archive.select(ANY, 100)
    assert [(item.sandbox, item.events) for item in page.items] == [(box, 11) for box in boxes]
    whole = len(asked)
    assert whole <= 4 * len(segment_numbers(story.directory))
    assert len(list(archive.events(boxes[3]))) == 11
    assert archive.select(ANY, 100) == page
    monkeypatch.setattr(reading, "RECORDS_AT_ONCE", 100)
    monkeypatch.setattr(reading, "EVENTS_KEPT", 0)
    assert Archive(None, shelf, Clock()).select(ANY, 100) == page


def seen_in_memory() -> int:
    gc.collect()
    return sum(type(one) is Seen for one in gc.get_objects())


def test_reading_one_of_many_sandboxes_keeps_nothing_of_the_others(story, store):
    boxes = [story.create(number) for number in range(200)]
    archive = Archive(None, story.ship(store), Clock())
    before = seen_in_memory()
    for box in boxes[::20]:
        assert archive.info(box).events == 1
    assert seen_in_memory() == before
    with pytest.raises(NotFound):
        archive.info(sandbox_id(999))


def test_listing_is_let_go_of_and_made_again(story, store):
    boxes = fill(story)
    archive = Archive(Directory(story.directory, NODE), story.ship(store), Clock())
    before = seen_in_memory()
    first = archive.select(ANY, 10)
    assert [item.sandbox for item in first.items] == boxes
    assert seen_in_memory() == before + 3
    assert [e.action for e in archive.events(boxes[1])][:2] == ["create", "run"]
    archive.rest()
    assert seen_in_memory() == before
    assert archive.log_of(boxes[0])._blocks._kept == {}
    assert archive.select(ANY, 10) == first
    story.create(77)
    assert len(archive.select(ANY, 10).items) == 4


def test_reader_of_many_segments_keeps_a_few_pieces_of_them(tmp_path, monkeypatch):
    monkeypatch.setattr(Directory, "block_bytes", 4096)
    story = Story(str(tmp_path / "small"), segment_bytes=16384)
    boxes = fill(story, runs=60)
    assert len(segment_numbers(story.directory)) > BLOCKS_KEPT
    archive = Archive(Directory(story.directory, NODE), None, Clock())
    for box in boxes:
        assert len(list(archive.events(box))) == 61
        assert len(archive.log_of(box)._blocks._kept) <= BLOCKS_KEPT
    story.close()
