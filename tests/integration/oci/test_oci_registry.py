"""Images from a real registry, whole and broken; the node's part without a node."""

from __future__ import annotations

import gzip
import itertools
import os
import threading
from pathlib import Path

import pytest
from oci_stand import BIG, ONE, OPEN, SHARED, TWO, cached, names

from oci_images import Layout, sha256
from registry import Registry, Troubled
from skerry.errors import ImageBroken, InvalidRequest, NotFound, SkerryError, Unavailable
from skerry.images.format.erofs import Tools
from skerry.images.library import ImageLibrary
from skerry.images.oci import skopeo
from skerry.images.oci.images import OciImages
from skerry.images.oci.skopeo import SkopeoLimits
from skerry.images.store.store import DirectoryStore
from skerry.spec.layers import ImageConfig

pytestmark = pytest.mark.usefixtures("needs")


def layer_digest(layout: Layout, plain: bytes) -> str:
    return str(layout.blob(gzip.compress(plain, mtime=0), "")["digest"])


def test_image_of_a_registry_becomes_a_base(
    registry: Registry, oci: OciImages, library: ImageLibrary, layout: Layout, tmp_path: Path
) -> None:
    registry.push(layout.path, "one", "team/app:1")
    said: list[str] = []
    reference = f"{registry.host}/team/app:1"
    made = oci.import_registry("base/app:1", reference, access=OPEN, log=said.append)
    assert made.config == ImageConfig(env={"LEVEL": "one"}, user="1000")
    assert made.recipe["reference"] == reference
    assert names(library, "app:1", tmp_path) == {b"", b"etc", b"etc/shared", b"one"}
    assert any("Copying blob" in line for line in said)
    assert any(line.startswith("layer 2 of 2") for line in said)


def test_layers_that_images_share_are_fetched_once(
    registry: Registry, way: Troubled, oci: OciImages, layout: Layout
) -> None:
    for tag in ("one", "two"):
        registry.push(layout.path, tag, f"app:{tag}")
    oci.import_registry("base/app:one", f"{way.host}/app:one", access=OPEN)
    assert way.received > len(BIG)
    way.received = 0
    oci.import_registry("base/app:two", f"{way.host}/app:two", access=OPEN)
    assert way.received < len(BIG) // 10


def test_list_of_platforms_gives_the_one_that_is_asked_for(
    registry: Registry, oci: OciImages, library: ImageLibrary, tmp_path: Path
) -> None:
    layout = Layout(tmp_path / "many")
    images = [
        layout.image(TWO, tag=None, platform="linux/arm64"),
        layout.image(ONE, tag=None, platform="linux/amd64"),
    ]
    tag = {"org.opencontainers.image.ref.name": "many"}
    layout.index(layout.nested(*images, annotations=tag))
    registry.push(layout.path, "many", "many:1")
    reference = f"{registry.host}/many:1"
    oci.import_registry("base/amd", reference, access=OPEN, platform="linux/amd64")
    oci.import_registry("base/arm", reference, access=OPEN, platform="linux/arm64")
    assert b"one" in names(library, "base/amd", tmp_path)
    assert b"two" in names(library, "base/arm", tmp_path)
    with pytest.raises(NotFound, match="choose one with platform"):
        oci.import_registry("base/x", reference, access=OPEN, platform="linux/s390x")


def test_interrupted_download_is_taken_up_again(
    registry: Registry, way: Troubled, oci: OciImages, layout: Layout
) -> None:
    registry.push(layout.path, "one", "app:1")
    way.cuts = [100_000, 100_000]
    said: list[str] = []
    oci.import_registry("base/app", f"{way.host}/app:1", access=OPEN, log=said.append)
    assert way.cuts == []
    assert any(line.startswith("trying again") for line in said)


def test_download_that_is_interrupted_each_time_leaves_nothing_torn(
    registry: Registry, way: Troubled, oci: OciImages, layout: Layout, tmp_path: Path
) -> None:
    registry.push(layout.path, "one", "app:1")
    way.cuts = [100_000] * 100
    with pytest.raises(Unavailable, match="cannot copy"):
        oci.import_registry("base/app", f"{way.host}/app:1", access=OPEN)
    assert not list((tmp_path / "store").rglob("*.json"))
    for blob in cached(tmp_path).iterdir():
        assert sha256(blob.read_bytes()) == f"sha256:{blob.name}"
    way.cuts = []
    oci.import_registry("base/app", f"{way.host}/app:1", access=OPEN)


@pytest.mark.usefixtures("oci")  # for its short pauses
def test_registry_that_falls_silent_ends_the_import_in_bounded_time(
    registry: Registry, way: Troubled, library: ImageLibrary, layout: Layout, tmp_path: Path
) -> None:
    registry.push(layout.path, "one", "app:1")
    way.hold = True
    limits = SkopeoLimits(time_s=60, silence_s=1.5)
    oci = OciImages(library, str(tmp_path / "cache"), skopeo_limits=limits)
    said: list[str] = []
    with pytest.raises(Unavailable, match=r"nothing came from the registry for 1\.5 s"):
        oci.import_registry("base/app", f"{way.host}/app:1", access=OPEN, log=said.append)
    # The time is bounded by the silence of each try and by their number.
    assert len([line for line in said if line.startswith("trying again")]) == 2
    assert not skopeo_is_left(tmp_path)


