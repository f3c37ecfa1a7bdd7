"""Names of images as Docker writes them: where they are, and as which layer they are kept."""

from __future__ import annotations

import pytest

from skerry.errors import InvalidRequest
from skerry.spec.reference import parse_reference

DIGEST = "sha256:" + "ab" * 32


@pytest.mark.parametrize(
    ("text", "layer", "source"),
    [
        ("ubuntu:24.04", "base/ubuntu:24.04", "docker://docker.io/library/ubuntu:24.04"),
        ("ubuntu", "base/ubuntu:latest", "docker://docker.io/library/ubuntu:latest"),
        ("team/app:1", "base/team/app:1", "docker://docker.io/team/app:1"),
        ("docker.io/library/ubuntu", "base/ubuntu:latest", "docker://docker.io/library/ubuntu:latest"),
        ("docker.io/team/app", "base/team/app:latest", "docker://docker.io/team/app:latest"),
        ("ghcr.io/astral-sh/uv:0.9.7", "base/ghcr.io/astral-sh/uv:0.9.7", "docker://ghcr.io/astral-sh/uv:0.9.7"),
        ("localhost:5000/app:1", "base/localhost-5000/app:1", "docker://localhost:5000/app:1"),
        ("localhost/app", "base/localhost/app:latest", "docker://localhost/app:latest"),
        (f"app:1@{DIGEST}", "base/app:sha256-" + "ab" * 32, f"docker://docker.io/library/app@{DIGEST}"),
        (f"h.example/a/b@{DIGEST}", "base/h.example/a/b:sha256-" + "ab" * 32, f"docker://h.example/a/b@{DIGEST}"),
    ],
)  # fmt: skip
def test_a_reference_says_where_it_is_and_as_what_it_is_kept(text, layer, source) -> None:
    reference = parse_reference(text)
    assert str(reference.layer()) == layer
    assert reference.at("docker.io") == source


def test_a_mirror_is_asked_for_what_names_no_registry() -> None:
    assert parse_reference("ubuntu").at("m:5000") == "docker://m:5000/library/ubuntu:latest"
    assert parse_reference("ghcr.io/a/b").at("m:5000") == "docker://ghcr.io/a/b:latest"


@pytest.mark.parametrize(
    "text",
    ["", "UPPER", "a//b", "/a", "a/", "a:", "a@sha256:12", "a b", "../a", "a/../b", "a\n",
     "-x", "https://h.example/a", "h.example:99999999/a", "u@h.example/a", "é", "a" * 600],
)  # fmt: skip
def test_what_is_no_reference_is_refused(text) -> None:
    with pytest.raises(InvalidRequest, match="is no image"):
        parse_reference(text)
