"""Images from and to a real registry, whole and broken; the node's part without a node."""

from __future__ import annotations

import gzip
import io
import itertools
import json
import os
import random
import subprocess
import tarfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import registry as registries
from oci_images import Layout, sha256
from registry import Registry, Troubled
from skerry.errors import (
    ImageBroken,
    InvalidRequest,
    NotFound,
    RegistryDenied,
    SkerryError,
    StorageFailed,
    Unavailable,
)
from skerry.images.archives.tarimport import ImportLimits
from skerry.images.format.erofs import Tools
from skerry.images.library import ImageLibrary
from skerry.images.oci import skopeo
from skerry.images.oci.images import OciImages
from skerry.images.oci.skopeo import Access, SkopeoLimits
from skerry.images.scratch import Spool
from skerry.images.store.opened import read_layer
from skerry.images.store.store import DirectoryStore
from skerry.spec.layers import ImageConfig

OPEN = Access(tls_verify=False)
BIG = random.Random(3).randbytes(3 << 20)


def tar(*members: tuple[str, bytes | None]) -> bytes:
    """A plain tar; None makes a directory."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data or b"")
            if data is None:
                info.type, info.mode = tarfile.DIRTYPE, 0o755
            archive.addfile(info, io.BytesIO(data or b""))
    return out.getvalue()


SHARED = tar(("etc", None), ("etc/shared", BIG))
ONE = tar(("one", b"1"), ("etc/.wh.gone", b""))
TWO = tar(("two", b"2"))


@pytest.fixture(autouse=True)
def needs() -> Iterator[None]:
    if reason := registries.missing():
        pytest.skip(reason)
    before = notes_of_skopeo()
    yield
    assert notes_of_skopeo() == before, "skopeo left notes on this host"


def notes_of_skopeo() -> dict[str, int]:
    found = Path("/var/lib/containers").rglob("*")
    return {str(path): path.stat().st_mtime_ns for path in found}


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[Registry]:
    with registries.running(tmp_path / "registry") as made:
        yield made


@pytest.fixture
def closed(tmp_path: Path) -> Iterator[Registry]:
    with registries.running(tmp_path / "closed", auth=True) as made:
        yield made


@pytest.fixture
def way(registry: Registry) -> Iterator[Troubled]:
    with registries.troubled(registry.port) as made:
        yield made


@pytest.fixture
def library(tmp_path: Path) -> ImageLibrary:
    try:
        Tools().mkfs()
    except Unavailable as error:
        pytest.skip(error.message)
    return ImageLibrary(DirectoryStore(str(tmp_path / "store")), Tools(), str(tmp_path / "scratch"))


@pytest.fixture
def oci(
    library: ImageLibrary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[OciImages]:
    monkeypatch.setattr(skopeo, "_RETRY_PAUSES_S", (0.1, 0.1))
    yield OciImages(
        library, str(tmp_path / "cache"), skopeo_limits=SkopeoLimits(time_s=60, silence_s=20)
    )
    assert sorted(os.listdir(tmp_path / "scratch")) == []
    left = set(os.listdir(tmp_path / "cache")) if (tmp_path / "cache").exists() else set()
    assert left <= {"blobs", ".lock"}, "credentials or layouts were left"


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    made = Layout(tmp_path / "layout")
    made.index(
        made.image(SHARED, ONE, tag="one", Env=["LEVEL=one"], User="1000"),
        made.image(SHARED, TWO, tag="two"),
    )
    return made


def names(library: ImageLibrary, name: str, place: Path) -> set[bytes]:
    spool = Spool(str(place))
    found: set[bytes] = set()
    for layer in library.inspect(name).layers():
        tree = read_layer(library.store, layer, str(place), spool, ImportLimits())
        found |= {entry.path for entry in tree.entries(None)}
    spool.close()
    return found


def cached(tmp_path: Path) -> Path:
    return tmp_path / "cache/blobs/sha256"


def layer_digest(layout: Layout, plain: bytes) -> str:
    return str(layout.blob(gzip.compress(plain, mtime=0), "")["digest"])


# --- fetching ---


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


def test_registry_that_falls_silent_ends_the_import_in_bounded_time(
    registry: Registry, way: Troubled, library: ImageLibrary, layout: Layout, tmp_path: Path
) -> None:
    registry.push(layout.path, "one", "app:1")
    way.hold = True
    limits = SkopeoLimits(time_s=60, silence_s=1.5)
    oci = OciImages(library, str(tmp_path / "cache"), skopeo_limits=limits)
    started = time.monotonic()
    with pytest.raises(Unavailable, match=r"nothing came from the registry for 1\.5 s"):
        oci.import_registry("base/app", f"{way.host}/app:1", access=OPEN)
    assert time.monotonic() - started < 45  # three tries and their pauses
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


# --- being refused ---


def test_credentials_are_needed_and_never_told(
    closed: Registry,
    oci: OciImages,
    layout: Layout,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    closed.push(layout.path, "one", "app:1", closed.auth_file())
    reference = f"{closed.host}/app:1"
    said: list[str] = []
    for auth in (None, closed.auth_file("wrong"), closed.auth_file(host="127.0.0.1:1")):
        access = Access(auth, tls_verify=False)
        with pytest.raises(RegistryDenied, match="--authfile") as error:
            oci.import_registry("base/app", reference, access=access, log=said.append)
        said.append(error.value.message)
    access = Access(closed.auth_file(), tls_verify=False)
    made = oci.import_registry("base/app", reference, access=access, log=said.append)
    everything = "\n".join(said) + repr(made) + "".join(capfd.readouterr())
    secret = closed.auth_file().decode().split('"auth": "')[1].split('"')[0]
    assert registries.PASSWORD not in everything
    assert secret not in everything
    for path in (tmp_path / "cache").rglob("*"):
        assert not path.is_file() or secret.encode() not in path.read_bytes()


def test_credentials_are_never_in_arguments_or_environment(
    closed: Registry, oci: OciImages, layout: Layout
) -> None:
    """Looked at from outside, while a download is held up."""
    closed.push(layout.path, "one", "app:1", closed.auth_file())
    with registries.troubled(closed.port) as way:
        way.hold = True
        access = Access(closed.auth_file(host=way.host), tls_verify=False)
        seen: list[bytes] = []

        def work() -> None:
            with pytest.raises(SkerryError):
                oci.import_registry("base/app", f"{way.host}/app:1", access=access)

        thread = threading.Thread(target=work)
        thread.start()
        deadline = time.monotonic() + 20
        while not any("/blobs/" in line for line in way.requests) and time.monotonic() < deadline:
            time.sleep(0.05)
        for name in filter(str.isdigit, os.listdir("/proc")):
            try:
                words = Path(f"/proc/{name}/cmdline").read_bytes()
                if b"skopeo" in words and way.host.encode() in words:
                    seen += [words, Path(f"/proc/{name}/environ").read_bytes()]
                    files = [word for word in words.split(b"\0") if b"authfile=" in word]
                    path = Path(os.fsdecode(files[0].partition(b"=")[2]))
                    assert path.stat().st_mode & 0o777 == 0o600
                    assert path.parent.stat().st_mode & 0o777 == 0o700
                    status = Path(f"/proc/{name}/status").read_text()
                    assert "CapEff:\t0000000000000000" in status
                    assert "CapBnd:\t0000000000000000" in status
            except OSError:
                continue
        way.close()
        closed.stop()
        thread.join(60)
        assert seen
        secret = closed.auth_file().decode().split('"auth": "')[1].split('"')[0].encode()
        assert not any(registries.PASSWORD.encode() in one or secret in one for one in seen)


@pytest.mark.parametrize(
    ("auth", "said"),
    [
        (b"{", "is none"),
        (b'{"auths": {"x": {"auth": 5}}}', "is none"),
        (b'{"auths": {}, "credsStore": "desktop"}', "credsStore"),
        (b'{"auths": {"x": {"auth": ""}}, "credHelpers": {"x": "y"}}', "credsStore"),
        (b"x" * 70_000, "more than"),
    ],
)
def test_auth_file_of_another_kind_is_refused_without_quoting_it(
    oci: OciImages, auth: bytes, said: str
) -> None:
    with pytest.raises(InvalidRequest, match=said) as error:
        oci.import_registry("base/app", "127.0.0.1:1/app:1", access=Access(auth))
    assert auth.decode()[:20] not in error.value.message


def test_missing_image_and_tag_are_not_found(
    registry: Registry, oci: OciImages, layout: Layout
) -> None:
    registry.push(layout.path, "one", "app:1")
    for reference in ("app:2", "other:1", f"app@sha256:{'0' * 64}"):
        with pytest.raises(NotFound, match="check its name and tag"):
            oci.import_registry("base/app", f"{registry.host}/{reference}", access=OPEN)


@pytest.mark.parametrize(
    "reference",
    ["", "UPPER/case", "host/Upper", "-x/y", "a b", "host/x:tag:tag", "host/x@sha256:12", "a" * 600,
     "host/x\n", "--help", "../x"],
)  # fmt: skip
def test_bad_reference_is_an_invalid_request(oci: OciImages, reference: str) -> None:
    with pytest.raises(InvalidRequest, match="names no image"):
        oci.import_registry("base/app", reference, access=OPEN)


def test_unreachable_registry_and_one_without_tls_say_so(
    registry: Registry, oci: OciImages, layout: Layout
) -> None:
    registry.push(layout.path, "one", "app:1")
    nobody = registries.free_port()
    with pytest.raises(Unavailable, match="connection refused"):
        oci.import_registry("base/app", f"127.0.0.1:{nobody}/app:1", access=OPEN)
    with pytest.raises(Unavailable, match="over TLS") as error:
        oci.import_registry("base/app", f"{registry.host}/app:1", access=Access())
    assert "--no-tls-verify" in error.value.fields["hint"]


def test_missing_skopeo_says_what_to_install(
    oci: OciImages, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Unavailable, match="apt-get install skopeo"):
        oci.import_registry("base/app", "127.0.0.1:1/app:1", access=OPEN)


def test_artifact_that_is_no_image_is_refused(
    registry: Registry, oci: OciImages, tmp_path: Path
) -> None:
    layout = Layout(tmp_path / "chart")
    manifest = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": layout.document({"name": "x"}, "application/vnd.cncf.helm.config.v1+json"),
        "layers": [layout.blob(b"chart", "application/vnd.cncf.helm.chart.content.v1.tar+gzip")],
    }
    tag = {"org.opencontainers.image.ref.name": "c"}
    layout.index(layout.document(manifest, manifest["mediaType"], annotations=tag))
    registry.push(layout.path, "c", "chart:1")
    with pytest.raises(ImageBroken, match="no image but something else"):
        oci.import_registry("base/app", f"{registry.host}/chart:1", access=OPEN)


def test_full_disk_is_a_storage_failure() -> None:
    words = 'writing blob: storing blob to file "/x": write /x: no space left on device'
    assert isinstance(skopeo.explain("host/app", words), StorageFailed)
    # The name of an image is no reason.
    assert isinstance(skopeo.explain("host/unauthorized", "host/unauthorized: EOF"), Unavailable)


# --- pushing ---


def test_pushed_layers_come_back_as_the_same_tree(
    closed: Registry, oci: OciImages, library: ImageLibrary, layout: Layout, tmp_path: Path
) -> None:
    layout.index(layout.image(SHARED, ONE, tag="one", Env=["LEVEL=one"], WorkingDir="/etc"))
    base = oci.import_archive("base/b:1", io.BytesIO(layout.tar()))
    library.import_tar("workspace/w:1", io.BytesIO(tar(("etc/.wh.shared", b""), ("w", b"w"))))
    access = Access(closed.auth_file(), tls_verify=False)
    reference = f"{closed.host}/pushed/all:1"
    with pytest.raises(RegistryDenied):
        oci.push(["b:1", "workspace/w:1"], reference, access=OPEN)
    with pytest.raises(Unavailable, match="over TLS") as error:
        oci.push(["b:1"], reference, access=Access(closed.auth_file()))
    assert "Copying blob" not in error.value.message  # the reason alone
    said: list[str] = []
    digest = oci.push(["b:1", "workspace/w:1"], reference, access=access, log=said.append)
    assert closed.blob(digest).exists()
    assert any("packed" in line for line in said)
    again = oci.import_registry("base/again:1", f"{closed.host}/pushed/all@{digest}", access=access)
    assert again.config == base.config
    assert names(library, "again:1", tmp_path) == {b"", b"etc", b"one", b"w"}
    assert again.digest == oci.collapse(["b:1", "workspace/w:1"], "base/all:1").digest
    assert oci.push(["b:1", "workspace/w:1"], reference, access=access) == digest


def test_pushed_image_is_one_that_others_read(
    registry: Registry, oci: OciImages, library: ImageLibrary, layout: Layout, tmp_path: Path
) -> None:
    """skopeo, as another reader of the specification, makes a docker archive of it."""
    layout.index(layout.image(SHARED, ONE, tag="one", Env=["LEVEL=one"], Entrypoint=["/one"]))
    oci.import_archive("base/b:1", io.BytesIO(layout.tar()))
    library.import_tar("toolkit/t:1", io.BytesIO(tar(("etc/.wh..wh..opq", b""), ("etc/t", b"t"))))
    oci.push(["b:1", "toolkit/t:1"], f"{registry.host}/b:1", access=OPEN)
    saved = tmp_path / "saved.tar"
    subprocess.run(
        [*registries.SKOPEO, "copy", "--src-tls-verify=false",
         f"docker://{registry.host}/b:1", f"docker-archive:{saved}:b:1"],
        check=True, capture_output=True, timeout=60,
    )  # fmt: skip
    with tarfile.open(saved) as archive:
        [entry] = json.load(archive.extractfile("manifest.json"))
        config = json.load(archive.extractfile(entry["Config"]))
        assert config["config"]["Env"] == ["LEVEL=one"]
        assert config["config"]["Entrypoint"] == ["/one"]
        with tarfile.open(fileobj=archive.extractfile(entry["Layers"][1])) as layer:
            assert {"etc/.wh..wh..opq", "etc/t"} <= set(layer.getnames())
    with saved.open("rb") as file:
        made = oci.import_archive("base/saved:1", file)
    assert names(library, "saved:1", tmp_path) == {b"", b"etc", b"etc/t", b"one"}
    assert made.config == ImageConfig(env={"LEVEL": "one"}, entrypoint=("/one",))


def test_push_to_a_registry_that_is_gone_leaves_nothing(
    oci: OciImages, library: ImageLibrary, layout: Layout
) -> None:
    library.import_tar("workspace/w:1", io.BytesIO(TWO))
    with pytest.raises(Unavailable, match="connection refused"):
        oci.push(["workspace/w:1"], f"127.0.0.1:{registries.free_port()}/w:1", access=OPEN)
    with pytest.raises(NotFound):
        oci.push(["workspace/missing"], "127.0.0.1:1/w:1", access=OPEN)
