"""Leases, pins and collections, one thing at a time; all together: test_collect_simulated."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from store_terms import impatient

from skerry.errors import LayerDamaged, NotFound, StorageFailed
from skerry.images.objects.directory import DirectoryObjects
from skerry.images.store import keys
from skerry.images.store.collect import Collector
from skerry.images.store.leases import Leases, Timing, read_leases
from skerry.images.store.store import DirectoryStore, LayerStore
from skerry.spec.layers import LayerManifest, parse_layer_name

DIGESTS = [f"sha256:{number:064x}" for number in range(1, 9)]


def publish(store: LayerStore, name: str, digest: str, tmp_path: Path) -> LayerManifest:
    (tmp_path / "blob").write_bytes(b"x" * 10)
    manifest = LayerManifest(name, digest, 10, "2026-01-01T00:00:00Z", "import")
    with store.adding(digest):
        store.put(str(tmp_path / "blob"), digest)
        store.publish(manifest)
    (tmp_path / "blob").unlink()
    return manifest


def why(store: LayerStore) -> dict[str, tuple[str, ...]]:
    return {one.digest: one.why for one in Collector(store).look().kept}


def test_dry_run_tells_what_would_go_and_why_the_rest_stays(
    store: DirectoryStore, tmp_path: Path
) -> None:
    tagged, pinned, live, working, gone = DIGESTS[:5]
    other = DirectoryStore(store.root, leases=lambda o: Leases(o, "nodeb", impatient(o).timing))
    publish(store, "base/a:1", tagged, tmp_path)
    for digest in (pinned, live, working, gone):
        manifest = publish(store, "base/b:1", digest, tmp_path)
        if digest == pinned:
            store.pin(manifest)
            store.pin(manifest, "snapshot-7")
    store.delete_tag(parse_layer_name("base/b:1"))
    other.leases.renew(live={live})
    other.leases.hold({working: (working,)}, wait=True)
    report = Collector(store).look()
    assert report.dry_run
    assert [one.digest for one in report.removed] == [gone]
    assert report.freed_bytes == 10
    assert {one.digest: one.why for one in report.kept} == {
        tagged: ("tag base/a:1",),
        pinned: ("pin", "pin snapshot-7"),
        live: ("sandbox on nodeb",),
        working: ("lease of nodeb",),
    }
    assert store.has(gone)


def test_unpinned_layer_goes_and_a_pin_needs_its_blobs(
    store: DirectoryStore, tmp_path: Path
) -> None:
    manifest = publish(store, "base/a:1", DIGESTS[0], tmp_path)
    store.pin(manifest)
    store.delete_tag(parse_layer_name("base/a:1"))
    assert Collector(store).collect().removed == ()
    assert store.unpin(manifest.digest) is True
    assert store.unpin(manifest.digest) is False
    assert [one.digest for one in Collector(store).collect().removed] == [manifest.digest]
    assert list(store.manifests()) == []
    with pytest.raises(StorageFailed, match="vanished"):
        store.pin(manifest)


def test_name_is_never_given_to_what_is_not_there(store: DirectoryStore) -> None:
    manifest = LayerManifest("base/a:1", DIGESTS[0], 10, "", "import")
    with pytest.raises(StorageFailed, match="vanished"):
        store.publish(manifest)
    assert list(store.catalogue()) == []


def test_what_a_live_sandbox_uses_stays_with_its_data_over_a_restart(
    store: DirectoryStore, tmp_path: Path
) -> None:
    """Also where the restarted node knows only the layer, and its name and manifest are gone."""
    layer, data = DIGESTS[:2]
    node = DirectoryStore(store.root, leases=lambda o: Leases(o, "nodea", impatient(o).timing))
    for digest, part in ((data, ""), (data, ".chunks"), (layer, "")):
        (tmp_path / "x").write_bytes(b"x")
        node.put(str(tmp_path / "x"), digest, part)
        (tmp_path / "x").unlink()
    manifest = LayerManifest("base/a:1", layer, 1, "", "import", data_digest=data, version=2)
    node.publish(manifest)
    node.hold([manifest])
    node.leases.renew(live={layer})
    node.delete_tag(parse_layer_name("base/a:1"))
    node.delete_manifest(parse_layer_name("base/a:1"), layer)

    again = DirectoryStore(store.root, leases=lambda o: Leases(o, "nodea", impatient(o).timing))
    again.leases.recall()
    assert Collector(store).collect().removed == ()
    again.leases.settle({layer})
    assert [lease.holder for _, lease in read_leases(store.objects)].count("nodea") == 1
    assert Collector(store).collect().removed == ()
    again.leases.renew(live=())
    again.leases.drop()
    assert {one.digest for one in Collector(store).collect().removed} == {layer, data}


def test_lease_that_ran_out_protects_nothing_and_its_holder_is_told(
    store: DirectoryStore, tmp_path: Path
) -> None:
    now = [1000.0]
    timing = Timing(lag_s=0.0, margin_s=0.0, window_s=60.0, ttl_s=50.0, keep_s=0.0)
    leases = Leases(store.objects, "slow", timing, now=lambda: now[0])
    publish(store, "base/a:1", DIGESTS[0], tmp_path)
    store.delete_tag(parse_layer_name("base/a:1"))
    leases.hold({DIGESTS[0]: (DIGESTS[0],)}, wait=True)
    leases.check([DIGESTS[0]])
    assert Collector(store).collect().removed == ()
    now[0] += 51
    with pytest.raises(StorageFailed, match="begin again"):
        leases.check([DIGESTS[0]])
    [(key, _)] = [one for one in read_leases(store.objects) if one[1].holder == "slow"]
    path = os.path.join(store.root, key)
    os.utime(path, (os.stat(path).st_atime, os.stat(path).st_mtime - 51))
    assert len(Collector(store).collect().removed) == 1
    assert not os.path.exists(path)
    leases.renew()  # under another name: the old one might just be being removed
    with pytest.raises(StorageFailed):
        leases.check([DIGESTS[0]])


def test_who_meets_a_collector_at_work_waits_or_is_told(
    store: DirectoryStore, tmp_path: Path
) -> None:
    publish(store, "base/a:1", DIGESTS[0], tmp_path)
    store.delete_tag(parse_layer_name("base/a:1"))
    waits: list[float] = []
    timing = Timing(lag_s=0.0, margin_s=0.0, window_s=60.0, keep_s=0.0)
    leases = Leases(store.objects, "late", timing, sleep=waits.append)
    collector = Collector(store)
    collector._condemn({DIGESTS[0]})
    with pytest.raises(StorageFailed, match="just being collected"):
        leases.hold({DIGESTS[0]: (DIGESTS[0],)}, wait=False)
    leases.hold({DIGESTS[1]: (DIGESTS[1],)}, wait=False)  # another one is none of its business
    now = [0.0]
    leases._now = lambda: now[0]
    leases._sleep = lambda seconds: (waits.append(seconds), now.__setitem__(0, now[0] + seconds))
    leases._lease = leases._new()
    for held in leases._held.values():
        held.covered, held.safe_at = False, 0.0
    leases.hold({DIGESTS[0]: (DIGESTS[0],)}, wait=True)
    assert sum(waits) == pytest.approx(60.0, abs=5)


@pytest.mark.parametrize("prefix", [keys.TAGS + "base/", keys.LEASES, keys.PINS])
def test_record_that_cannot_be_read_stops_a_collection(
    store: DirectoryStore, tmp_path: Path, prefix: str
) -> None:
    publish(store, "base/a:1", DIGESTS[0], tmp_path)
    store.delete_tag(parse_layer_name("base/a:1"))
    store.objects.put_bytes(f"{prefix}damaged", b"\0" * 100, replace=True)
    with pytest.raises(LayerDamaged, match="damaged"):
        Collector(store).collect()
    assert store.has(DIGESTS[0])


def test_slowest_client_sets_the_terms_for_all(store: DirectoryStore) -> None:
    local = DirectoryStore(store.root)
    assert local.leases.timing.grace_s == 10.0
    remote = DirectoryStore(store.root, lag_s=30.0)
    remote.leases.renew()
    assert remote.leases.timing.grace_s == 90.0
    local.leases.renew()
    assert local.leases.timing == remote.leases.timing


def test_many_creates_at_once_write_few_leases(
    store: DirectoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    writes: list[str] = []
    real = store.objects.put_bytes
    lock = threading.Lock()

    def put(key: str, data: bytes, *, replace: bool) -> bool:
        with lock:
            writes.append(key)
        return real(key, data, replace=replace)

    monkeypatch.setattr(store.objects, "put_bytes", put)
    manifests = [LayerManifest(f"base/b{at}:1", DIGESTS[at], 1, "", "") for at in range(8)]
    gate = threading.Barrier(64)

    def create(at: int) -> None:
        gate.wait()
        store.hold([manifests[at % 8]])

    threads = [threading.Thread(target=create, args=(at,)) for at in range(64)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len([key for key in writes if key.startswith(keys.LEASES)]) <= 8


FULL = """
import os, subprocess, sys
sys.path.insert(0, sys.argv[2])
from store_terms import impatient
from skerry.errors import StorageFailed
from skerry.images.store.collect import Collector
from skerry.images.store.store import DirectoryStore
from skerry.spec.layers import LayerManifest, parse_layer_name
top = sys.argv[1]
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "none", top], check=True)
store = DirectoryStore(top + "/store", leases=impatient)
digest = "sha256:" + "a" * 64
open(top + "/blob", "wb").write(b"x" * 1_000_000)
manifest = LayerManifest("base/a:1", digest, 1_000_000, "", "import")
with store.adding(digest):
    store.put(top + "/blob", digest)
    store.publish(manifest)
