"""A chunk list that is lost or damaged, in the store or on the node, keeps no good layer from use."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pytest
import zstandard
from images_archives import make_tar, member

from skerry.errors import LayerDamaged
from skerry.images.format.chunks import CHUNK_BYTES, Codec, build_list
from skerry.images.format.erofs import Tools
from skerry.images.format.relist import list_of
from skerry.images.library import ImageLibrary
from skerry.images.store import keys
from skerry.images.store import local as local_module
from skerry.images.store.local import LocalLayers
from skerry.images.store.store import DirectoryStore
from skerry.spec.layers import LayerManifest


@pytest.fixture(params=list(Codec))
def node(request, tools: Tools, tmp_path: Path) -> ImageLibrary:
    if not tools.mkfs().reads_tar:
        pytest.skip("mkfs.erofs is older than 1.8: it makes layers of one blob")
    return ImageLibrary(
        DirectoryStore(str(tmp_path / "store")),
        tools,
        str(tmp_path / "s"),
        codec=request.param,
        local=LocalLayers(str(tmp_path / "layers")),
        verified=True,
    )


@pytest.fixture
def layer(node: ImageLibrary) -> LayerManifest:
    return node.import_tar("base/a", io.BytesIO(make_tar(member("f", os.urandom(900_000)))))


def in_store(node: ImageLibrary, layer: LayerManifest) -> Path:
    path = node.store.objects.local_path(keys.blob(str(layer.data_digest), ".chunks"))
    assert path
    return Path(path)


def at_hand(tmp_path: Path, layer: LayerManifest) -> Path:
    return tmp_path / "layers" / f"{str(layer.data_digest)[7:]}.chunks"


def damage(path: Path) -> bytes:
    good = path.read_bytes()
    os.chmod(path, 0o644)
    path.write_bytes(bytes([*good[:50], good[50] ^ 4, *good[51:]]))
    return good


@pytest.mark.parametrize("gone", [True, False])
def test_mount_makes_a_lost_or_damaged_list_of_the_store_again(node, layer, tmp_path, gone) -> None:
    path = in_store(node, layer)
    good = path.read_bytes()
    path.unlink() if gone else damage(path)
    node.plan((layer,))
    assert at_hand(tmp_path, layer).read_bytes() == good
    assert path.read_bytes() == good


def test_list_that_rots_on_the_node_is_fetched_again(node, layer, tmp_path, monkeypatch) -> None:
    node.plan((layer,))
    good = damage(at_hand(tmp_path, layer))
    monkeypatch.setattr(local_module, "RECHECK_S", 0.0)
    node.plan((layer,))
    assert at_hand(tmp_path, layer).read_bytes() == good


def test_lists_are_right_before_a_process_serves_by_them(node, layer, tmp_path) -> None:
    node.plan((layer,))
    good = damage(at_hand(tmp_path, layer))
    damage(in_store(node, layer))
    node.check_lists()
    assert at_hand(tmp_path, layer).read_bytes() == good


def test_list_cannot_be_made_of_other_data(node, layer) -> None:
    in_store(node, layer).unlink()
    objects = node.store.objects
    suffix = ".zst" if layer.data_codec == "zstd" else ""
    data = objects.local_path(keys.blob(str(layer.data_digest), suffix))
    os.chmod(data, 0o644)
    with open(data, "r+b") as file:
        file.seek(4000)
        file.write(b"other")
    with pytest.raises(LayerDamaged, match="cannot be made again"):
        node.plan((layer,))
    assert not in_store(node, layer).exists()


@pytest.mark.parametrize("size", [0, 1, CHUNK_BYTES - 1, CHUNK_BYTES, 5 * CHUNK_BYTES + 7])
@pytest.mark.parametrize("piece", [1000, CHUNK_BYTES, 10 << 20])
def test_list_of_frames_is_the_list_that_was_written(tmp_path, size, piece) -> None:
    content = (os.urandom(size // 2 + 1) + bytes(size))[:size]
    (tmp_path / "plain").write_bytes(content)
    made = build_list(str(tmp_path / "plain"), str(tmp_path / "zst"))
    stored = (tmp_path / "zst").read_bytes()
    pieces = [stored[at : at + piece] for at in range(0, len(stored), piece)]
    assert list_of(pieces, Codec.ZSTD).encode() == made.encode()


@pytest.mark.parametrize(
    "stored",
    [
        b"no frame at all",
        zstandard.ZstdCompressor().compress(bytes(CHUNK_BYTES + 1)),
        zstandard.ZstdCompressor(write_content_size=False).compress(b"x" * 100),
        zstandard.ZstdCompressor().compress(os.urandom(1000))[:-1],
        zstandard.ZstdCompressor().compress(b"x") + b"rest",
    ],
    ids=["no frame", "too large", "no length", "cut off", "rest"],
)
def test_what_is_no_frame_of_a_chunk_is_damage(stored: bytes) -> None:
    with pytest.raises(LayerDamaged):
        list_of([stored], Codec.ZSTD)
