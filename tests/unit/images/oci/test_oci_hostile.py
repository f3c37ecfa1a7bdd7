"""Images that are damaged or hostile: refused before they reach anything or exhaust anything."""

from __future__ import annotations

import io
import json
import os
import random
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from images_archives import make_tar, member
from oci_reading import AMD, ONE, TWO, bundle_of, read, unpack

from oci_images import OCI, PACKS, Json, Layout, config_of, docker_archive, sha256
from skerry.errors import Fault, ImageBroken, SkerryError
from skerry.images.archives.tarimport import ImportLimits
from skerry.images.oci import layers as oci_layers
from skerry.images.oci.bundle import ArchiveBundle
from skerry.images.oci.choose import choose
from skerry.images.oci.config import read_config
from skerry.images.oci.model import BlobDamaged
from skerry.images.scratch import Spool
from skerry.images.tree.notes import Notes

Damage = Callable[[Layout, Json], None]


def flip(layout: Layout, blob: Json) -> None:
    path = layout.file(blob["digest"])
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def cut(layout: Layout, blob: Json) -> None:
    path = layout.file(blob["digest"])
    path.write_bytes(path.read_bytes()[:-1])


def longer(layout: Layout, blob: Json) -> None:
    with layout.file(blob["digest"]).open("ab") as file:
        file.write(bytes(1))


def gone(layout: Layout, blob: Json) -> None:
    layout.file(blob["digest"]).unlink()


def device(layout: Layout, blob: Json) -> None:
    gone(layout, blob)
    layout.file(blob["digest"]).symlink_to("/dev/zero")


def pipe(layout: Layout, blob: Json) -> None:
    gone(layout, blob)
    os.mkfifo(layout.file(blob["digest"]))


@pytest.mark.parametrize("damage", [flip, cut, longer, gone, device, pipe])
@pytest.mark.parametrize("pack", PACKS)
def test_damaged_layer_is_refused(layout: Layout, spool: Spool, damage: Damage, pack: str) -> None:
    layout.index(layout.image(ONE, pack=pack))
    damage(layout, layout.blob(PACKS[pack](ONE), ""))
    with pytest.raises(ImageBroken) as error:
        read(layout, spool)
    if damage in (flip, cut, longer):
        assert isinstance(error.value, BlobDamaged)
        assert error.value.fields["digest"] == sha256(PACKS[pack](ONE))


@pytest.mark.parametrize("damage", [flip, cut, longer, gone, pipe])
@pytest.mark.parametrize("which", ["manifest", "config"])
def test_damaged_document_is_refused(layout: Layout, damage: Damage, which: str) -> None:
    image = layout.image(ONE)
    layout.index(image)
    config = json.loads(layout.file(image["digest"]).read_bytes())["config"]
    damage(layout, image if which == "manifest" else config)
    with pytest.raises(ImageBroken):
        choose(bundle_of(layout), None, AMD)


def test_config_that_names_other_layers_is_refused(layout: Layout, spool: Spool) -> None:
    layout.index(layout.image(ONE, config=config_of([TWO])))
    with pytest.raises(BlobDamaged, match="unpacked it is"):
        read(layout, spool)
    layout.index(layout.image(ONE, config=config_of([ONE, TWO])))
    with pytest.raises(ImageBroken, match="1 layers and 2 digests"):
        read(layout, spool)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"config": {"mediaType": "application/vnd.cncf.helm.config.v1+json"}}, "something else"),
        ({"layers": [{"mediaType": f"{OCI}layer.v1.tar+encrypted"}]}, "type unknown"),
        ({"layers": [{"digest": "sha256:../../../etc/passwd"}]}, "no digest"),
        ({"layers": [{"digest": "md5:" + "0" * 32}]}, "no digest"),
        ({"layers": "x"}, "damaged"),
        ({"config": None}, "damaged"),
    ],
)
def test_manifest_of_what_is_no_image_is_refused(layout: Layout, change: Json, said: str) -> None:
    image = layout.image(ONE)
    manifest = json.loads(layout.file(image["digest"]).read_bytes())
    for key, value in change.items():
        if isinstance(value, dict):
            manifest[key] |= value
        elif isinstance(value, list):
            manifest[key][0] |= value[0]
        else:
            manifest[key] = value
    layout.index(layout.document(manifest, image["mediaType"]))
    with pytest.raises(ImageBroken, match=said):
        choose(bundle_of(layout), None, AMD)


def test_lists_that_hold_each_other_end(layout: Layout) -> None:
    image = layout.image(ONE)
    for _ in range(8):
        image = layout.nested(image)
    layout.index(image)
    with pytest.raises(ImageBroken, match="too deep"):
        choose(bundle_of(layout), None, AMD)


