"""A store that others write to: what one of them put there is named, and keeps nothing from readers."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import msgspec
import pytest

from skerry.cli.failure import hint_for
from skerry.errors import InvalidRequest, NotFound, ObjectDamaged
from skerry.images.objects.directory import DirectoryObjects
from skerry.sdk.trajectories import unless_gone
from skerry.spec.trajectory import Finding, FindingKind
from skerry.trajectory.format.index import decode_index, encode_index, index_of
from skerry.trajectory.format.segment import (
    DEPTH_MAX,
    NO_HASH,
    Header,
    encode_header,
    frame_body,
    parse_record,
    segment_path,
)
from skerry.trajectory.format.store import index_key, segment_key, tail_key
from skerry.trajectory.journal.journal import Journal
from skerry.trajectory.reading.archive import Archive, Wanted
from skerry.trajectory.reading.checking import check_log, check_sandbox
from skerry.trajectory.reading.findings import FINDINGS_MAX
from skerry.trajectory.reading.sources import TAIL_BYTES_MAX, Directory
from skerry.trajectory.reports.export import export
from trajectory_stories import NODE, Story, sandbox_id

OTHER = "zzzzz"
THEIRS, MADE_UP = f"s{OTHER}aaa{'b' * 12}", f"s{OTHER}aaa{'c' * 12}"
encode = msgspec.msgpack.encode
SHALLOW, DEEP = b"\x91" * 100 + b"\xc0", b"\x91" * 100_000 + b"\xc0"


def body(seq: int, data: bytes, time_ns: int = 1_700_000_000_000_000_000) -> bytes:
    """Returns a record's body around data that are msgpack already."""
    head = (seq, THEIRS, "did", time_ns, NO_HASH)
    return b"\x96" + b"".join(encode(one) for one in head) + data


def segment(*bodies: bytes) -> bytes:
    header = Header(1, 1, 1_700_000_000_000_000_000, 0, NO_HASH)
    return encode_header(header) + b"".join(frame_body(one) for one in bodies)


def holding(inner: bytes) -> bytes:
    """Returns the data of a record with a value of msgpack in its request."""
    return b"\x82\xa6action\xa1x\xa7request\x81\xa1q" + inner


@pytest.fixture
def shelf(tmp_path) -> DirectoryObjects:
    """A store with the log of an honest node."""
    story = Story(str(tmp_path / "journal"))
    box = story.create(1)
    story.run(box, "true")
    objects = DirectoryObjects(str(tmp_path / "store"))
    story.ship(str(tmp_path / "store"))
    story.close()
    return objects


def put(shelf: DirectoryObjects, data: bytes, node: str = OTHER) -> None:
    shelf.put_bytes(segment_key(node, 1), data, replace=True)
    shelf.put_bytes(index_key(node, 1), encode_index(index_of(node, 1, data)), replace=True)


def archive(shelf: DirectoryObjects) -> Archive:
    return Archive(None, shelf, lambda: 0.0)


def found_in(shelf: DirectoryObjects, node: str) -> tuple[Finding, ...]:
    reader = archive(shelf)
    (log,) = [log for log in reader.logs() if log.node == node]
    return check_log(reader, log).findings


@pytest.mark.parametrize(
    "strange",
    [
        body(1, DEEP),
        body(1, holding(b"\x91" * 900 + b"\xc0")),
        body(1, holding(b"\x81\xa1a" * 400 + b"\xc0")),
        body(-5, encode({})),
        body(1 << 63, encode({})),
        body(1, encode({}), time_ns=-1),
        body(1, encode({}), time_ns=(1 << 64) - 1),
    ],
    ids=["deep", "deep-request", "deep-maps", "seq-below", "seq-above", "time-below", "time-above"],
)
def test_record_that_no_reader_bears_is_damage_and_hides_nothing_else(shelf, strange):
    put(shelf, segment(body(1, encode({"action": "x"})), strange, body(2, encode({"action": "y"}))))
    kinds = {one.kind for one in found_in(shelf, OTHER)}
    assert kinds == {
        FindingKind.DAMAGED,
        FindingKind.TAMPERED,
    }  # what is behind it follows from nothing
    reader = archive(shelf)
    listed = {info.sandbox: info.events for info in reader.select(Wanted(), 100).items}
    assert listed == {sandbox_id(1): 2, THEIRS: 2}
    assert [event.action for event in reader.events(THEIRS)] == ["x", "y"]


def test_nesting_is_told_from_many_values_and_from_bytes_that_look_like_it():
    flat = encode({"action": "x", "request": {"a": [[]] * 5000, "b": b"\x91" * 5000}})
    for data in (flat, holding(SHALLOW)):
        record = frame_body(body(1, data))
        assert parse_record(record, 0) is not None


def test_journal_refuses_what_it_could_not_read_again(tmp_path):
    journal = Journal.open(str(tmp_path), now_ns=lambda: 1)
    value: list = []
    for _ in range(DEPTH_MAX + 1):
        value = [value]
    with pytest.raises(InvalidRequest, match="nested"):
        journal.append("a", "kind", {"request": value})
    with pytest.raises(InvalidRequest, match="nested"):
        journal.append_all("a", "kind", [{"request": 1}, {"request": value}])
    journal.append("a", "kind", {"request": value[0][0][0][0]})
    journal.close()
    again = Journal.open(str(tmp_path), now_ns=lambda: 1)
    assert (again.problems, again.records) == ([], 1)
    again.close()


