"""What the contract suite cannot ask of every store: files, copies, crashes, full disks."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from skerry.errors import StorageFailed
from skerry.images.objects import directory
from skerry.images.objects.directory import DirectoryObjects
from skerry.images.objects.mounts import file_system, is_local

KEY = "blobs/sha256/ab/" + "ab" * 32


@pytest.fixture
def objects(tmp_path: Path) -> DirectoryObjects:
    return DirectoryObjects(str(tmp_path / "store"))


def names(objects: DirectoryObjects) -> list[str]:
    return sorted(name for _, _, files in os.walk(objects.root) for name in files)


def test_file_on_the_same_disk_is_linked_not_copied(
    objects: DirectoryObjects, tmp_path: Path
) -> None:
    source = tmp_path / "blob"
    source.write_bytes(b"content")
    inode = source.stat().st_ino
    objects.put_file(KEY, str(source))
    path = objects.local_path(KEY)
    assert path is not None
    assert os.stat(path).st_ino == inode
    assert os.stat(path).st_mode & 0o777 == 0o444


def test_file_from_another_file_system_is_copied(objects: DirectoryObjects) -> None:
    if not os.access("/dev/shm", os.W_OK):
        pytest.skip("there is no second file system to copy from")
    with tempfile.NamedTemporaryFile(dir="/dev/shm") as source:
        source.write(b"far away")
        source.flush()
        assert objects.put_file(KEY, source.name) is True
        assert objects.put_file(KEY, source.name) is False
    assert objects.get(KEY, 100) == b"far away"
    assert names(objects) == [KEY.rsplit("/", 1)[-1]]


KILLED = """
import os, sys
from skerry.images.objects import directory
from skerry.images.objects.directory import DirectoryObjects
objects = DirectoryObjects(sys.argv[1])
def pieces(path):
    yield b"x" * 1000
    os.kill(os.getpid(), 9)
directory._pieces = pieces
directory._link = lambda source, target, real=directory._link: (
    real(source, target) if ".part-" in source else (_ for _ in ()).throw(OSError(18, "EXDEV")))
open(sys.argv[1] + ".source", "w").close()
objects.put_file(sys.argv[2], sys.argv[1] + ".source")
"""


def test_upload_that_is_killed_is_never_visible_and_swept_when_old(
    objects: DirectoryObjects,
) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED, objects.root, KEY], check=False)
    assert done.returncode == -9
    assert len(names(objects)) == 1  # the torn upload is there
    assert list(objects.list("")) == []
    assert objects.stat(KEY) is None
    assert objects.sweep(3600.0) == 0
    (torn,) = (os.path.join(at, name) for at, _, files in os.walk(objects.root) for name in files)
    os.utime(torn, (time.time() - 7200, time.time() - 7200))
    assert objects.sweep(3600.0) == 1
    assert names(objects) == []


def test_full_disk_is_storage_failed_and_leaves_nothing(
    objects: DirectoryObjects, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(fd: int, piece: bytes) -> None:
        os.write(fd, piece[: len(piece) // 2])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(directory, "_write_all", full)
    with pytest.raises(StorageFailed) as caught:
        objects.put_bytes(KEY, b"x" * 1000, replace=False)
    assert caught.value.fields["errno"] == errno.ENOSPC
    assert names(objects) == []


def test_file_system_without_links_is_named(
    objects: DirectoryObjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", refuse)
    with pytest.raises(StorageFailed, match="without hard links"):
        objects.put_bytes(KEY, b"x", replace=False)
    assert names(objects) == []


def test_directory_that_vanishes_under_a_store_is_made_again(objects: DirectoryObjects) -> None:
    objects.put_bytes(KEY, b"x", replace=False)
    shutil.rmtree(objects.root)
    assert objects.get(KEY, 10) is None
    assert objects.put_bytes(KEY, b"y", replace=False) is True


def test_store_that_cannot_be_made_is_storage_failed(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StorageFailed):
        DirectoryObjects(str(tmp_path / "file" / "store"))


TABLE = """\
21 1 254:0 / / rw - ext4 /dev/vda rw
30 21 0:40 / /mnt/a\\040b rw - fuse.juicefs JuiceFS:x rw
31 21 0:41 / /mnt/nfs rw shared:1 - nfs4 server:/export rw
32 31 0:42 / /mnt/nfs/deep rw - tmpfs tmpfs rw
nonsense
"""


@pytest.mark.parametrize(
    ("path", "kind", "local"),
    [
        ("/var/lib", "ext4", True),
        ("/mnt/a b/store", "fuse.juicefs", False),
        ("/mnt/nfs/store", "nfs4", False),
        ("/mnt/nfs/deep", "tmpfs", True),
        ("/mnt/nfsx", "ext4", True),
    ],
)
def test_file_system_of_a_path_is_the_innermost(
    tmp_path: Path, path: str, kind: str, local: bool
) -> None:
    table = tmp_path / "mountinfo"
    table.write_text(TABLE)
    found = file_system(path, str(table))
    assert found.kind == kind
    assert is_local(found.kind) is local


def test_what_others_put_into_the_directory_is_not_listed(objects: DirectoryObjects) -> None:
    objects.put_bytes("tags/x", b"x", replace=False)
    for name in ("two words", ".nfs000", "é", "n" * 201):
        open(os.path.join(objects.root, "tags", name), "w").close()
    os.mkfifo(os.path.join(objects.root, "tags", "fifo"))
    assert [key for key, _ in objects.list("")] == ["tags/x"]
