from __future__ import annotations

import io
import os
from pathlib import Path

import msgspec
import pytest
from images_archives import make_tar, member

from skerry.errors import LayerDamaged, NotFound, StorageFailed
from skerry.images.format.chunks import CHUNK_BYTES, Codec
from skerry.images.format.erofs import Tools
from skerry.images.library import ImageLibrary
from skerry.images.store import keys
from skerry.images.store.scrub import Scrub
from skerry.images.store.store import SUFFIXES, DirectoryStore
from skerry.spec.layers import LayerManifest, parse_layer_name

FILES = {f"dir/f{at}": os.urandom(200_000) for at in range(10)}


@pytest.fixture(params=list(Codec))
def made(request, tools: Tools, tmp_path: Path) -> tuple[ImageLibrary, LayerManifest]:
    store = DirectoryStore(str(tmp_path / "packed"))
    library = ImageLibrary(store, tools, str(tmp_path / "s"), codec=request.param)
    return library, publish(library)


def publish(library: ImageLibrary, name: str = "base/a") -> LayerManifest:
    archive = make_tar(*(member(name, data) for name, data in FILES.items()))
    return library.import_tar(name, io.BytesIO(archive))


def blob_path(library: ImageLibrary, digest: str, part: str = "") -> str:
    path = library.store.objects.local_path(keys.blob(digest, part))
    assert path
    return path


def flip(path: str, *places: int) -> None:
    os.chmod(path, 0o644)
    with open(path, "r+b") as file:
        for at in places:
            file.seek(at)
            byte = file.read(1)
            file.seek(at)
            file.write(bytes([byte[0] ^ 0x10]))


def data_path(library: ImageLibrary, manifest: LayerManifest) -> str:
    suffix = SUFFIXES[Codec(manifest.data_codec)]
    return blob_path(library, str(manifest.data_digest), suffix)


def test_whole_layer_is_good_and_all_of_it_was_read(made) -> None:
    library, manifest = made
    check = library.verify("base/a")
    assert check.damage == ()
    assert check.bytes_read == manifest.total_bytes


def test_flipped_bits_are_told_by_chunk_and_file(made) -> None:
    library, manifest = made
    size = manifest.stored_bytes
    flip(data_path(library, manifest), 10, size - 10)
    [damage] = library.verify("base/a").damage
    assert damage.digest == manifest.data_digest
    assert damage.part == "data"
    assert damage.chunks == (0, -(-manifest.data_bytes // CHUNK_BYTES) - 1)
    # 49 blocks a file: the first chunk has parts of two files, the last one of one.
    assert damage.files == ("/dir/f0", "/dir/f1", "/dir/f9")


def test_every_part_that_is_gone_or_damaged_is_told(made) -> None:
    library, manifest = made
    data = data_path(library, manifest)
    places = {
        "metadata": blob_path(library, manifest.digest),
        "data": data,
    }
    for part, path in places.items():
        good = Path(path).read_bytes()
        os.chmod(path, 0o644)
        for bad in (None, good[:-1], good + b"x", b""):
            if bad is None:
                os.unlink(path)
            else:
                Path(path).write_bytes(bad)
            check = library.verify("base/a")
            assert [one.part for one in check.damage] == [part], (part, bad and len(bad))
        Path(path).write_bytes(good)
        assert library.verify("base/a").damage == ()


def test_chunk_list_that_is_gone_or_damaged_is_made_again_from_the_data(made) -> None:
    library, manifest = made
    path = Path(blob_path(library, str(manifest.data_digest), ".chunks"))
    good = path.read_bytes()
    os.chmod(path, 0o644)
    flipped = bytes([*good[:40], good[40] ^ 1, *good[41:]])
    for bad in (None, good[:-1], good + b"x", b"", flipped):
        if bad is None:
            path.unlink()
        else:
            path.write_bytes(bad)
        check = library.verify("base/a")
        assert check.damage == (), bad and len(bad)
        assert [one.part for one in check.mended] == ["chunk list"]
        assert path.read_bytes() == good
        assert library.verify("base/a").mended == ()


def test_chunk_list_is_not_made_of_data_that_is_damaged_too(made) -> None:
    library, manifest = made
    path = Path(blob_path(library, str(manifest.data_digest), ".chunks"))
    path.unlink()
    flip(data_path(library, manifest), 300_000)
    check = library.verify("base/a")
    [damage] = check.damage
    assert (damage.part, damage.digest) == ("chunk list", manifest.data_digest)
    assert "cannot be made again" in damage.problem
    assert check.mended == ()
    assert not path.exists()
    # Stored anew, all is right again.
    assert library.verify("base/a", remove_damaged=True).removed
    publish(library)
    assert library.verify("base/a").damage == ()


def test_damaged_metadata_does_not_hide_damaged_data(made) -> None:
    library, manifest = made
    flip(blob_path(library, manifest.digest), 2000)
    flip(data_path(library, manifest), 10)
    damage = library.verify("base/a").damage
    assert [one.part for one in damage] == ["metadata", "data"]
    assert damage[1].chunks == (0,)
    assert damage[1].files == ()


def test_manifest_and_metadata_that_name_other_data_are_told(made) -> None:
    library, manifest = made
    other = msgspec.structs.replace(manifest, data_digest="sha256:" + "0" * 64)
    library.store.put_manifest(other)
    library.store.set_tag(parse_layer_name("base/a"), other.digest)
    for remove in (False, True):
        [damage] = library.verify("base/a", remove_damaged=remove).damage
        assert (damage.part, damage.digest) == ("manifest", manifest.digest)
    # The blobs are those of the layer's digest: they stay, and making it again mends the manifest.
    assert publish(library).data_digest == manifest.data_digest
    assert library.verify("base/a").damage == ()


def test_shared_blobs_are_read_once_by_one_scrub(made) -> None:
    library, first = made
    second = publish(library, "base/b")
    scrub = Scrub(library.store)
    assert scrub.check(first).bytes_read == first.total_bytes
    assert scrub.check(second).bytes_read == 0


def test_removed_damage_is_stored_anew_by_making_the_layer_again(made) -> None:
    library, manifest = made
    flip(data_path(library, manifest), 10)
    flip(blob_path(library, manifest.digest), 2000)
    assert not library.verify("base/a").removed
    assert library.verify("base/a", remove_damaged=True).removed
    with pytest.raises(LayerDamaged, match="gone"):
        library.inspect("base/a")
    gone = library.verify("base/a")
    assert [one.part for one in gone.damage] == ["metadata", "chunk list"]
    assert publish(library).digest == manifest.digest
    assert library.verify("base/a").damage == ()


def test_layer_of_one_blob_is_checked_whole(tools: Tools, tmp_path: Path) -> None:
    library = ImageLibrary(DirectoryStore(str(tmp_path / "st")), tools, str(tmp_path / "s"))
    manifest = library.import_tar("base/a", io.BytesIO(make_tar(member("f", b"x" * 9000))))
    assert library.verify("base/a").damage == ()
    flip(blob_path(library, manifest.digest), manifest.size_bytes - 1)
    assert [one.part for one in library.verify("base/a").damage] == ["metadata"]


def test_unknown_name_and_unreachable_store_are_errors(made, monkeypatch) -> None:
    library, _ = made
    with pytest.raises(NotFound):
        library.verify("base/none")

    def fail(*_: object) -> bytes:
        raise StorageFailed("the store is away")

    monkeypatch.setattr(library.store.objects, "read", fail)
    with pytest.raises(StorageFailed):
        library.verify("base/a")
