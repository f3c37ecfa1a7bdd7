"""Options of S3 stores: what is refused at the start, and how secrets are named and never shown."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from skerry.errors import InvalidRequest
from skerry.images.objects.s3_options import (
    Place,
    S3Options,
    is_s3,
    named_secret,
    parse_place,
)
from skerry.images.objects.signing import Keys


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("s3://layers", Place("layers", "")),
        ("s3://layers/", Place("layers", "")),
        ("s3://my.bucket-1/team/a", Place("my.bucket-1", "team/a/")),
        ("s3://layers/team/a/", Place("layers", "team/a/")),
    ],
)
def test_place_is_bucket_and_prefix(text: str, place: Place) -> None:
    assert parse_place(text) == place


@pytest.mark.parametrize(
    "text",
    ["s3:/layers", "s3://", "s3:///a", "s3://AB", "s3://a", "http://layers/a", "s3://layers/../a",
     "s3://layers/a//b", "s3://layers/a b", "s3://layers/" + "x" * 200, "s3://la\nyers/a"],
)  # fmt: skip
def test_what_is_no_place_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest):
        parse_place(text)


def test_directory_is_no_s3_store() -> None:
    assert not is_s3("/var/lib/skerry/store")
    assert is_s3("s3://layers/a")


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"endpoint": "layers.example"}, "endpoint"),
        ({"endpoint": "ftp://layers.example"}, "endpoint"),
        ({"endpoint": "http://user:word@layers.example"}, "endpoint"),
        ({"endpoint": "http://layers.example/bucket"}, "endpoint"),
        ({"region": "us east"}, "region"),
        ({"access_key": "AKIAEXAMPLE"}, "access_key"),
        ({"secret_key": "the-secret-itself"}, "secret_key"),
        ({"secret_key": ""}, "secret_key"),
        ({"session_token": "env:not a name"}, "session_token"),
        ({"secret_key": "file:relative"}, "secret_key"),
        ({"ca_file": "ca.pem"}, "ca_file"),
        ({"timeout_s": 0}, "timeout_s"),
        ({"patience_s": -1}, "patience_s"),
        ({"part_bytes": 1 << 20}, "part_bytes"),
        ({"parts_in_flight": 0}, "parts_in_flight"),
    ],
)
def test_option_that_makes_no_sense_is_named(change: dict[str, object], named: str) -> None:
    with pytest.raises(InvalidRequest, match=named) as caught:
        dataclasses.replace(S3Options(), **change).check()
    assert "the-secret-itself" not in str(caught.value)
    assert "word" not in str(caught.value)


def test_url_of_each_style() -> None:
    own = S3Options(endpoint="https://s3.example:9000/")
    assert own.url("layers") == "https://s3.example:9000/layers"
    virtual = dataclasses.replace(own, path_style=False)
    assert virtual.url("layers") == "https://layers.s3.example:9000"
    assert S3Options(region="eu-west-1").url("b") == "https://s3.eu-west-1.amazonaws.com/b"


def test_secret_comes_from_the_environment_or_a_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SOME_KEY", " in-the-environment\n")
    assert named_secret("env:SOME_KEY") == "in-the-environment"
    file = tmp_path / "key"
    file.write_text("in-the-file\n")
    assert named_secret(f"file:{file}") == "in-the-file"


def test_secret_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("SOME_KEY", raising=False)
    with pytest.raises(InvalidRequest, match="env:SOME_KEY"):
        named_secret("env:SOME_KEY")
    with pytest.raises(InvalidRequest, match=f"file:{tmp_path}/absent"):
        named_secret(f"file:{tmp_path}/absent")


@pytest.mark.parametrize("content", [b"", b"\n", b"two\nlines", b"x" * 5000, b"\xff\xfe", b"a\0b"])
def test_secret_file_with_something_else_is_refused_unseen(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "key"
    file.write_bytes(content)
    with pytest.raises(InvalidRequest) as caught:
        named_secret(f"file:{file}")
    assert "lines" not in str(caught.value)


def test_printed_keys_show_no_secret() -> None:
    shown = repr(Keys("id", "a-secret", "a-token"))
    assert "a-secret" not in shown
    assert "a-token" not in shown