os.unlink(top + "/blob")
Collector(store).collect()
store.delete_tag(parse_layer_name("base/a:1"))
try:
    with open(top + "/fill", "wb", buffering=0) as fill:
        while True:
            fill.write(bytes(4096))
except OSError:
    pass
try:
    store.objects.put_bytes("tags/x", bytes(5000), replace=True)
    raise SystemExit("the disk is not full")
except StorageFailed:
    pass
report = Collector(store).collect()
assert report.freed_bytes == 1_000_000, report
assert not store.has(digest)
assert not [n for _, _, names in os.walk(top) for n in names if ".part-" in n]
print("collected")
"""


@pytest.mark.root
def test_full_disk_is_collected_all_the_same(as_root, tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    argv = ["unshare", "--mount", "--propagation", "private", sys.executable, "-c", FULL]
    done = subprocess.run(
        [*argv, str(tmp_path / "disk"), os.path.dirname(os.path.dirname(__file__))],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "collected\n", done.stderr


def test_torn_uploads_are_swept_when_they_are_old(store: DirectoryStore, tmp_path: Path) -> None:
    publish(store, "base/a:1", DIGESTS[0], tmp_path)
    torn = Path(store.root, "blobs/sha256/00/.part-0123456789abcdef")
    torn.write_bytes(b"x")
    assert Collector(store).collect().torn_uploads == 0
    os.utime(torn, (1, 1))
    assert Collector(store).collect().torn_uploads == 1
    assert not torn.exists()


def test_removed_and_collected_layer_can_be_imported_again_at_once(
    store: DirectoryStore, tmp_path: Path
) -> None:
    for _ in range(3):
        publish(store, "base/a:1", DIGESTS[0], tmp_path)
        store.delete_tag(parse_layer_name("base/a:1"))
        assert len(Collector(store).collect().removed) == 1
    with pytest.raises(NotFound):
        store.path(DIGESTS[0])


def test_store_whose_objects_vanish_is_usable_again(tmp_path: Path) -> None:
    objects = DirectoryObjects(str(tmp_path / "s"))
    LayerStore(objects)
    assert list(LayerStore(objects).catalogue()) == []
