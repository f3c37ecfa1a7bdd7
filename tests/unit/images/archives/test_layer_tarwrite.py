from __future__ import annotations

import io
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from skerry.errors import ImageBroken
from skerry.images.archives.tarread import TarReader
from skerry.images.archives.tarwrite import write_tar
from skerry.images.tree.entry import Entry, Node
from skerry.spec.files import FileType


def file(path: bytes, data: bytes = b"", **fields: object) -> Entry:
    node = Node(FileType.FILE, 0o644, **fields)  # type: ignore[arg-type]
    return Entry(path, node, len(data), data=lambda: iter([data]))


ENTRIES = [
    Entry(b"", Node(FileType.DIRECTORY, 0o755)),
    Entry(b"d", Node(FileType.DIRECTORY, 0o1777, 7, 65_535)),
    file(b"d/" + b"n" * 200, b"x" * 1000, mtime_ns=1_700_000_000_123_456_789),
    file(b"d/non\xff", b"y", xattrs={b"user.k": b"\x00\xff\n="}),
    Entry(b"d/hard", Node(FileType.FILE, 0o644), hard_link=b"d/non\xff"),
    Entry(b"l", Node(FileType.SYMLINK, 0o777, target="é".encode() * 80)),
    Entry(b"p", Node(FileType.FIFO, 0o600)),
    Entry(b"s", Node(FileType.SOCKET, 0o600)),
]


def test_written_archive_is_read_back_the_same() -> None:
    reader = TarReader(io.BytesIO(b"".join(write_tar(ENTRIES))))
    got = [(one, b"".join(reader.data())) for one in reader.members()]
    names = [one.name for one, _ in got]
    assert names == [b"./", b"d/", b"d/" + b"n" * 200, b"d/non\xff", b"d/hard", b"l", b"p"]
    assert got[2][0].mtime_ns == 1_700_000_000_123_456_789
    assert got[2][1] == b"x" * 1000
    assert got[3][0].xattrs == {b"user.k": b"\x00\xff\n="}
    assert (got[4][0].kind, got[4][0].link) == (b"1", b"d/non\xff")
    assert got[5][0].link == "é".encode() * 80
    assert (got[1][0].mode, got[1][0].uid, got[1][0].gid) == (0o1777, 7, 65_535)


def test_python_and_gnu_tar_read_the_archive(tmp_path: Path) -> None:
    data = b"".join(write_tar(ENTRIES))
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        assert tar.getnames()[3] == "d/non\udcff"
        assert tar.extractfile("d/hard").read() == b"y"  # type: ignore[union-attr]
    done = subprocess.run(["tar", "-t"], input=data, capture_output=True, check=True)
    assert len(done.stdout.splitlines()) == len(ENTRIES) - 1


@pytest.mark.parametrize("size", [0, 4, 6])
def test_file_of_another_length_than_said_is_an_error(size: int) -> None:
    def data() -> Iterator[bytes]:
        yield b"x" * size

    entry = Entry(b"f", Node(FileType.FILE, 0o644), 5, data=data)
    with pytest.raises(ImageBroken, match="changed"):
        b"".join(write_tar([entry]))


def test_record_lengths_around_each_power_of_ten_are_right() -> None:
    for length in [*range(85, 100), *range(980, 1000), *range(9975, 10_000)]:
        entry = file(b"f", xattrs={b"user.k": b"v" * length})
        [one] = TarReader(io.BytesIO(b"".join(write_tar([entry])))).members()
        assert one.xattrs == {b"user.k": b"v" * length}