def test_documents_beyond_their_bounds_are_refused(layout: Layout, spool: Spool) -> None:
    image = layout.image(ONE)
    layout.index(*[image] * 1001)
    with pytest.raises(ImageBroken, match="1001 parts"):
        choose(bundle_of(layout), None, AMD)
    (layout.path / "index.json").write_bytes(b" " * ((4 << 20) + 1))
    with pytest.raises(ImageBroken, match="too large"):
        choose(bundle_of(layout), None, AMD)
    (layout.path / "index.json").write_bytes(b"[" * 100_000)
    with pytest.raises(ImageBroken, match="damaged"):
        choose(bundle_of(layout), None, AMD)
    empty = ArchiveBundle(io.BytesIO(make_tar(member("x", b"y"))), spool, ImportLimits())
    with pytest.raises(ImageBroken, match="neither"):
        choose(empty, None, AMD)


@pytest.mark.parametrize("pack", ["+gzip", "+zstd"])
def test_image_that_grows_without_measure_is_refused_early(
    layout: Layout, spool: Spool, pack: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(oci_layers, "_GROWTH_FREE", 1 << 20)
    bomb = make_tar(member("zeros", bytes(64 << 20)))
    layout.index(layout.image(bomb, pack=pack))
    with pytest.raises(ImageBroken, match="100 times") as error:
        read(layout, spool)
    assert error.value.fields["limit"] == "growth"
    fine = make_tar(member("random", os.urandom(1 << 20)), member("zeros", bytes(3 << 20)))
    layout.index(layout.image(fine, pack=pack))
    assert len(read(layout, spool)["zeros"]) == 3 << 20


def test_bomb_behind_the_end_of_the_archive_is_refused_too(
    layout: Layout, spool: Spool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(oci_layers, "_GROWTH_FREE", 1 << 20)
    layout.index(layout.image(ONE + bytes(64 << 20)))
    with pytest.raises(ImageBroken, match="100 times"):
        read(layout, spool)


@pytest.mark.parametrize(
    "limits", [{"entries_max": 5}, {"bytes_max": 5}, {"words_bytes_max": 12}], ids=str
)
def test_limits_hold_for_all_layers_together(
    layout: Layout, spool: Spool, limits: dict[str, int]
) -> None:
    tars = [make_tar(member(f"f{at}", b"1")) for at in range(10)]
    layout.index(layout.image(*tars))
    bundle = bundle_of(layout)
    with pytest.raises(ImageBroken) as error:
        unpack(bundle, choose(bundle, None, AMD), spool, **limits)
    assert error.value.fields["limit"] in {"entries", "bytes", "words"}


@pytest.mark.parametrize(
    "odd",
    [
        member("../escape", b"x"),
        member("/absolute", b"x"),
        member("link/f", b"x"),
        member("hard", type=tarfile.LNKTYPE, linkname="../../etc/passwd"),
        member("hard", type=tarfile.LNKTYPE, linkname="missing"),
    ],
    ids=lambda one: one[0],
)
def test_layer_that_leads_out_is_refused(layout: Layout, spool: Spool, odd) -> None:
    link = member("link", type=tarfile.SYMTYPE, linkname="/etc")
    layout.index(layout.image(ONE, make_tar(link, odd)))
    with pytest.raises(ImageBroken):
        read(layout, spool)


def test_archive_of_an_image_cannot_lead_out_either(spool: Spool) -> None:
    config = json.dumps(config_of([ONE])).encode()
    for target in ("/etc/passwd", "../../../etc/passwd", "loop"):
        names = [{"Config": "c.json", "RepoTags": None, "Layers": ["loop"]}]
        archive = make_tar(
            member("c.json", config),
            member("loop", type=tarfile.SYMTYPE, linkname=target),
            member("manifest.json", json.dumps(names).encode()),
        )
        bundle = ArchiveBundle(io.BytesIO(archive), spool, ImportLimits())
        with pytest.raises(ImageBroken, match="missing"):
            unpack(bundle, choose(bundle, None, AMD), spool)
    with pytest.raises(ImageBroken):
        ArchiveBundle(io.BytesIO(make_tar(member("../x", b"1"))), spool, ImportLimits())


@pytest.mark.parametrize("seed", range(12))
def test_images_with_random_damage_are_refused_or_read_and_nothing_else(
    tmp_path: Path, spool: Spool, seed: int
) -> None:
    rng = random.Random(seed)
    layout = Layout(tmp_path / "layout")
    layout.index(layout.image(ONE, TWO, pack=rng.choice(list(PACKS)), Env=["A=b"], User="a:b"))
    archives = (layout.tar(), docker_archive(ONE, TWO, Env=["A=b"]))
    faults: list[Fault] = []
    for _ in range(60):
        data = bytearray(rng.choice(archives))
        # Mostly in the documents: what is in layers has its own tests.
        places = [at for at in range(len(data)) if data[at : at + 1] in b'":,{}[]0123456789']
        for _ in range(rng.randrange(1, 4)):
            at = rng.choice(places) if rng.random() < 0.7 else rng.randrange(len(data))
            data[at] = rng.choice(b'"-:,{}[]019xZ\\\0\xff')
        try:
            bundle = ArchiveBundle(io.BytesIO(data), spool, ImportLimits())
            image = choose(bundle, None, AMD)
            layers = unpack(bundle, image, spool)
            read_config(image.config, layers, spool, Notes())
        except SkerryError as error:
            faults.append(error.fault)
    assert len(faults) > 10
    assert Fault.BUG not in faults
