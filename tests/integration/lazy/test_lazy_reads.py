"""Data blobs read through FUSE, by chunk: what is fetched, when, and what a store may do meanwhile.

What is promised: only what is touched is fetched, once for all who want it; no byte is served that was
not checked; every read ends within its bound."""

from __future__ import annotations

import contextlib
import os
import random
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from lazy_stand import (
    EIO,
    FETCH,
    MIB,
    Blob,
    Streams,
    blob_of,
    content_of,
    put_list,
    read,
    served,
    served_one,
    until,
)
from skerry.images.format.chunks import CHUNK_BYTES, Codec

pytestmark = pytest.mark.root


@pytest.mark.parametrize("codec", list(Codec))
def test_every_byte_is_as_in_the_store(tmp_path: Path, codec: Codec) -> None:
    blob = blob_of(content_of(5 * MIB + 77) + bytes(MIB), codec, tmp_path)
    chance = random.Random(3)
    with served_one(tmp_path, blob) as stand:
        handle = stand.open(blob)
        assert os.fstat(handle).st_size == len(blob.content)
        for _ in range(60):
            start = chance.randrange(len(blob.content))
            length = chance.randrange(1, 900_000)
            assert read(handle, start, length) == blob.content[start : start + length]
        os.close(handle)
        assert (stand.at / blob.name).read_bytes() == blob.content


