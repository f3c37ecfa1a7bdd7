from __future__ import annotations

import contextlib
import io
import os
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pytest
from images_archives import make_tar, member

from skerry.errors import ImageBroken, StorageFailed, Unavailable
from skerry.images.archives.tarimport import ImportLimits, read_tar
from skerry.images.format.erofs import Tools, build_image
from skerry.images.library import ImageLibrary
from skerry.images.scratch import Spool
from skerry.images.store.store import DirectoryStore
from skerry.images.tree.entry import Tree
from skerry.images.tree.notes import Notes

ARCHIVE = make_tar(
    member("d", type=tarfile.DIRTYPE, mode=0o1777, uid=7, gid=8, mtime=9),
    member("d/f", b"hello" * 3000, mode=0o4751, uid=3, mtime=1_700_000_000),
    member("d/hard", type=tarfile.LNKTYPE, linkname="d/f"),
    member("d/link", type=tarfile.SYMTYPE, linkname="../somewhere"),
    member("d/fifo", type=tarfile.FIFOTYPE, mode=0o600),
    member("d/.wh.gone", b""),
    member("d/.wh..wh..opq", b""),
    member("non\udcff", b"x"),
)


@pytest.fixture
def tree(spool: Spool) -> Tree:
    return read_tar(io.BytesIO(ARCHIVE), spool, Notes(), ImportLimits())


def fake_mkfs(tmp_path: Path, body: str, version: str = "1.8.6") -> Tools:
    path = tmp_path / "mkfs.erofs"
    path.write_text(
        "#!/bin/sh\n"
        f'case $1 in --version) echo "mkfs.erofs (erofs-utils) {version}"; exit;; esac\n'
        f"case $1 in --help) echo lz4; exit;; esac\n{body}\n"
    )
    path.chmod(0o755)
    return Tools(str(tmp_path / "cache"), str(path))


def test_missing_mkfs_says_what_to_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("skerry.images.format.erofs.os.path.join", lambda *_parts: "/nonexistent")
    with pytest.raises(Unavailable, match="make setup"):
        Tools(str(tmp_path)).mkfs()


def test_newest_mkfs_of_cache_and_path_is_taken(tmp_path: Path, monkeypatch) -> None:
    for version in ("1.5", "9.8.1", "1.8.6"):
        directory = tmp_path / f"erofs-utils-{version}" / "bin"
        directory.mkdir(parents=True)
        fake_mkfs(directory, "", version)
    (tmp_path / "erofs-utils-99" / "bin").mkdir(parents=True)
    monkeypatch.setenv("PATH", str(tmp_path))
    mkfs = Tools(str(tmp_path)).mkfs()
    assert mkfs.version == (9, 8, 1)
    assert mkfs.reads_tar
    assert mkfs.compressors == ("lz4",)


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ("cat >/dev/null; echo boom >&2; exit 1", ImageBroken),
        ("exit 3", ImageBroken),
        ("echo 'x: No space left on device'; exit 1", StorageFailed),
        ("cat >/dev/null; exit 0", StorageFailed),  # wrote nothing
        ("cat >/dev/null; kill -9 $$", Unavailable),
    ],
)
def test_failing_mkfs_is_told_as_what_it_is(
    tmp_path: Path, spool: Spool, tree: Tree, body: str, error: type[Exception]
) -> None:
    tools = fake_mkfs(tmp_path, body)
    with pytest.raises(error):
        build_image(tree, spool, str(tmp_path / "out"), tools=tools, scratch=str(tmp_path))


def test_incomplete_image_is_noticed(
    tmp_path: Path, tools: Tools, spool: Spool, tree: Tree
) -> None:
    real = tools.mkfs().path
    for argument in ("size=$(stat -c %s $out); truncate -s $((size - 4096)) $out",):
        script = f'for out; do :; done; {real} "$@"; {argument}'
        fake = fake_mkfs(tmp_path, script)
        with pytest.raises(StorageFailed, match="incomplete"):
            build_image(tree, spool, str(tmp_path / "out"), tools=fake, scratch=str(tmp_path))


