"""Stores that a Skerry of before wrote."""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path

import msgspec
import pytest

from skerry.errors import LayerDamaged
from skerry.images.store import older
from skerry.images.store.older import convert_version_1
from skerry.images.store.store import DirectoryStore
from skerry.spec.layers import LayerManifest, parse_layer_name

OLD, NEW = "sha256:" + "a" * 64, "sha256:" + "b" * 64


def manifest(name: str, digest: str) -> LayerManifest:
    return LayerManifest(name, digest, 4, "2026-01-01T00:00:00Z", "import")


@pytest.fixture
def root(tmp_path: Path) -> str:
    """A store of version 1: a tag that moved, a name of several parts, scratch of a killed import."""
    top = tmp_path / "store"
    for name, digest, tagged in (
        ("base/debian:12", OLD, False),
        ("base/debian:12", NEW, True),
        ("workspace/a/b:1", NEW, True),
    ):
        parsed = parse_layer_name(name)
        file = os.path.join(parsed.kind, parsed.name, f":{parsed.tag}.json")
        for path, content in (
            (top / "manifests" / digest[7:] / file, msgspec.json.encode(manifest(name, digest))),
            (top / "tags" / file, b'{"digest":"%s","version":1}' % digest.encode()),
            (top / "blobs/sha256" / digest[7:9] / digest[7:], b"blob"),
        ):
            if tagged or "tags" not in path.parts:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
    for directory in ("tmp/skerry-images-x", "scratch"):
        (top / directory).mkdir(parents=True)
    (top / "tmp/skerry-images-x/half").write_bytes(b"x")
    (top / "lock").touch()
    (top / "version").write_text("1\n")
    return str(top)


def check(store: DirectoryStore) -> None:
    assert [one.name for one in store.catalogue()] == ["base/debian:12", "workspace/a/b:1"]
    assert store.tag(parse_layer_name("base/debian:12")) == NEW
    assert {(one.name, one.digest) for one in store.manifests()} == {
        ("base/debian:12", OLD),
        ("base/debian:12", NEW),
        ("workspace/a/b:1", NEW),
    }
    assert Path(store.path(OLD)).read_bytes() == b"blob"
    assert sorted(os.listdir(store.root)) == ["blobs", "manifests", "tags", "version"]
    assert {len(name) for name in os.listdir(os.path.join(store.root, "manifests"))} == {2}


def test_old_store_is_converted_and_its_layers_are_all_there(root: str) -> None:
    check(DirectoryStore(root))
    assert convert_version_1(root) is False
    check(DirectoryStore(root))


def test_several_who_open_an_old_store_at_once_all_find_it_whole(root: str) -> None:
    gate, failures = threading.Barrier(6), []

    def turn() -> None:
        gate.wait()
        try:
            check(DirectoryStore(root))
        except BaseException as error:  # noqa: BLE001 - told below
            failures.append(error)

    threads = [threading.Thread(target=turn) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


@pytest.mark.parametrize("calls", range(1, 14))
def test_conversion_that_is_cut_off_is_done_again(
    root: str, monkeypatch: pytest.MonkeyPatch, calls: int
) -> None:
    class CutOff(BaseException):
        pass

    left = calls
    real = os.rename, os.link, older.remove_tree

    def cut(work):
        def call(*args: object, **options: object) -> object:
            nonlocal left
            left -= 1
            if left == 0:
                raise CutOff
            return work(*args, **options)

        return call

    monkeypatch.setattr(os, "rename", cut(real[0]))
    monkeypatch.setattr(os, "link", cut(real[1]))
    monkeypatch.setattr(older, "remove_tree", cut(real[2]))
    with contextlib.suppress(CutOff):
        DirectoryStore(root)
    monkeypatch.undo()
    check(DirectoryStore(root))


def test_damaged_old_tag_is_named_and_nothing_is_changed(root: str) -> None:
    tag = Path(root, "tags/workspace/a/b/:1.json")
    tag.write_text("{")
    with pytest.raises(LayerDamaged, match=r"b/:1\.json"):
        DirectoryStore(root)
    assert Path(root, "version").read_text() == "1\n"
    assert tag.exists()
