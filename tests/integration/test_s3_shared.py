"""Several nodes over one bucket: who makes, uses, removes and collects the same layers at once."""

from __future__ import annotations

import io
import random
import tarfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from s3_place import s3_options
from skerry.errors import LayerDamaged, NotFound, StorageFailed, Unavailable
from skerry.images.format.erofs import Tools
from skerry.images.library import ImageLibrary
from skerry.images.objects.s3 import S3Objects
from skerry.images.store import keys
from skerry.images.store.leases import Leases, Timing
from skerry.images.store.local import LocalLayers
from skerry.images.store.patrol import Patrol
from skerry.images.store.store import LayerStore
from skerry.testing.link import Fault
from waiting import soon

# The store counts whole seconds: shorter would be too short.
QUICK = Timing(lag_s=1.0, margin_s=1.0, window_s=20.0, keep_s=0.0)


@pytest.fixture(scope="session")
def tools() -> Tools:
    made = Tools()
    try:
        made.mkfs()
    except Unavailable as error:
        pytest.skip(error.message)
    return made


@pytest.fixture
def join(s3_server, s3_link, tools: Tools, tmp_path: Path):
    """Makes one more node's view of the bucket."""
    options = s3_options(s3_server, tmp_path, endpoint=s3_link.endpoint, timeout_s=5, patience_s=20)

    def make(name: str) -> ImageLibrary:
        objects = S3Objects(f"s3://{s3_server.bucket}/{tmp_path.name}", options)
        store = LayerStore(objects, Leases(objects, name, QUICK))
        local = LocalLayers(str(tmp_path / name / "layers"))
        return ImageLibrary(store, tools, str(tmp_path / name / "scratch"), local=local)

    return make


def archive(seed: int, size: int = 300_000) -> io.BytesIO:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as tar:
        info = tarfile.TarInfo(f"srv/{seed}")
        info.size = size
        tar.addfile(info, io.BytesIO(random.Random(seed).randbytes(size)))
    made.seek(0)
    return made


def collected(node: ImageLibrary, maker: ImageLibrary) -> set[str]:
    """Collects until something goes: what was just released stays a while."""
    removed: set[str] = set()

    def gone() -> bool:
        maker.store.leases.renew(set())
        removed.update(item.digest for item in node.collect().removed)
        return bool(removed)

    assert soon(gone, 60)
    return removed


def test_same_image_imported_on_three_nodes_at_once_is_one_layer(join, s3_link) -> None:
    nodes = [join(f"node{number}") for number in range(3)]
    s3_link.faults(Fault("status", times=4, share=0.1), Fault("cut", times=2, share=0.05))
    gate = threading.Barrier(3)

    def make(node: ImageLibrary):
        gate.wait()
        return node.import_tar("workspace/same", archive(1, 9 << 20))  # data in parts

    with ThreadPoolExecutor(3) as threads:
        made = list(threads.map(make, nodes))
    s3_link.faults()
    assert len({one.digest for one in made}) == 1
    for node in nodes:
        assert [one.digest for one in node.list()] == [made[0].digest]
    assert {blob.digest for blob in nodes[0].store.list()} == made[0].blobs()


def test_what_one_node_uses_no_other_collects(join) -> None:
    one, other = join("one"), join("other")
    made = one.import_tar("workspace/used", archive(2))
    one.hold([made])
    one.store.leases.renew({made.digest})
    other.remove("workspace/used")
    assert other.collect().removed == ()
    assert {blob.digest for blob in one.store.list()} == made.blobs()
    assert collected(other, one) == made.blobs()
    assert list(one.store.list()) == []
    with pytest.raises(NotFound):
        one.inspect("workspace/used")


def test_collection_beside_imports_loses_nothing(join) -> None:
    maker, collector = join("maker"), join("collector")
    done = threading.Event()

    def collect() -> int:
        rounds = 0
        while not done.is_set():
            collector.collect()
            rounds += 1
        return rounds

    with ThreadPoolExecutor(1) as threads:
        collecting = threads.submit(collect)
        try:
            for turn in range(6):
                maker.import_tar(f"workspace/kept-{turn % 2}", archive(turn % 3))
                if turn % 3 == 2:
                    maker.remove("workspace/kept-1")
        finally:
            done.set()
        assert collecting.result() >= 1
    for manifest in maker.list():
        assert all(maker.store.has(blob) for blob in manifest.blobs()), manifest.name
        maker.hold([manifest])


def test_collector_that_loses_its_store_removes_nothing_it_should_not(join, s3_link) -> None:
    one, other = join("one"), join("other")
    kept = one.import_tar("workspace/kept", archive(3))
    gone = one.import_tar("workspace/gone", archive(4))
    one.remove("workspace/gone")
    s3_link.faults(Fault("status", match="^DELETE .*/blobs/", status=500))
    with pytest.raises(StorageFailed, match="HTTP 500"):
        collected(other, one)
    s3_link.faults()
    assert {blob.digest for blob in one.store.list()} >= kept.blobs()
    assert collected(other, one) <= gone.blobs()
    assert {blob.digest for blob in one.store.list()} == kept.blobs()


def test_nodes_scrub_a_bucket_together_and_all_refuse_what_one_found(join) -> None:
    one, other = join("one"), join("other")
    made = [one.import_tar(f"workspace/w{at}", archive(10 + at, 600_000)) for at in range(3)]
    objects = one.store.objects
    key = keys.blob(str(made[1].data_digest))
    whole = objects.get(key, 1 << 20)
    bad = bytearray(whole)
    bad[300_000] ^= 1
    objects.put_bytes(key, bytes(bad), replace=True)
    patrols = [
        Patrol(node.store, node.suspects, every_s=1.0, bytes_per_s=1 << 30) for node in (one, other)
    ]
    checks = {}

    def all_seen() -> bool:
        for patrol in patrols:
            check = patrol.step()
            if check is not None:
                checks.setdefault(check.digest, check)
        return checks.keys() == {manifest.digest for manifest in made}

    assert soon(all_seen, 60)
    assert [damage.chunks for damage in checks[made[1].digest].damage] == [(1,)]
    other.suspects.refuse([made[0], made[2]])
    for node in (one, other):
        with pytest.raises(LayerDamaged):
            node.suspects.refuse([made[1]])
    assert other.last_check("workspace/w1").damage
    objects.put_bytes(key, bytes(whole), replace=True)
    for node in (one, other):
        node.suspects.refuse([made[1]])
