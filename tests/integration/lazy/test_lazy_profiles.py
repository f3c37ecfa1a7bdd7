"""What first runs touch: recorded, fetched ahead at later mounts, and in nobody's way."""

from __future__ import annotations

import os
import time
from array import array
from pathlib import Path
from types import SimpleNamespace

import pytest

from lazy_stand import (
    Blob,
    read,
    served_one,
    until,
)
from skerry.images.format.chunks import CHUNK_BYTES
from skerry.images.format.profile import decode_profile, encode_profile
from skerry.images.lazy import habits
from skerry.images.lazy.profiles import ProfileConfig

pytestmark = pytest.mark.root


def test_a_first_run_is_recorded_and_fetched_ahead_of_the_next(
    tmp_path: Path, blob: Blob, monkeypatch: pytest.MonkeyPatch
) -> None:
    touched = [30, 2, 3, 17, 5]
    now = 1.0
    monkeypatch.setattr(habits, "time", SimpleNamespace(monotonic=lambda: now))
    record = ProfileConfig(record_s=0.5)
    with served_one(tmp_path, blob, profile=record) as stand:
        handle = stand.open(blob)
        for chunk in touched:
            read(handle, chunk * CHUNK_BYTES, 10)
        now += 0.6
        read(handle, 9 * CHUNK_BYTES, 10)  # too late to count
        stand.process.profiles.save(stand.process.server.mounted())
        os.close(handle)
    made = tmp_path / "cache" / f"{blob.name}.profile"
    assert decode_profile(made.read_bytes(), blob.chunks.count) == touched
    made.rename(tmp_path / "layers" / made.name)
    (tmp_path / "cache" / blob.name).unlink()
    with served_one(tmp_path, blob, profile=record) as stand:
        handle = stand.open(blob)
        until(lambda: stand.process.stats.prefetched_chunks == len(touched))
        for chunk in touched:
            read(handle, chunk * CHUNK_BYTES, 10)
        os.close(handle)
        until(lambda: stand.process.stats.hits == len(touched))  # counted after the answer
        assert sorted(at // CHUNK_BYTES for at, _ in stand.source.asked) == sorted(touched)
    (tmp_path / "cache" / blob.name).unlink()
    off = ProfileConfig(prefetch=False, record_s=0.0)
    with served_one(tmp_path, blob, profile=off) as stand:
        os.close(stand.open(blob))
        time.sleep(0.1)
        assert stand.source.asked == []


def test_a_read_does_not_wait_for_what_is_fetched_ahead(tmp_path: Path, blob: Blob) -> None:
    (tmp_path / "layers").mkdir()
    everything = encode_profile(array("I", range(40)))
    (tmp_path / "layers" / f"{blob.name}.profile").write_bytes(everything)
    with served_one(tmp_path, blob) as stand:
        stand.source.delay_s = 0.1
        handle = stand.open(blob)
        until(lambda: bool(stand.source.asked))
        assert read(handle, 39 * CHUNK_BYTES, 10) == blob.content[39 * CHUNK_BYTES :][:10]
        # One thread of four fetches ahead: chunk 39 would have come last, after four seconds.
        assert stand.process.stats.fetched_chunks < 35
        os.close(handle)


@pytest.mark.parametrize(
    "bad", [b"", b"SKTOUCH1", b"x" * 100, b"SKTOUCH1\1\0\0\0\1\0\0\0\xff\xff\0\0"]
)
def test_a_profile_that_is_none_is_left_aside(tmp_path: Path, blob: Blob, bad: bytes) -> None:
    (tmp_path / "layers").mkdir()
    (tmp_path / "layers" / f"{blob.name}.profile").write_bytes(bad)
    with served_one(tmp_path, blob) as stand:
        handle = stand.open(blob)
        assert read(handle, 0, 10) == blob.content[:10]
        os.close(handle)
        assert stand.asked_chunks() == 1