def test_only_touched_chunks_are_fetched_and_only_once(tmp_path: Path, blob: Blob) -> None:
    with served_one(tmp_path, blob) as stand:
        handle = stand.open(blob)
        for at in (0, 5 * CHUNK_BYTES, 5 * CHUNK_BYTES + 8192, 20 * CHUNK_BYTES - 1):
            read(handle, at, 2)
        os.close(handle)
        chunks = sorted(offset // CHUNK_BYTES for offset, _ in stand.source.asked)
        assert chunks == [0, 5, 19, 20]
        assert stand.process.stats.fetched_bytes == 4 * CHUNK_BYTES
        until(lambda: (stand.process.stats.hits, stand.process.stats.misses) == (1, 3))


def test_who_misses_the_same_chunk_at_once_shares_one_fetch(tmp_path: Path, blob: Blob) -> None:
    with served_one(tmp_path, blob) as stand, ThreadPoolExecutor(12) as threads:
        stand.source.gate.clear()
        handle = stand.open(blob)
        reads = [threads.submit(read, handle, at * 4096, 4096) for at in range(12)]
        until(lambda: len(stand.process.server._fetcher.waiting) == 12)
        stand.source.gate.set()
        for at, one in enumerate(reads):
            assert one.result(10) == blob.content[at * 4096 : (at + 1) * 4096]
        os.close(handle)
        assert len(stand.source.asked) == 1
        assert stand.process.stats.merged == 11


def test_misses_of_different_chunks_are_fetched_at_the_same_time(
    tmp_path: Path, blob: Blob
) -> None:
    with served_one(tmp_path, blob) as stand, ThreadPoolExecutor(4) as threads:
        stand.source.gate.clear()
        handle = stand.open(blob)
        reads = [threads.submit(read, handle, at * CHUNK_BYTES, 10) for at in range(4)]
        until(lambda: len(stand.source.asked) == 4)
        stand.source.gate.set()
        assert [one.result(10) for one in reads] == [
            blob.content[at * CHUNK_BYTES :][:10] for at in range(4)
        ]
        os.close(handle)


def test_a_miss_fetches_its_whole_range_but_nothing_twice(tmp_path: Path, blob: Blob) -> None:
    fetch = replace(FETCH, range_bytes=4 * CHUNK_BYTES)
    with served_one(tmp_path, blob, fetch=fetch) as stand:
        handle = stand.open(blob)
        read(handle, 5 * CHUNK_BYTES, 10)
        assert stand.source.asked == [(4 * CHUNK_BYTES, 4 * CHUNK_BYTES)]
        read(handle, 7 * CHUNK_BYTES + 9, 2 * CHUNK_BYTES)
        assert stand.source.asked[1:] == [(8 * CHUNK_BYTES, 4 * CHUNK_BYTES)]
        os.close(handle)


def test_misses_close_by_are_fetched_in_wider_ranges(tmp_path: Path, blob: Blob) -> None:
    fetch = replace(FETCH, range_max_bytes=4 * CHUNK_BYTES)
    with served_one(tmp_path, blob, fetch=fetch) as stand:
        handle = stand.open(blob)
        for chunk in (1, 9, 17, 35):
            read(handle, chunk * CHUNK_BYTES, 10)
        os.close(handle)
        asked = [(start // CHUNK_BYTES, size // CHUNK_BYTES) for start, size in stand.source.asked]
        assert asked == [(1, 1), (8, 2), (16, 4), (32, 4)]


def test_a_read_is_answered_before_the_rest_of_its_range_has_come(
    tmp_path: Path, blob: Blob
) -> None:
    source = Streams({blob.name: blob}, pause_at=2 * CHUNK_BYTES)
    fetch = replace(FETCH, range_bytes=4 * CHUNK_BYTES)
    with served(tmp_path, source, fetch=fetch) as stand, ThreadPoolExecutor(1) as threads:
        handle = stand.open(blob)
        assert read(handle, 10, 100) == blob.content[10:110]
        last = threads.submit(read, handle, 3 * CHUNK_BYTES, 100)
        until(lambda: len(stand.process.server._fetcher.waiting) == 1)
        assert not last.done()
        source.go_on.set()
        assert last.result(10) == blob.content[3 * CHUNK_BYTES :][:100]
        os.close(handle)
        assert source.asked == [(0, 4 * CHUNK_BYTES)]


def test_a_range_that_breaks_off_goes_on_where_it_broke(tmp_path: Path, blob: Blob) -> None:
    source = Streams({blob.name: blob}, pause_at=2 * CHUNK_BYTES, breaks=1)
    source.go_on.set()
    with served(tmp_path, source, fetch=replace(FETCH, range_bytes=4 * CHUNK_BYTES)) as stand:
        handle = stand.open(blob)
        assert read(handle, 3 * CHUNK_BYTES, 100) == blob.content[3 * CHUNK_BYTES :][:100]
        os.close(handle)
        assert source.asked == [(0, 4 * CHUNK_BYTES), (2 * CHUNK_BYTES, 2 * CHUNK_BYTES)]


def test_a_reader_in_order_is_kept_ahead_of(tmp_path: Path, blob: Blob) -> None:
    fetch = replace(FETCH, ahead_bytes=8 * CHUNK_BYTES)
    with served_one(tmp_path, blob, fetch=fetch) as stand:
        stand.source.delay_s = 0.02
        handle = stand.open(blob)
        for at in range(0, len(blob.content), 65_536):
            assert read(handle, at, 65_536) == blob.content[at : at + 65_536]
            time.sleep(0.004)
        os.close(handle)
        stats = stand.process.stats
        assert stats.fetched_chunks == blob.chunks.count
        assert stats.ahead_chunks >= blob.chunks.count - 6
        # Most of it was there before it was asked for.
        assert stats.hits > 0.8 * stats.reads


def test_a_random_reader_is_not_read_ahead_for(tmp_path: Path, blob: Blob) -> None:
    fetch = replace(FETCH, ahead_bytes=8 * CHUNK_BYTES)
    with served_one(tmp_path, blob, fetch=fetch) as stand:
        handle = stand.open(blob)
        for chunk in (3, 30, 12, 24, 6, 36, 18):
            read(handle, chunk * CHUNK_BYTES, 10)
        os.close(handle)
        assert stand.asked_chunks() == 7


def test_a_chunk_that_came_wrong_is_fetched_again(tmp_path: Path, blob: Blob) -> None:
    with served_one(tmp_path, blob, fetch=replace(FETCH, range_bytes=MIB)) as stand:
        stand.source.wrong[5 * CHUNK_BYTES + 3] = 2
        handle = stand.open(blob)
        assert read(handle, 5 * CHUNK_BYTES, 10) == blob.content[5 * CHUNK_BYTES :][:10]
        os.close(handle)
        assert stand.process.stats.verify_failures == 2
        # Its neighbours of the range were good at once.
        assert stand.source.asked[1:] == [(5 * CHUNK_BYTES, CHUNK_BYTES)] * 2


def test_a_chunk_that_stays_wrong_is_a_fault_with_digest_and_number(
    tmp_path: Path, blob: Blob, caplog: pytest.LogCaptureFixture
) -> None:
    with served_one(tmp_path, blob) as stand:
        stand.source.wrong[5 * CHUNK_BYTES + 3] = 99
        handle = stand.open(blob)
        with pytest.raises(OSError, match=EIO):
            read(handle, 5 * CHUNK_BYTES + 100, 10)
        assert read(handle, 6 * CHUNK_BYTES, 10) == blob.content[6 * CHUNK_BYTES :][:10]
        stand.source.wrong.clear()
        assert read(handle, 5 * CHUNK_BYTES, 10) == blob.content[5 * CHUNK_BYTES :][:10]
        os.close(handle)
    faults = [line.getMessage() for line in caplog.records if "platform fault" in line.getMessage()]
    assert len(faults) == 1
    assert f"chunk 5 of sha256:{blob.name}" in faults[0]


def test_a_blob_that_is_cut_off_in_the_store_is_told_where_it_lacks(
    tmp_path: Path, blob: Blob
) -> None:
    with served_one(tmp_path, blob) as stand:
        stand.source.cut = 9 * CHUNK_BYTES + 100
        handle = stand.open(blob)
        assert read(handle, 8 * CHUNK_BYTES, 10) == blob.content[8 * CHUNK_BYTES :][:10]
        for chunk in (9, 12):
            with pytest.raises(OSError, match=EIO):
                read(handle, chunk * CHUNK_BYTES, 10)
        os.close(handle)


def test_a_store_that_comes_back_in_time_is_waited_for(tmp_path: Path, blob: Blob) -> None:
    with served_one(tmp_path, blob) as stand, ThreadPoolExecutor(1) as threads:
        stand.source.failing = True
        handle = stand.open(blob)
        one = threads.submit(read, handle, 0, 100)
        until(lambda: stand.process.stats.store_failures >= 2)
        assert not one.done()
        stand.source.failing = False
        assert one.result(10) == blob.content[:100]
        os.close(handle)


def tried(handle: int) -> bytes:
    """Reads ten bytes; nothing where that fails."""
    with contextlib.suppress(OSError):
        return read(handle, 0, 10)
    return b""


@pytest.mark.parametrize("how", ["failing", "silent"])
def test_a_store_that_stays_away_ends_a_read_within_its_bound(
    tmp_path: Path, blob: Blob, how: str
) -> None:
    fetch = replace(FETCH, wait_s=0.6, threads=2)
    with served_one(tmp_path, blob, fetch=fetch) as stand, ThreadPoolExecutor(8) as threads:
        stand.source.failing = how == "failing"
        if how == "silent":
            stand.source.gate.clear()
        handle = stand.open(blob)

        def one(chunk: int) -> float:
            began = time.monotonic()
            with pytest.raises(OSError, match=EIO):
                read(handle, chunk * CHUNK_BYTES, 10)
            return time.monotonic() - began

        assert min(threads.map(one, range(8), timeout=20)) >= 0.55
        stand.source.failing = False
        stand.source.gate.set()
        assert stand.process.stats.expired == 8
        # A store that has failed is given little time until it has answered once.
        until(lambda: tried(handle) == blob.content[:10])
        os.close(handle)


def test_a_chunk_list_of_another_name_mounts_nothing(tmp_path: Path, blob: Blob) -> None:
    other = blob_of(content_of(MIB, 9), Codec.NONE, tmp_path)
    with served_one(tmp_path, blob) as stand:
        put_list(tmp_path, Blob(other.content, "ab" * 32, other.chunks, other.stored))
        with pytest.raises(OSError, match=EIO):
            os.open(stand.at / ("ab" * 32), os.O_RDONLY)
        with pytest.raises(FileNotFoundError):
            os.open(stand.at / ("cd" * 32), os.O_RDONLY)
        with pytest.raises(FileNotFoundError):
            os.open(stand.at / "..chunks", os.O_RDONLY)


# --- the cache on disk ---
