"""Reads through FUSE from a store with knobs (`lazy_stand`)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lazy_stand import MIB, Blob, blob_of, content_of
from skerry.images.format.chunks import Codec


@pytest.fixture(autouse=True)
def can_mount() -> None:
    if os.geteuid() != 0:
        pytest.skip("mounting needs root")
    if not os.path.exists("/dev/fuse"):
        pytest.skip("there is no /dev/fuse")


@pytest.fixture
def blob(tmp_path: Path) -> Blob:
    return blob_of(content_of(10 * MIB + 12_345), Codec.NONE, tmp_path)
