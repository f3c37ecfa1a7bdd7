from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import tarfile
import threading
from pathlib import Path

import msgspec
import pytest
from images_archives import make_tar, member

from skerry.errors import (
    Conflict,
    ImageBroken,
    InvalidRequest,
    LayerDamaged,
    NotFound,
    StorageFailed,
)
from skerry.images.format.erofs import Tools
from skerry.images.library import ImageLibrary
from skerry.images.store.store import DirectoryStore
from skerry.spec.layers import LayerManifest

CUT = make_tar(member("ok", b"x"), member("cut", b"x" * 5000))[:3000]


def layer(library: ImageLibrary, name: str, content: str = "x", **options: object) -> LayerManifest:
    archive = make_tar(member("f", content.encode(), mtime=1))
    return library.import_tar(name, io.BytesIO(archive), **options)  # type: ignore[arg-type]


def test_imported_layer_is_named_recorded_and_stored(library: ImageLibrary) -> None:
    made = layer(library, "workspace/w", creator="import", recipe={"from": "here"})
    assert (made.name, made.creator, made.compression) == ("workspace/w:latest", "import", "none")
    assert (made.recipe, made.files) == ({"from": "here"}, 2)
    assert made.created == "2023-11-14T22:13:20Z"
    assert library.inspect("workspace/w") == made
    assert library.list() == (made,)
    assert os.path.getsize(library.store.path(made.digest)) == made.size_bytes


def test_equal_content_gives_the_same_blob_whatever_the_order_and_name(
    library: ImageLibrary,
) -> None:
    a, b = member("a", b"1", mtime=3), member("d/b", b"2" * 5000, mtime=4)
    one = library.import_tar("base/one", io.BytesIO(make_tar(a, b)))
    two = library.import_tar("base/two", io.BytesIO(make_tar(b, a, form=tarfile.GNU_FORMAT)))
    assert one.digest == two.digest
    assert len(list(library.store.list())) == 1


def test_resolve_orders_by_kind_and_keeps_the_order_within_one(library: ImageLibrary) -> None:
    names = ["base/b", "toolkit/t2", "toolkit/t1", "workspace/w2", "workspace/w1"]
    for name in names:
        layer(library, name, name)
    got = [one.name for one in library.resolve(["b", *names[1:]])]
    wanted = ["base/b", "workspace/w2", "workspace/w1", "toolkit/t2", "toolkit/t1"]
    assert got == [f"{name}:latest" for name in wanted]


@pytest.mark.parametrize(
    "names",
    [[], ["workspace/w"], ["base/b", "base/c"], ["base/b", "base/b:other"], ["b", "x"], ["B"]],
)
def test_resolve_without_exactly_one_base_and_distinct_layers_is_refused(
    library: ImageLibrary, names: list[str]
) -> None:
    with pytest.raises(InvalidRequest):
        library.resolve(names)


def test_digest_pins_after_the_tag_has_moved(library: ImageLibrary) -> None:
    old, new = layer(library, "base/b:1", "old"), layer(library, "base/b:1", "new")
    assert library.resolve(["b:1"]) == (new,)
    assert library.resolve([f"b:1@{old.digest}"]) == (old,)
    assert library.resolve([f"b@{old.digest}"]) == (old,)
    with pytest.raises(NotFound):
        library.resolve([f"other@{old.digest}"])


def test_unknown_name_names_close_matches_and_how_to_build_it(library: ImageLibrary) -> None:
    layer(library, "base/debian:12")
    with pytest.raises(NotFound, match="skerry image build debian:13") as error:
        library.resolve(["debian:13"])
    assert error.value.fields["close"] == ["base/debian:12"]
    with pytest.raises(NotFound, match="skerry image import workspace/w:latest"):
        library.inspect("workspace/w")


def test_plan_has_paths_lowest_first_and_equal_blobs_once(library: ImageLibrary) -> None:
    base, one = layer(library, "base/b", "b"), layer(library, "workspace/one", "same")
    two, top = layer(library, "workspace/two", "same"), layer(library, "toolkit/t", "t")
    plan = library.plan((base, one, two, top))
    assert [one.digest for one in plan.layers] == [base.digest, two.digest, top.digest]
    assert plan.layers[0].id == base.digest[7:39]
    assert plan.layers[0].path == library.store.path(base.digest)
    assert plan.layers[0].device is None


def test_blob_missing_from_the_store_is_the_platforms_fault(library: ImageLibrary) -> None:
    made = layer(library, "base/b")
    library.store.delete(made.digest)
    with pytest.raises(LayerDamaged, match="gone"):
        library.resolve(["b"])


def test_removed_name_goes_with_all_it_stood_for_but_shared_blobs_stay(
    library: ImageLibrary, store: DirectoryStore, files_of
) -> None:
    old, new = layer(library, "base/b", "old"), layer(library, "base/b", "new")
    layer(library, "base/c", "new")
    library.remove("b")
    assert [one.name for one in library.list()] == ["base/c:latest"]
    library.collect()
    assert not store.has(old.digest)
    assert store.has(new.digest)
    library.remove("base/c")
    library.collect()
    assert files_of(store) == []
    with pytest.raises(NotFound):
        library.remove("base/c")


