from __future__ import annotations

import io
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from images_archives import make_tar, member

from skerry.errors import Fault, LayerDamaged, StorageFailed
from skerry.images.format.chunks import ChunkListBuilder, Codec, decode_list, pick_chunk
from skerry.images.format.erofs import Tools
from skerry.images.library import ImageLibrary
from skerry.images.store.local import LocalLayers, read_list
from skerry.images.store.store import DirectoryStore
from skerry.spec.layers import LayerManifest, MountMode

BIG = os.urandom(600_000)


@pytest.fixture
def local(tmp_path: Path) -> LocalLayers:
    return LocalLayers(str(tmp_path / "layers"))


@pytest.fixture
def node(store: DirectoryStore, tools: Tools, tmp_path: Path, local: LocalLayers) -> ImageLibrary:
    return ImageLibrary(store, tools, str(tmp_path / "scratch"), local=local)


def publish(library: ImageLibrary, name: str = "base/a", content: bytes = BIG) -> LayerManifest:
    return library.import_tar(name, io.BytesIO(make_tar(member("f", content))))


def names(local: LocalLayers) -> list[str]:
    return sorted(os.listdir(local.root))


def overwrite(path: str, at: int, data: bytes) -> None:
    os.chmod(path, 0o644)
    with open(path, "r+b") as file:
        file.seek(at)
        file.write(data)


def test_pair_is_published_with_sizes_and_mounted_from_copy_and_store(
    node: ImageLibrary, store: DirectoryStore, local: LocalLayers
) -> None:
    manifest = publish(node)
    assert manifest.version == 2
    assert manifest.data_digest
    assert manifest.size_bytes + manifest.data_bytes == manifest.total_bytes
    assert manifest.data_bytes == manifest.stored_bytes > len(BIG)
    [layer] = node.plan((manifest,)).layers
    assert layer.path == os.path.join(local.root, manifest.digest[7:])
    assert layer.device == store.path(manifest.data_digest)
    assert layer.mode is MountMode.TRUSTED
    assert Path(layer.path).read_bytes() == Path(store.path(manifest.digest)).read_bytes()
    chunks = decode_list(b"".join(store.chunk_list(manifest.data_digest)), manifest.data_digest)
    with open(layer.device, "rb") as file:
        assert b"".join(pick_chunk(chunks, file, at) for at in range(chunks.count)) == (
            Path(layer.device).read_bytes()
        )


def test_zstd_store_has_the_same_digests_and_fewer_bytes(
    node: ImageLibrary, tools: Tools, tmp_path: Path
) -> None:
    plain = publish(node, content=b"text " * 200_000 + BIG)
    store = DirectoryStore(str(tmp_path / "packed"))
    library = ImageLibrary(store, tools, str(tmp_path / "scratch"), codec=Codec.ZSTD)
    packed = publish(library, content=b"text " * 200_000 + BIG)
    assert (packed.digest, packed.data_digest) == (plain.digest, plain.data_digest)
    assert packed.data_codec == "zstd"
    assert packed.stored_bytes < plain.stored_bytes == packed.data_bytes
    digest = str(packed.data_digest)
    chunks = decode_list(b"".join(store.chunk_list(digest)), digest)
    first = store.read_data(digest, chunks.codec, *chunks.stored_span(0))
    assert chunks.open_chunk(0, first)


def test_same_data_is_stored_once_and_stays_while_one_layer_needs_it(
    node: ImageLibrary, store: DirectoryStore
) -> None:
    first, again = publish(node, "base/a"), publish(node, "base/b")
    assert first.digest == again.digest
    assert len(list(store.list())) == 2
    node.remove("base/a")
    node.collect()
    assert {blob.digest for blob in store.list()} == first.blobs()
    node.remove("base/b")
    node.collect()
    assert list(store.list()) == []
    blobs = Path(store.root, "blobs")
    assert [path for path in blobs.rglob("*") if path.is_file()] == []


def test_data_without_its_list_is_no_data_and_collected(
    node: ImageLibrary, store: DirectoryStore, tmp_path: Path
) -> None:
    manifest = publish(node)
    data = store.path(str(manifest.data_digest))
    os.unlink(f"{data}.chunks")
    again = publish(node)
    assert again == msgspec.structs.replace(manifest, created=again.created)
    assert os.path.exists(f"{data}.chunks")
    node.remove("base/a")
    orphan = tmp_path / "orphan"
    orphan.write_bytes(b"x")
    builder = ChunkListBuilder()
    builder.add(b"x")
    store.put_data(str(orphan), builder.finish())
    os.unlink(store.path(builder.finish().content_digest) + ".chunks")
    node.collect()
    assert list(store.list()) == []


@pytest.mark.parametrize("content", [b"", b"x" * 1000])
def test_small_layer_is_one_blob_and_mounted_from_its_copy(
    node: ImageLibrary, local: LocalLayers, content: bytes
) -> None:
    manifest = publish(node, content=content)
    [layer] = node.plan((manifest,)).layers
    assert manifest.data_digest is layer.device is None
    assert os.path.dirname(layer.path) == local.root


def test_layer_of_an_older_store_is_mounted_in_place(
    node: ImageLibrary, store: DirectoryStore, local: LocalLayers
) -> None:
    manifest = msgspec.structs.replace(publish(node, content=b"x"), version=1)
    [layer] = node.plan((manifest,)).layers
    assert layer.path == store.path(manifest.digest)
    assert names(local) == []


