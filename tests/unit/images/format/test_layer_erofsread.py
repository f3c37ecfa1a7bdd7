"""Reading images back: what mkfs.erofs and `erofswrite` wrote, and what is no longer what it wrote."""

from __future__ import annotations

import io
import os
import random
import subprocess
import tarfile
from pathlib import Path

import pytest
from images_archives import make_tar, member

from skerry.errors import ImageBroken
from skerry.images.archives.tarimport import ImportLimits, read_tar
from skerry.images.format.erofs import Tools, build_image
from skerry.images.format.erofsread import FileSource, read_image
from skerry.images.format.pair import write_pair
from skerry.images.scratch import Spool
from skerry.images.tree.entry import ORIGIN, Tree
from skerry.images.tree.notes import Notes
from skerry.spec.files import FileType

CAPABILITY = b"\x01\x00\x00\x02\x00\x04\x00\x00" + bytes(12)


def archive() -> bytes:
    rng = random.Random(1)
    pax = {"SCHILY.xattr.user.note": "x" * 300, "SCHILY.xattr.user.b": "same"}
    members = [
        member("d", type=tarfile.DIRTYPE, mode=0o1777, uid=7, gid=8, mtime=9, pax_headers=pax),
        member("d/big", rng.randbytes(700_001), mode=0o4751, uid=3, mtime=1_700_000_000.25),
        member("d/hard", type=tarfile.LNKTYPE, linkname="d/big"),
        member("d/link", type=tarfile.SYMTYPE, linkname="../somewhere"),
        member("d/fifo", type=tarfile.FIFOTYPE, mode=0o600),
        member("d/zeros", bytes(300_000)),
        member("d/again", rng.randbytes(65_536) * 3 + b"tail", pax_headers=pax),
        member("d/.wh.gone", b""),
        member("o/.wh..wh..opq", b""),
        member("empty", b""),
        member("non\udcff", b"x", mode=0o000, uid=65_535),
    ]
    members += [member(f"many/{at:05}-{'n' * (at % 200)}", b"%d" % at) for at in range(2000)]
    return make_tar(*members)


@pytest.fixture
def tree(spool: Spool) -> Tree:
    made = read_tar(io.BytesIO(archive()), spool, Notes(), ImportLimits())
    made.find(b"d/big").xattrs[b"security.capability"] = CAPABILITY
    made.find(b"d").xattrs[b"system.posix_acl_default"] = b"\x02\0\0\0\x01\0\x07\0\xff\xff\xff\xff"
    return made


def read_back(
    path: str, data: str | None, spool: Spool, limits: ImportLimits | None = None
) -> Tree:
    sources = [FileSource(one) for one in (path, data) if one]
    try:
        return read_image(sources[0], sources[1] if data else None, spool, limits or ImportLimits())
    finally:
        for source in sources:
            source.close()


@pytest.mark.parametrize("apart", [False, True], ids=["one blob", "pair"])
def test_image_read_back_is_the_same_tree(
    tmp_path: Path, tools: Tools, spool: Spool, tree: Tree, apart: bool
) -> None:
    path, data = str(tmp_path / "image"), str(tmp_path / "data") if apart else None
    if data:
        write_pair(tree, spool, path, data)
    else:
        build_image(tree, spool, path, tools=tools, scratch=str(tmp_path))
    made = read_back(path, data, spool)
    assert made.count() == tree.count()
    assert made.identity() == tree.identity()
    assert ORIGIN in made.find(b"d").xattrs


def test_kernel_and_reader_see_the_same_names_and_bytes(
    tmp_path: Path, tools: Tools, spool: Spool, tree: Tree, as_root: None
) -> None:
    """An independent witness: the kernel's own mount, in a namespace of its own."""
    path = str(tmp_path / "image")
    build_image(tree, spool, path, tools=tools, scratch=str(tmp_path))
    (tmp_path / "m").mkdir()
    listing = "find . -printf '%y %m %U %G %s %P\\0'"
    script = f"mount -t erofs -o ro {path} {tmp_path}/m && cd {tmp_path}/m && {listing}"
    done = subprocess.run(
        ["unshare", "--mount", "--propagation", "private", "sh", "-c", script],
        capture_output=True,
        check=False,
        timeout=60,
    )
    if done.returncode != 0 and b"mount" in done.stderr:
        pytest.skip(f"this kernel cannot mount it: {done.stderr.decode()}")
    letters = {
        FileType.FILE: b"f",
        FileType.DIRECTORY: b"d",
        FileType.SYMLINK: b"l",
        FileType.FIFO: b"p",
        FileType.CHARACTER: b"c",
    }
    made = read_back(path, None, spool)
    own = set()
    for entry in made.entries(spool):
        node = entry.node
        size = len(node.target) if node.target else node.content.size if node.content else 0
        head = b"%s %o %d %d" % (letters[node.type], node.mode, node.uid, node.gid)
        own.add((head, entry.path, size if node.children is None else None))
    kernel = set()
    for line in done.stdout.split(b"\0")[:-1]:
        kind, mode, uid, gid, size, name = line.split(b" ", 5)
        is_directory = kind == b"d"
        kernel.add((b" ".join((kind, mode, uid, gid)), name, None if is_directory else int(size)))
    assert own == kernel


