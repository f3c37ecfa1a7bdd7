"""Files that hold little are read as what they hold, whatever their size is."""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from images_archives import make_tar, member

from skerry.errors import ImageBroken
from skerry.images.commits.diff import changes, tar_entries
from skerry.images.format.placing import HOLE, UNIT_BYTES, DataWriter
from skerry.images.library import ImageLibrary
from skerry.images.scratch import Spool
from skerry.images.sparse import CHUNK_BYTES, ZEROS, EndsEarly, read_around_holes
from skerry.images.tree.files import read_content, read_digest
from skerry.images.tree.upper import UpperLimits
from skerry.spec.digests import SparseDigest, digest_like
from skerry.spec.files import Change

GIB = 1 << 30
HUGE = 50 * GIB


class Upper(NamedTuple):
    path: str
    uid_base: int = 0
    lowers: tuple[str, ...] = ()


class Reads:
    """What of a file was read: the bytes that the kernel was asked for and gave."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.bytes = 0
        real = os.pread

        def pread(fd: int, size: int, offset: int) -> bytes:
            data = real(fd, size, offset)
            self.bytes += len(data)
            return data

        monkeypatch.setattr(os, "pread", pread)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Reads:
    return Reads(monkeypatch)


def sparse(path: Path, size: int, pieces: dict[int, bytes]) -> Path:
    with path.open("wb") as file:
        for offset, data in pieces.items():
            file.seek(offset)
            file.write(data)
        file.truncate(size)
    if size > 4 * GIB:
        assert path.stat().st_blocks * 512 < 4 << 20, "the file system has no holes"
    return path


# Across the borders of units, of what is read at once, and at both ends.
PIECES = {
    0: b"begin",
    4096 * 3: os.urandom(5000),
    CHUNK_BYTES - 7: b"over a border",
    3 * CHUNK_BYTES: os.urandom(CHUNK_BYTES + 70_000),
    7 * CHUNK_BYTES + UNIT_BYTES: b"x" * UNIT_BYTES,
    9 * CHUNK_BYTES + 123: b"end",
}


@pytest.mark.parametrize("offset", [0, 1, 4096, CHUNK_BYTES + 5])
@pytest.mark.parametrize("length", [0, 1, CHUNK_BYTES, CHUNK_BYTES + 1, 9 * CHUNK_BYTES + 126])
@pytest.mark.parametrize("beyond", [0, CHUNK_BYTES * 3 + 11])
def test_what_is_read_around_holes_is_what_the_file_holds(
    tmp_path: Path, offset: int, length: int, beyond: int
) -> None:
    size = 9 * CHUNK_BYTES + 126 + beyond
    path = sparse(tmp_path / "f", size, PIECES)
    length = min(length + beyond, size - offset)
    with path.open("rb") as file:
        pieces = list(read_around_holes(file.fileno(), offset, length))
    assert b"".join(pieces) == path.read_bytes()[offset : offset + length]
    assert all(len(piece) == CHUNK_BYTES for piece in pieces[:-1])


def test_whole_piece_of_a_hole_is_the_one_object_and_nothing_is_read(
    tmp_path: Path, reads: Reads
) -> None:
    path = sparse(tmp_path / "f", 5 * CHUNK_BYTES, {2 * CHUNK_BYTES: b"x"})
    with path.open("rb") as file:
        pieces = list(read_around_holes(file.fileno(), 0, 5 * CHUNK_BYTES))
    assert [piece is ZEROS for piece in pieces] == [True, True, False, True, True]
    assert reads.bytes <= 1 << 16  # one block of the file system


def test_file_that_ends_early_is_no_hole(tmp_path: Path) -> None:
    path = sparse(tmp_path / "f", 3 * CHUNK_BYTES, {0: b"x"})
    info = path.stat()
    os.truncate(path, 2 * CHUNK_BYTES)
    with path.open("rb") as file, pytest.raises(EndsEarly):
        list(read_around_holes(file.fileno(), 0, info.st_size))
    parent = os.open(tmp_path, os.O_RDONLY)
    try:
        with pytest.raises(ImageBroken, match="changed while it was read"):
            list(read_content(parent, b"f", info, b"f"))
    finally:
        os.close(parent)


def test_error_of_the_disk_is_no_hole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = sparse(tmp_path / "f", 3 * CHUNK_BYTES, {CHUNK_BYTES: b"x"})

    def lseek(*_: int) -> int:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "lseek", lseek)
    with path.open("rb") as file, pytest.raises(OSError, match="Input/output"):
        list(read_around_holes(file.fileno(), 0, 3 * CHUNK_BYTES))


def test_data_blob_knows_holes_without_looking_and_is_the_same(tmp_path: Path) -> None:
    path = sparse(tmp_path / "f", 12 * CHUNK_BYTES + 77, PIECES)
    size = path.stat().st_size

    def around() -> Iterator[bytes]:
        with path.open("rb") as file:
            yield from read_around_holes(file.fileno(), 0, size)

    found = []
    for number, pieces in enumerate((around(), iter((path.read_bytes(),)))):
        with DataWriter(str(tmp_path / f"blob{number}")) as writer:
            found.append((writer.add(size, pieces, b"f"), writer.finish().content_digest))
    assert found[0] == found[1]
    assert HOLE in found[0][0].blocks


class Sums:
    """The bytes that real sums go through."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.bytes = 0
        real, sums = hashlib.sha256, self

        class Counted:
            def __init__(self, data: bytes = b"") -> None:
                self._real = real()
                self.update(data)

            def update(self, data: bytes) -> None:
                sums.bytes += len(data)
                self._real.update(data)

            def hexdigest(self) -> str:
                return self._real.hexdigest()

        monkeypatch.setattr(hashlib, "sha256", Counted)


