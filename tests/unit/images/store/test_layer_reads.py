"""Several reads of a store at a time: in order, with the caller's patience, no more than is asked."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from skerry.errors import NotFound, StorageFailed
from skerry.images.objects.directory import DirectoryObjects
from skerry.images.objects.patience import Failed, Patience, patient_at_most
from skerry.images.objects.s3_faults import Trouble
from skerry.images.store.reads import at_once, pieces

MIB = 1 << 20
CONTENT = bytes(range(256)) * (10 * 4096) + b"the end"  # ten MiB and a bit


class Counting(DirectoryObjects):
    """A store in a directory that notes what is read of it."""

    asked: list[tuple[int, int]]

    def read(self, key: str, offset: int, length: int) -> bytes:
        self.asked.append((offset, length))
        return super().read(key, offset, length)


@pytest.fixture
def objects(tmp_path: Path) -> Counting:
    made = Counting(str(tmp_path))
    made.put_bytes("blob", CONTENT, replace=False)
    made.asked = []
    return made


@pytest.mark.parametrize("size", [None, len(CONTENT), 3 * MIB, 17, 0])
def test_pieces_are_the_object_in_order(objects: Counting, size: int | None) -> None:
    assert b"".join(pieces(objects, "blob", size)) == CONTENT[:size]


def test_an_object_of_known_length_is_asked_for_nothing_beyond(objects: Counting) -> None:
    list(pieces(objects, "blob", len(CONTENT)))
    assert sorted(objects.asked) == [(at * MIB, MIB) for at in range(10)] + [(10 * MIB, 7)]


def test_a_shorter_object_gives_less(objects: Counting) -> None:
    assert b"".join(pieces(objects, "blob", 12 * MIB)) == CONTENT


@pytest.mark.parametrize("size", [None, 5, 5 * MIB])
def test_an_object_that_is_not_there_is_told(objects: Counting, size: int | None) -> None:
    with pytest.raises(NotFound):
        list(pieces(objects, "other", size))


def test_works_run_at_the_same_time_and_answer_in_order() -> None:
    met = threading.Barrier(3, timeout=10)

    def one(number: int) -> int:
        met.wait()
        return number

    assert at_once([lambda number=number: one(number) for number in range(3)]) == [0, 1, 2]


def test_works_have_the_patience_of_who_asks() -> None:
    waited: list[float] = []
    patience = Patience("a store", 60.0, sleep=waited.append)

    def work() -> None:
        def fail(_tries: int) -> None:
            raise Failed(Trouble("busy", "not now"))

        patience.run("reading", fail)

    with patient_at_most(0.0), pytest.raises(StorageFailed, match="not now"):
        at_once([work, work])
    assert waited == []