@pytest.mark.parametrize("limit", ["entries_max", "bytes_max", "words_bytes_max"])
def test_image_beyond_a_limit_is_refused(
    tmp_path: Path, tools: Tools, spool: Spool, tree: Tree, limit: str
) -> None:
    path = str(tmp_path / "image")
    build_image(tree, spool, path, tools=tools, scratch=str(tmp_path))
    with pytest.raises(ImageBroken):
        read_back(path, None, spool, ImportLimits(**{limit: 1000}))


def test_compressed_image_says_so(tmp_path: Path, tools: Tools, spool: Spool, tree: Tree) -> None:
    path = str(tmp_path / "image")
    build_image(tree, spool, path, tools=tools, scratch=str(tmp_path), compression="lz4")
    with pytest.raises(ImageBroken, match="compressed"):
        read_back(path, None, spool)


def test_damaged_images_are_refused_or_read_and_nothing_else(
    tmp_path: Path, tools: Tools, spool: Spool
) -> None:
    small = make_tar(
        member("d", type=tarfile.DIRTYPE, pax_headers={"SCHILY.xattr.user.a": "b"}),
        member("d/f", b"hello" * 3000),
        member("d/l", type=tarfile.SYMTYPE, linkname="f"),
        member("g", b"tail"),
    )
    tree = read_tar(io.BytesIO(small), spool, Notes(), ImportLimits())
    path = tmp_path / "image"
    build_image(tree, spool, str(path), tools=tools, scratch=str(tmp_path))
    whole = path.read_bytes()
    rng = random.Random(7)
    refused = 0
    limits = ImportLimits(entries_max=1000, bytes_max=64 << 20)
    for _ in range(1500):
        damaged = bytearray(whole)
        for _ in range(rng.randrange(1, 6)):
            at = rng.choice((rng.randrange(1024, 1152), rng.randrange(1152, len(whole))))
            damaged[at] = rng.randrange(256)
        if rng.random() < 0.1:
            del damaged[rng.randrange(len(damaged)) :]
        path.write_bytes(damaged)
        try:
            read_back(str(path), None, spool, limits)
        except ImageBroken:
            refused += 1
    assert refused > 100


def test_directory_within_itself_is_refused(tmp_path: Path, tools: Tools, spool: Spool) -> None:
    made = read_tar(io.BytesIO(make_tar(member("a/b/f", b"1"))), spool, Notes(), ImportLimits())
    path = tmp_path / "image"
    build_image(made, spool, str(path), tools=tools, scratch=str(tmp_path))
    image = bytearray(path.read_bytes())
    root = int.from_bytes(image[1024 + 14 : 1024 + 16], "little")
    # Every dirent of a directory but the root's is led to the root.
    found = 0
    for at in range(1152, len(image) - 12, 4):
        number = int.from_bytes(image[at : at + 8], "little")
        if image[at + 10] == 2 and image[at + 11] == 0 and 0 < number < 4096 and number != root:
            image[at : at + 8] = root.to_bytes(8, "little")
            found += 1
    assert found
    path.write_bytes(image)
    with pytest.raises(ImageBroken):
        read_back(str(path), None, spool)


def test_file_that_is_no_image_is_refused(tmp_path: Path, spool: Spool) -> None:
    path = tmp_path / "x"
    for content in (b"", os.urandom(4096), bytes(8192)):
        path.write_bytes(content)
        with pytest.raises(ImageBroken, match="no EROFS image"):
            read_back(str(path), None, spool)
