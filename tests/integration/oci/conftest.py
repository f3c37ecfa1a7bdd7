"""A real registry, whole and closed, a troubled way to it, and the node's part without a node."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from oci_stand import ONE, SHARED, TWO

import registry as registries
from oci_images import Layout
from registry import Registry, Troubled
from skerry.errors import Unavailable
from skerry.images.format.erofs import Tools
from skerry.images.library import ImageLibrary
from skerry.images.oci import skopeo
from skerry.images.oci.images import OciImages
from skerry.images.oci.skopeo import SkopeoLimits
from skerry.images.store.store import DirectoryStore


@pytest.fixture
def needs() -> Iterator[None]:
    """Skips where there can be no registry; what asks for it leaves no notes on this host."""
    if reason := registries.missing():
        pytest.skip(reason)
    before = notes_of_skopeo()
    yield
    assert notes_of_skopeo() == before, "skopeo left notes on this host"


def notes_of_skopeo() -> dict[str, int]:
    found = Path("/var/lib/containers").rglob("*")
    return {str(path): path.stat().st_mtime_ns for path in found}


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[Registry]:
    with registries.running(tmp_path / "registry") as made:
        yield made


@pytest.fixture
def closed(tmp_path: Path) -> Iterator[Registry]:
    with registries.running(tmp_path / "closed", auth=True) as made:
        yield made


@pytest.fixture
def way(registry: Registry) -> Iterator[Troubled]:
    with registries.troubled(registry.port) as made:
        yield made


@pytest.fixture
def library(tmp_path: Path) -> ImageLibrary:
    try:
        Tools().mkfs()
    except Unavailable as error:
        pytest.skip(error.message)
    return ImageLibrary(DirectoryStore(str(tmp_path / "store")), Tools(), str(tmp_path / "scratch"))


@pytest.fixture
def oci(
    library: ImageLibrary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[OciImages]:
    monkeypatch.setattr(skopeo, "_RETRY_PAUSES_S", (0.1, 0.1))
    yield OciImages(
        library, str(tmp_path / "cache"), skopeo_limits=SkopeoLimits(time_s=60, silence_s=20)
    )
    assert sorted(os.listdir(tmp_path / "scratch")) == []
    left = set(os.listdir(tmp_path / "cache")) if (tmp_path / "cache").exists() else set()
    assert left <= {"blobs", ".lock"}, "credentials or layouts were left"


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    made = Layout(tmp_path / "layout")
    made.index(
        made.image(SHARED, ONE, tag="one", Env=["LEVEL=one"], User="1000"),
        made.image(SHARED, TWO, tag="two"),
    )
    return made
