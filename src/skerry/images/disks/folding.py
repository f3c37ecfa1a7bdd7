"""Keeping few data blobs below a disk: which of them a new snapshot takes into its own.

A disk that names many data blobs takes as many requests to open, and keeps what was overwritten long
ago in the store. So a snapshot that would name more than so many takes the chunks of all of them but
the one that is worth keeping, the large one at the bottom, which would be expensive to write again.
"""

from __future__ import annotations

from typing import Final

from skerry.images.format.diskmap import DiskMap

BLOBS_MAX: Final = 16
_WORTH: Final = 0.5


def to_fold(base: DiskMap, overwritten: list[int], blobs_max: int) -> set[int]:
    """Returns the blobs of a map whose chunks a new snapshot shall take over.

    `overwritten` says of each blob how many of the map's chunks the snapshot replaces. Afterwards it
    names at most two: its own, and one that holds more than half of the disk and is mostly needed.
    """
    live = [there - gone for there, gone in zip(base.live(), overwritten, strict=True)]
    named = [number for number, count in enumerate(live) if count]
    if len(named) + 1 <= blobs_max:
        return set()
    total = sum(live)
    kept = {
        number
        for number in named
        if live[number] > total * _WORTH and live[number] > base.blobs[number].count * _WORTH
    }
    return set(named) - kept