def test_values_that_only_msgpack_has_are_shown_and_exported(shelf, tmp_path):
    extension, timestamp = b"\xc7\x08\x05abcdefgh", b"\xd6\xff\x00\x00\x00\x01"
    put(shelf, segment(body(1, holding(extension)), body(2, holding(timestamp))))
    reader = archive(shelf)
    first, second = reader.events(THEIRS)
    assert first.request == {"q": {"bytes": 8, "text": "abcdefgh"}}
    assert second.request["q"] is not None
    assert export(reader.events(THEIRS), str(tmp_path / "out.jsonl"), "jsonl") == 2


def test_index_of_numbers_beyond_all_bounds_is_none():
    data = segment(body(1, encode({})))
    index = index_of(OTHER, 1, data)
    assert decode_index(encode_index(index)) == index
    for wrong in ({"from_ns": -1}, {"to_ns": 1 << 63}, {"size": 1 << 63}):
        assert decode_index(encode_index(msgspec.structs.replace(index, **wrong))) is None


def test_segment_of_a_far_number_is_found_missing_before_it_at_once(shelf):
    shelf.put_bytes(segment_key(NODE, 9_999_999_998), b"", replace=True)
    findings = found_in(shelf, NODE)
    assert 2 <= len(findings) < FINDINGS_MAX
    (missing,) = [one for one in findings if "9999999997 are missing" in one.detail]
    assert missing.kind is FindingKind.TRUNCATED


def test_pieces_of_a_tail_beyond_any_segment_keep_nothing_from_its_reader(shelf):
    data = segment(body(1, encode({"action": "x"})))
    shelf.put_bytes(tail_key(OTHER, 1, 0), data, replace=True)
    for offset in (TAIL_BYTES_MAX - 1, TAIL_BYTES_MAX, 9_999_999_999):
        shelf.put_bytes(tail_key(OTHER, 1, offset), b"yy", replace=True)
    reader = archive(shelf)
    assert {one.sandbox for one in reader.select(Wanted(), 9).items} == {sandbox_id(1), THEIRS}
    assert reader.page(THEIRS).events[0].action == "x"


async def test_sandbox_that_only_an_index_knows_is_left_out_of_what_is_made_of_all(shelf):
    index = index_of(OTHER, 1, segment(body(1, encode({}))))
    made_up = msgspec.structs.replace(index, subjects={MADE_UP: index.subjects[THEIRS]})
    shelf.put_bytes(segment_key(OTHER, 1), segment(body(1, encode({}))), replace=True)
    shelf.put_bytes(index_key(OTHER, 1), encode_index(made_up), replace=True)
    reader = archive(shelf)

    async def events(sandbox):
        for event in reader.events(sandbox):
            yield event

    with pytest.raises(NotFound):
        [event async for event in events(MADE_UP)]
    listed = [info.sandbox for info in reader.select(Wanted(), 9).items]
    assert MADE_UP in listed
    all_of_them = [event for one in listed async for event in unless_gone(events(one))]
    assert {event.sandbox for event in all_of_them} == {sandbox_id(1)}


def stand_in(path: Path, what: str) -> None:
    """Puts something that is no file in a file's place; the file itself is kept beside."""
    aside = path.with_name("aside")
    path.rename(aside)
    if what == "directory":
        path.mkdir()
        (path / "within").write_bytes(b"x")
    elif what == "fifo":
        os.mkfifo(path)
    elif what == "socket":
        # The path itself may be longer than an address can be.
        place = os.open(path.parent, os.O_PATH)
        try:
            with socket.socket(socket.AF_UNIX) as made:
                made.bind(f"/proc/self/fd/{place}/{path.name}")
        finally:
            os.close(place)
    else:
        path.symlink_to(aside)


@pytest.mark.parametrize("what", ["directory", "fifo", "socket", "link"])
@pytest.mark.parametrize("key", [segment_key(NODE, 1), index_key(NODE, 1)])
def test_what_is_no_file_in_an_objects_place_is_damage_of_that_object(shelf, key, what):
    assert found_in(shelf, NODE) == ()
    stand_in(Path(shelf.root) / key, what)
    (told,) = [one for one in found_in(shelf, NODE) if one.kind is FindingKind.DAMAGED]
    assert (told.segment, key in told.detail) == (1, True)
    assert {"link": "a symbolic link", "fifo": "a FIFO"}.get(what, f"a {what}") in told.detail
    box = sandbox_id(1)
    reader = archive(shelf)
    if key.endswith(".idx"):  # all that was recorded can be read all the same
        assert [event.action for event in reader.events(box)][:2] == ["create", "run"]
    checked = check_sandbox(reader, box) if key.endswith(".idx") else None
    assert checked is None or FindingKind.DAMAGED in {one.kind for one in checked.findings}
    for call in (
        lambda: shelf.get(key, 1 << 20),
        lambda: shelf.read(key, 0, 1),
        lambda: shelf.put_bytes(key, b"", replace=False),
    ):
        with pytest.raises(ObjectDamaged) as raised:
            call()
        assert raised.value.fields["key"] == key
        assert "free space" not in (hint_for(raised.value, remote=False, state="/s") or "")


@pytest.mark.parametrize("what", ["directory", "fifo"])
def test_what_is_no_file_in_a_nodes_own_log_is_damage_of_that_segment(tmp_path, what):
    story = Story(str(tmp_path))
    story.run(story.create(1), "true")
    story.close()
    stand_in(Path(segment_path(str(tmp_path), 1)), what)
    reader = Archive(Directory(str(tmp_path), NODE), None, lambda: 0.0)
    (log,) = reader.logs()
    assert FindingKind.DAMAGED in {one.kind for one in check_log(reader, log).findings}
