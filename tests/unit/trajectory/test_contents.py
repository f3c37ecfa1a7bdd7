"""Contents are kept once by digest, whole or not at all, for as long as a segment needs them."""

from __future__ import annotations

import hashlib
import os

import pytest

from skerry.errors import StorageFailed
from skerry.trajectory.shipping.contents import Contents, blobs_in


@pytest.fixture
def directory(tmp_path) -> str:
    return str(tmp_path / "blobs")


@pytest.fixture
def contents(directory) -> Contents:
    return Contents(directory, inline_bytes=16, bytes_max=1000)


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def put(contents: Contents, *pieces: bytes, segment: int = 1):
    writer = contents.writer()
    for piece in pieces:
        writer.add(piece)
    content = writer.end()
    contents.mention(segment, {"content": content})
    writer.drop()
    return content


@pytest.mark.parametrize("size", [0, 1, 16, 17, 1000, 1001, 5000])
def test_content_stands_in_the_record_or_by_digest_or_not_at_all(contents, directory, size):
    data = os.urandom(size)
    content = put(contents, data[:3], data[3:40], data[40:])
    if size <= 16:
        assert content == data
    elif size <= 1000:
        assert content == {"blob": sha(data), "bytes": size}
        with open(contents.path(sha(data)), "rb") as file:
            assert file.read() == data
    else:
        assert content == {"dropped": True, "sha256": sha(data), "bytes": size}
    assert len(os.listdir(directory)) == (16 < size <= 1000)
    assert contents.bytes == (size if 16 < size <= 1000 else 0)


def test_the_same_content_is_there_once_until_its_last_segment_is_elsewhere(contents, directory):
    data = b"x" * 100
    put(contents, data, segment=1)
    put(contents, data, segment=3)
    put(contents, b"y" * 50, segment=2)
    assert len(os.listdir(directory)) == 2
    assert contents.bytes == 150
    assert contents.upto(1) == []
    contents.take(2)
    assert os.listdir(directory) == [sha(data)]
    contents.take(3)
    assert os.listdir(directory) == []
    assert contents.bytes == 0


def test_content_whose_record_is_still_to_be_written_stays(contents, directory):
    data = b"x" * 100
    put(contents, data, segment=1)
    writer = contents.writer()
    writer.add(data)
    writer.end()
    contents.take(1)
    assert os.listdir(directory) == [sha(data)]
    contents.mention(2, {"blob": sha(data), "bytes": 100})
    writer.drop()
    contents.take(1)
    assert os.listdir(directory) == [sha(data)]
    contents.take(2)
    assert os.listdir(directory) == []


def test_what_was_begun_is_gone_and_what_was_kept_is_claimed_by_the_next_process(
    contents, directory
):
    put(contents, b"x" * 100)
    writer = contents.writer()
    writer.add(b"z" * 200)  # and then it is killed
    assert len(os.listdir(directory)) == 2
    again = Contents(directory, inline_bytes=16, bytes_max=1000)
    assert os.listdir(directory) == [sha(b"x" * 100)]
    assert again.bytes == 100
    again.claim(7)
    again.take(6)
    assert again.upto(7) == [sha(b"x" * 100)]
    again.take(7)
    assert os.listdir(directory) == []


def test_full_disk_is_told_and_leaves_nothing(contents, directory, monkeypatch):
    writer = contents.writer()
    with monkeypatch.context() as full:
        full.setattr(os, "write", lambda fd, data: (_ for _ in ()).throw(OSError(28, "full")))
        with pytest.raises(StorageFailed, match="full") as told:
            writer.add(b"x" * 100)
    assert told.value.fields["errno"] == 28
    assert os.listdir(directory) == []


def test_words_that_look_like_a_content_are_not_counted_as_one(contents):
    contents.mention(1, {"result": [{"blob": "0" * 64, "bytes": 1 << 40}]})
    assert contents.bytes == 0
    assert contents.upto(9) == []


def test_blobs_are_found_wherever_they_stand():
    one, two = "1" * 64, "2" * 64
    value = {"a": [{"blob": one, "bytes": 3}, {"b": ({"blob": two, "bytes": 1},)}], "blob": 7}
    assert list(blobs_in(value)) == [one, two]
    assert list(blobs_in({"blob": "../" + "a" * 61})) == []
