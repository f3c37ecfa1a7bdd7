"""Disks of raw images: what is read of a file with holes, and of one whose disk fails."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from skerry.errors import StorageFailed
from skerry.images.disks.snapshot import file_changes
from skerry.images.format.chunks import CHUNK_BYTES
from skerry.sdk.holes import find_pieces


@pytest.fixture
def sparse(tmp_path: Path) -> Path:
    path = tmp_path / "image"
    with path.open("wb") as file:
        file.seek(3 * CHUNK_BYTES)
        file.write(b"data")
        file.truncate(8 * CHUNK_BYTES)
    return path


def test_only_chunks_with_data_are_given(sparse: Path) -> None:
    assert list(file_changes(str(sparse))) == [(3, b"data".ljust(CHUNK_BYTES, b"\0"))]


def test_disk_that_fails_is_no_hole(sparse: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both would have taken what cannot be read for zeros, and told nobody."""

    def fail(*_: int) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with sparse.open("rb") as file, monkeypatch.context() as patch:
        patch.setattr(os, "lseek", fail)
        with pytest.raises(StorageFailed):
            list(file_changes(str(sparse)))
        with pytest.raises(OSError, match="Input/output error"):
            find_pieces(file.fileno(), 8 * CHUNK_BYTES)
