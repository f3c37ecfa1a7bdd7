"""`skerry doctor --config`: does it say of an object store what its operator has to do?"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from s3_place import s3_options
from skerry.cli.store_checks import store_check
from skerry.images.objects.s3 import S3Objects
from skerry.node.config import NodeConfig


@pytest.fixture
def config(tmp_path: Path):
    def make(store: str, options=None) -> NodeConfig:
        more = {"s3": options} if options is not None else {}
        places = {name: str(tmp_path / name) for name in ("state_dir", "run_dir", "store_dir")}
        return NodeConfig(**places, store=store, **more).check()

    return make


def test_good_store_is_tried_and_left_as_it_was(config, s3_server, tmp_path: Path) -> None:
    place = f"s3://{s3_server.bucket}/{tmp_path.name}"
    options = s3_options(s3_server, tmp_path)
    found = store_check(config(place, options))
    assert found.status in ("ok", "warning"), found  # a busy machine may be slow
    assert place in found.found
    assert " ms" in found.found
    assert list(S3Objects(place, options).list("")) == []


def test_slow_store_is_a_warning(config, s3_server, s3_link, tmp_path: Path) -> None:
    s3_link.set(latency_s=0.2)
    options = s3_options(s3_server, tmp_path, endpoint=s3_link.endpoint)
    found = store_check(config(f"s3://{s3_server.bucket}/{tmp_path.name}", options))
    assert found.status == "warning"
    assert "nearer" in found.remedy


@pytest.mark.parametrize(
    "case",
    [
        ("s3://no-such-bucket", {}, "make it"),
        ("s3://layers", {"endpoint": "http://127.0.0.1:1"}, "endpoint right"),
        ("s3://layers", {"access_key": "env:NOT_SET_HERE"}, "env:NOT_SET_HERE"),
    ],
)
def test_store_that_cannot_be_used_is_missing(
    config, s3_server, tmp_path: Path, case: tuple[str, dict[str, str], str]
) -> None:
    place, change, told = case

    options = dataclasses.replace(s3_options(s3_server, tmp_path), **change)
    found = store_check(config(place, options))
    assert found.status == "missing"
    assert told in found.remedy


def test_keys_without_the_right_to_write_are_missing_it(config, s3_server, tmp_path: Path) -> None:
    options = s3_options(s3_server, tmp_path, keys=s3_server.reader)
    found = store_check(config(f"s3://{s3_server.bucket}/{tmp_path.name}", options))
    assert found.status == "missing"
    assert "lack the right" in found.remedy
    assert s3_server.reader.secret not in repr(found)


def test_directory_is_only_looked_at(config, tmp_path: Path) -> None:
    found = store_check(config(""))
    assert found.status == "ok"
    assert not (tmp_path / "store_dir").exists()
    (tmp_path / "store_dir").write_text("a file")
    assert store_check(config("")).status == "missing"
