"""The contract suite of the object seam (`skerry.images.objects.api`): every store runs it.

    class TestMine(ObjectsConformance):
        @pytest.fixture
        def objects(self): ...    # an empty store
        @pytest.fixture
        def other(self, objects): ...   # the same store, seen by another client

Where a change of the other client may be unseen for a while, `patience_s` says how long the suite
waits for it.
"""

# ruff: noqa: S101, D102 - tests: asserting is their purpose, and their names say what holds

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from skerry.errors import Bug, ImageBroken, NotFound
from skerry.images.objects.api import Objects

KEY = "blobs/sha256/ab/" + "ab" * 32
LIMIT = 1 << 20


class ObjectsConformance:
    """What the layer store relies on."""

    patience_s = 0.0
    exclusive = True  # of two clients that put one key at once, one is told that it was there
    large_bytes = 9 << 20

    def seen(self, condition: Callable[[], bool]) -> bool:
        """Says whether the other client comes to see something in time."""
        end = time.monotonic() + self.patience_s
        while not condition():
            if time.monotonic() > end:
                return False
            time.sleep(0.1)
        return True

    def test_bytes_come_back_to_both_clients(self, objects: Objects, other: Objects) -> None:
        assert objects.put_bytes("tags/base/a!!1", b"one", replace=False) is True
        assert objects.get("tags/base/a!!1", LIMIT) == b"one"
        assert self.seen(lambda: other.get("tags/base/a!!1", LIMIT) == b"one")

    def test_what_is_not_there_is_none_or_not_found(self, objects: Objects) -> None:
        assert objects.get(KEY, LIMIT) is None
        assert objects.stat(KEY) is None
        assert list(objects.list("")) == []
        assert list(objects.list("tags/")) == []
        with pytest.raises(NotFound):
            objects.read(KEY, 0, 10)
        objects.delete(KEY)

    def test_second_put_without_replace_changes_nothing(
        self, objects: Objects, other: Objects, tmp_path: Path
    ) -> None:
        assert objects.put_bytes(KEY, b"first", replace=False) is True
        assert other.put_bytes(KEY, b"second", replace=False) is False
        source = tmp_path / "source"
        source.write_bytes(b"third")
        assert other.put_file(KEY, str(source)) is False
        assert objects.get(KEY, LIMIT) == b"first"

    def test_replace_swaps_content_and_version(self, objects: Objects) -> None:
        seen = set()
        for content in (b"old", b"new", b"old"):
            assert objects.put_bytes("tags/x", content, replace=True) is True
            assert objects.get("tags/x", LIMIT) == content
            found = objects.stat("tags/x")
            assert found is not None
            assert dict(objects.list("tags/"))["tags/x"].version == found.version
            seen.add((content, found.version))
        assert len({version for _, version in seen}) >= 2

    def test_replaced_object_is_seen_by_the_other_client(
        self, objects: Objects, other: Objects
    ) -> None:
        objects.put_bytes("tags/x", b"old", replace=True)
        assert self.seen(lambda: other.get("tags/x", LIMIT) == b"old")
        objects.put_bytes("tags/x", b"new and longer", replace=True)
        assert self.seen(lambda: other.get("tags/x", LIMIT) == b"new and longer")

    def test_file_comes_back_in_ranges(
        self, objects: Objects, other: Objects, tmp_path: Path
    ) -> None:
        content = os.urandom(self.large_bytes + 17)
        source = tmp_path / "source"
        source.write_bytes(content)
        assert objects.put_file(KEY, str(source)) is True
        source.unlink()
        found = objects.stat(KEY)
        assert found is not None
        assert found.size == len(content)
        assert self.seen(lambda: other.stat(KEY) is not None)
        for offset, length in ((0, 1), (4095, 8193), (1 << 20, 1 << 20), (len(content) - 5, 5)):
            assert other.read(KEY, offset, length) == content[offset : offset + length]
        assert objects.read(KEY, len(content) - 5, 100) == content[-5:]

    def test_empty_objects_are_objects(self, objects: Objects, tmp_path: Path) -> None:
        (tmp_path / "empty").touch()
        assert objects.put_file(KEY, str(tmp_path / "empty")) is True
        assert objects.put_bytes("version", b"", replace=False) is True
        assert objects.get(KEY, LIMIT) == objects.get("version", LIMIT) == b""
        found = objects.stat(KEY)
        assert found is not None
        assert found.size == 0

    def test_object_above_the_bound_is_broken(self, objects: Objects) -> None:
        objects.put_bytes("tags/x", b"x" * 100, replace=True)
        assert objects.get("tags/x", 100) == b"x" * 100
        with pytest.raises(ImageBroken, match="tags/x"):
            objects.get("tags/x", 99)

    def test_listing_gives_what_is_below_the_prefix(self, objects: Objects) -> None:
        keys = {"version", "tags/base/a!!1", "tags/base/a!b!!1", "tags/toolkit/x", "tagsx/y", KEY}
        for key in keys:
            objects.put_bytes(key, key.encode(), replace=False)
        assert {key for key, _ in objects.list("")} == keys
        assert {key for key, _ in objects.list("tags/")} == {k for k in keys if k[:5] == "tags/"}
        assert {key for key, _ in objects.list("tags/base/")} == {
            "tags/base/a!!1",
            "tags/base/a!b!!1",
        }
        assert {key: found.size for key, found in objects.list("")} == {k: len(k) for k in keys}

    def test_deleted_object_is_gone_for_both(self, objects: Objects, other: Objects) -> None:
        objects.put_bytes("tags/x", b"x", replace=True)
        assert self.seen(lambda: other.get("tags/x", LIMIT) == b"x")
        objects.delete("tags/x")
        objects.delete("tags/x")
        assert objects.get("tags/x", LIMIT) is None
        assert list(objects.list("tags/")) == []
        assert self.seen(lambda: other.get("tags/x", LIMIT) is None)
        assert objects.put_bytes("tags/x", b"again", replace=False) is True

    def test_times_are_of_one_clock_and_go_on(self, objects: Objects) -> None:
        objects.put_bytes("leases/a", b"1", replace=True)
        first = objects.stat("leases/a")
        time.sleep(1.1)  # some stores count whole seconds
        objects.put_bytes("leases/b", b"1", replace=True)
        second = objects.stat("leases/b")
        assert first is not None
        assert second is not None
        assert 0 < second.modified - first.modified < 60

    def test_of_many_who_put_exactly_one_makes_it(
        self, objects: Objects, other: Objects, tmp_path: Path
    ) -> None:
        content = os.urandom(1 << 20)
        gate = threading.Barrier(8)

        def put(number: int) -> bool:
            source = tmp_path / f"source-{number}"
            source.write_bytes(content)
            gate.wait()
            return (objects, other)[number % 2].put_file(KEY, str(source))

        with ThreadPoolExecutor(8) as threads:
            made = list(threads.map(put, range(8)))
        assert made.count(True) == 1 or (made.count(True) and not self.exclusive)
        assert objects.read(KEY, 0, len(content)) == content

    def test_readers_never_see_a_part_while_others_replace(
        self, objects: Objects, other: Objects
    ) -> None:
        contents = [bytes([letter]) * 70_000 for letter in b"abc"]
        objects.put_bytes("tags/x", contents[0], replace=True)
        assert self.seen(lambda: other.get("tags/x", LIMIT) is not None)
        done = threading.Event()

        def write() -> None:
            try:
                for turn in range(30):
                    objects.put_bytes("tags/x", contents[turn % 3], replace=True)
            finally:
                done.set()

        with ThreadPoolExecutor(1) as threads:
            writing = threads.submit(write)
            while not done.is_set():
                found = other.get("tags/x", LIMIT)
                assert found in contents, found and (len(found), set(found))
            writing.result()

    def test_sweep_spares_what_is_young(self, objects: Objects) -> None:
        objects.put_bytes("tags/x", b"x", replace=True)
        assert objects.sweep(3600.0) == 0
        assert objects.get("tags/x", LIMIT) == b"x"

    @pytest.mark.parametrize(
        "key", ["", "/etc/passwd", "../x", "a/../b", "a//b", ".hidden", "a/.b", "a/", "a\0b", "é"]
    )
    def test_what_is_no_key_is_refused(self, objects: Objects, key: str) -> None:
        for call in (
            lambda: objects.get(key, 1),
            lambda: objects.stat(key),
            lambda: objects.delete(key),
            lambda: objects.put_bytes(key, b"", replace=True),
            lambda: objects.local_path(key),
        ):
            with pytest.raises(Bug):
                call()
