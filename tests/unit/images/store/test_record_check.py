"""Damaged records are told by the name of what they are of, and what is advised helps."""

from __future__ import annotations

import io
from array import array
from pathlib import Path

import pytest
from images_archives import make_tar, member

from skerry.errors import LayerDamaged, NotFound, StorageFailed
from skerry.images.format.profile import PROFILE, encode_profile
from skerry.images.library import ImageLibrary
from skerry.images.store import keys
from skerry.images.store.collect import Collector
from skerry.images.store.patrol import Patrol
from skerry.images.store.records import Agreed, Chain, Claim, Round, encode
from skerry.images.store.store import DirectoryStore
from skerry.spec.layers import Damage, LayerCheck, LayerManifest, RecordProblem

NAME = "workspace/some/tool:1.2"


def publish(library: ImageLibrary, name: str, content: bytes = b"x") -> LayerManifest:
    return library.import_tar(name, io.BytesIO(make_tar(member("f", content, mtime=1))))


def flip(store: DirectoryStore, key: str, at: int = 20) -> None:
    path = Path(store.root, key)
    path.chmod(0o644)
    data = bytearray(path.read_bytes())
    data[at] ^= 4
    with path.open("r+b") as file:  # in place, as a disk does it
        file.write(data)


def only(store: DirectoryStore, prefix: str) -> str:
    [key] = [key for key, _ in store.objects.list(prefix)]
    return key


@pytest.fixture
def made(library: ImageLibrary) -> LayerManifest:
    publish(library, "base/other", b"other")
    made = publish(library, NAME)
    assert library.verify_records().problems == ()
    return made


def found(library: ImageLibrary) -> RecordProblem:
    check = library.verify_records()
    assert check.mended == ()
    [problem] = check.problems
    assert problem.key in problem.problem
    assert problem.advice
    return problem


def test_damaged_name_is_told_by_name_and_what_is_advised_helps(
    library: ImageLibrary, store: DirectoryStore, made: LayerManifest
) -> None:
    flip(store, f"{keys.TAGS}workspace/some!tool!!1.2")
    problem = found(library)
    assert (problem.kind, problem.name) == ("name", NAME)
    assert f"skerry image rm {NAME}" in problem.advice
    by_digest = f"{NAME}@{made.digest}"
    assert by_digest in problem.advice
    assert library.inspect(by_digest) == made
    publish(library, NAME)
    assert library.verify_records().problems == ()
    flip(store, f"{keys.TAGS}workspace/some!tool!!1.2")
    library.remove(NAME)
    assert library.verify_records().problems == ()


def test_every_bit_of_a_name_counts(
    library: ImageLibrary, store: DirectoryStore, made: LayerManifest
) -> None:
    key = f"{keys.TAGS}workspace/some!tool!!1.2"
    whole = Path(store.root, key).read_bytes()
    told = 0
    for at in range(0, len(whole), 7):
        flip(store, key, at)
        names = [one.name for one in library.verify_records().problems]
        # In the word "sum" it makes a record without one, which says the same.
        assert names == [NAME] or library.inspect(NAME) == made
        told += len(names)
        flip(store, key, at)
    assert told >= len(whole) // 7 - 1
    assert library.verify_records().problems == ()


def test_record_that_lies_where_another_belongs_is_damage(
    library: ImageLibrary, store: DirectoryStore, made: LayerManifest
) -> None:
    other = Path(store.root, keys.TAGS, "base/other!!latest").read_bytes()
    Path(store.root, keys.TAGS, "workspace/some!tool!!1.2").write_bytes(other)
    problem = found(library)
    assert problem.name == NAME
    assert "that of base/other:latest" in problem.problem


def test_damaged_manifest_is_made_again_of_its_name_and_told_where_there_is_none(
    library: ImageLibrary, store: DirectoryStore, made: LayerManifest
) -> None:
    [key] = [key for digest, key in store.manifest_keys() if digest == made.digest]
    flip(store, key)
    check = library.verify_records()
    assert check.problems == ()
    assert [one.name for one in check.mended] == [f"{NAME}@{made.digest}"]
    assert next(store.manifests(made.digest)) == made
    publish(library, NAME, b"moved on")
    flip(store, key)
    problem = found(library)
    assert (problem.kind, problem.name) == ("manifest", f"{NAME}@{made.digest}")
    library.remove(NAME)
    assert library.verify_records().problems == ()


