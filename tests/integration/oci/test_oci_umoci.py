"""Random images, judged by another program that unpacks images: umoci, which knows nothing of ours."""

from __future__ import annotations

import hashlib
import io
import os
import random
import shutil
import stat
import subprocess
import tarfile
from pathlib import Path

import pytest

from oci_images import Layout
from skerry.images.archives.tarimport import ImportLimits
from skerry.images.oci.bundle import DirectoryBundle
from skerry.images.oci.choose import choose, parse_platform
from skerry.images.oci.layers import LayerReader
from skerry.images.oci.write import LayoutWriter
from skerry.images.scratch import Spool
from skerry.images.tree.entry import Tree
from skerry.images.tree.merge import Collapse, strip
from skerry.images.tree.notes import Notes
from skerry.spec.files import FileType
from skerry.spec.layers import ImageConfig

pytestmark = pytest.mark.root

AMD = parse_platform("linux/amd64")
NAMES = ("a", "b", "c", "\udcff")
# What umoci shows of each path, and what we do: kind and mode, owners, content, names of the same file.
Seen = dict[bytes, tuple[str, int, int, bytes, tuple[bytes, ...]]]


@pytest.fixture(autouse=True)
def needs() -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root: owners of files are set")
    if shutil.which("umoci") is None:
        pytest.skip("umoci is missing ('make setup' installs it)")


