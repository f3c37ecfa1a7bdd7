"""Writing pairs: what the kernel, fsck.erofs and the reader see is what was written."""

from __future__ import annotations

import errno
import fcntl
import os
import random
import resource
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skerry.errors import ImageBroken, StorageFailed
from skerry.images.archives.tarimport import ImportLimits
from skerry.images.format import placing
from skerry.images.format.chunks import Codec, build_list
from skerry.images.format.erofs import Tools
from skerry.images.format.erofsread import FileSource, read_image
from skerry.images.format.pair import write_pair
from skerry.images.format.placing import HOLE, UNIT_BYTES, DataWriter
from skerry.images.scratch import Spool
from skerry.images.tree.entry import OPAQUE, Node, Tree, make_directory, make_whiteout
from skerry.spec.files import FileType

CAPABILITY = b"\x01\x00\x00\x02\x00\x04\x00\x00" + bytes(12)
BIG = random.Random(3).randbytes(3 * UNIT_BYTES + 5)


def file_node(spool: Spool, content: bytes, **more: object) -> Node:
    return Node(FileType.FILE, 0o640, content=spool.add([content]), **more)  # type: ignore[arg-type]


def full_tree(spool: Spool) -> Tree:
    """One of everything, at the places where a block or a unit ends."""
    tree, rng = Tree(), random.Random(4)
    tree.put(b"big", file_node(spool, BIG, uid=65_535, gid=7, mtime_ns=1_700_000_000_123_456_789))
    tree.put(b"again", file_node(spool, BIG[:UNIT_BYTES] * 3 + b"end"))
    tree.put(b"holes", file_node(spool, bytes(5 * UNIT_BYTES) + b"x" + bytes(2 * UNIT_BYTES - 1)))
    tree.put(b"zeros", file_node(spool, bytes(2 * UNIT_BYTES)))
    tree.put(b"empty", file_node(spool, b""))
    for size in (1, 4095, 4096, 4097, UNIT_BYTES - 1, UNIT_BYTES, UNIT_BYTES + 1):
        tree.put(b"of-%d" % size, file_node(spool, rng.randbytes(size)))
    tree.put(b"attributes", file_node(spool, b"!" * 5000))
    tree.find(b"attributes").xattrs = {
        b"user.one": b"1",
        b"user.empty": b"",
        b"user." + b"n" * 250: rng.randbytes(9000),
        b"security.capability": CAPABILITY,
    }
    tree.put(b"fifo", Node(FileType.FIFO, 0o600))
    for size in (1, 4000, 4032, 4033, 4095):
        tree.put(b"link-%d" % size, Node(FileType.SYMLINK, 0o777, target=b"t" * size))
    shared = file_node(spool, b"shared" * 100, shared=True)
    for name in (b"first", b"second", b"d/third"):
        tree.put(name, shared)
    for count in (0, 1, 40, 130, 600):
        top = make_directory(0o1775)
        top.xattrs[b"user.dir"] = b"d" * (count % 7)
        tree.put(b"many-%d" % count, top)
        for at in range(count):
            tree.put(b"many-%d/%03d%s" % (count, at, b"n" * (at % 230)), Node(FileType.FIFO, 0o644))
    tree.put(b"many-40/sub/!before the dots", Node(FileType.FIFO, 0))
    tree.put(b"many-40/gone", make_whiteout())
    tree.find(b"many-40").xattrs[OPAQUE] = b"y"
    tree.put(b"non\xff\n", Node(FileType.FIFO, 0o600))
    return tree


class Pair:
    def __init__(self, tree: Tree, spool: Spool, directory: Path) -> None:
        directory.mkdir()
        self.path, self.data = str(directory / "metadata"), str(directory / "data")
        self.chunks = write_pair(tree, spool, self.path, self.data)

    def bytes(self) -> tuple[bytes, bytes]:
        return Path(self.path).read_bytes(), Path(self.data).read_bytes()

    def tree(self, spool: Spool) -> Tree:
        sources = [FileSource(self.path), FileSource(self.data)]
        try:
            return read_image(sources[0], sources[1], spool, ImportLimits())
        finally:
            for source in sources:
                source.close()


