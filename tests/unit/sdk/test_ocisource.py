"""How users write where an image is."""

from __future__ import annotations

from pathlib import Path

import pytest

from skerry.errors import InvalidRequest
from skerry.sdk.ocisource import is_oci_source, parse_oci_source, read_auth


def test_reference_is_taken_as_it_is() -> None:
    source = parse_oci_source("docker://host:5000/a/b:1@sha256:00")
    assert (source.reference, source.tag) == ("host:5000/a/b:1@sha256:00", None)


@pytest.mark.parametrize("name", ["layout", "with:colon", "with:colon:more"])
@pytest.mark.parametrize("tag", [None, "1", "host:5000/app:1"])
def test_path_is_the_longest_that_is_there(tmp_path: Path, name: str, tag: str | None) -> None:
    (tmp_path / name).mkdir()
    (tmp_path / name.split(":", maxsplit=1)[0]).mkdir(exist_ok=True)
    source = parse_oci_source(f"oci:{tmp_path}/{name}{':' + tag if tag else ''}")
    assert source.path == tmp_path / name
    assert source.tag == tag


@pytest.mark.parametrize(
    "text", ["", "x.tar", "docker:x", "dir:x", "oci:", "oci:/nowhere:1", "oci::1"]
)
def test_anything_else_is_an_invalid_request(text: str) -> None:
    with pytest.raises(InvalidRequest):
        parse_oci_source(text)


def test_plain_paths_are_no_images() -> None:
    assert not is_oci_source("./oci")
    assert not is_oci_source("docker")
    assert is_oci_source("docker-archive:x")


def test_auth_file_is_read_here_or_refused(tmp_path: Path) -> None:
    assert read_auth(None) is None
    (tmp_path / "a").write_text("{}")
    assert read_auth(tmp_path / "a") == "{}"
    (tmp_path / "b").write_bytes(b"\xff\xfe")
    for path in (tmp_path / "b", tmp_path / "missing", tmp_path):
        with pytest.raises(InvalidRequest, match="authfile"):
            read_auth(path)
