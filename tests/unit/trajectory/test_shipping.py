"""Segments reach the store whole and once, whatever is cut off; until then nothing of them is lost."""

from __future__ import annotations

import itertools
import os
import time
import tracemalloc
from collections.abc import Callable

import msgspec
import pytest

from skerry.errors import StorageFailed
from skerry.images.objects.directory import DirectoryObjects
from skerry.trajectory.format.index import decode_index, encode_index, index_of
from skerry.trajectory.format.scan import scan_bytes
from skerry.trajectory.format.segment import segment_path
from skerry.trajectory.format.store import BLOBS, owner_key
from skerry.trajectory.journal.journal import Journal
from skerry.trajectory.shipping.contents import Contents
from skerry.trajectory.shipping.owner import Owner, Refused
from skerry.trajectory.shipping.shipper import Progress, Shipper

DAY_S = 86_400


class Killed(BaseException):
    """The process ends here."""


class Cut:
    """A store that ends its user's process before or after a number of changes."""

    def __init__(self, inner: DirectoryObjects, changes: int, *, after: bool) -> None:
        self.inner, self.left, self.after = inner, changes, after

    def __getattr__(self, name: str):
        real = getattr(self.inner, name)
        if name not in {"put_file", "put_bytes", "delete"}:
            return real

        def call(*args, **more):
            self.left -= 1
            if self.left < 0 and not self.after:
                raise Killed
            done = real(*args, **more)
            if self.left < 0:
                raise Killed
            return done

        return call


class Place:
    """A node's journal and contents, and a store."""

    def __init__(self, root: str, *, segment_bytes: int = 1 << 16) -> None:
        self.root = root
        self.store = DirectoryObjects(os.path.join(root, "store"))
        self.directory = os.path.join(root, "journal")
        clock = itertools.count(time.time_ns())
        self.open: Callable[[], Journal] = lambda: Journal.open(
            self.directory, now_ns=lambda: next(clock), segment_bytes=segment_bytes, keep=True
        )
        self.journal = self.open()
        self.contents = self.new_contents()

    def new_contents(self) -> Contents:
        return Contents(os.path.join(self.root, "blobs"), inline_bytes=16, bytes_max=1 << 20)

    def shipper(self, store=None, node: str = "nodea") -> Shipper:
        chosen = self.store if store is None else store
        return Shipper(
            lambda: chosen,
            node=node,
            journal=self.directory,
            contents=self.contents,
            progress=os.path.join(self.root, "shipped"),
            owner=Owner(lambda: self.store, node=node, path=os.path.join(self.root, "owner")),
        )

    def write(self, subject: str, *datas: bytes) -> list[dict]:
        """Appends records that name contents; returns those."""
        named = []
        for data in datas:
            writer = self.contents.writer()
            writer.add(data)
            content = writer.end()
            self.journal.append(subject, "did", {"request": {"content": content}})
            self.contents.mention(self.journal.mark()[0], content)
            writer.drop()
            named.append(content)
        return named

    def ship(self, shipper: Shipper) -> None:
        progress = shipper.read_progress()
        for number, end in self.journal.sealed():
            if number > progress.through:
                shipper.ship(number, end, self.contents.upto(number))
                progress = Progress(number)
                shipper.write_progress(progress)
                self.contents.take(number)
                self.journal.release(number)

    def listed(self, prefix: str = "trajectories/") -> list[str]:
        return sorted(key for key, _ in self.store.list(prefix))

    def records(self, number: int) -> list:
        data = self.store.get(f"trajectories/nodea/{number:010d}.seg", 1 << 20) or b""
        return [found.record for found in scan_bytes(number, data)]


@pytest.fixture
def place(tmp_path) -> Place:
    return Place(str(tmp_path))


