"""The scrub that goes on by itself: what is due, who does it, what is found, what follows from it."""

from __future__ import annotations

import io
import os
import random
import threading
import time
from pathlib import Path

import msgspec
import pytest
from images_archives import make_tar, member

from skerry.errors import LayerDamaged, StorageFailed
from skerry.images.format.chunks import CHUNK_BYTES
from skerry.images.format.erofs import Tools
from skerry.images.library import ImageLibrary
from skerry.images.store import keys
from skerry.images.store import suspects as suspects_module
from skerry.images.store.leases import Leases
from skerry.images.store.patrol import Patrol
from skerry.images.store.records import Claim
from skerry.images.store.store import DirectoryStore
from skerry.spec.layers import LayerCheck, LayerManifest

FAST = 1 << 40


@pytest.fixture
def root(tools: Tools, tmp_path: Path) -> str:
    if not tools.mkfs().reads_tar:
        pytest.skip("mkfs.erofs is older than 1.8: it makes layers of one blob")
    return str(tmp_path / "store")


@pytest.fixture
def library(root: str, tools: Tools, tmp_path: Path) -> ImageLibrary:
    return open_library(root, tools, tmp_path, "n1")


def open_library(root: str, tools: Tools, tmp_path: Path, holder: str) -> ImageLibrary:
    store = DirectoryStore(root, leases=lambda objects: Leases(objects, holder))
    return ImageLibrary(store, tools, str(tmp_path / f"scratch-{holder}"))


def publish(library: ImageLibrary, name: str, size: int = 900_000) -> LayerManifest:
    content = random.Random(name).randbytes(size)
    return library.import_tar(name, io.BytesIO(make_tar(member("file", content))))


def patrol(
    library: ImageLibrary, *, every_s: float = 3600.0, bytes_per_s: float = FAST, **options: float
) -> Patrol:
    return Patrol(
        library.store, library.suspects, every_s=every_s, bytes_per_s=bytes_per_s, **options
    )


def data_path(library: ImageLibrary, manifest: LayerManifest) -> Path:
    path = library.store.objects.local_path(keys.blob(str(manifest.data_digest)))
    assert path
    return Path(path)


def long_ago(library: ImageLibrary) -> None:
    """Makes all layers look as if they had been made years ago."""
    for manifest in list(library.store.manifests()):
        old = msgspec.structs.replace(manifest, created="2020-01-01T00:00:00Z")
        library.store.put_manifest(old)


def flip(path: Path, at: int) -> None:
    os.chmod(path, 0o644)
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)
        file.seek(at)
        file.write(bytes([byte[0] ^ 1]))


def age(library: ImageLibrary, seconds: float) -> None:
    """Makes what is noted of scrubs look older."""
    for below in (keys.CHECKED, keys.CLAIMS):
        for key, found in library.store.objects.list(below):
            at = found.modified - seconds
            os.utime(library.store.objects.local_path(key), (at, at))


def claims(library: ImageLibrary) -> list[str]:
    return [key for key, _ in library.store.objects.list(keys.CLAIMS)]


def test_each_layer_is_scrubbed_once_and_again_when_it_is_due(library) -> None:
    made = {publish(library, f"base/{name}").digest for name in "abc"}
    scrub = patrol(library)
    assert scrub.step() is None  # just made, and checked with it
    long_ago(library)
    done = [scrub.step() for _ in range(3)]
    assert {check.digest for check in done} == made
    assert not any(check.damage for check in done)
    assert scrub.step() is None
    age(library, 7200)
    assert scrub.step() is not None
    assert claims(library) == []


def test_all_bytes_are_read_no_faster_than_the_bound(library) -> None:
    manifest = publish(library, "base/a")
    long_ago(library)
    scrub = patrol(library, bytes_per_s=manifest.total_bytes)
    began = time.monotonic()
    scrub.step()
    assert scrub.bytes_read == manifest.total_bytes
    assert time.monotonic() - began >= 0.99


