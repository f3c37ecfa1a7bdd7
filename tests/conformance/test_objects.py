"""The contract of the object seam, on every store that can run here."""

from __future__ import annotations

from pathlib import Path

import pytest

from skerry.images.objects.directory import DirectoryObjects
from skerry.testing.objects import ObjectsConformance


class TestLocalDirectory(ObjectsConformance):
    @pytest.fixture
    def objects(self, tmp_path: Path) -> DirectoryObjects:
        return DirectoryObjects(str(tmp_path / "store"))

    @pytest.fixture
    def other(self, objects: DirectoryObjects) -> DirectoryObjects:
        return DirectoryObjects(objects.root)