class Maker:
    """Makes layers that are odd and yet possible: it knows what the layers so far show."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.shown: dict[str, str] = {}  # path to kind: d, f, l

    def path(self, kinds: str = "d") -> str:
        return self.rng.choice(["", *(path for path, kind in self.shown.items() if kind in kinds)])

    def _hide(self, path: str, kept: set[str]) -> None:
        below = [one for one in self.shown if one == path or one.startswith(path + "/")]
        for one in below:
            if one not in kept:
                del self.shown[one]

    def layer(self) -> bytes:
        out = io.BytesIO()
        own: set[str] = set()  # paths of this layer, parents included
        with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
            for _ in range(self.rng.randrange(1, 14)):
                self._member(tar, own)
        return out.getvalue()

    def _member(self, tar: tarfile.TarFile, own: set[str]) -> None:
        rng, parent = self.rng, self.path()
        name = rng.choice(NAMES)
        path = f"{parent}/{name}" if parent else name
        if path in own or path.count("/") > 4:
            return
        info = tarfile.TarInfo(path)
        info.mode = rng.choice((0o644, 0o755, 0o4711, 0o1777, 0o600))
        info.uid, info.gid = rng.randrange(5), rng.randrange(65_536)
        data = b""
        kind = rng.choice("ddfffllhhwwo")
        files = [one for one, is_a in self.shown.items() if is_a == "f"]
        if kind == "h" and not files:
            kind = "f"
        if kind == "w":
            if path not in self.shown:
                return
            self._hide(path, set())
            info.name = f"{parent}/.wh.{name}" if parent else f".wh.{name}"
        elif kind == "o":
            if not parent or any(one.startswith(parent + "/") for one in own):
                return
            self._hide(parent, {parent})
            info.name = f"{parent}/.wh..wh..opq"
            own.add(parent)
        else:
            if kind != "d" or self.shown.get(path) != "d":
                self._hide(path, set())
            if kind == "d":
                info.type = tarfile.DIRTYPE
            elif kind == "l":
                info.type, info.linkname = tarfile.SYMTYPE, rng.choice(NAMES)
            elif kind == "h" and (target := rng.choice(files)) in self.shown and target != path:
                info.type, info.linkname = tarfile.LNKTYPE, target
                own.add(target)
            else:
                data = rng.randbytes(rng.randrange(40))
                info.size = len(data)
            self.shown[path] = {tarfile.DIRTYPE: "d", tarfile.SYMTYPE: "l"}.get(info.type, "f")
        if kind != "o":
            own.add(path)
        while parent:
            own.add(parent)
            parent = parent.rpartition("/")[0]
        tar.addfile(info, io.BytesIO(data))


def by_umoci(layout: Path, tag: str, place: Path) -> Seen:
    subprocess.run(
        ["umoci", "unpack", "--image", f"{layout}:{tag}", place],
        check=True,
        capture_output=True,
        timeout=60,
    )
    top = os.fsencode(place / "rootfs")
    found: dict[bytes, tuple[os.stat_result, bytes]] = {}
    same: dict[int, list[bytes]] = {}
    for directory, names, files in os.walk(top):
        for name in [*names, *files]:
            full = os.path.join(directory, name)
            info, content = os.lstat(full), b""
            path = full.removeprefix(top + b"/")
            if stat.S_ISLNK(info.st_mode):
                content = os.readlink(full)
            elif stat.S_ISREG(info.st_mode):
                with open(full, "rb") as file:
                    content = hashlib.sha256(file.read()).digest()
                same.setdefault(info.st_ino, []).append(path)
            found[path] = (info, content)
    seen: Seen = {}
    for path, (info, content) in found.items():
        mode = 0o777 if stat.S_ISLNK(info.st_mode) else stat.S_IMODE(info.st_mode)
        kind = f"{stat.filemode(info.st_mode)[0]} {mode:o}"
        seen[path] = (
            kind,
            info.st_uid,
            info.st_gid,
            content,
            tuple(sorted(same.get(info.st_ino, ()))),
        )
    return seen


def by_us(tree: Tree) -> Seen:
    letters = {FileType.FILE: "-", FileType.DIRECTORY: "d", FileType.SYMLINK: "l"}
    same: dict[int, list[bytes]] = {}
    for entry in tree.entries(None):
        if entry.node.type is FileType.FILE:
            same.setdefault(id(entry.node), []).append(entry.path)
    return {
        entry.path: (
            f"{letters[entry.node.type]} {entry.node.mode:o}",
            entry.node.uid,
            entry.node.gid,
            entry.node.content.sha256 if entry.node.content else entry.node.target,
            tuple(sorted(same.get(id(entry.node), ()))),
        )
        for entry in tree.entries(None)
        if entry.path
    }


def read(layout: Path, tag: str, spool: Spool, threshold: int = 1 << 30) -> list[Tree]:
    bundle = DirectoryBundle(str(layout))
    into = Collapse(threshold)
    reader = LayerReader(bundle, spool, Notes(), ImportLimits())
    reader.read(choose(bundle, tag, AMD), into, lambda _line: None)
    return into.trees


@pytest.mark.parametrize("seed", range(40))
def test_image_is_unpacked_as_another_program_does(tmp_path: Path, seed: int) -> None:
    maker = Maker(seed)
    layout = Layout(tmp_path / "layout")
    layout.index(layout.image(*(maker.layer() for _ in range(maker.rng.randrange(2, 7))), tag="t"))
    spool = Spool(str(tmp_path))
    [tree] = read(layout.path, "t", spool)
    strip(tree)
    expected = by_umoci(layout.path, "t", tmp_path / "by-umoci")
    assert by_us(tree) == expected
    assert {os.fsdecode(path) for path in expected} == set(maker.shown)
    spool.close()


@pytest.mark.parametrize("seed", range(100, 115))
def test_image_of_parts_is_written_as_another_program_reads_it(tmp_path: Path, seed: int) -> None:
    """Parts, with whiteouts between them, go out as layers, which the other program lays over each
    other. Names of one file that came to lie in several parts are files of their own then."""
    maker = Maker(seed)
    layout = Layout(tmp_path / "layout")
    layout.index(layout.image(*(maker.layer() for _ in range(maker.rng.randrange(3, 7))), tag="t"))
    spool = Spool(str(tmp_path))
    writer = LayoutWriter(str(tmp_path / "out"))
    trees = read(layout.path, "t", spool, threshold=60)
    for tree in trees:
        writer.add(tree, spool)
    writer.finish(ImageConfig(), AMD, "t")
    first = by_umoci(layout.path, "t", tmp_path / "first")
    second = by_umoci(tmp_path / "out", "t", tmp_path / "second")
    assert {path: one[:4] for path, one in second.items()} == {
        path: one[:4] for path, one in first.items()
    }
    spool.close()