def test_flipped_bit_is_found_refused_and_forgiven_once_it_is_mended(library) -> None:
    good, bad = publish(library, "base/good"), publish(library, "base/bad")
    path = data_path(library, bad)
    whole = path.read_bytes()
    flip(path, CHUNK_BYTES + 5)
    long_ago(library)
    scrub = patrol(library)
    found = {check.digest: check for check in (scrub.step(), scrub.step()) if check}
    [damage] = found[bad.digest].damage
    assert (damage.part, damage.chunks, damage.files) == ("data", (1,), ("/file",))
    assert not found[good.digest].damage
    last = library.last_check("base/bad")
    assert last.damage == (damage,)
    assert last.checked.endswith("Z")
    library.plan((good,))
    with pytest.raises(LayerDamaged, match="1 of 4 chunks are damaged") as refused:
        library.plan((good, bad))
    assert refused.value.fields["digest"] == bad.digest
    path.write_bytes(whole)  # copied back from elsewhere
    library.plan((good, bad))
    check = patrol(library).step()  # due at once, for nobody knows what came back
    assert check is not None
    assert (check.digest, check.damage) == (bad.digest, ())
    assert patrol(library).step() is None
    assert list(library.store.objects.list(keys.DAMAGED)) == []


def test_mended_with_other_damage_is_refused_again(library, monkeypatch) -> None:
    monkeypatch.setattr(suspects_module, "FRESH_S", 0.0)
    manifest = publish(library, "base/a")
    long_ago(library)
    flip(data_path(library, manifest), 5)
    assert patrol(library).step().damage
    with pytest.raises(LayerDamaged):
        library.plan((manifest,))
    flip(data_path(library, manifest), 6)
    library.plan((manifest,))
    assert patrol(library).step().damage
    with pytest.raises(LayerDamaged):
        library.plan((manifest,))


def test_removed_and_made_again_it_serves_again(library) -> None:
    manifest = publish(library, "base/a")
    long_ago(library)
    flip(data_path(library, manifest), 5)
    assert patrol(library).step().damage
    assert library.verify("base/a", remove_damaged=True).removed
    assert publish(library, "base/a").digest == manifest.digest
    library.plan((manifest,))


def test_verify_by_hand_is_kept_too(library) -> None:
    manifest = publish(library, "base/a")
    assert library.last_check("base/a") == LayerCheck("base/a:latest", manifest.digest, 0)
    flip(data_path(library, manifest), 5)
    check = library.verify("base/a")
    last = library.last_check("base/a")
    assert (last.damage, last.bytes_read) == (check.damage, check.bytes_read)
    with pytest.raises(LayerDamaged):
        library.plan((manifest,))


def test_another_node_of_the_store_refuses_what_one_found(library, root, tools, tmp_path) -> None:
    other = open_library(root, tools, tmp_path, "n2")
    manifest = publish(library, "base/a")
    long_ago(library)
    flip(data_path(library, manifest), 5)
    patrol(library).step()
    with pytest.raises(LayerDamaged):
        other.plan((manifest,))
    assert patrol(other).suspects.known()[manifest.digest].holder == "n1"