@pytest.fixture
def sums(monkeypatch: pytest.MonkeyPatch) -> Sums:
    return Sums(monkeypatch)


def test_diff_reads_what_a_huge_file_holds_and_no_more(
    tmp_path: Path, reads: Reads, sums: Sums
) -> None:
    upper = tmp_path / "upper"
    upper.mkdir()
    sparse(upper / "big", HUGE, {7: b"a", 23 * GIB: b"b" * 5000, HUGE - 2: b"c"})
    [_, change] = changes(Upper(str(upper)), UpperLimits())
    assert (change.path, change.size) == ("/big", HUGE)
    assert (change.digest or "").startswith("sparse-sha256:")
    assert reads.bytes <= 1 << 20
    assert sums.bytes <= 1 << 20


def test_diff_of_many_huge_files_goes_through_no_hole(
    tmp_path: Path, reads: Reads, sums: Sums
) -> None:
    upper, lower = tmp_path / "upper", tmp_path / "lower"
    for top in (upper, lower):
        top.mkdir()
        for number in range(300):
            sparse(top / f"{number:03}", 10 * GIB, {number << 20: b"x"})
        sparse(top / "small", 1 << 20, {7: b"x"})
    sparse(upper / "007", 10 * GIB, {8 << 20: b"x"})
    sparse(upper / "new", 10 * GIB, {})
    found = {one.path: one for one in changes(Upper(str(upper), 0, (str(lower),)), UpperLimits())}
    assert set(found) == {"/007", "/new"}
    assert len({one.digest for one in found.values()}) == 2
    assert sums.bytes < 16 << 20
    assert reads.bytes < 16 << 20


def test_bounds_of_a_diff_count_what_a_sparse_file_holds(tmp_path: Path) -> None:
    upper = tmp_path / "upper"
    upper.mkdir()
    sparse(upper / "f", 10 * GIB, {GIB: b"x" * 9000, 5 * GIB: b"y" * 9000})
    list(changes(Upper(str(upper)), UpperLimits(bytes_max=64 << 10)))
    with pytest.raises(ImageBroken, match="too many bytes"):
        list(changes(Upper(str(upper)), UpperLimits(bytes_max=9000)))
    with pytest.raises(ImageBroken, match="too many bytes"):  # an archive has all of them
        list(tar_entries(Upper(str(upper)), UpperLimits(bytes_max=GIB), ""))


