"""The chunks that a node keeps: safe after every crash, bounded, and no need on a full disk."""

from __future__ import annotations

import ctypes
import os
import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from lazy_stand import (
    MIB,
    Blob,
    blob_of,
    content_of,
    read,
    served_one,
    unmount,
)
from skerry.images import sparse
from skerry.images.format.chunks import CHUNK_BYTES, Codec

pytestmark = pytest.mark.root


def test_what_was_fetched_is_not_fetched_again_after_a_restart(tmp_path: Path, blob: Blob) -> None:
    with served_one(tmp_path, blob) as stand:
        assert (stand.at / blob.name).read_bytes() == blob.content
    with served_one(tmp_path, blob) as stand:
        assert (stand.at / blob.name).read_bytes() == blob.content
        assert stand.source.asked == []
        assert stand.process.stats.stale_chunks == 0


@pytest.mark.parametrize("damage", ["bit", "zeros", "hole", "cut"])
def test_what_a_crash_left_wrong_is_never_served(tmp_path: Path, blob: Blob, damage: str) -> None:
    with served_one(tmp_path, blob) as stand:
        assert (stand.at / blob.name).read_bytes() == blob.content
    path, at = tmp_path / "cache" / blob.name, 7 * CHUNK_BYTES + 4096
    with open(path, "r+b") as file:
        if damage == "bit":
            file.seek(at)
            file.write(bytes([blob.content[at] ^ 4]))
        elif damage == "zeros":
            file.seek(at)
            file.write(bytes(4096))
        elif damage == "hole":
            sparse.punch(file.fileno(), at, 8192)
        else:
            file.truncate(at)
    with served_one(tmp_path, blob) as stand:
        assert (stand.at / blob.name).read_bytes() == blob.content
        wanted = 1 if damage != "cut" else blob.chunks.count
        assert stand.asked_chunks() == wanted


def test_the_cache_keeps_to_its_size_and_its_bytes_right(tmp_path: Path) -> None:
    blob = blob_of(content_of(100 * MIB), Codec.NONE, tmp_path)
    chance = random.Random(5)
    with served_one(tmp_path, blob, cache_bytes=64 * MIB) as stand:
        handle = stand.open(blob)
        path = tmp_path / "cache" / blob.name

        def some(seed: int) -> None:
            own = random.Random(seed)
            for _ in range(150):
                start = own.randrange(len(blob.content) - 600_000)
                length = own.randrange(1, 600_000)
                assert read(handle, start, length) == blob.content[start : start + length]
                assert stand.process.cache.used <= 64 * MIB

        with ThreadPoolExecutor(4) as threads:
            list(threads.map(some, [chance.random() for _ in range(4)]))
        os.close(handle)
        assert stand.process.stats.evicted_bytes > 0
        assert os.stat(path).st_blocks * 512 <= 65 * MIB


def test_what_is_read_again_and_again_outlives_what_is_read_once(tmp_path: Path) -> None:
    blob = blob_of(content_of(100 * MIB), Codec.NONE, tmp_path)
    with served_one(tmp_path, blob, cache_bytes=64 * MIB) as stand:
        handle = stand.open(blob)
        for at in range(0, 100 * MIB, CHUNK_BYTES):
            read(handle, at, 10)
            read(handle, 0, 10)
        os.close(handle)
        assert sum(offset == 0 for offset, _ in stand.source.asked) == 1


def test_old_blobs_make_room_and_leave_no_file(tmp_path: Path) -> None:
    old = blob_of(content_of(6 * MIB, 1), Codec.NONE, tmp_path)
    with served_one(tmp_path, old) as stand:
        (stand.at / old.name).read_bytes()
    new = blob_of(content_of(70 * MIB, 2), Codec.NONE, tmp_path)
    with served_one(tmp_path, new, cache_bytes=64 * MIB) as stand:
        handle = stand.open(new)
        for at in range(0, 70 * MIB, CHUNK_BYTES):
            read(handle, at, 10)
        os.close(handle)
        assert not (tmp_path / "cache" / old.name).exists()
        assert stand.process.cache.used <= 64 * MIB


def test_a_full_disk_is_served_past(tmp_path: Path, blob: Blob) -> None:
    libc = ctypes.CDLL(None)
    (tmp_path / "cache").mkdir()
    at = bytes(tmp_path / "cache")
    assert libc.mount(b"tiny", at, b"tmpfs", 0, b"size=2m") == 0
    try:
        with served_one(tmp_path, blob) as stand:
            assert (stand.at / blob.name).read_bytes() == blob.content
            handle = stand.open(blob)
            assert read(handle, 9 * MIB + 5, MIB) == blob.content[9 * MIB + 5 : 10 * MIB + 5]
            os.close(handle)
            assert stand.process.stats.uncached_chunks > 30
            assert stand.process.stats.faults == 0
    finally:
        unmount(tmp_path / "cache")


def test_little_space_left_is_left_to_others(tmp_path: Path, blob: Blob) -> None:
    with served_one(tmp_path, blob, disk_free_min_bytes=1 << 60) as stand:
        assert (stand.at / blob.name).read_bytes() == blob.content
        assert stand.process.cache.used == 0


# --- first runs ---
