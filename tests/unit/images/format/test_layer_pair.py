from __future__ import annotations

import hashlib
import io
import os
import shutil
import struct
import subprocess
import tarfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from images_archives import make_tar, member

from skerry.errors import LayerDamaged, StorageFailed
from skerry.images.archives.tarimport import ImportLimits, read_tar
from skerry.images.format.chunks import Codec, build_list, pick_chunk
from skerry.images.format.erofs import Tools
from skerry.images.format.pair import BuiltLayer, build_layer, data_digest_of
from skerry.images.scratch import Spool
from skerry.images.tree.entry import Tree
from skerry.images.tree.notes import Notes

BIG = os.urandom(300_000)


def tree_of(spool: Spool, *members: tuple[tarfile.TarInfo, bytes]) -> Tree:
    return read_tar(io.BytesIO(make_tar(*members)), spool, Notes(), ImportLimits())


def build(tree: Tree, spool: Spool, directory: Path, tools: Tools, **more: object) -> BuiltLayer:
    directory.mkdir()
    return build_layer(tree, spool, str(directory), tools=tools, **more)  # type: ignore[arg-type]


def sample(spool: Spool) -> Tree:
    return tree_of(
        spool,
        member("d", type=tarfile.DIRTYPE, mode=0o1777),
        member("d/big", BIG, mode=0o4755),
        member("d/same", BIG),
        member("d/hard", type=tarfile.LNKTYPE, linkname="d/big"),
        member("d/small", b"x"),
        member("d/empty", b""),
        member("d/holes", bytes(400_000)),
        member("non\udcff", b"y" * 5000),
    )


def test_layers_digest_commits_to_the_data_blob(tools: Tools, spool: Spool, tmp_path: Path) -> None:
    layer = build(sample(spool), spool, tmp_path / "a", tools)
    assert layer.data
    assert layer.chunks
    raw = Path(layer.path).read_bytes()
    assert layer.digest == "sha256:" + hashlib.sha256(raw).hexdigest()
    assert layer.size_bytes == len(raw)
    assert layer.chunks == build_list(layer.data)
    assert data_digest_of(layer.path) == layer.chunks.content_digest
    assert raw.count(layer.chunks.content_digest[7:].encode()) == 1
    other = build(tree_of(spool, member("d/big", BIG[:-1] + b"!")), spool, tmp_path / "b", tools)
    assert other.digest != layer.digest


def test_equal_trees_give_equal_pairs_whatever_the_codec(
    tools: Tools, spool: Spool, tmp_path: Path
) -> None:
    first = build(sample(spool), spool, tmp_path / "a", tools)
    again = build(sample(spool), spool, tmp_path / "b", tools)
    packed = build(sample(spool), spool, tmp_path / "c", tools, codec=Codec.ZSTD)
    assert Path(first.path).read_bytes() == Path(again.path).read_bytes()
    assert Path(first.path).read_bytes() == Path(packed.path).read_bytes()
    assert first.data
    assert again.data
    assert packed.data
    assert packed.chunks
    content = Path(first.data).read_bytes()
    assert content == Path(again.data).read_bytes()
    with open(packed.data, "rb") as file:
        each = (pick_chunk(packed.chunks, file, at) for at in range(packed.chunks.count))
        assert b"".join(each) == content
    assert sorted(os.listdir(tmp_path / "c")) == ["data.zst", "metadata"]


def test_equal_files_and_holes_are_stored_once(tools: Tools, spool: Spool, tmp_path: Path) -> None:
    layer = build(sample(spool), spool, tmp_path / "a", tools)
    assert layer.chunks
    assert len(BIG) < layer.chunks.size < len(BIG) + 200_000


def test_pair_holds_what_was_put_into_it(tools: Tools, spool: Spool, tmp_path: Path) -> None:
    fsck = os.path.join(os.path.dirname(tools.mkfs().path), "fsck.erofs")
    if not os.path.exists(fsck):
        pytest.skip("there is no fsck.erofs beside mkfs.erofs to unpack with")
    layer = build(sample(spool), spool, tmp_path / "a", tools)
    out = tmp_path / "out"
    command = [fsck, f"--device={layer.data}", f"--extract={out}", layer.path]
    subprocess.run(command, check=True, capture_output=True)
    assert (out / "d/big").read_bytes() == (out / "d/same").read_bytes() == BIG
    assert (out / "d/holes").read_bytes() == bytes(400_000)
    assert (out / "d/small").read_bytes() == b"x"
    assert (out / "d/empty").read_bytes() == b""
    assert (out / os.fsdecode(b"non\xff")).read_bytes() == b"y" * 5000
    assert (out / "d/hard").stat().st_ino == (out / "d/big").stat().st_ino


@pytest.mark.parametrize("kind", ["empty", "directories", "small", "crowd", "lz4"])
def test_layer_that_is_better_one_blob_is(
    tools: Tools, spool: Spool, tmp_path: Path, kind: str
) -> None:
    members = {
        "empty": (),
        "directories": (member("a/b", type=tarfile.DIRTYPE),),
        "small": (member("f", bytes(range(256)) * 1024),),
        "crowd": tuple(member(f"f{at}", b"%d" % at * 100) for at in range(3000)),
        "lz4": (member("f", BIG),),
    }[kind]
    said: list[str] = []
    compression = "lz4" if kind == "lz4" else "none"
    tree = tree_of(spool, *members)
    layer = build(tree, spool, tmp_path / "a", tools, compression=compression, log=said.append)
    assert layer.data is layer.chunks is None
    assert data_digest_of(layer.path) is None
    if kind == "lz4":
        assert "one blob" in "".join(said)


@pytest.fixture(scope="session")
def whole_pair(tools: Tools, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("pair")
    spool = Spool(str(directory))
    layer = build_layer(sample(spool), spool, str(directory), tools=tools)
    spool.close()
    return Path(layer.path)


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_any_bytes_for_a_superblock_give_a_digest_or_layer_damaged(
    whole_pair: Path, data: st.DataObject
) -> None:
    raw = bytearray(whole_pair.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(1024, 1024 + 256))
        raw[at] = data.draw(st.integers(0, 255))
    cut = data.draw(st.sampled_from([len(raw), 0, 1024, 1151, 1152, 1279, 1280]))
    bad = whole_pair.with_name("bad")
    bad.write_bytes(raw[:cut])
    try:
        found = data_digest_of(str(bad))
    except LayerDamaged:
        return
    assert found is None or len(found) == 71


def test_metadata_blob_without_its_tag_is_damaged(whole_pair: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copyfile(whole_pair, copy)
    with copy.open("r+b") as file:
        slot = struct.unpack_from("<H", whole_pair.read_bytes(), 1024 + 88)[0]
        file.seek(slot * 128)
        file.write(bytes(64))
    with pytest.raises(LayerDamaged, match="which data blob"):
        data_digest_of(str(copy))
    with pytest.raises(StorageFailed):
        data_digest_of(str(tmp_path / "none"))
