from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import msgspec
import pytest

from skerry.errors import LayerDamaged, NotFound, StorageFailed
from skerry.images.scratch import scratch_directory, sweep
from skerry.images.store.store import DirectoryStore
from skerry.spec.layers import ImageConfig, LayerManifest, parse_layer_name

A, B = "sha256:" + "a" * 64, "sha256:" + "b" * 64


def put(store: DirectoryStore, tmp_path: Path, digest: str, content: bytes = b"blob") -> None:
    (tmp_path / "new").write_bytes(content)
    store.put(str(tmp_path / "new"), digest)


def manifest(name: str, digest: str) -> LayerManifest:
    return LayerManifest(name, digest, 4, "2026-01-01T00:00:00Z", "import")


def test_blob_put_is_found_listed_read_only_and_deleted_twice(
    store: DirectoryStore, tmp_path: Path
) -> None:
    put(store, tmp_path, A)
    assert store.has(A)
    assert Path(store.path(A)).read_bytes() == b"blob"
    assert os.stat(store.path(A)).st_mode & 0o777 == 0o444
    assert list(store.list()) == [(A, 4)]
    store.delete(A)
    store.delete(A)
    assert not store.has(A)
    with pytest.raises(NotFound):
        store.path(A)


def test_putting_the_same_blob_again_keeps_the_file_in_place(
    store: DirectoryStore, tmp_path: Path
) -> None:
    put(store, tmp_path, A)
    inode = os.stat(store.path(A)).st_ino
    put(store, tmp_path, A)
    assert os.stat(store.path(A)).st_ino == inode


def test_chunk_list_lies_beside_its_blob_and_goes_with_it(
    store: DirectoryStore, tmp_path: Path
) -> None:
    put(store, tmp_path, A)
    (tmp_path / "list").write_bytes(b"chunks")
    store.put(str(tmp_path / "list"), A, ".chunks")
    assert store.has(A, ".chunks")
    assert not store.has(A, ".zst")
    assert list(store.list()) == [(A, 10)]
    store.delete(A)
    assert list(store.list()) == []


def test_tags_and_manifests_are_found_by_name_and_digest(store: DirectoryStore) -> None:
    names = ["base/debian:12", "base/debian/slim:12", "base/debian:latest", "toolkit/a.b-c:1.0_x"]
    for text in names:
        store.put_manifest(manifest(text, A))
        store.set_tag(parse_layer_name(text), A)
    with pytest.raises(NotFound):
        store.set_tag(parse_layer_name(names[0]), B)
    store.put_manifest(manifest(names[0], B))
    store.set_tag(parse_layer_name(names[0]), B)
    store.delete_manifest(parse_layer_name(names[0]), B)
    assert store.tagged(parse_layer_name(names[0])) == manifest(names[0], B)
    assert sorted(str(name) for name, _ in store.tags()) == sorted(names)
    assert store.tag(parse_layer_name(names[0])) == B
    assert store.manifest(parse_layer_name(names[0]), A) == manifest(names[0], A)
    assert store.manifest(parse_layer_name(names[0]), B) is None
    assert len(list(store.manifests(A))) == 4
    assert list(store.manifests(B)) == []
    for text in names:
        store.delete_tag(parse_layer_name(text))
        store.delete_manifest(parse_layer_name(text), A)
        store.delete_manifest(parse_layer_name(text), A)
    assert list(store.tags()) == list(store.manifests()) == []
    assert list(store.objects.list("tags/")) == []


def test_longest_names_have_keys_of_their_own(store: DirectoryStore) -> None:
    names = [f"base/{'/'.join(['n' * 128] * 7)}/{end}:{'t' * 128}" for end in "ab"]
    for text in names:
        store.put_manifest(manifest(text, A))
        store.set_tag(parse_layer_name(text), A)
    assert [one.name for one in store.catalogue()] == names
    assert sorted(one.name for one in store.manifests(A)) == names


def test_catalogue_reads_again_only_what_changed(
    store: DirectoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"toolkit/t{at:03}:latest" for at in range(50)]
    for text in names:
        store.put_manifest(manifest(text, A))
        store.set_tag(parse_layer_name(text), A)
    assert [one.name for one in store.catalogue()] == names
    read: list[str] = []
    real = store.objects.get
    monkeypatch.setattr(
        store.objects, "get", lambda key, most: (read.append(key), real(key, most))[1]
    )
    store.put_manifest(manifest(names[7], B))
    store.set_tag(parse_layer_name(names[7]), B)
    read.clear()
    store.delete_tag(parse_layer_name(names[9]))
    found = list(store.catalogue())
    assert read == ["tags/toolkit/t007!!latest"]
    assert [one.name for one in found] == names[:9] + names[10:]
    assert found[7].digest == B


def test_store_of_another_version_is_refused(store: DirectoryStore) -> None:
    Path(store.root, "version").write_text("3\n")
    with pytest.raises(StorageFailed, match="version '3'"):
        DirectoryStore(store.root)


def test_damaged_manifest_is_the_platforms_fault(store: DirectoryStore) -> None:
    store.put_manifest(manifest("base/x:1", A))
    [path] = [path for path in Path(store.root, "manifests").rglob("*") if path.is_file()]
    path.write_text("{")
    with pytest.raises(LayerDamaged, match="damaged"):
        store.manifest(parse_layer_name("base/x:1"), A)