def test_damaged_name_hides_no_other_and_can_be_removed(
    library: ImageLibrary, store: DirectoryStore, files_of
) -> None:
    layer(library, "base/b")
    layer(library, "base/c", "other")
    for path in (
        *Path(store.root).glob("tags/base/b!!*"),
        *Path(store.root).glob("manifests/*/*!b!!*"),
    ):
        path.chmod(0o644)
        path.write_bytes(path.read_bytes().replace(b"base/b", b"base/d"))
    assert [one.name for one in library.list()] == ["base/c:latest"]
    with pytest.raises(LayerDamaged):
        library.inspect("b")
    with pytest.raises(LayerDamaged):
        library.collect()
    with pytest.raises(NotFound):
        library.inspect("other")
    library.remove("b")
    with pytest.raises(NotFound):
        library.inspect("b")
    library.remove("c")
    library.collect()
    assert files_of(store) == []


def test_scratch_of_a_process_that_was_killed_just_before_a_start_goes_later(
    library: ImageLibrary, tmp_path: Path
) -> None:
    left = tmp_path / "scratch" / "skerry-images-left"  # too young for the sweep of the start
    left.mkdir(parents=True)
    os.utime(left, (1_000_000_000, 1_000_000_000))
    library.tidy()
    assert not left.exists()


def test_removing_one_digest_leaves_the_newer_one(library: ImageLibrary) -> None:
    old, new = layer(library, "base/b", "old"), layer(library, "base/b", "new")
    library.remove(f"b@{old.digest}")
    library.collect()
    assert library.inspect("b") == new
    assert not library.store.has(old.digest)


def test_layer_in_use_is_not_removed(library: ImageLibrary) -> None:
    made = layer(library, "base/b")
    with pytest.raises(Conflict):
        library.remove("b", in_use={made.digest})
    assert library.inspect("b") == made


def test_collect_removes_what_no_name_stands_for(
    library: ImageLibrary, store: DirectoryStore, tmp_path: Path
) -> None:
    old, used, new = (layer(library, "base/b", text) for text in ("old", "used", "new"))
    (tmp_path / "orphan").write_bytes(b"x")
    orphan = "sha256:" + "0" * 64
    store.put(str(tmp_path / "orphan"), orphan)
    store.leases.renew(live={used.digest})
    report = library.collect()
    assert {one.digest for one in report.removed} == {old.digest, orphan}
    assert {blob.digest for blob in store.list()} == {used.digest, new.digest}
    assert library.inspect(f"b@{used.digest}") == used
    with pytest.raises(NotFound):
        library.inspect(f"b@{old.digest}")


def test_new_layer_with_a_digest_in_its_name_is_refused(library: ImageLibrary) -> None:
    with pytest.raises(InvalidRequest):
        layer(library, "base/b@sha256:" + "0" * 64)


@pytest.mark.parametrize(
    "archive",
    [b"", b"no archive" * 100, make_tar(member("ok", b"x"), member("../x", b"x")), CUT],
)
def test_refused_archive_leaves_nothing(
    library: ImageLibrary, store: DirectoryStore, tmp_path: Path, files_of, archive: bytes
) -> None:
    with pytest.raises(ImageBroken):
        library.import_tar("base/b", io.BytesIO(archive))
    assert files_of(store) == []
    assert os.listdir(tmp_path / "scratch") == []


def test_notes_are_logged_and_recorded(library: ImageLibrary) -> None:
    lines: list[str] = []
    archive = make_tar(member("dev/null", type=tarfile.CHRTYPE, devmajor=1, devminor=3))
    made = library.import_tar("base/b", io.BytesIO(archive), log=lines.append)
    assert made.recipe["notes"] == "device nodes dropped: 1 (/dev/null)"
    assert "note: device nodes dropped: 1 (/dev/null)" in lines


def test_deep_and_odd_names_reach_the_image(library: ImageLibrary, tools: Tools) -> None:
    if not tools.mkfs().reads_tar:
        pytest.skip("mkfs.erofs older than 1.8 cannot take paths of more than 4,096 bytes")
    names = ["d/" * 5000 + "f", "non\udcff", "n" * 255, ".wh", "é" * 100]
    made = library.import_tar(
        "base/b", io.BytesIO(make_tar(*(member(name, b"x") for name in names)))
    )
    assert made.files == 1 + 5000 + 5


