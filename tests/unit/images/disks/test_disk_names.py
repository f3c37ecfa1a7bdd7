"""A disk is no layer of a root file system, and nothing that makes layers makes one."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pytest

from skerry.errors import Conflict, InvalidRequest, NotFound
from skerry.images.disks.config import ServiceConfig, holder_of
from skerry.images.disks.library import Disks
from skerry.images.disks.local import DIRECTORIES, bring, read_map, tidy
from skerry.images.disks.state import check_id
from skerry.images.format.erofs import Tools
from skerry.images.library import ImageLibrary
from skerry.spec.layers import commit_name, disk_name

CHUNK = 256 << 10


@pytest.fixture
def disks(tmp_path: Path) -> Disks:
    root, store = str(tmp_path / "disks"), str(tmp_path / "store")
    return Disks(ServiceConfig(root=root, store=store, holder="t"))


def test_disk_is_refused_wherever_a_layer_is_meant(disks: Disks, tmp_path: Path) -> None:
    disks.create("d", CHUNK)
    library = ImageLibrary(disks.store, Tools(), str(tmp_path / "scratch"))
    for names in (["disk/d"], ["base/none", "disk/d"]):
        with pytest.raises(InvalidRequest, match="no layer of a root"):
            library.resolve(names)
    with pytest.raises(InvalidRequest, match="skerry disk create"):
        library.import_tar("disk/d", io.BytesIO())
    with pytest.raises(InvalidRequest):
        commit_name("disk/d")
    with pytest.raises(InvalidRequest):
        disk_name("workspace/d")


def test_image_of_a_file_is_stored_without_its_zeros(disks: Disks, tmp_path: Path) -> None:
    source = tmp_path / "raw"
    with source.open("wb") as file:
        file.write(b"a" * 700)
        file.seek(40 * CHUNK)
        file.write(bytes(CHUNK))  # zeros that are no hole
        file.write(b"end")
    made = disks.create("disk/raw:1", 50 * CHUNK, source=str(source))
    assert (made.disk_bytes, made.data_bytes) == (50 * CHUNK, 2 * CHUNK)
    assert disks.find("raw:1") == made
    assert [one.name for one in disks.list()] == ["disk/raw:1"]
    assert disks.flatten("raw:1") == made  # it is one blob
    with pytest.raises(Conflict):
        disks.create("raw:1", CHUNK)
    with pytest.raises(NotFound):
        disks.find("raw:2")
    with pytest.raises(InvalidRequest):
        disks.create("nothing", 0)


def test_verify_finds_a_flipped_bit_in_a_disk(disks: Disks, tmp_path: Path) -> None:
    source = tmp_path / "raw"
    source.write_bytes(b"a" * 700)
    made = disks.create("v", source=str(source))
    library = ImageLibrary(disks.store, Tools(), str(tmp_path / "scratch"))
    assert library.verify("disk/v").damage == ()
    for digest, suffix, part in ((made.data_digest, ".zst", "data"), (made.digest, "", "metadata")):
        digits = str(digest).removeprefix("sha256:")
        path = tmp_path / "store" / "blobs" / "sha256" / digits[:2] / f"{digits}{suffix}"
        content = path.read_bytes()
        path.chmod(0o600)
        path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        assert part in {one.part for one in library.verify("disk/v").damage}
        path.write_bytes(content)
    assert library.verify("disk/v").damage == ()


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "A", "-a", "a..b", "a" * 64, "a\n", "ä"])
def test_names_of_open_disks_that_are_none(name: str) -> None:
    with pytest.raises(InvalidRequest):
        check_id(name)


def test_directory_of_disks_keeps_its_name(tmp_path: Path) -> None:
    first = holder_of(str(tmp_path / "a"))
    assert holder_of(str(tmp_path / "a")) == first != holder_of(str(tmp_path / "b"))
    with pytest.raises(InvalidRequest):
        ServiceConfig(root=str(tmp_path), store=str(tmp_path), holder="../x").check()


def test_maps_and_lists_go_when_no_open_disk_needs_them(disks: Disks, tmp_path: Path) -> None:
    source = tmp_path / "raw"
    found = []
    root = tmp_path / "disks"
    for name in DIRECTORIES:
        (root / name).mkdir(parents=True, exist_ok=True)
    for number in range(3):
        source.write_bytes(bytes([number + 1]) * 700)
        found.append(disks.create(f"t:{number}", source=str(source)))
        bring(disks.store, str(root), found[-1].digest)
    files = sorted([*(root / "maps").iterdir(), *(root / "lists").iterdir()])
    assert len(files) == 6
    tidy(str(root), {found[0].digest})
    assert all(path.exists() for path in files)  # they are young
    for path in files:
        os.utime(path, (0, 0))
    tidy(str(root), {found[0].digest, f"sha256:{'0' * 64}"})
    assert all(path.exists() for path in files)  # what one disk needs is not known
    tidy(str(root), {found[0].digest})
    left = [path for path in files if path.exists()]
    assert len(left) == 2
    assert read_map(str(root), found[0].digest).blobs
