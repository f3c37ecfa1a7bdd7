"""Which parts of the pool's image get blocks of their own; the kernel's answers are played."""

from __future__ import annotations

import errno
import logging
import os

import pytest

from skerry.backends.container import backing
from skerry.backends.container.backing import FIXED, METADATA, SYSTEM, Backing, metadata

DATA, MIB = 1, 1 << 20
# (logical, length, type, offsets on the device); metadata may lie there twice
CHUNKS = [
    (MIB, 4 * MIB, SYSTEM, (MIB,)),
    (5 * MIB, 8 * MIB, METADATA, (5 * MIB, 900 * MIB)),
    (13 * MIB, 8 * MIB, DATA, (13 * MIB,)),
    (2000 * MIB, 256 * MIB, METADATA | DATA, (2000 * MIB,)),
]
WANTED = [(MIB, 4 * MIB), (5 * MIB, 8 * MIB), (900 * MIB, 8 * MIB), (2000 * MIB, 256 * MIB)]


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch):
    """Answers two chunks at a time, as the kernel does when its buffer is full."""

    def search(_handle: int, number: int, buffer: bytearray) -> None:
        assert (number, len(buffer)) == (backing.TREE_SEARCH, 4096)
        key = list(backing._KEY.unpack_from(buffer))
        chunks = [chunk for chunk in CHUNKS if chunk[0] >= key[3]][:2]
        key[9] = len(chunks)
        answer = backing._KEY.pack(*key)
        for logical, length, kind, offsets in chunks:
            item = backing._CHUNK.pack(length, 2, 65536, kind, 0, 0, 4096, len(offsets), 1)
            item += b"".join(backing._STRIPE.pack(1, offset, b"") for offset in offsets)
            answer += backing._HEADER.pack(7, 256, logical, 228, len(item)) + item
        buffer[:] = answer.ljust(4096, b"\0")

    monkeypatch.setattr(backing.fcntl, "ioctl", search)


@pytest.fixture
def image(tmp_path):
    path = tmp_path / "uppers.btrfs"
    with path.open("wb") as file:
        file.truncate(4096 * MIB)
    return path


def test_all_chunks_of_metadata_are_found_with_their_copies(kernel, tmp_path) -> None:
    assert metadata(str(tmp_path)) == WANTED


def test_each_part_is_allocated_once_and_new_ones_later(
    kernel, image, tmp_path, monkeypatch
) -> None:
    asked = []
    monkeypatch.setattr(backing, "_allocate", lambda _handle, extent: asked.append(extent))
    kept = Backing(str(image), lambda: str(tmp_path), logging.getLogger("x"))
    kept.secure()
    assert asked == sorted([*FIXED, *WANTED])
    kept.secure()
    assert len(asked) == len(FIXED) + len(WANTED)
    monkeypatch.setattr(f"{__name__}.CHUNKS", [*CHUNKS, (3000 * MIB, MIB, METADATA, (3000 * MIB,))])
    kept.secure()
    assert asked[-1] == (3000 * MIB, MIB)


def test_blocks_are_there_afterwards_and_nothing_is_written(kernel, image, tmp_path) -> None:
    with image.open("r+b") as file:
        file.seek(6 * MIB)
        file.write(b"kept")
    Backing(str(image), lambda: str(tmp_path), logging.getLogger("x")).secure()
    status = os.stat(image)
    assert status.st_size == 4096 * MIB
    assert status.st_blocks * 512 >= sum(length for _, length in WANTED)
    with image.open("rb") as file:
        file.seek(6 * MIB)
        assert file.read(8) == b"kept\0\0\0\0"


def test_disk_that_is_full_is_said_once_and_tried_again(
    kernel, image, tmp_path, monkeypatch, caplog
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    kept = Backing(str(image), lambda: str(tmp_path), logging.getLogger("x"))
    with monkeypatch.context() as broken:
        broken.setattr(backing, "_allocate", full)
        kept.secure()
        kept.secure()
    assert len(caplog.records) == 1
    kept.secure()
    assert os.stat(image).st_blocks * 512 >= sum(length for _, length in WANTED)


def test_pool_that_is_not_mounted_now_is_no_trouble(image, tmp_path, caplog) -> None:
    Backing(str(image), lambda: str(tmp_path / "gone"), logging.getLogger("x")).secure()
    assert not caplog.records
