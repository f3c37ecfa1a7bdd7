"""Downloads: what the throw-away user brings is hostile until its hash is right."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest
from job_world import task

from skerry.errors import InvalidRequest, StorageFailed, Unavailable
from skerry.worker.downloads import UIDS, Downloads, Wanted, free_uid, wanted_of
from skerry.worker.inside.fetch import target_options

CONTENT = b"an archive"
WANTED = Wanted("a-1.tar.gz", hashlib.sha256(CONTENT).hexdigest(), "a")


def test_a_file_with_the_pinned_hash_is_kept(tmp_path: Path) -> None:
    downloads = Downloads(tmp_path / "cache", {})
    (tmp_path / "a-1.tar.gz").write_bytes(CONTENT)
    downloads._take(tmp_path / "a-1.tar.gz", WANTED)
    assert downloads.read(WANTED) == CONTENT
    assert [path.name for path in downloads.path(WANTED).parent.iterdir()] == ["a-1.tar.gz"]


def test_other_bytes_are_refused_and_leave_nothing(tmp_path: Path) -> None:
    downloads = Downloads(tmp_path / "cache", {})
    (tmp_path / "a-1.tar.gz").write_bytes(b"other")
    with pytest.raises(InvalidRequest, match="other bytes than the task pins"):
        downloads._take(tmp_path / "a-1.tar.gz", WANTED)
    assert not downloads.path(WANTED).exists()


@pytest.mark.parametrize("kind", ["link", "fifo", "directory"])
def test_something_else_than_a_file_is_never_read(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "a-1.tar.gz"
    if kind == "link":
        (tmp_path / "secret").write_bytes(CONTENT)
        path.symlink_to(tmp_path / "secret")
    elif kind == "fifo":
        os.mkfifo(path)
    else:
        path.mkdir()
    with pytest.raises((OSError, InvalidRequest)):
        Downloads(tmp_path / "cache", {})._take(path, WANTED)


def test_a_cached_file_that_rotted_is_not_used(tmp_path: Path) -> None:
    downloads = Downloads(tmp_path, {})
    downloads.path(WANTED).parent.mkdir(parents=True)
    downloads.path(WANTED).write_bytes(b"rotten")
    with pytest.raises(StorageFailed, match="damaged"):
        downloads.read(WANTED)


async def test_what_is_cached_is_not_fetched(tmp_path: Path) -> None:
    downloads = Downloads(tmp_path, {})
    downloads.path(WANTED).parent.mkdir(parents=True)
    downloads.path(WANTED).write_bytes(CONTENT)
    said: list[str] = []
    await downloads.fetch([WANTED], said.append)
    assert said == []


async def test_what_no_index_has_is_said_by_name(tmp_path: Path) -> None:
    # An index of nothing: the machine's own is not asked.
    index = tmp_path / "index"
    index.mkdir()
    settings = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(index), "PIP_CONFIG_FILE": os.devnull}
    tmp_path.chmod(0o755)
    with pytest.raises(Unavailable, match=r"a-1\.tar\.gz"):
        await Downloads(tmp_path / "cache", settings).fetch([WANTED])


def test_each_file_is_wanted_once(tmp_path: Path) -> None:
    both = wanted_of([task(tmp_path, "a-1"), task(tmp_path, "a-2")], [WANTED])
    assert [one.file for one in both] == ["a-1.tar.gz", "demo-1.tar.gz", "demo-2.tar.gz"]


def test_the_uid_belongs_to_nobody() -> None:
    uid = free_uid()
    assert uid in UIDS
    assert uid != os.getuid()


def test_wheels_of_a_platform_are_asked_for_by_their_tags() -> None:
    name = "MarkupSafe-3.0.2-cp311-cp311-manylinux_2_17_x86_64.manylinux2014_x86_64.whl"
    options = target_options([name])
    assert options[:4] == ["--implementation", "cp", "--python-version", "3.11"]
    assert options[4:6] == ["--abi", "cp311"]
    assert options.count("--platform") == 2
    assert target_options(["six-1.17.0-py2.py3-none-any.whl", "a-1.tar.gz"]) == []