@pytest.mark.parametrize("step", [1, 700, 4096, 5000, CHUNK_BYTES])
def test_sparse_digest_follows_from_the_content_alone(tmp_path: Path, step: int) -> None:
    size = 40 * CHUNK_BYTES + 77
    pieces = {0: b"a", 5000: b"bc", 8191: b"de", 30 * CHUNK_BYTES: b"f" * 9000, size - 1: b"g"}
    path = sparse(tmp_path / "f", size, pieces)
    info = path.stat()
    with path.open("rb") as file:
        at = os.open(tmp_path, os.O_RDONLY)
        told = read_digest(at, b"f", info, b"f", lambda _: None)
        os.close(at)
        again = digest_like(told, size)
        if step < 4096:  # byte by byte only where something is
            assert isinstance(again, SparseDigest)
            for start, data in pieces.items():
                for offset in range(0, len(data), step):
                    again.put(start + offset, data[offset : offset + step])
        else:
            while piece := file.read(step):
                again.update(piece)
    assert told == again.text()
    assert told.startswith("sparse-sha256:")
    other = SparseDigest(size + 1)
    for start, data in pieces.items():
        other.put(start, data)
    assert other.text() != told


def test_diff_tar_reads_what_a_huge_file_holds_and_no_more(
    tmp_path: Path, reads: Reads, library: ImageLibrary
) -> None:
    upper = tmp_path / "upper"
    upper.mkdir()
    size = 6 * GIB
    sparse(upper / "big", size, {7: b"a", 3 * GIB: b"b" * 5000, size - 2: b"c"})
    sent = sum(len(piece) for piece in library.diff_tar(Upper(str(upper))))
    assert sent > size  # an archive has all bytes
    assert reads.bytes <= 2 << 20  # for the digest, and for the archive


def test_digest_of_a_sparse_file_is_that_of_its_bytes(tmp_path: Path) -> None:
    upper = tmp_path / "upper"
    upper.mkdir()
    path = sparse(upper / "f", 12 * CHUNK_BYTES + 77, PIECES)
    found: dict[str, Change] = {one.path: one for one in changes(Upper(str(upper)), UpperLimits())}
    assert found["/f"].digest == f"sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}"


def test_commit_reads_what_a_huge_file_holds_and_gives_it_back(
    tmp_path: Path, reads: Reads, library: ImageLibrary
) -> None:
    upper = tmp_path / "upper"
    upper.mkdir()
    sparse(upper / "big", HUGE, {7: b"a", 23 * GIB: b"b" * 5000, HUGE - 2: b"c"})
    made = library.commit(Upper(str(upper)), "workspace/big")
    assert reads.bytes <= 1 << 20
    assert made.data_bytes <= 4 * UNIT_BYTES
    assert library.verify("workspace/big").damage == ()


def test_spool_gives_holes_back_unread(tmp_path: Path, reads: Reads) -> None:
    spool = Spool(str(tmp_path))
    try:
        first = spool.add([b"x" * 100])
        content = spool.add([ZEROS] * 40 + [b"y"] + [ZEROS])
        data = list(spool.read(content))
        assert b"".join(data) == bytes(40 * CHUNK_BYTES) + b"y" + ZEROS
        assert reads.bytes <= 1 << 20
        assert b"".join(spool.read(first)) == b"x" * 100
    finally:
        spool.close()


def test_imported_zeros_still_make_no_data(library: ImageLibrary) -> None:
    archive = make_tar(member("z", bytes(4 * CHUNK_BYTES)), member("x", os.urandom(300_000)))
    made = library.import_tar("base/z", io.BytesIO(archive))
    assert made.data_bytes < CHUNK_BYTES
