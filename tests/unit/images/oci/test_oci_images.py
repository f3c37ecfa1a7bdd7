"""Imports and collapses into a library, with real EROFS blobs."""

from __future__ import annotations

import io
import os
import random
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from images_archives import make_tar, member

from oci_images import Layout, docker_archive
from skerry.errors import ImageBroken, InvalidRequest, LayerDamaged, NotFound
from skerry.images.archives.tarimport import ImportLimits
from skerry.images.format.erofs import Tools
from skerry.images.format.erofsread import FileSource, read_image
from skerry.images.library import ImageLibrary
from skerry.images.oci.bundle import DirectoryBundle
from skerry.images.oci.choose import choose, parse_platform
from skerry.images.oci.images import THRESHOLD_MIN, OciImages
from skerry.images.oci.write import LayoutWriter
from skerry.images.scratch import Spool
from skerry.images.store.opened import read_layer
from skerry.images.store.store import DirectoryStore
from skerry.images.tree.entry import BELOW, OPAQUE, Node, Tree
from skerry.images.tree.merge import find_merged
from skerry.spec.files import FileType
from skerry.spec.layers import ImageConfig, LayerManifest

AMD = parse_platform("linux/amd64")
RANDOM = random.Random(5).randbytes(900_000)
LOWER = make_tar(
    member("tmp", type=tarfile.DIRTYPE, mode=0o1777),
    member("d/old", RANDOM), member("d/keep", b"keep", mode=0o4711, uid=7),
    member("hard", type=tarfile.LNKTYPE, linkname="d/keep"), member("n\udcff", b"odd"),
)  # fmt: skip
UPPER = make_tar(
    member("tmp/f", b"f"), member("d/.wh.old"), member("d/new", RANDOM[::-1]),
    member("again", type=tarfile.LNKTYPE, linkname="d/keep"), member("o/.wh..wh..opq"),
)  # fmt: skip

ALONE = make_tar(
    member("tmp/f", b"f"), member("d/.wh.old"), member("d/new", RANDOM[::-1]),
    member("again", type=tarfile.LNKTYPE, linkname="d/new"), member("o/.wh..wh..opq"),
)  # fmt: skip


@pytest.fixture
def oci(library: ImageLibrary, tmp_path: Path) -> OciImages:
    return OciImages(library, str(tmp_path / "cache"))


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    made = Layout(tmp_path / "layout")
    made.index(made.image(LOWER, UPPER, Env=["A=b"], WorkingDir="/work"))
    return made


def trees(library: ImageLibrary, manifest: LayerManifest, spool: Spool, place: Path) -> list[Tree]:
    limits = ImportLimits()
    return [read_layer(library.store, one, str(place), spool, limits) for one in manifest.layers()]


def import_layout(
    oci: OciImages, layout: Layout, name: str = "base/app:1", **more
) -> LayerManifest:
    return oci.import_archive(name, io.BytesIO(layout.tar()), **more)


def test_image_becomes_one_base_with_its_config(
    oci: OciImages, library: ImageLibrary, layout: Layout, spool: Spool, tmp_path: Path
) -> None:
    said: list[str] = []
    made = import_layout(oci, layout, log=said.append)
    assert made == library.inspect("app:1")
    assert made.config == ImageConfig(env={"A": "b"}, workdir="/work")
    assert made.parts == ()
    assert made.creator == "oci"
    assert made.recipe["image_layers"] == "2"
    assert [line for line in said if line.startswith("layer 2 of 2")]
    [tree] = trees(library, made, spool, tmp_path)
    assert tree.find(b"tmp").mode == 0o1777
    assert tree.find(b"d/keep") is tree.find(b"hard") is tree.find(b"again")
    assert tree.find(b"work").mode == 0o755
    assert tree.find(b"d/old") is None
    assert not any(
        entry.node.type is FileType.CHARACTER or OPAQUE in entry.node.xattrs
        for entry in tree.entries(None)
    )


def test_same_image_from_layout_and_docker_archive_is_the_same_layer(
    oci: OciImages, layout: Layout
) -> None:
    first = import_layout(oci, layout)
    archive = docker_archive(LOWER, UPPER, Env=["A=b"], WorkingDir="/work")
    second = oci.import_archive("base/other", io.BytesIO(archive), tag="app:1")
    assert first.digest == second.digest


def test_toolkit_keeps_whiteouts(
    oci: OciImages, library: ImageLibrary, layout: Layout, spool: Spool, tmp_path: Path
) -> None:
    made = import_layout(oci, layout, "toolkit/app")
    [tree] = trees(library, made, spool, tmp_path)
    assert tree.find(b"d/old").type is FileType.CHARACTER
    assert OPAQUE in tree.find(b"o").xattrs