def test_sealed_segment_is_in_the_store_with_its_index_and_its_contents(place):
    (content,) = place.write("s1", b"x" * 100)
    place.write("s1", b"x" * 100, b"short")
    place.journal.seal()
    number, end = place.journal.sealed()[0]
    place.ship(place.shipper())
    name = "trajectories/nodea/0000000001"
    assert place.listed() == [
        BLOBS + content["blob"],
        f"{name}.idx",
        f"{name}.seg",
        owner_key("nodea"),
    ]
    data = place.store.get(f"{name}.seg", 1 << 20)
    assert len(data) == end
    index = decode_index(place.store.get(f"{name}.idx", 1 << 20))
    assert index == index_of("nodea", 1, data)
    assert index.blobs == (content["blob"],)
    assert place.store.get(BLOBS + content["blob"], 1000) == b"x" * 100
    assert os.listdir(place.contents.directory) == []
    assert os.path.getsize(segment_path(place.directory, number)) == end


def test_sealed_segment_is_shipped_by_the_piece(tmp_path):
    """As a whole, 32 MiB by default, it would stay in the heap of each thread that ever shipped one."""
    place = Place(str(tmp_path), segment_bytes=4 << 20)
    while not place.journal.sealed():
        place.journal.append("s1", "did", "x" * 10_000)
    ((number, end),) = place.journal.sealed()
    shipper = place.shipper()
    tracemalloc.start()
    try:
        shipper.ship(number, end, [])
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert end > 3 << 20
    assert peak < 2 << 20
    data = place.store.get(f"trajectories/nodea/{number:010d}.seg", 4 << 20)
    index = decode_index(place.store.get(f"trajectories/nodea/{number:010d}.idx", 1 << 20))
    assert index == index_of("nodea", number, data)


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("changes", range(6))
def test_kill_at_any_change_of_the_store_loses_nothing_and_doubles_nothing(place, changes, after):
    place.write("s1", b"x" * 100, b"y" * 100)
    place.journal.seal()
    place.write("s1", b"z" * 100)
    shipper = place.shipper(Cut(place.store, changes, after=after))

    def work() -> None:
        place.ship(shipper)
        place.write("s2", b"q" * 50)
        place.journal.seal()
        place.ship(shipper)

    with pytest.raises(Killed):
        work()
    seen = [key for key in place.listed() if key.endswith(".idx")]
    for key in seen:  # whoever finds an index finds the rest, whole
        index = decode_index(place.store.get(key, 1 << 20))
        assert index == index_of("nodea", index.number, place.store.get(key[:-3] + "seg", 1 << 20))
        assert all(place.store.stat(BLOBS + blob) is not None for blob in index.blobs)
    place.journal.close()
    place.journal = place.open()
    place.contents = place.new_contents()
    place.contents.claim(place.journal.written())
    place.journal.seal()
    place.ship(place.shipper())
    seqs = [record.seq for number in (1, 2, 3) for record in place.records(number)]
    assert seqs == list(range(1, len(seqs) + 1))
    assert len(seqs) >= 3
    assert os.listdir(place.contents.directory) == []
    assert not [key for key in place.listed() if ".part" in key]


def test_segment_that_another_node_of_this_name_has_shipped_is_refused(place, tmp_path):
    place.write("s1", b"one")
    place.journal.seal()
    place.ship(place.shipper())
    other = Place(str(tmp_path / "other"))
    other.store = place.store
    other.write("s1", b"two")
    other.journal.seal()
    with pytest.raises(Refused, match="another state directory"):
        other.ship(other.shipper())
    place.store.delete(owner_key("nodea"))  # somebody gave the name free
    with pytest.raises(Refused, match="another segment"):
        other.ship(other.shipper())
    assert [record.data["request"]["content"] for record in place.records(1)] == [b"one"]


def test_tails_go_out_as_they_come_and_are_replaced_by_the_whole(place):
    shipper = place.shipper()
    place.write("s1", b"a" * 100)
    _, first = place.journal.mark()
    shipper.ship_tail(1, 0, first, place.contents.upto(1))
    place.write("s1", b"b" * 10)
    _, second = place.journal.mark()
    shipper.ship_tail(1, first, second, [])
    tails = place.listed("trajectories/nodea/0000000001.tail/")
    joined = b"".join(place.store.get(key, 1 << 20) for key in tails)
    assert len(joined) == second
    assert len(list(scan_bytes(1, joined))) == 2
    place.journal.seal()
    place.ship(shipper)
    assert place.listed("trajectories/nodea/0000000001.tail/") == []
    assert place.records(1)[0].seq == 1
    shipper.ship_tail(1, first, second, [])  # one that comes late is not needed any more
    assert place.listed("trajectories/nodea/0000000001.tail/") == []


