"""Imports from a real registry that are refused: credentials, names, and what is no image."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest
from oci_stand import OPEN

import registry as registries
from oci_images import Layout
from registry import Registry
from skerry.errors import (
    ImageBroken,
    InvalidRequest,
    NotFound,
    RegistryDenied,
    SkerryError,
    StorageFailed,
    Unavailable,
)
from skerry.images.oci import skopeo
from skerry.images.oci.images import OciImages
from skerry.images.oci.skopeo import Access

pytestmark = pytest.mark.usefixtures("needs")


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
