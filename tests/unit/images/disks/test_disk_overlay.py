"""What an overlay has after crashes of the process and of the host."""

from __future__ import annotations

import errno
import gc
import os
import random
from pathlib import Path

import msgspec
import pytest

from skerry.images.disks.overlay import BLOCK_BYTES, Overlay
from skerry.images.disks.state import DiskState, boot_id
from skerry.images.disks.volume import Volume, pieces
from skerry.images.format.diskmap import DiskMap
from skerry.spec.layers import LayerManifest

SIZE = 8 << 20


def block(seed: int, count: int = 1) -> memoryview:
    return memoryview(random.Random(seed).randbytes(count * BLOCK_BYTES))


def marked(overlay: Overlay) -> set[int]:
    return {at for at, mark in enumerate(overlay.marks) if mark}


def test_everything_answered_survives_the_process(tmp_path: Path) -> None:
    overlay = Overlay(str(tmp_path), 0, SIZE)
    overlay.write(3 * BLOCK_BYTES, block(1, 5))
    overlay.zero(100 * BLOCK_BYTES, 2 * BLOCK_BYTES)
    again = Overlay(str(tmp_path), 0, SIZE, same_boot=True)  # the first one never flushed
    assert marked(again) == {3, 4, 5, 6, 7, 100, 101}
    assert os.pread(again.handle, 5 * BLOCK_BYTES, 3 * BLOCK_BYTES) == block(1, 5)
    assert os.pread(again.handle, BLOCK_BYTES, 100 * BLOCK_BYTES) == bytes(BLOCK_BYTES)


def test_after_the_host_stopped_only_what_was_flushed_counts(tmp_path: Path) -> None:
    overlay = Overlay(str(tmp_path), 0, SIZE)
    overlay.write(0, block(1))
    overlay.flush()
    overlay.write(5 * BLOCK_BYTES, block(2))
    again = Overlay(str(tmp_path), 0, SIZE, same_boot=False)
    assert marked(again) == {0}
    # From then on that is what the living marks say too.
    assert marked(Overlay(str(tmp_path), 0, SIZE, same_boot=True)) == {0}
    again.write(6 * BLOCK_BYTES, block(3))
    again.flush()
    assert marked(Overlay(str(tmp_path), 0, SIZE, same_boot=False)) == {0, 6}


def test_marks_reach_the_disk_only_after_their_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    overlay = Overlay(str(tmp_path), 0, SIZE)
    overlay.write(0, block(1))
    steps: list[str] = []
    names = {os.stat(path).st_ino: path.suffix for path in tmp_path.iterdir()}
    sync, write = os.fdatasync, os.pwrite
    monkeypatch.setattr(
        os, "fdatasync", lambda fd: (steps.append(f"sync{names[os.fstat(fd).st_ino]}"), sync(fd))
    )
    monkeypatch.setattr(
        os,
        "pwrite",
        lambda fd, *rest: (steps.append(f"write{names[os.fstat(fd).st_ino]}"), write(fd, *rest))[1],
    )
    overlay.flush()
    assert steps == ["sync.data", "write.safe", "sync.safe"]
    steps.clear()
    overlay.flush()
    assert steps == []  # nothing was written since
    overlay.write(0, block(2))
    overlay.flush()
    assert steps == ["write.data", "sync.data"]  # the mark is there already


def test_flush_that_failed_is_never_taken_for_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    overlay = Overlay(str(tmp_path), 0, SIZE)
    overlay.write(0, block(1))

    def failing(_handle: int) -> None:
        raise OSError(errno.EIO, "it is gone")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fdatasync", failing)
        with pytest.raises(OSError, match="gone"):
            overlay.flush()
    with pytest.raises(OSError, match="earlier flush"):
        overlay.flush()
    assert marked(Overlay(str(tmp_path), 0, SIZE, same_boot=False)) == set()


def test_write_without_room_marks_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    overlay = Overlay(str(tmp_path), 0, SIZE)

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", full)
        with pytest.raises(OSError, match="No space"):
            overlay.write(0, block(1))
    assert marked(overlay) == marked(Overlay(str(tmp_path), 0, SIZE)) == set()


def test_overlays_are_closed_when_nobody_has_them(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    overlay = Overlay(str(tmp_path), 0, SIZE)
    assert len(os.listdir("/proc/self/fd")) == before + 3
    del overlay
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before


def volume_in(place: Path, boot: str) -> Volume:
    manifest = LayerManifest("disk/t:latest", f"sha256:{'0' * 64}", 64, "", "disk")
    disk = DiskState(id="t", node=2, manifest=manifest, boot=boot, overlays=(0,))
    return Volume(str(place), disk, DiskMap(SIZE))


def test_random_operations_read_back_like_a_plain_file(tmp_path: Path) -> None:
    volume = volume_in(tmp_path, boot_id())
    expected = bytearray(SIZE)
    draw = random.Random(7)
    for step in range(300):
        first = draw.randrange(SIZE // BLOCK_BYTES - 40)
        count = draw.randrange(1, 40)
        start, end = first * BLOCK_BYTES, (first + count) * BLOCK_BYTES
        if draw.random() < 0.3:
            volume.view.overlays[0].zero(start, end - start)
            expected[start:end] = bytes(end - start)
        else:
            data = block(step, count)
            volume.view.overlays[0].write(start, data)
            expected[start:end] = data
        if step % 60 == 59:
            volume.freeze(f"disk/t:{step}")
    assert len(volume.view.overlays) == 6
    assert read(volume, 0, SIZE) == expected
    for _ in range(200):
        offset = draw.randrange(SIZE - 1)
        length = min(draw.randrange(1, 300_000), SIZE - offset)
        assert read(volume, offset, length) == expected[offset : offset + length]


def read(volume: Volume, offset: int, length: int) -> bytes:
    parts = []
    end = offset
    for piece in pieces(volume.view, offset, length):
        assert piece.offset == end
        end += piece.length
        if piece.overlay is None:
            parts.append(bytes(piece.length))
        else:
            parts.append(os.pread(piece.overlay.handle, piece.length, piece.offset))
    assert end == offset + length
    return b"".join(parts)


def test_snapshot_that_the_host_lost_is_none_but_its_data_stays(tmp_path: Path) -> None:
    volume = volume_in(tmp_path, "another boot")
    volume.view.overlays[0].write(0, block(1))
    volume.freeze("disk/t:safe")
    volume.make_safe()
    volume.view.overlays[0].write(BLOCK_BYTES, block(2))
    volume.freeze("disk/t:lost")
    volume.view.overlays[1].flush()
    state = volume.state
    assert [one.safe for one in state.frozen] == [True, False]
    after = Volume(str(tmp_path), msgspec.structs.replace(state, boot="before"), DiskMap(SIZE))
    assert [one.name for one in after.state.frozen] == ["disk/t:safe"]
    assert "the host stopped" in after.failures["disk/t:lost"]
    assert read(after, 0, 2 * BLOCK_BYTES) == bytes(block(1)) + bytes(block(2))