def test_segment_that_was_given_up_is_named_in_the_store(place):
    shipper = place.shipper()
    place.write("s1", b"one")
    place.journal.seal()
    place.write("s1", b"two")
    place.journal.seal()
    progress = shipper.lose(Progress(), 1, "no room")
    shipper.write_progress(progress)
    again = place.shipper()
    assert again.read_progress() == progress
    assert again.tell_lost(progress) == Progress(1)
    index = decode_index(place.store.get("trajectories/nodea/0000000001.idx", 1 << 20))
    assert (index.number, index.first_seq, index.gap, index.records) == (1, 1, "no room", 0)


def test_damaged_progress_means_that_all_is_shipped_again(place):
    place.write("s1", b"one")
    place.journal.seal()
    shipper = place.shipper()
    place.ship(shipper)
    before = place.listed()
    with open(os.path.join(place.root, "shipped"), "wb") as file:
        file.write(b"\xc1")
    assert shipper.read_progress() == Progress()
    number, end = place.journal.sealed()[0] if place.journal.sealed() else (1, 0)
    if end:
        shipper.ship(number, end, [])
    assert place.listed() == before


def test_pruning_takes_old_segments_and_the_contents_that_nobody_names(place, tmp_path):
    (old,) = place.write("s1", b"old" * 50)
    place.journal.seal()
    (kept,) = place.write("s1", b"kept" * 50)
    place.journal.seal()
    place.ship(place.shipper())
    other = Place(str(tmp_path / "other"))
    other.store = place.store
    (theirs,) = other.write("s9", b"theirs" * 50)
    other.journal.seal()
    other.ship(other.shipper(node="nodeb"))
    long_ago = time.time() - 5 * DAY_S
    for content in (old, kept, theirs):
        os.utime(place.store.local_path(BLOBS + content["blob"]), (long_ago, long_ago))
    shipper = place.shipper()
    assert shipper.prune(DAY_S) == 0
    names = {BLOBS + content["blob"] for content in (old, kept, theirs)}
    assert names <= set(place.listed())
    place.store.delete("trajectories/nodea/0000000001.seg")
    index = decode_index(place.store.get("trajectories/nodea/0000000001.idx", 1 << 20))
    aged = msgspec.structs.replace(index, to_ns=int(long_ago * 1e9))
    place.store.put_bytes("trajectories/nodea/0000000001.idx", encode_index(aged), replace=True)
    assert shipper.prune(DAY_S) == 1
    assert BLOBS + old["blob"] not in place.listed()
    assert {BLOBS + kept["blob"], BLOBS + theirs["blob"]} <= set(place.listed())
    assert "trajectories/nodea/0000000001.idx" not in place.listed()


def test_index_that_cannot_be_read_stops_pruning_of_contents(place):
    place.write("s1", b"x" * 100)
    place.journal.seal()
    place.ship(place.shipper())
    for node in ("another", "other"):  # before and behind this one in a listing
        place.store.put_bytes(f"trajectories/{node}/0000000001.idx", b"\xc1", replace=True)
    with pytest.raises(StorageFailed, match="other"):
        place.shipper().prune(DAY_S)
    assert len(place.listed(BLOBS)) == 1
    with pytest.raises(
        StorageFailed, match="other"
    ):  # segments of its own have their end all the same
        place.shipper().prune(-1.0)
    assert place.listed("trajectories/nodea/") == [owner_key("nodea")]
    assert len(place.listed(BLOBS)) == 1


def test_old_content_that_is_named_again_is_made_young(place):
    (content,) = place.write("s1", b"x" * 100)
    place.journal.seal()
    place.ship(place.shipper())
    key = BLOBS + content["blob"]
    long_ago = time.time() - 5 * DAY_S
    os.utime(place.store.local_path(key), (long_ago, long_ago))
    place.write("s1", b"x" * 100)
    place.journal.seal()
    place.ship(place.shipper())
    assert time.time() - place.store.stat(key).modified < 3600