def test_large_image_is_a_base_of_parts_that_live_and_go_together(
    oci: OciImages, library: ImageLibrary, layout: Layout, spool: Spool, tmp_path: Path
) -> None:
    made = import_layout(oci, layout, threshold=THRESHOLD_MIN)
    [part] = made.parts
    assert part.data_digest
    assert not part.parts
    plan = library.plan(library.resolve(["app:1"]))
    assert [layer.digest for layer in plan.layers] == [part.digest, made.digest]
    lower, upper = trees(library, made, spool, tmp_path)
    assert lower.find(b"d/old") is not None
    assert find_merged([upper, lower], b"d/old") is None
    assert find_merged([upper, lower], b"tmp").mode == 0o1777
    assert upper.find(b"again") is upper.find(b"d/keep")  # both names are the upper part's now
    assert library.collect().removed == ()
    assert library.resolve(["app:1"]) == (made,)
    library.remove("app:1")
    library.collect()
    assert list(library.store.list()) == []


def test_digest_of_a_base_of_parts_stands_for_all_of_them(
    oci: OciImages, layout: Layout, tmp_path: Path
) -> None:
    first = import_layout(oci, layout, threshold=THRESHOLD_MIN)
    other = Layout(tmp_path / "other")
    lower = make_tar(member("tmp", type=tarfile.DIRTYPE, mode=0o1777), member("d/old", RANDOM),
                     member("d/keep", b"keep", mode=0o4711, uid=7), member("more", b"more"))  # fmt: skip
    other.index(other.image(lower, UPPER, Env=["A=b"], WorkingDir="/work"))
    second = import_layout(oci, other, "base/other:1", threshold=THRESHOLD_MIN)
    assert first.parts[0].digest != second.parts[0].digest
    assert first.digest != second.digest
    assert first.data_digest == second.data_digest  # what is in the upper part is the same