def test_concurrent_imports_of_the_same_content_all_succeed(library: ImageLibrary) -> None:
    made: list[LayerManifest] = []
    threads = [
        threading.Thread(
            target=lambda at=at: made.append(layer(library, f"base/b{at % 2}", "same"))
        )
        for at in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({one.digest for one in made}) == 1
    assert len(made) == 8
    assert [one.name for one in library.list()] == ["base/b0:latest", "base/b1:latest"]


# For each line of input a child of its own, which kills itself at that one of the steps that touch
# files, so every moment is met; says how it ended.
_KILLED_IMPORT = """
import io, os, signal, sys
sys.path.insert(0, sys.argv[2])
from images_archives import make_tar, member
from skerry.images.format.erofs import Tools
from skerry.images.library import ImageLibrary
from skerry.images.store.store import DirectoryStore
top = sys.argv[1]
archive = make_tar(*(member(f"f{at}", bytes(8000)) for at in range(20)))
tools = Tools()
tools.mkfs()
seen = 0
def count(event, args):
    global seen
    if event in ("open", "os.rename", "os.link", "os.mkdir", "os.remove", "os.rmdir", "os.chmod",
                 "subprocess.Popen", "fcntl.flock"):
        seen += 1
        if seen == step:
            os.kill(os.getpid(), signal.SIGKILL)
for line in sys.stdin:
    step = int(line)
    child = os.fork()
    if child == 0:
        library = ImageLibrary(DirectoryStore(top + "/store"), tools, top + "/scratch")
        sys.addaudithook(count)
        library.import_tar("base/b", io.BytesIO(archive))
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


def forget_leases(store: DirectoryStore) -> None:
    for key, _ in list(store.objects.list("leases/")):
        store.objects.delete(key)


def test_import_killed_at_any_step_leaves_a_whole_layer_or_none(
    library: ImageLibrary, store: DirectoryStore, tmp_path: Path
) -> None:
    killed = shown = 0
    argv = [sys.executable, "-c", _KILLED_IMPORT, str(tmp_path), os.path.dirname(__file__)]
    with subprocess.Popen(
        argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as importer:
        for step in range(1, 140):
            print(step, file=importer.stdin, flush=True)
            status = int(importer.stdout.readline())
            names = library.list()
            forget_leases(store)  # as if they had run out
            for made in names:
                library.plan((made,))
                assert os.path.getsize(store.path(made.digest)) == made.size_bytes
            library.collect()
            assert {blob.digest for blob in store.list()} == {made.digest for made in names}
            if status == 0:
                break
            assert status == -signal.SIGKILL
            killed += 1
            if names:
                shown += 1
                library.remove("b")
    assert status == 0, "it never came to the end"
    assert killed > 15
    assert shown > 0  # also killed after the name became visible
    assert layer(library, "base/b") == library.inspect("b")


_FULL_DISK = """
import io, os, subprocess, sys
sys.path.insert(0, sys.argv[2])
from images_archives import make_tar, member
from skerry.errors import StorageFailed
from skerry.images.format.erofs import Tools
from skerry.images.library import ImageLibrary
from skerry.images.store.store import DirectoryStore
top, size = sys.argv[1], sys.argv[3]
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=" + size, "none", top], check=True)
store = DirectoryStore(top + "/store")
library = ImageLibrary(store, Tools(), top + "/scratch")
first = library.import_tar("base/b", io.BytesIO(make_tar(member("f", b"x"))))
big = make_tar(*(member(f"f{at}", os.urandom(1 << 20)) for at in range(8)))
try:
    library.import_tar("base/b", io.BytesIO(big))
except StorageFailed as error:
    print("StorageFailed", error)
assert library.list() == (first,), library.list()
assert [blob.digest for blob in store.list()] == [first.digest]
assert os.listdir(top + "/scratch") == []
assert not [name for _, _, names in os.walk(top + "/store") for name in names if ".part-" in name]
"""


@pytest.mark.root
@pytest.mark.parametrize("size", ["6m", "10m", "15m"])  # full while reading, packing, packing
def test_full_disk_is_storage_failed_with_nothing_half_visible(
    as_root, tools: Tools, tmp_path: Path, size: str
) -> None:
    (tmp_path / "disk").mkdir()
    child = subprocess.run(
        [
            *("unshare", "--mount", "--propagation", "private", sys.executable, "-c", _FULL_DISK),
            *(str(tmp_path / "disk"), os.path.dirname(__file__), size),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert child.returncode == 0, child.stderr
    assert child.stdout.startswith("StorageFailed"), child.stdout


def test_store_that_fails_between_blob_and_tag_shows_nothing(
    library: ImageLibrary, store: DirectoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_args: object) -> None:
        raise StorageFailed("as if the disk were full")

    monkeypatch.setattr(store, "publish", fail)
    with pytest.raises(StorageFailed):
        layer(library, "base/b")
    assert library.list() == ()
    library.collect()
    assert list(store.list()) == []


def test_more_layers_and_parts_than_a_sandbox_may_have_are_the_callers_fault(
    library: ImageLibrary,
) -> None:
    base = layer(library, "base/b")

    def named(number: int) -> LayerManifest:
        return msgspec.structs.replace(base, digest=f"sha256:{number:064x}")

    parts = tuple(named(at) for at in range(40))
    of_parts = msgspec.structs.replace(base, parts=parts)
    others = [named(100 + at) for at in range(24)]
    with pytest.raises(InvalidRequest, match="65 layers with all their parts, at most 64"):
        library.plan([of_parts, *others])
    with pytest.raises(NotFound):  # that many would do, but these blobs are not there
        library.plan([of_parts, *others[:23]])