def test_manifest_that_a_full_store_cannot_take_again_is_told(
    library: ImageLibrary,
    store: DirectoryStore,
    made: LayerManifest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    [key] = [key for digest, key in store.manifest_keys() if digest == made.digest]
    flip(store, key)

    def full(*_: object, **__: object) -> bool:
        raise StorageFailed("no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(store.objects, "put_bytes", full)
        problem = found(library)
    assert (problem.kind, problem.name) == ("manifest", f"{NAME}@{made.digest}")


def test_damaged_pin_is_told_by_layer_and_written_anew_by_the_next(
    library: ImageLibrary, store: DirectoryStore, made: LayerManifest
) -> None:
    library.pin(NAME)
    flip(store, only(store, keys.PINS))
    with pytest.raises(LayerDamaged):
        library.look()
    problem = found(library)
    assert (problem.kind, problem.name) == ("pin", f"{NAME}@{made.digest}")
    assert f"skerry image pin {problem.name}" in problem.advice
    library.pin(problem.name)
    assert library.verify_records().problems == ()
    flip(store, only(store, keys.PINS))
    library.unpin(problem.name)
    assert library.verify_records().problems == ()
    store.pin(made, "disk-abcde-work")
    flip(store, only(store, keys.PINS))
    assert "disk-abcde-work" in found(library).name


def test_damaged_lease_is_told_by_its_node_which_writes_it_anew(
    library: ImageLibrary, store: DirectoryStore, made: LayerManifest
) -> None:
    library.hold([made])
    key = only(store, keys.LEASES)
    flip(store, key)
    problem = found(library)
    assert (problem.kind, problem.name) == ("lease", key.removeprefix(keys.LEASES))
    assert store.leases.holder in problem.name
    store.leases.renew()
    assert library.verify_records().problems == ()


@pytest.mark.parametrize(
    "kind", ["chain", "collection", "terms of collections", "claim of a check"]
)
def test_other_records_are_told_by_key_and_can_go(
    library: ImageLibrary, store: DirectoryStore, made: LayerManifest, kind: str
) -> None:
    digest = made.digest
    key, record = {
        "chain": (keys.chain(digest), Chain(digest, (digest,), (made,))),
        "collection": (f"{keys.ROUNDS}node!1", Round("node", (digest,))),
        "terms of collections": (keys.AGREED, Agreed(30.0, 5.0, 60.0)),
        "claim of a check": (keys.scrub(keys.CLAIMS, digest), Claim("node", "token", 60.0)),
    }[kind]
    store.objects.put_bytes(key, encode(record), replace=True)
    assert library.verify_records().problems == ()
    flip(store, key)
    problem = found(library)
    assert (problem.kind, problem.key) == (kind, key)
    store.objects.delete(key)
    assert library.verify_records().problems == ()


def test_note_of_damage_that_is_damaged_counts_until_the_layer_is_checked_again(
    library: ImageLibrary, store: DirectoryStore, made: LayerManifest
) -> None:
    damage = (Damage(made.digest, "metadata", "said a node"),)
    library.suspects.record(LayerCheck(NAME, made.digest, 1, damage))
    for below in (keys.DAMAGED, keys.CHECKED):
        flip(store, keys.scrub(below, made.digest))
    names = {(one.kind, one.name) for one in library.verify_records().problems}
    layer = f"{NAME}@{made.digest}"
    assert names == {("note of damage", layer), ("last check", layer)}
    with pytest.raises(LayerDamaged, match="verify --last"):
        library.suspects.refuse([made])
    assert library.last_check(NAME).checked == ""
    patrol = Patrol(store, library.suspects, every_s=1e9, bytes_per_s=1e12)
    check = patrol.step()
    assert check is not None
    assert (check.digest, check.damage) == (made.digest, ())
    library.suspects.refuse([made])
    assert library.verify_records().problems == ()


def test_profile_that_is_none_is_told_and_one_that_is_one_is_not(
    library: ImageLibrary, store: DirectoryStore, made: LayerManifest
) -> None:
    digest = str(made.data_digest or made.digest)
    key = keys.blob(digest, PROFILE)
    store.objects.put_bytes(key, encode_profile(array("I", [3, 1])), replace=True)
    assert library.verify_records().problems == ()
    flip(store, key, 2)
    problem = found(library)
    assert (problem.kind, problem.name) == ("profile", digest)
    store.objects.delete(key)
    assert library.verify_records().problems == ()


def test_name_too_long_for_a_key_is_told_by_its_key(
    library: ImageLibrary, store: DirectoryStore
) -> None:
    parts = "/".join(["a" * 60] * 4)
    publish(library, f"toolkit/{parts}")
    key = only(store, keys.TAGS)
    flip(store, key)
    problem = found(library)
    assert problem.key == key
    assert f"remove {key}" in problem.advice


def test_what_stops_a_collection_is_what_a_check_names(
    library: ImageLibrary, store: DirectoryStore, made: LayerManifest
) -> None:
    flip(store, f"{keys.TAGS}workspace/some!tool!!1.2")
    with pytest.raises(LayerDamaged) as error:
        Collector(store).look()
    assert found(library).key in str(error.value)
    with pytest.raises(NotFound):
        library.verify("workspace/never")