def test_unknown_compression_is_unavailable(tmp_path: Path, tools: Tools, spool: Spool) -> None:
    with pytest.raises(Unavailable, match="compress"):
        build_image(
            Tree(),
            spool,
            str(tmp_path / "o"),
            tools=tools,
            scratch=str(tmp_path),
            compression="brotli",
        )


def test_compressed_layer_is_smaller_and_recorded(tools: Tools, tmp_path: Path) -> None:
    made = {}
    for compression in ("none", "lz4"):
        store = DirectoryStore(str(tmp_path / compression))
        library = ImageLibrary(store, tools, str(tmp_path / "s"), compression=compression)
        archive = make_tar(member("f", b"".join(b"%d " % at for at in range(100_000))))
        made[compression] = library.import_tar("base/b", io.BytesIO(archive))
    assert made["lz4"].compression == "lz4"
    assert made["none"].total_bytes > 500_000
    assert made["lz4"].total_bytes < made["none"].total_bytes * 0.8


def listing(directory: Path) -> list[str]:
    command = r"find . -printf '%P|%y|%m|%U|%G|%s|%T@|%l|%n\n' | sort"
    done = subprocess.run(command, shell=True, cwd=directory, capture_output=True, check=True)
    return [
        line
        if line.split("|")[1] != "d"
        else "|".join(part for at, part in enumerate(line.split("|")) if at not in (5, 8))
        for line in done.stdout.decode("utf-8", "backslashreplace").splitlines()
    ]


@pytest.mark.root
def test_old_and_new_mkfs_give_the_same_files_and_each_the_same_bytes_again(
    as_root, tmp_path: Path, tools: Tools, spool: Spool, tree: Tree
) -> None:
    old = "/usr/bin/mkfs.erofs"
    fsck = os.path.join(os.path.dirname(tools.mkfs().path), "fsck.erofs")
    if not tools.mkfs().reads_tar or not os.path.exists(old) or Tools("", old).mkfs().reads_tar:
        pytest.skip("there are no two mkfs.erofs, one of 1.8 or newer and one older")
    for name, use in (("new", tools), ("old", Tools("/nonexistent", old))):
        images = [str(tmp_path / f"{name}{at}.img") for at in range(2)]
        for image in images:
            build_image(tree, spool, image, tools=use, scratch=str(tmp_path))
        assert Path(images[0]).read_bytes() == Path(images[1]).read_bytes()
        subprocess.run(
            [fsck, f"--extract={tmp_path / name}", "--preserve", "--xattrs", images[0]],
            check=True,
            capture_output=True,
        )
    assert listing(tmp_path / "new") == listing(tmp_path / "old")
    assert len(listing(tmp_path / "new")) == 8
    assert "d/f|f|4751|3|0|15000|1700000000.0" in "\n".join(listing(tmp_path / "old"))
    for name in ("new", "old"):
        assert os.getxattr(tmp_path / name / "d", "trusted.overlay.opaque") == b"y"


_KILLED = """
import os, signal, sys
from skerry.images.format.erofs import Tools, build_image
from skerry.images.scratch import Content
from skerry.images.tree.entry import Node, Tree
from skerry.spec.files import FileType
class Contents:
    def read(self, content):
        yield bytes(8 << 20)  # more than a pipe holds: it reads by now
        os.kill(os.getpid(), signal.SIGKILL)
tree = Tree()
tree.put(b"f", Node(FileType.FILE, 0o644, content=Content(0, 16 << 20, b"")))
build_image(tree, Contents(), sys.argv[1] + "/out", tools=Tools(), scratch=sys.argv[1])
"""


def test_mkfs_of_a_process_that_was_killed_ends_with_it(tmp_path: Path) -> None:
    def alive() -> list[int]:
        lines = {
            int(one.name): one / "cmdline" for one in Path("/proc").iterdir() if one.name.isdigit()
        }
        found = []
        for pid, line in lines.items():
            with contextlib.suppress(OSError):
                if (
                    b"mkfs.erofs" in line.read_bytes()
                    and str(tmp_path).encode() in line.read_bytes()
                ):
                    found.append(pid)
        return found

    command = [sys.executable, "-c", _KILLED, str(tmp_path)]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    until = time.monotonic() + 20
    while (left := alive()) and time.monotonic() < until:
        time.sleep(0.02)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert left == []
