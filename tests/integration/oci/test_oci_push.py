"""Images to a real registry and back."""

from __future__ import annotations

import io
import json
import subprocess
import tarfile
from pathlib import Path

import pytest
from oci_stand import ONE, OPEN, SHARED, TWO, names, tar

import registry as registries
from oci_images import Layout
from registry import Registry
from skerry.errors import NotFound, RegistryDenied, Unavailable
from skerry.images.library import ImageLibrary
from skerry.images.oci.images import OciImages
from skerry.images.oci.skopeo import Access
from skerry.spec.layers import ImageConfig

pytestmark = pytest.mark.usefixtures("needs")


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