@pytest.mark.parametrize("at", [0, 1030, 1500, 4000])
def test_damaged_metadata_in_the_store_is_the_platforms_fault(
    node: ImageLibrary, store: DirectoryStore, local: LocalLayers, at: int
) -> None:
    manifest = publish(node)
    path = store.path(manifest.digest)
    old = Path(path).read_bytes()[at]
    overwrite(path, at, bytes([old ^ 1]))
    with pytest.raises(LayerDamaged) as raised:
        node.plan((manifest,))
    assert raised.value.fault is Fault.PLATFORM
    assert raised.value.fields["digest"] == manifest.digest
    assert names(local) == []
    overwrite(path, at, bytes([old]))
    assert node.plan((manifest,)).layers[0].device


def test_manifest_that_names_other_data_than_the_metadata_is_refused(
    node: ImageLibrary, local: LocalLayers
) -> None:
    one, other = publish(node, "base/a"), publish(node, "base/b", os.urandom(600_000))
    mixed = msgspec.structs.replace(one, data_digest=other.data_digest, data_bytes=other.data_bytes)
    with pytest.raises(LayerDamaged, match="names the data blob"):
        node.plan((mixed,))
    assert names(local) == []


@pytest.mark.parametrize("how", ["gone", "short", "long"])
def test_lost_or_cut_data_is_told_before_the_mount(
    node: ImageLibrary, store: DirectoryStore, how: str
) -> None:
    manifest = publish(node)
    path = store.path(str(manifest.data_digest))
    os.chmod(path, 0o644)
    if how == "gone":
        os.unlink(path)
    else:
        os.truncate(path, manifest.data_bytes + (4096 if how == "long" else -4096))
    with pytest.raises(LayerDamaged, match="data blob") as raised:
        node.plan((manifest,))
    assert raised.value.fields["digest"] == manifest.data_digest


def test_copy_that_rotted_is_made_again_by_the_next_process(
    node: ImageLibrary, local: LocalLayers
) -> None:
    manifest = publish(node)
    path = node.plan((manifest,)).layers[0].path
    good = Path(path).read_bytes()
    overwrite(path, 2000, b"rotten")
    fresh = LocalLayers(local.root)
    assert fresh.metadata(manifest, lambda: node.store.pieces(manifest.digest)) == path
    assert Path(path).read_bytes() == good


def test_half_a_copy_never_appears_and_goes_with_the_next_start(
    local: LocalLayers, node: ImageLibrary
) -> None:
    manifest = publish(node)

    def broken() -> Iterator[bytes]:
        yield b"half"
        raise StorageFailed("the store is gone")

    with pytest.raises(StorageFailed):
        local.metadata(manifest, broken)
    assert names(local) == []
    Path(local.root, ".new-crashed").write_bytes(b"half")
    LocalLayers(local.root)
    assert names(local) == []


def test_copy_on_a_full_disk_is_a_storage_failure(node: ImageLibrary, tmp_path: Path) -> None:
    manifest = publish(node)
    target = LocalLayers(str(tmp_path / "other"))
    os.chmod(target.root, 0o500)
    os.rmdir(target.root)
    with pytest.raises(StorageFailed):
        target.metadata(manifest, lambda: node.store.pieces(manifest.digest))


def test_many_threads_copy_once(local: LocalLayers, node: ImageLibrary) -> None:
    manifest = publish(node)
    reads: list[int] = []

    def slow() -> Iterator[bytes]:
        reads.append(1)
        for piece in node.store.pieces(manifest.digest):
            threading.Event().wait(0.05)
            yield piece

    threads = [threading.Thread(target=local.metadata, args=(manifest, slow)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(reads) == 1
    assert names(local) == [manifest.digest[7:]]


def test_tidy_keeps_what_is_young_or_in_use_and_a_removed_copy_comes_back(
    local: LocalLayers, node: ImageLibrary
) -> None:
    used, unused, young = (
        publish(node, f"base/{name}", os.urandom(300_000)) for name in ("used", "unused", "young")
    )
    for manifest in (used, unused, young):
        node.plan((manifest,))
        digest = str(manifest.data_digest)
        local.chunk_list(digest, lambda digest=digest: node.store.chunk_list(digest))
    long_ago = time.time() - 7200
    for name in names(local):
        if young.digest[7:] not in name and str(young.data_digest)[7:] not in name:
            os.utime(os.path.join(local.root, name), (long_ago, long_ago))
    node.tidy({used.digest})
    gone = {unused.digest[7:], f"{str(unused.data_digest)[7:]}.chunks"}
    assert not gone & set(names(local))
    assert len(names(local)) == 4
    assert os.path.exists(node.plan((unused,)).layers[0].path)


def test_chunk_list_of_another_blob_is_damage(local: LocalLayers, node: ImageLibrary) -> None:
    one, other = publish(node, "base/a"), publish(node, "base/b", os.urandom(600_000))
    with pytest.raises(LayerDamaged):
        local.chunk_list(
            str(one.data_digest), lambda: node.store.chunk_list(str(other.data_digest))
        )
    digest = str(one.data_digest)
    path = local.chunk_list(digest, lambda: node.store.chunk_list(digest))
    assert read_list(path, digest).size == one.data_bytes


def test_more_bytes_than_a_layer_has_do_not_fill_the_disk(
    node: ImageLibrary, local: LocalLayers
) -> None:
    manifest = publish(node)
    given = 0

    def endless() -> Iterator[bytes]:
        nonlocal given
        while True:
            given += 1
            yield bytes(1 << 20)

    with pytest.raises(LayerDamaged, match="more bytes"):
        local.metadata(manifest, endless)
    with pytest.raises(LayerDamaged, match="more bytes"):
        local.chunk_list(str(manifest.data_digest), endless)
    assert given < 1000
    assert names(local) == []
