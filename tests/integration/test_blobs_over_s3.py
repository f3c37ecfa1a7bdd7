"""Data blobs read from an S3 store: whatever the store or the way to it does, no wrong byte passes."""

from __future__ import annotations

import logging
import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from s3_place import s3_options
from skerry.errors import Fault as Blame
from skerry.errors import LayerDamaged, StorageFailed
from skerry.images.format.chunks import CHUNK_BYTES, ChunkList, build_list
from skerry.images.objects.s3 import S3Objects
from skerry.images.store.blobread import REFETCHES, BlobReader, fetch_list
from skerry.testing.link import Fault

CONTENT = random.Random(5).randbytes(2_000_000) + bytes(3_000_000)
BLOB, LIST = "blobs/data", "blobs/data.chunks"


@pytest.fixture
def objects(s3_server, s3_link, tmp_path: Path) -> S3Objects:
    options = s3_options(s3_server, tmp_path, endpoint=s3_link.endpoint, timeout_s=2, patience_s=5)
    return S3Objects(f"s3://{s3_server.bucket}/{tmp_path.name}", options)


@pytest.fixture(params=["none", "zstd"])
def chunks(request, objects: S3Objects, tmp_path: Path) -> ChunkList:
    """The blob lies in the store, plain or as frames."""
    source, stored = tmp_path / "blob", tmp_path / "stored"
    source.write_bytes(CONTENT)
    packed = request.param == "zstd"
    built = build_list(str(source), str(stored) if packed else None)
    objects.put_file(BLOB, str(stored if packed else source))
    objects.put_bytes(LIST, built.encode(), replace=False)
    return fetch_list(objects, LIST, built.content_digest)


@pytest.fixture
def reader(objects: S3Objects, chunks: ChunkList) -> BlobReader:
    return BlobReader(objects, BLOB, chunks)


def test_any_range_is_the_contents(reader: BlobReader) -> None:
    draw = random.Random(6)
    ranges = [(0, len(CONTENT)), (len(CONTENT) - 3, 10), (len(CONTENT), 5), (0, 0)]
    ranges += [(draw.randrange(len(CONTENT)), draw.randrange(600_000)) for _ in range(20)]
    for offset, length in ranges:
        assert reader.read(offset, length) == CONTENT[offset : offset + length]
    assert reader.damaged == 0


def test_run_of_chunks_is_one_request(reader: BlobReader, s3_link) -> None:
    s3_link.reset()
    assert b"".join(reader.fetch(1, 6)) == CONTENT[CHUNK_BYTES : 7 * CHUNK_BYTES]
    assert s3_link.counts().requests == 1


def test_flipped_bit_is_seen_and_fetched_again(reader: BlobReader, s3_link, caplog) -> None:
    s3_link.faults(Fault("flip", after=300_000, times=1))
    assert reader.read(0, 1_000_000) == CONTENT[:1_000_000]
    assert (reader.damaged, reader.refetched) == (1, 1)
    assert "chunk 1 of sha256:" in caplog.text
    assert reader._objects.where in caplog.text


def test_way_that_damages_much_is_slow_and_no_lie(reader: BlobReader, s3_link) -> None:
    s3_link.faults(
        Fault("flip", after=100, share=0.2),
        Fault("truncate", after=5000, share=0.2),
        Fault("status", share=0.2),
    )
    with ThreadPoolExecutor(4) as threads:
        parts = list(threads.map(lambda chunk: reader.fetch(chunk)[0], range(reader.chunks.count)))
    assert b"".join(parts) == CONTENT
    assert sum(s3_link.counts().injected.values()) > 0


def test_blob_damaged_in_the_store_is_the_platforms_fault(
    reader: BlobReader, objects: S3Objects, s3_link, caplog
) -> None:
    stored = bytearray(objects.get(BLOB, 1 << 24) or b"")
    place = reader.chunks.stored_span(2)
    stored[place.offset + place.length // 2] ^= 0x10
    objects.put_bytes(BLOB, bytes(stored), replace=True)
    s3_link.reset()
    with pytest.raises(LayerDamaged, match=r"chunk 2 of sha256:.*make the layer again") as caught:
        reader.read(0, len(CONTENT))
    assert caught.value.fault is Blame.PLATFORM
    assert caught.value.fields["chunk"] == 2
    assert s3_link.counts().requests == 1 + REFETCHES
    assert reader.refetched == 0
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    # Chunks that are whole are still to be had.
    assert b"".join(reader.fetch(0, 2)) == CONTENT[: 2 * CHUNK_BYTES]


def test_blob_cut_off_in_the_store_is_the_platforms_fault(
    reader: BlobReader, objects: S3Objects
) -> None:
    stored = objects.get(BLOB, 1 << 24) or b""
    objects.put_bytes(BLOB, stored[: len(stored) // 2], replace=True)
    with pytest.raises(LayerDamaged) as caught:
        reader.read(0, len(CONTENT))
    assert caught.value.fault is Blame.PLATFORM
    assert reader.read(0, 100) == CONTENT[:100]


def test_blob_that_is_gone_is_the_platforms_fault(reader: BlobReader, objects: S3Objects) -> None:
    objects.delete(BLOB)
    with pytest.raises(StorageFailed, match="gone from s3://"):
        reader.read(0, 100)


def test_other_list_than_the_digests_is_refused(objects: S3Objects, chunks: ChunkList) -> None:
    other = f"sha256:{'0' * 64}"
    with pytest.raises(LayerDamaged, match=other):
        fetch_list(objects, LIST, other)
    with pytest.raises(StorageFailed, match="gone"):
        fetch_list(objects, "blobs/absent", chunks.content_digest)


def test_list_that_came_damaged_is_fetched_again(
    objects: S3Objects, chunks: ChunkList, s3_link
) -> None:
    s3_link.faults(Fault("flip", after=50, times=1))
    assert fetch_list(objects, LIST, chunks.content_digest) == chunks


def test_store_that_stays_away_is_told_in_bounded_time(reader: BlobReader, s3_link) -> None:
    s3_link.leave()
    with pytest.raises(StorageFailed, match="nothing answers") as caught:
        reader.read(0, 100)
    assert caught.value.fault is Blame.PLATFORM
