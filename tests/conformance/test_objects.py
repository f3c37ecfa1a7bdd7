"""The contract of the object seam, on every store that can run here."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from s3_place import s3_options
from skerry.images.objects.directory import DirectoryObjects
from skerry.images.objects.s3 import S3Objects
from skerry.testing import filesystems
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


@pytest.fixture(scope="module")
def profile_of_3fs(tmp_path_factory) -> Iterator[list[str]]:
    if reason := filesystems.missing():
        pytest.skip(reason)
    with filesystems.shim(tmp_path_factory.mktemp("3fs") / "x", 1.5) as places:
        yield places


@pytest.fixture(scope="module")
def juicefs(tmp_path_factory) -> Iterator[list[str]]:
    if reason := filesystems.missing("juicefs"):
        pytest.skip(reason)
    with filesystems.juicefs(tmp_path_factory.mktemp("juice") / "x", 1.5) as places:
        yield places


@pytest.fixture(scope="module")
def seaweedfs(s3_server, tmp_path_factory) -> Iterator[list[str]]:
    if reason := filesystems.missing("weed"):
        pytest.skip(reason)
    with filesystems.seaweedfs(tmp_path_factory.mktemp("weed") / "x", s3_server) as places:
        yield places


class Shared(ObjectsConformance):
    """Two mounts, on one host here as on two; each test has a directory of its own."""

    mounts = ""

    @pytest.fixture
    def clients(self, request, tmp_path: Path) -> list[DirectoryObjects]:
        places = request.getfixturevalue(self.mounts)
        return [DirectoryObjects(f"{place}/{tmp_path.name}", lag_s=30.0) for place in places]

    @pytest.fixture
    def objects(self, clients: list[DirectoryObjects]) -> DirectoryObjects:
        return clients[0]

    @pytest.fixture
    def other(self, clients: list[DirectoryObjects]) -> DirectoryObjects:
        return clients[1]


@pytest.mark.root
class TestProfileOf3fs(Shared):
    mounts = "profile_of_3fs"
    patience_s = 5.0


@pytest.mark.root
class TestJuiceFs(Shared):
    mounts = "juicefs"
    patience_s = 10.0


@pytest.mark.root
class TestSeaweedFs(Shared):
    mounts = "seaweedfs"
    patience_s = 30.0
    # Its link() is decided by each mount. Of equal bytes it does not matter which stay.
    exclusive = False
