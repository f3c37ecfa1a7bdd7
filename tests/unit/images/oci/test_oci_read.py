"""Reading images: which one is meant, what is in it, and everything that can be wrong with it."""

from __future__ import annotations

import io
import json
import os
import random
import tarfile
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from images_archives import make_tar, member

from oci_images import DOCKER, OCI, PACKS, Json, Layout, config_of, docker_archive, sha256
from skerry.errors import Fault, ImageBroken, InvalidRequest, NotFound, SkerryError
from skerry.images.archives.tarimport import ImportLimits, read_tar
from skerry.images.oci import layers as oci_layers
from skerry.images.oci.bundle import ArchiveBundle, Bundle, DirectoryBundle
from skerry.images.oci.choose import Image, choose, parse_platform
from skerry.images.oci.config import read_config, write_config
from skerry.images.oci.layers import LayerReader
from skerry.images.oci.model import BlobDamaged, Config
from skerry.images.scratch import Spool
from skerry.images.tree.entry import OPAQUE, Tree
from skerry.images.tree.merge import Collapse
from skerry.images.tree.notes import Notes
from skerry.spec.files import FileType
from skerry.spec.layers import ImageConfig

AMD = parse_platform("linux/amd64")
ONE = make_tar(member("etc", type=tarfile.DIRTYPE, mode=0o755), member("etc/one", b"1", uid=5))
TWO = make_tar(member("etc/two", b"22"), member("etc/.wh.one"))


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return Layout(tmp_path / "layout")


def bundle_of(layout: Layout) -> DirectoryBundle:
    return DirectoryBundle(str(layout.path))


def unpack(bundle: Bundle, image: Image, spool: Spool, **limits: int) -> Collapse:
    into = Collapse()
    LayerReader(bundle, spool, Notes(), ImportLimits(**limits)).read(image, into, lambda _: None)
    return into


def contents(spool: Spool, tree: Tree) -> dict[str, bytes]:
    return {
        os.fsdecode(entry.path): b"".join(spool.read(entry.node.content))
        for entry in tree.entries(spool)
        if entry.node.content is not None
    }


def read(layout: Layout, spool: Spool, tag: str | None = None) -> dict[str, bytes]:
    bundle = bundle_of(layout)
    [tree] = unpack(bundle, choose(bundle, tag, AMD), spool).trees
    return contents(spool, tree)


# --- what is read ---


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


# --- which one ---


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


# --- what is wrong ---

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


@pytest.mark.parametrize(
    "change",
    [
        {"os": 5}, {"os": None}, {"rootfs": None}, {"rootfs": {"type": "x", "diff_ids": None}},
        {"config": {"Env": [1]}}, {"config": {"Env": {"A": "b"}}}, {"config": []},
        {"config": {"Labels": {"a": None}}}, {"architecture": "amd64" * 1000},
    ],
    ids=lambda change: str(change)[:30],
)  # fmt: skip
def test_config_of_another_form_is_refused(layout: Layout, change: Json) -> None:
    layout.index(layout.image(ONE, config=config_of([ONE]) | change))
    with pytest.raises(SkerryError) as error:
        choose(bundle_of(layout), None, AMD)
    assert error.value.fault is not Fault.BUG
    assert len(error.value.message) < 1000


# --- the config ---


def configured(spool: Spool, layers: list[bytes], notes: Notes, **run) -> tuple[ImageConfig, Tree]:
    into = Collapse()

    for layer in layers:
        into.add(read_tar(io.BytesIO(layer), spool, notes, ImportLimits(), below=into.find))

    made = read_config(msgspec.convert(config_of(layers, **run), Config), into, spool, notes)
    return made, into.trees[-1]


def test_config_is_kept_and_its_directory_made(spool: Spool) -> None:
    base = make_tar(
        member("etc/passwd", b"root:x:0:0::/:/bin/sh\napp:x:1001:7::/:/bin/sh\n"),
        member("etc/group", b"web:x:33:\n"),
        member("srv", type=tarfile.DIRTYPE, mode=0o711),
    )
    config, tree = configured(
        spool, [base], Notes(),
        Env=["PATH=/opt/bin:/bin", "EMPTY=", "A=b=c"], User="app:web", WorkingDir="/srv/app/",
        Entrypoint=["/tini", "--"], Cmd=None, Labels={"a": "b"},
    )  # fmt: skip
    assert config == ImageConfig(
        env={"PATH": "/opt/bin:/bin", "EMPTY": "", "A": "b=c"},
        user="1001:33",
        workdir="/srv/app",
        entrypoint=("/tini", "--"),
        labels={"a": "b"},
    )
    assert tree.find(b"srv/app").mode == 0o755
    assert tree.find(b"srv").mode == 0o711
    written = write_config(config, AMD, [])
    assert written.config.env == ["A=b=c", "EMPTY=", "PATH=/opt/bin:/bin"]
    assert written.config.working_dir == "/srv/app"


@pytest.mark.parametrize(
    ("user", "kept"),
    [("app", "app"), ("1000", "1000"), ("1000:50", "1000:50"), ("ghost:web", "ghost"), ("", None),
     ("app:", "app"), (":web", None), ("a\0b", None), ("u" * 300, None)],
)  # fmt: skip
def test_user_of_the_config_becomes_one_that_commands_take(
    spool: Spool, user: str, kept: str | None
) -> None:
    config, _ = configured(spool, [ONE], Notes(), User=user)
    assert config.user == kept


def test_impossible_config_is_left_out_with_a_note(spool: Spool) -> None:
    notes = Notes()
    config, _ = configured(
        spool, [ONE], notes,
        Env=["=x", "OK=1", "NUL=a\0b", "LONG=" + "x" * (1 << 20)],
        WorkingDir="/" + "x" * 300, Cmd=["a\0"], Labels={"k": "v" * 100_000},
    )  # fmt: skip
    assert config == ImageConfig(env={"OK": "1"})
    assert len(notes.lines()) == 4


def test_working_directory_behind_a_link_is_left_alone(spool: Spool) -> None:
    base = make_tar(member("srv", type=tarfile.SYMTYPE, linkname="/var"))
    config, tree = configured(spool, [base], Notes(), WorkingDir="/srv/app")
    assert config.workdir == "/srv/app"
    assert tree.find(b"srv").type is FileType.SYMLINK