def skopeo_is_left(tmp_path: Path) -> bool:
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            words = Path(f"/proc/{name}/cmdline").read_bytes()
        except OSError:
            continue
        if b"skopeo" in words and str(tmp_path).encode() in words:
            return True
    return False


def test_import_beyond_its_bounds_is_ended(
    registry: Registry, library: ImageLibrary, layout: Layout, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(skopeo, "_POLL_S", 0.001)
    registry.push(layout.path, "one", "app:1")
    limits = SkopeoLimits(bytes_max=1 << 20)
    oci = OciImages(library, str(tmp_path / "cache"), skopeo_limits=limits)
    with pytest.raises(InvalidRequest, match="larger than 1048576 bytes"):
        oci.import_registry("base/app", f"{registry.host}/app:1", access=OPEN)


@pytest.mark.parametrize("damage", ["flip", "cut", "delete"])
def test_blob_that_the_registry_damaged_is_refused(
    registry: Registry, oci: OciImages, library: ImageLibrary, layout: Layout, damage: str
) -> None:
    registry.push(layout.path, "one", "app:1")
    blob = registry.blob(layer_digest(layout, SHARED))
    data = blob.read_bytes()
    if damage == "flip":
        blob.write_bytes(data[:1000] + bytes([data[1000] ^ 1]) + data[1001:])
    elif damage == "cut":
        blob.write_bytes(data[:-1000])
    else:
        blob.unlink()
    with pytest.raises((Unavailable, ImageBroken)) as error:
        oci.import_registry("base/app", f"{registry.host}/app:1", access=OPEN)
    assert "again" in error.value.fields or isinstance(error.value, ImageBroken)
    assert library.list() == ()
    blob.parent.mkdir(exist_ok=True, parents=True)
    blob.write_bytes(data)
    oci.import_registry("base/app", f"{registry.host}/app:1", access=OPEN)


@pytest.mark.parametrize(
    "which",
    list(itertools.product(["layer", "config", "manifest"], ["flip", "empty"])),
    ids=" ".join,
)
def test_blob_that_went_bad_in_the_cache_is_fetched_again(
    registry: Registry, oci: OciImages, layout: Layout, tmp_path: Path, which: tuple[str, str]
) -> None:
    what, damage = which
    registry.push(layout.path, "one", "app:1")
    reference = f"{registry.host}/app:1"
    first = oci.import_registry("base/app", reference, access=OPEN)
    by_size = sorted(cached(tmp_path).iterdir(), key=lambda path: path.stat().st_size)
    kinds = {b"rootfs": "config", b'"layers"': "manifest"}
    for path in by_size:
        data = path.read_bytes()
        kind = next((kind for mark, kind in kinds.items() if mark in data), "layer")
        if kind == what:
            middle = len(data) // 2
            bad = data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]
            path.write_bytes(bad if damage == "flip" else b"")
    said: list[str] = []
    assert (
        oci.import_registry("base/app", reference, access=OPEN, log=said.append).digest
        == first.digest
    )
    for path in cached(tmp_path).iterdir():
        assert sha256(path.read_bytes()) == f"sha256:{path.name}"


def test_cache_keeps_within_its_bound_and_drops_the_oldest(
    registry: Registry, library: ImageLibrary, layout: Layout, tmp_path: Path
) -> None:
    for tag in ("one", "two"):
        registry.push(layout.path, tag, f"app:{tag}")
    oci = OciImages(library, str(tmp_path / "cache"), cache_bytes=len(BIG) // 2)
    for tag in ("one", "two"):
        oci.import_registry(f"base/app:{tag}", f"{registry.host}/app:{tag}", access=OPEN)
        assert sum(path.stat().st_size for path in cached(tmp_path).iterdir()) <= len(BIG) // 2


def test_two_imports_of_one_image_at_once_both_succeed(
    registry: Registry, oci: OciImages, library: ImageLibrary, layout: Layout
) -> None:
    registry.push(layout.path, "one", "app:1")
    made, errors = [], []

    def work(name: str) -> None:
        try:
            made.append(oci.import_registry(name, f"{registry.host}/app:1", access=OPEN))
        except SkerryError as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(f"base/app:{at}",)) for at in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert len({one.digest for one in made}) == 1


def test_two_nodes_that_import_one_image_at_once_make_one_layer(
    registry: Registry, layout: Layout, tmp_path: Path
) -> None:
    """Each with scratch and cache of its own, on one store."""
    registry.push(layout.path, "one", "app:1")
    store, made = str(tmp_path / "store"), []

    def node(at: int) -> None:
        library = ImageLibrary(DirectoryStore(store), Tools(), str(tmp_path / f"scratch{at}"))
        oci = OciImages(library, str(tmp_path / f"cache{at}"))
        made.append(oci.import_registry("base/app:1", f"{registry.host}/app:1", access=OPEN))

    threads = [threading.Thread(target=node, args=(at,)) for at in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 3
    [digest] = {one.digest for one in made}
    library = ImageLibrary(DirectoryStore(store), Tools(), str(tmp_path / "scratch"))
    assert [one.digest for one in library.list()] == [digest]
    assert names(library, "app:1", tmp_path) == {b"", b"etc", b"etc/shared", b"one"}
