"""An image laid out on disk, for tests that read it."""

from __future__ import annotations

from pathlib import Path

import pytest

from oci_images import Layout


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return Layout(tmp_path / "layout")