def test_reader_gets_back_every_file_and_attribute(spool: Spool, tmp_path: Path) -> None:
    tree = full_tree(spool)
    pair = Pair(tree, spool, tmp_path / "p")
    assert pair.tree(spool).identity() == tree.identity()
    assert pair.chunks == build_list(pair.data)
    assert Pair(full_tree(spool), spool, tmp_path / "q").bytes() == pair.bytes()


def test_fsck_finds_nothing_wrong(spool: Spool, tools: Tools, tmp_path: Path) -> None:
    fsck = os.path.join(os.path.dirname(tools.mkfs().path), "fsck.erofs")
    if not os.path.exists(fsck):
        pytest.skip("there is no fsck.erofs beside mkfs.erofs")
    pair = Pair(full_tree(spool), spool, tmp_path / "p")
    done = subprocess.run(
        [fsck, f"--device={pair.data}", "--extract", pair.path], capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr


_LOOK = r"""
import ctypes, errno, hashlib, os, stat, sys
image, data, at = sys.argv[1:]
libc = ctypes.CDLL(None, use_errno=True)
if libc.unshare(0x20000) or libc.mount(b"none", b"/", None, 0x44000, None):
    sys.exit("cannot: no namespace of its own")
if libc.mount(image.encode(), at.encode(), b"erofs", 1, b"device=" + data.encode()):
    number = ctypes.get_errno()
    # No EROFS, or none from files: of the kernel. Anything else is what it says of the image.
    absent = number in (errno.ENODEV, errno.ENOTBLK)
    sys.exit(f"{'cannot: ' if absent else ''}{os.strerror(number)}")
for top, names, files in os.walk(os.fsencode(at)):
    assert sorted(names + files) == sorted(os.listdir(top))
    for path in [top] + [os.path.join(top, one) for one in names + files if one not in names or
                         os.path.islink(os.path.join(top, one))]:
        info = os.lstat(path)
        kind, content = stat.S_IFMT(info.st_mode), b""
        if stat.S_ISLNK(info.st_mode):
            content = os.readlink(path)
        elif stat.S_ISREG(info.st_mode):
            content = hashlib.sha256(open(path, "rb").read()).digest()
        keys = sorted(map(os.fsencode, os.listxattr(path, follow_symlinks=False)))
        xattrs = [(key, os.getxattr(path, key, follow_symlinks=False)) for key in keys]
        print(repr((os.path.relpath(path, os.fsencode(at)), oct(info.st_mode), info.st_uid,
                    info.st_gid, info.st_mtime_ns, info.st_nlink, content, xattrs)))
"""


def test_kernel_sees_every_file_and_attribute(spool: Spool, tmp_path: Path, as_root: None) -> None:
    """An independent witness: the kernel's own mount, in a namespace of its own."""
    tree = full_tree(spool)
    pair = Pair(tree, spool, tmp_path / "p")
    (tmp_path / "m").mkdir()
    done = subprocess.run(
        [sys.executable, "-c", _LOOK, pair.path, pair.data, str(tmp_path / "m")],
        capture_output=True,
        check=False,
        timeout=60,
    )
    if b"cannot:" in done.stderr:
        pytest.skip(f"this kernel cannot mount a pair from files: {done.stderr.decode()}")
    assert done.returncode == 0, done.stderr.decode()
    assert sorted(done.stdout.decode().splitlines()) == sorted(map(repr, expected(tree, spool)))


def expected(tree: Tree, spool: Spool) -> Iterator[tuple[object, ...]]:
    kinds = {
        FileType.FILE: stat.S_IFREG,
        FileType.DIRECTORY: stat.S_IFDIR,
        FileType.SYMLINK: stat.S_IFLNK,
        FileType.FIFO: stat.S_IFIFO,
        FileType.CHARACTER: stat.S_IFCHR,
    }
    names: dict[int, int] = {}
    for entry in tree.entries(None):
        names[id(entry.node)] = names.get(id(entry.node), 0) + 1
    for entry in tree.entries(None):
        node = entry.node
        links, content = names[id(node)], node.target
        if node.children is not None:
            links = 2 + sum(child.children is not None for child in node.children.values())
        if node.content is not None:
            content = node.content.sha256
        yield (
            entry.path or b".",
            oct(kinds[node.type] | node.mode),
            node.uid,
            node.gid,
            node.mtime_ns,
            links,
            content,
            sorted(node.xattrs.items()),
        )


@st.composite
def contents(draw: st.DrawFn) -> list[bytes]:
    """Files of units that are equal, zero or neither, with ends of any length."""
    units = st.sampled_from([bytes(UNIT_BYTES), BIG[:UNIT_BYTES], BIG[UNIT_BYTES : 2 * UNIT_BYTES]])
    ends = st.sampled_from([b"", b"\0", b"a", BIG[:4096], BIG[:5000], bytes(4096)])
    each = st.tuples(st.lists(units, max_size=4), ends).map(lambda one: b"".join(one[0]) + one[1])
    return draw(st.lists(each, max_size=5))


@settings(max_examples=60, deadline=None)
@given(files=contents(), sizes=st.lists(st.integers(1, 200_000), min_size=1, max_size=4))
def test_bytes_come_back_however_they_were_handed_in(
    tmp_path_factory: pytest.TempPathFactory, files: list[bytes], sizes: list[int]
) -> None:
    directory = tmp_path_factory.mktemp("any")
    for codec in Codec:
        path = str(directory / f"{codec}")
        with DataWriter(path, codec) as writer:
            placed = [
                writer.add(len(one), pieces(one, sizes), b"f") if one else None for one in files
            ]
            chunks = writer.finish()
        if codec is Codec.ZSTD:
            assert chunks.content_digest == build_list(str(directory / "none")).content_digest
            continue
        assert chunks == build_list(path)
        blob = Path(path).read_bytes()
        for content, extents in zip(files, placed, strict=True):
            found = b""
            for block in extents.blocks if extents else ():
                length = min(1 << extents.bits, len(content) - len(found))
                found += bytes(length) if block == HOLE else blob[block << 12 :][:length]
            assert found == content


def pieces(content: bytes, sizes: list[int]) -> Iterator[bytes]:
    at = turn = 0
    while at < len(content):
        size = sizes[turn % len(sizes)]
        yield content[at : at + size]
        at, turn = at + size, turn + 1


def test_disk_that_refuses_direct_writes_gives_the_same_blob(
    spool: Spool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = full_tree(spool)
    usual = Pair(tree, spool, tmp_path / "usual").bytes()
    plain, write = fcntl.fcntl, os.write

    def no_flag(fd: int, command: int, flags: int) -> int:
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, "no such flag here")
        return plain(fd, command, flags)

    with monkeypatch.context() as patch:
        patch.setattr(placing.fcntl, "fcntl", no_flag)
        assert Pair(tree, spool, tmp_path / "no flag").bytes() == usual

    def odd(fd: int, content: memoryview) -> int:
        if plain(fd, fcntl.F_GETFL) & os.O_DIRECT:
            raise OSError(errno.EINVAL, "not aligned as this disk wants it")
        return write(fd, content)

    with monkeypatch.context() as patch:
        patch.setattr(placing.os, "write", odd)
        assert Pair(tree, spool, tmp_path / "odd").bytes() == usual


@pytest.mark.parametrize("codec", list(Codec))
def test_full_disk_is_storage_failed(codec: Codec, tmp_path: Path) -> None:
    def write_40_mib() -> None:
        with DataWriter(str(tmp_path / "data"), codec) as writer:
            for number in range(40):
                writer.add(1 << 20, [random.Random(number).randbytes(1 << 20)], b"f")
            writer.finish()

    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, limits[1]))
    try:
        with pytest.raises(StorageFailed):
            write_40_mib()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@pytest.mark.parametrize("more", [b"", b"xy"], ids=["shorter", "longer"])
def test_file_of_another_length_is_refused(more: bytes, tmp_path: Path) -> None:
    with DataWriter(str(tmp_path / "data")) as writer, pytest.raises(ImageBroken, match="changed"):
        writer.add(100_001, [b"a" * 100_000, more], b"f")