def test_nodes_share_the_work_and_no_layer_is_done_twice(library, root, tools, tmp_path) -> None:
    made = {publish(library, f"base/l{at}", 300_000 + at).digest for at in range(12)}
    long_ago(library)
    done: dict[str, list[str]] = {}

    def work(name: str) -> None:
        # 12 layers of 300 kB: about half a second of reading for each node.
        scrub = patrol(open_library(root, tools, tmp_path, name), bytes_per_s=4_000_000)
        while (check := scrub.step()) is not None:
            done.setdefault(name, []).append(check.digest)

    threads = [threading.Thread(target=work, args=(f"m{at}",)) for at in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(digest for each in done.values() for digest in each) == sorted(made)
    assert len(done) == 3, "each node has done some"


def test_claim_of_another_is_kept_until_it_has_run_out(library, root, tools, tmp_path) -> None:
    manifest = publish(library, "base/a")
    key = keys.scrub(keys.CLAIMS, manifest.digest)
    claim = Claim("n2", "token", 600.0, next_chunk=2, damaged=1, bad=(0,))
    library.store.objects.put_bytes(key, msgspec.json.encode(claim), replace=True)
    long_ago(library)
    scrub = patrol(library)
    assert scrub.step() is None
    assert scrub.bytes_read == 0
    age(library, 601)
    check = scrub.step()
    # What the other one had seen is not read again, and not forgotten.
    [damage] = check.damage
    assert damage.chunks == (0,)
    assert scrub.bytes_read == manifest.size_bytes + manifest.data_bytes - 2 * CHUNK_BYTES
    assert claims(library) == []


def test_stopped_half_way_it_goes_on_there_later(library) -> None:
    manifest = publish(library, "base/a", 40 * CHUNK_BYTES)
    long_ago(library)
    flip(data_path(library, manifest), 5)
    first = patrol(library, bytes_per_s=20 * CHUNK_BYTES)
    thread = threading.Thread(target=first.step)
    thread.start()
    while thread.is_alive() and first.bytes_read < 16 * CHUNK_BYTES:
        time.sleep(0.01)
    first.stop()
    thread.join()
    assert first.bytes_read < manifest.total_bytes
    assert first.layers == 0
    assert first.step() is None  # it has ended
    second = patrol(library)
    check = second.step()
    assert check.damage[0].chunks == (0,)
    assert first.bytes_read + second.bytes_read < manifest.total_bytes + manifest.size_bytes + (
        17 * CHUNK_BYTES
    )
    assert second.bytes_read < manifest.total_bytes - 15 * CHUNK_BYTES


def test_killed_half_way_its_own_node_goes_on_there_at_once(library) -> None:
    manifest = publish(library, "base/a", 40 * CHUNK_BYTES)
    long_ago(library)

    class Killed(Exception):
        pass

    first = patrol(library, renew_s=0.0)
    wait = first._wait

    def killed(seconds: float) -> None:
        if first.bytes_read > 30 * CHUNK_BYTES:
            raise Killed
        wait(seconds)

    first._wait = killed
    with pytest.raises(Killed):
        first.step()
    second = patrol(library)
    assert second.step().damage == ()
    assert second.bytes_read < manifest.total_bytes - 15 * CHUNK_BYTES


def test_store_that_fails_half_way_is_gone_on_with(library, monkeypatch) -> None:
    manifest = publish(library, "base/a", 40 * CHUNK_BYTES)
    long_ago(library)
    read, reads = library.store.objects.read, []

    def failing(key: str, offset: int, length: int) -> bytes:
        reads.append(key)
        if offset >= 16 * CHUNK_BYTES:
            raise StorageFailed("the store is away")
        return read(key, offset, length)

    scrub = patrol(library)
    monkeypatch.setattr(library.store.objects, "read", failing)
    with pytest.raises(StorageFailed):
        scrub.step()
    monkeypatch.undo()
    assert library.suspects.known() == {}
    before = scrub.bytes_read
    assert scrub.step().damage == ()
    assert scrub.bytes_read - before < manifest.total_bytes - 15 * CHUNK_BYTES


def test_layer_that_is_collected_meanwhile_is_not_damaged(library, monkeypatch) -> None:
    manifest = publish(library, "base/a")
    publish(library, "base/b")
    long_ago(library)
    scrub = patrol(library)
    monkeypatch.setattr(scrub, "_due", lambda _layers, _now: [manifest.digest])
    read = library.store.read_data

    def gone(*words: object) -> bytes:
        library.remove("base/a")
        library.store.delete(manifest.digest)
        library.store.delete(str(manifest.data_digest))
        monkeypatch.setattr(library.store, "read_data", read)
        return read(*words)

    monkeypatch.setattr(library.store, "read_data", gone)
    assert scrub.step().damage == ()
    assert library.suspects.known() == {}


def test_what_is_noted_of_layers_that_are_gone_goes_too(library) -> None:
    manifest = publish(library, "base/a")
    long_ago(library)
    flip(data_path(library, manifest), 5)
    assert patrol(library).step().damage
    library.remove("base/a")
    assert patrol(library).step() is None
    for below in (keys.CHECKED, keys.DAMAGED, keys.CLAIMS):
        assert list(library.store.objects.list(below)) == []


def test_damaged_notes_cost_nobody_the_scrub(library) -> None:
    manifest = publish(library, "base/a")
    long_ago(library)
    key = keys.scrub(keys.CLAIMS, manifest.digest)
    library.store.objects.put_bytes(key, b"{nonsense", replace=True)
    assert patrol(library).step().damage == ()


def test_damaged_manifest_costs_no_other_layer_the_scrub(library, caplog) -> None:
    good, bad = publish(library, "base/a"), publish(library, "base/b")
    long_ago(library)
    for digest, key in library.store.manifest_keys():
        if digest == bad.digest:
            flip(Path(str(library.store.objects.local_path(key))), 40)
    scrub = patrol(library)
    assert scrub.step().digest == good.digest
    assert [scrub.step() for _ in range(3)] == [None] * 3
    told = [record for record in caplog.records if "is not scrubbed" in record.message]
    assert len(told) == 1
    assert bad.digest.removeprefix("sha256:") in told[0].message.replace("/", "")
    assert [key for key, _ in library.store.objects.list(keys.CHECKED)]  # what it noted stays
