"""`skerry image` with images of other systems."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from fake_client import FakeClient, invoke, manifest

from skerry.spec.layers import ImageConfig
from skerry.spec.residue import Scrubbed

DOCKER = "docker://127.0.0.1:5000/app:1"


def test_import_of_a_reference_goes_to_the_node_with_its_options(tmp_path: Path) -> None:
    client = FakeClient()
    auth = tmp_path / "auth.json"
    auth.write_text("{}")
    result = invoke(
        client, "image", "import", "app:1", DOCKER, "--platform", "linux/arm64",
        "--authfile", str(auth), "--no-tls-verify",
    )  # fmt: skip
    assert result.exit_code == 0
    wanted = {"platform": "linux/arm64", "authfile": str(auth), "tls_verify": False}
    assert client.calls[-1] == ("import_oci", "app:1", DOCKER, wanted)
    assert "copying" in result.stderr
    assert "sha256:" in result.stdout


def test_certificates_are_checked_unless_it_is_said_otherwise() -> None:
    client = FakeClient()
    invoke(client, "image", "import", "app:1", DOCKER)
    assert client.calls[-1][3]["tls_verify"] is True


@pytest.mark.parametrize("scheme", ["oci", "oci-archive", "docker-archive"])
def test_import_of_a_local_image_is_told_from_one_of_a_tar(tmp_path: Path, scheme: str) -> None:
    client = FakeClient()
    (tmp_path / "image").write_bytes(b"x")
    source = f"{scheme}:{tmp_path}/image:tag"
    assert invoke(client, "image", "import", "base/app", source).exit_code == 0
    assert client.calls[-1] == ("import_oci", "base/app", source, {"platform": None})
    invoke(client, "image", "import", "base/app", str(tmp_path / "image"))
    assert client.calls[-1][0] == "import_tar"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("oci:missing:1",), "no file or directory"),
        ((DOCKER, "--prefix", "/opt"), "--prefix is for directories"),
        (("x.tar", "--no-tls-verify"), "are for images"),
        (("x.tar", "--platform", "linux/amd64"), "are for images"),
        ((DOCKER, "--authfile", "missing.json"), "missing.json"),
    ],
)
def test_options_that_do_not_fit_are_refused(arguments: tuple[str, ...], said: str) -> None:
    result = invoke(FakeClient(), "image", "import", "base/app", *arguments)
    assert result.exit_code != 0
    assert said in result.stderr


def test_push_names_layers_and_then_the_target() -> None:
    client = FakeClient()
    result = invoke(client, "--json", "image", "push", "debian:12", "toolkit/t", DOCKER)
    assert client.calls[-1][:3] == ("push", ("debian:12", "toolkit/t"), DOCKER)
    assert json.loads(result.stdout) == {"target": DOCKER, "digest": "sha256:" + "d" * 64}
    assert invoke(client, "image", "push", DOCKER).exit_code == 2


def test_collapse_takes_a_threshold() -> None:
    client = FakeClient()
    result = invoke(
        client, "image", "collapse", "workspace/a", "workspace/b", "--into", "workspace/c",
        "--threshold", "1GiB",
    )  # fmt: skip
    assert result.exit_code == 0
    wanted = ("collapse", ("workspace/a", "workspace/b"), "workspace/c", {"threshold": "1GiB"})
    assert client.calls[-1] == wanted
    assert invoke(client, "image", "collapse", "workspace/a").exit_code == 2


def test_inspect_shows_what_an_image_sets_and_its_parts() -> None:
    client = FakeClient()
    part = manifest("base/app:1")
    config = ImageConfig({"PATH": "/x"}, "/srv", "1000", ("/tini", "--"), (), {"a": "b"})
    client.layers["base/app:1"] = msgspec.structs.replace(part, config=config, parts=(part,))
    shown = invoke(client, "image", "inspect", "base/app:1").stdout
    for line in ("PATH=/x", "/srv", "1000", "/tini --", "a=b", "part below"):
        assert line in shown


def test_inspect_shows_what_a_layer_was_made_on_and_what_a_commit_left_out() -> None:
    client = FakeClient()
    client.layers["workspace/a"] = msgspec.structs.replace(
        manifest("workspace/a:latest"),
        parents=("sha256:" + "b" * 64,),
        scrubbed=(Scrubbed("temporary", 3, 2048, ("/tmp/a",)),),
    )
    shown = invoke(client, "image", "inspect", "workspace/a").stdout
    assert "sha256:" + "b" * 64 in shown
    assert "temporary: 3 files, 2 KiB (/tmp/a, ...)" in shown


def test_what_an_image_says_of_itself_cannot_command_a_terminal() -> None:
    client = FakeClient()
    config = ImageConfig(
        {"A": "\x1b]0;title\x07\x1b[2J\r\x9b31m"}, labels={"b": "\u202etxt.exe\udc80"}
    )
    made = manifest("base/app:1")
    recipe = {"notes": "dropped: \x1b[3A/etc/x", "recipe": "FROM a\nRUN b\n"}
    client.layers[made.name] = msgspec.structs.replace(made, config=config, recipe=recipe)
    shown = invoke(client, "image", "inspect", made.name).stdout
    assert all(letter.isprintable() or letter == "\n" for letter in shown)
    assert "A=\\x1b]0;title\\x07\\x1b[2J\\r\\x9b31m" in shown
    assert "\n" + " " * 15 + "RUN b\n" in shown
