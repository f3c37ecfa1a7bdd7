"""Reading images: which one is meant, and what is in it."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest
from images_archives import make_tar, member
from oci_reading import AMD, ONE, TWO, bundle_of, contents, read, unpack

from oci_images import DOCKER, PACKS, Layout, config_of, docker_archive, sha256
from skerry.errors import InvalidRequest, NotFound
from skerry.images.archives.tarimport import ImportLimits
from skerry.images.oci.bundle import ArchiveBundle
from skerry.images.oci.choose import choose, parse_platform
from skerry.images.scratch import Spool
from skerry.images.tree.entry import OPAQUE


@pytest.mark.parametrize("pack", PACKS)
def test_layers_of_each_packing_are_laid_over_each_other(
    layout: Layout, spool: Spool, pack: str
) -> None:
    layout.index(layout.image(ONE, TWO, pack=pack))
    assert read(layout, spool) == {"etc/two": b"22"}


@pytest.mark.parametrize("pack", PACKS)
def test_packing_is_told_by_the_bytes_and_not_by_the_media_type(
    layout: Layout, spool: Spool, pack: str
) -> None:
    raw = PACKS[pack](ONE)
    manifest = {
        "config": layout.document(config_of([ONE]), f"{DOCKER}container.image.v1+json"),
        "layers": [layout.blob(raw, f"{DOCKER}image.rootfs.diff.tar.gzip")],
    }
    layout.index(layout.document(manifest, f"{DOCKER}distribution.manifest.v2+json"))
    assert read(layout, spool) == {"etc/one": b"1"}


def test_127_layers_with_whiteouts_and_links_become_one(layout: Layout, spool: Spool) -> None:
    tars = [make_tar(member("d", type=tarfile.DIRTYPE, mode=0o1777), member("d/f0", b"0"))]
    tars += [
        make_tar(
            member(f"d/f{at}", b"%d" % at),
            member(f"d/link{at}", type=tarfile.LNKTYPE, linkname=f"d/f{at - 1}"),
            member(f"d/.wh.link{at - 1}"),
        )
        for at in range(1, 127)
    ]
    layout.index(layout.image(*tars))
    bundle = bundle_of(layout)
    [tree] = unpack(bundle, choose(bundle, None, AMD), spool).trees
    assert tree.find(b"d").mode == 0o1777
    files = contents(spool, tree)
    assert {name for name in files if "link" in name} == {"d/link126"}
    assert [files[f"d/f{at}"] for at in range(127)] == [b"%d" % at for at in range(127)]
    assert tree.find(b"d/link126") is tree.find(b"d/f125")


def test_opaque_directories_and_odd_names_go_through_the_layers(
    layout: Layout, spool: Spool
) -> None:
    lower = make_tar(
        member("d/old", b"1"),
        member("k/stay", b"2"),
        member("n\udcff", b"3"),
        member("s", b"4", mode=0o4755),
        member("link", type=tarfile.SYMTYPE, linkname="d"),
    )
    upper = make_tar(
        member("d/.wh..wh..opq"),
        member("d/new", b"5"),
        member("k/more", b"6"),
        member("dev", type=tarfile.CHRTYPE),
        member("link/f", b"7"),
    )
    layout.index(layout.image(lower, upper))
    bundle = bundle_of(layout)
    [tree] = unpack(bundle, choose(bundle, None, AMD), spool).trees
    files = contents(spool, tree)
    assert files == {
        "d/new": b"5", "k/stay": b"2", "k/more": b"6", "n\udcff": b"3", "s": b"4", "link/f": b"7",
    }  # fmt: skip
    assert tree.find(b"s").mode == 0o4755
    assert OPAQUE in tree.find(b"link").xattrs  # a directory that took a link's place


def test_empty_layer_without_end_mark_is_taken(layout: Layout, spool: Spool) -> None:
    layout.index(layout.image(ONE, bytes(1024), make_tar(member("x", b"1"))[:1024]))
    assert read(layout, spool) == {"etc/one": b"1", "x": b"1"}


def test_docker_archive_is_read_with_its_links(tmp_path: Path, spool: Spool) -> None:
    archive = docker_archive(ONE, TWO, ONE, Env=["A=b"])
    bundle = ArchiveBundle(io.BytesIO(archive), spool, ImportLimits())
    image = choose(bundle, "app:1", AMD)
    [tree] = unpack(bundle, image, spool).trees
    assert contents(spool, tree) == {"etc/two": b"22", "etc/one": b"1"}
    assert choose(bundle, None, AMD) == choose(bundle, "1", AMD) == image
    with pytest.raises(NotFound, match="there are: app:1"):
        choose(bundle, "2", AMD)


@pytest.mark.parametrize("pack", PACKS)
def test_layout_as_archive_is_read_the_same(layout: Layout, spool: Spool, pack: str) -> None:
    layout.index(layout.image(ONE, TWO))
    packed = PACKS[pack](layout.tar())
    bundle = ArchiveBundle(io.BytesIO(packed), spool, ImportLimits())
    [tree] = unpack(bundle, choose(bundle, "latest", AMD), spool).trees
    assert contents(spool, tree) == {"etc/two": b"22"}


def test_platform_is_chosen_in_nested_lists(layout: Layout, spool: Spool) -> None:
    arm = layout.image(TWO, tag=None, platform="linux/arm64")
    amd = layout.image(ONE, tag=None, platform="linux/amd64")
    record = layout.image(TWO, tag=None, platform="unknown/unknown")
    lost = {**amd, "digest": sha256(b"lost"), "platform": {"os": "linux", "architecture": "s390x"}}
    layout.index(layout.nested(layout.nested(arm, lost, record, amd)))
    bundle = bundle_of(layout)
    assert choose(bundle, None, AMD).digest == amd["digest"]
    assert choose(bundle, None, parse_platform("linux/arm64")).digest == arm["digest"]
    with pytest.raises(NotFound, match="there are: linux/amd64, linux/arm64"):
        choose(bundle, None, parse_platform("linux/riscv64"))


def test_image_for_another_machine_is_refused_by_its_config(layout: Layout) -> None:
    layout.index(layout.image(ONE, config=config_of([ONE], "linux/arm64")))
    with pytest.raises(NotFound, match="made for linux/arm64, not for linux/amd64"):
        choose(bundle_of(layout), None, AMD)


def test_one_of_several_images_is_named_by_its_tag(layout: Layout) -> None:
    first, second = layout.image(ONE, tag="a"), layout.image(TWO, tag="host:1/x:b")
    layout.index(first, second)
    bundle = bundle_of(layout)
    assert choose(bundle, "a", AMD).digest == first["digest"]
    assert choose(bundle, "b", AMD).digest == second["digest"]
    with pytest.raises(InvalidRequest, match="there are: a, host:1/x:b"):
        choose(bundle, None, AMD)
    with pytest.raises(NotFound, match="no image 'c'"):
        choose(bundle, "c", AMD)


@pytest.mark.parametrize("text", ["", "linux", "linux/", "Linux/amd64", "linux/amd64/v8/x", "../x"])
def test_odd_platform_is_an_invalid_request(text: str) -> None:
    with pytest.raises(InvalidRequest, match="platform"):
        parse_platform(text)