def test_flipped_bit_in_a_record_never_passes_for_another_record(store: DirectoryStore) -> None:
    name = parse_layer_name("base/x:1")
    config = ImageConfig({"PATH": "/usr/bin"}, "/srv", "1000", cmd=("run",))
    made = msgspec.structs.replace(manifest("base/x:1", A), config=config, parents=(B,))
    store.put_manifest(made)
    store.set_tag(name, A)
    for part in ("tags", "manifests"):
        [path] = [path for path in Path(store.root, part).rglob("*") if path.is_file()]
        whole = path.read_bytes()
        found = 0
        for bit in range(len(whole) * 8):
            flipped = bytearray(whole)
            flipped[bit // 8] ^= 1 << bit % 8
            path.write_bytes(flipped)
            try:
                assert (store.tagged(name) if part == "tags" else store.manifest(name, A)) == made
            except LayerDamaged:
                found += 1
        path.write_bytes(whole)
        assert found > len(whole) * 7


def test_record_without_a_sum_of_before_is_read(store: DirectoryStore) -> None:
    made = manifest("base/x:1", A)
    store.put_manifest(made)
    [path] = [path for path in Path(store.root, "manifests").rglob("*") if path.is_file()]
    assert (
        msgspec.json.decode(path.read_bytes(), type=LayerManifest) == made
    )  # and by those of before
    path.write_bytes(msgspec.json.encode(made))
    assert store.manifest(parse_layer_name("base/x:1"), A) == made


@pytest.mark.parametrize(
    "lie",
    [
        {"digest": "sha256:../../../../etc/passwd"},
        {"digest": A.upper()},
        {"digest": B},
        {"data_digest": "sha256:" + "/" * 64},
        {"name": "../../etc"},
        {"name": "base/y:1"},
        {"size_bytes": -5},
        {"config": {"env": {"A=\0": "b"}}},
        {
            "parts": [
                {"name": "base/x:1", "digest": "x", "size_bytes": 1, "created": "", "creator": ""}
            ]
        },
        {"recipe": {"large": "x" * (5 << 20)}},
    ],
    ids=lambda lie: str(lie)[:40],
)
def test_record_that_no_node_writes_is_damage_and_leads_nowhere(
    store: DirectoryStore, lie: dict[str, object]
) -> None:
    name = parse_layer_name("base/x:1")
    store.put_manifest(manifest("base/x:1", A))
    store.set_tag(name, A)
    [path] = [path for path in Path(store.root, "tags").rglob("*") if path.is_file()]
    record = json.loads(path.read_bytes())
    del record["sum"]
    record["manifest"] |= lie
    path.write_text(json.dumps(record))
    with pytest.raises(LayerDamaged):
        store.tagged(name)


def test_unwritable_store_is_storage_failed(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StorageFailed):
        DirectoryStore(str(tmp_path / "file" / "store"))


def test_tags_set_and_deleted_at_once_never_fail_or_tear(store: DirectoryStore) -> None:
    name = parse_layer_name("base/a/b/c:1")
    failures: list[BaseException] = []

    for digest in (A, B):
        store.put_manifest(manifest(str(name), digest))

    def turn(work) -> None:
        try:
            for _ in range(60):
                work()
        except BaseException as error:  # noqa: BLE001 - told to the test below
            failures.append(error)

    works = [
        lambda: store.set_tag(name, A),
        lambda: store.set_tag(name, B),
        lambda: store.delete_tag(name),
        lambda: [tag for tag in (store.tag(name),) if tag not in (A, B, None)] and 1 / 0,
    ]
    threads = [threading.Thread(target=turn, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_scratch_directory_of_a_killed_process_is_swept_but_not_one_in_use(tmp_path: Path) -> None:
    code = (
        "import os, signal, sys\n"
        "from skerry.images.scratch import scratch_directory\n"
        "with scratch_directory(sys.argv[1]) as path:\n"
        "    open(path + '/half', 'w').write('x')\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    assert subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False).returncode == -9
    [left] = os.listdir(tmp_path)
    assert sweep(str(tmp_path)) == []  # too young to be sure
    old = 1_000_000_000
    with scratch_directory(str(tmp_path)) as used:
        for path in (used, str(tmp_path / left)):
            os.utime(path, (old, old))
        assert sweep(str(tmp_path)) == [left]
        assert os.path.isdir(used)
    assert os.listdir(tmp_path) == []


def test_scratch_directory_goes_also_when_it_is_deep_and_full(tmp_path: Path) -> None:
    with scratch_directory(str(tmp_path)) as path:
        os.makedirs(os.path.join(path, "/".join(["d"] * 500)))
        fd = os.open(os.path.join(path, "/".join(["d"] * 500)), os.O_RDONLY)
        for _ in range(2000):
            os.mkdir("d", dir_fd=fd)
            deeper = os.open("d", os.O_RDONLY, dir_fd=fd)
            os.close(fd)
            fd = deeper
        os.close(fd)
    assert os.listdir(tmp_path) == []