def test_failed_import_leaves_nothing(
    oci: OciImages,
    store: DirectoryStore,
    layout: Layout,
    tmp_path: Path,
    files_of: Callable[[DirectoryStore], list[str]],
) -> None:
    archive = layout.tar()
    for broken in (
        archive[: len(archive) // 2],
        archive.replace(b"diff_ids", b"diff_idz"),
        b"x" * 99,
    ):
        with pytest.raises(ImageBroken):
            oci.import_archive("base/app:1", io.BytesIO(broken))
    with pytest.raises(NotFound):
        import_layout(oci, layout, tag="missing")
    with pytest.raises(InvalidRequest, match="threshold"):
        import_layout(oci, layout, threshold=1)
    with pytest.raises(InvalidRequest, match="name"):
        import_layout(oci, layout, "Base/APP")
    assert files_of(store) == []
    assert os.listdir(tmp_path / "scratch") == []


def test_import_stops_where_mkfs_cannot_go_on(
    store: DirectoryStore, layout: Layout, tmp_path: Path, files_of
) -> None:
    fake = tmp_path / "mkfs.erofs"
    fake.write_text(
        "#!/bin/sh\ncase $1 in --version) echo 'mkfs.erofs (erofs-utils) 1.8.6'; exit;; "
        "--help) echo lz4; exit;; esac\ncat >/dev/null; exit 1\n"
    )
    fake.chmod(0o755)
    tools, scratch = Tools(str(tmp_path / "c"), str(fake)), str(tmp_path / "scratch")
    library = ImageLibrary(store, tools, scratch, compression="lz4")  # one blob: mkfs makes it
    with pytest.raises(ImageBroken, match="refuses"):
        import_layout(OciImages(library, str(tmp_path / "cache")), layout)
    assert files_of(store) == []


# --- collapse ---


def layered(library: ImageLibrary) -> None:
    library.import_tar("base/b:1", io.BytesIO(LOWER))
    library.import_tar("workspace/w:1", io.BytesIO(ALONE))
    library.import_tar("toolkit/t:1", io.BytesIO(make_tar(member("d/.wh.new"), member("t", b"t"))))


def test_collapse_shows_what_its_layers_showed(
    oci: OciImages, library: ImageLibrary, spool: Spool, tmp_path: Path
) -> None:
    layered(library)
    names = ["b:1", "workspace/w:1", "toolkit/t:1"]
    before = [
        tree for name in names for tree in trees(library, library.inspect(name), spool, tmp_path)
    ]
    base = oci.collapse(names, "base/all:1")
    [tree] = trees(library, base, spool, tmp_path)
    for entry in tree.entries(None):
        there = find_merged(reversed(before), entry.path)
        assert there is not None, entry.path
        assert (there.type, there.mode, there.uid) == (
            entry.node.type,
            entry.node.mode,
            entry.node.uid,
        )
        assert there.content is None or there.content.sha256 == entry.node.content.sha256
    assert tree.find(b"d/new") is None
    assert base.recipe["layers"].count("@sha256:") == 3
    upper = oci.collapse(names[1:], "workspace/both:1")
    [tree] = trees(library, upper, spool, tmp_path)
    assert {
        path for path in (b"d/old", b"d/new") if tree.find(path).type is FileType.CHARACTER
    } == {
        b"d/old",
        b"d/new",
    }
    assert oci.collapse(names, "base/all:1").digest == base.digest


def test_collapse_up_to_a_threshold_makes_parts_and_collapsing_again_joins_them(
    oci: OciImages, library: ImageLibrary, spool: Spool, tmp_path: Path
) -> None:
    layered(library)
    names = ["b:1", "workspace/w:1", "toolkit/t:1"]
    parts = oci.collapse(names, "base/parts:1", threshold=THRESHOLD_MIN)
    assert len(parts.parts) == 1
    once = oci.collapse(names, "base/once:1")
    joined = oci.collapse(["base/parts:1"], "base/joined:1")
    assert not joined.parts
    assert joined.digest == once.digest
    [tree] = trees(library, joined, spool, tmp_path)
    assert BELOW not in tree.root.xattrs


@pytest.mark.parametrize(
    ("names", "into"),
    [
        (["b:1", "workspace/w:1"], "workspace/x"),
        (["workspace/w:1"], "base/x"),
        (["b:1", "b:1"], "base/x"),
        ([], "base/x"),
    ],
)
def test_collapse_of_what_does_not_fit_is_refused(
    oci: OciImages, library: ImageLibrary, names: list[str], into: str
) -> None:
    layered(library)
    with pytest.raises(InvalidRequest):
        oci.collapse(names, into)


def test_collapse_of_damaged_blobs_is_the_stores_fault(
    oci: OciImages, library: ImageLibrary, store: DirectoryStore
) -> None:
    layered(library)
    manifest = library.inspect("b:1")
    for digest in sorted(manifest.blobs()):
        path = Path(store.path(digest))
        whole = path.read_bytes()
        path.chmod(0o644)
        at = len(whole) // 2
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises(LayerDamaged):
            oci.collapse(["b:1"], "base/x")
        path.write_bytes(whole)
    oci.collapse(["b:1"], "base/x")


# --- writing images ---


def test_written_image_gives_the_same_tree_again(
    oci: OciImages, library: ImageLibrary, spool: Spool, tmp_path: Path
) -> None:
    """A push without a registry: what is written is read back as any other image."""
    layered(library)
    writer = LayoutWriter(str(tmp_path / "out"))
    [tree] = trees(library, library.inspect("workspace/w:1"), spool, tmp_path)
    config = ImageConfig({"A": "b"}, "/w", "1:2", ("e",), ("c",), {"l": "m"})
    before = tree.identity()
    writer.add(tree, spool)
    writer.finish(config, AMD)
    bundle = DirectoryBundle(str(tmp_path / "out"))
    assert choose(bundle, "image", AMD).config.os == "linux"
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        tar.add(tmp_path / "out", ".")
    again = oci.import_archive("workspace/again:1", io.BytesIO(out.getvalue()))
    [tree] = trees(library, again, spool, tmp_path)
    assert tree.find(b"w") is not None
    del tree.root.children[b"w"]  # the working directory, which an import makes
    assert tree.identity() == before
    assert again.config == config


def test_file_named_like_a_whiteout_cannot_be_written(spool: Spool, tmp_path: Path) -> None:
    tree = Tree()
    tree.put(b"d/.wh.x", Node(FileType.FILE, 0o644))
    with pytest.raises(ImageBroken, match="such a name"):
        LayoutWriter(str(tmp_path / "out")).add(tree, spool)


def test_metadata_read_back_needs_its_data(
    library: ImageLibrary, store: DirectoryStore, spool: Spool
) -> None:
    layered(library)
    source = FileSource(store.path(library.inspect("b:1").digest))
    with pytest.raises(ImageBroken, match="data blob"):
        read_image(source, None, spool, ImportLimits())
    source.close()


def test_archive_of_an_image_is_not_taken_for_its_files(
    library: ImageLibrary, layout: Layout, store: DirectoryStore, files_of
) -> None:
    with pytest.raises(InvalidRequest, match="docker-archive:FILE"):
        library.import_tar("base/x", io.BytesIO(layout.tar()))
    assert files_of(store) == []


def test_layers_that_are_read_are_not_collected_meanwhile(
    oci: OciImages, library: ImageLibrary
) -> None:
    layered(library)
    manifest = library.inspect("b:1")

    def log(line: str) -> None:
        if line.startswith("read base/b:1"):
            library.remove("b:1")
            assert not {one.digest for one in library.collect().removed} & manifest.blobs()

    oci.collapse(["b:1", "workspace/w:1"], "base/x", log=log)
    removed = {one.digest for one in library.collect().removed}
    assert manifest.digest in removed
