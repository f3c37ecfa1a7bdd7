"""The contract of the object seam, on every store that can run here."""

from __future__ import annotations

from pathlib import Path

import pytest

from s3_place import s3_options
from skerry.images.objects.directory import DirectoryObjects
from skerry.images.objects.s3 import S3Objects
from skerry.testing.objects import ObjectsConformance


class TestLocalDirectory(ObjectsConformance):
    @pytest.fixture
    def objects(self, tmp_path: Path) -> DirectoryObjects:
        return DirectoryObjects(str(tmp_path / "store"))

    @pytest.fixture
    def other(self, objects: DirectoryObjects) -> DirectoryObjects:
        return DirectoryObjects(objects.root)


class TestS3(ObjectsConformance):
    """Against a real server; both clients have connections of their own."""

    large_bytes = 21 << 20  # in parts

    @pytest.fixture
    def objects(self, s3_server, tmp_path: Path) -> S3Objects:
        options = s3_options(s3_server, tmp_path)
        return S3Objects(f"s3://{s3_server.bucket}/{tmp_path.name}", options)

    @pytest.fixture
    def other(self, objects: S3Objects) -> S3Objects:
        return S3Objects(objects.where, objects.options)
