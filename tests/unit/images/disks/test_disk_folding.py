"""Which data blobs a snapshot takes over."""

from __future__ import annotations

from skerry.images.disks.folding import to_fold
from skerry.images.format.chunks import CHUNK_BYTES
from skerry.images.format.diskmap import BlobRef, DiskMap, Place, make_map


def disk_of(*live: int, stored: int = 0) -> DiskMap:
    """A disk whose blobs have so many chunks that count, and `stored` in all."""
    blobs = [
        BlobRef(f"sha256:{at:064x}", max(count, stored) * CHUNK_BYTES)
        for at, count in enumerate(live)
    ]
    numbers = [(at, chunk) for at, count in enumerate(live) for chunk in range(count)]
    places = [(chunk, Place(*place)) for chunk, place in enumerate(numbers)]
    return make_map(1000 * CHUNK_BYTES, blobs, places, None)


def test_few_blobs_stay_as_they_are() -> None:
    assert to_fold(disk_of(100, 5, 5), [0, 0, 0], 4) == set()


def test_large_one_at_the_bottom_is_not_written_again() -> None:
    assert to_fold(disk_of(100, 5, 5, 5), [0] * 4, 4) == {1, 2, 3}


def test_large_one_that_is_mostly_overwritten_goes_too() -> None:
    assert to_fold(disk_of(100, 5, 5, 5, stored=400), [0] * 4, 4) == {0, 1, 2, 3}


def test_what_the_snapshot_overwrites_does_not_count() -> None:
    assert to_fold(disk_of(100, 5, 5, 5), [0, 5, 0, 0], 4) == set()
    assert to_fold(disk_of(40, 41, 5, 5), [40, 0, 0, 0], 3) == {2, 3}


def test_equal_ones_become_one() -> None:
    assert to_fold(disk_of(10, 10, 10, 10), [0] * 4, 4) == {0, 1, 2, 3}
