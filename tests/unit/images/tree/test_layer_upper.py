"""Uppers made by hand, as overlayfs leaves them and as nobody should: needs root for the marks."""

from __future__ import annotations

import ctypes
import io
import os
import socket
import stat
import tarfile
import threading
from pathlib import Path

import pytest
from image_uppers import BASE, Layers, lower

from skerry.errors import Bug, ImageBroken
from skerry.images.archives.tarwrite import write_tar
from skerry.images.commits import diff as diff_module
from skerry.images.commits.diff import tar_entries
from skerry.images.tree import files
from skerry.images.tree import upper as upper_module
from skerry.images.tree.cursor import Cursor
from skerry.images.tree.upper import UpperLimits, walk_upper
from skerry.spec.files import Change, ChangeKind, FileType

pytestmark = [pytest.mark.root, pytest.mark.usefixtures("as_root")]
ADDED, MODIFIED, DELETED = ChangeKind.ADDED, ChangeKind.MODIFIED, ChangeKind.DELETED


def test_added_file_has_size_digest_mode_and_the_ids_seen_inside(layers: Layers) -> None:
    layers.write("a/f", b"hello", 0o4755, BASE + 1000)
    got = layers.changes()
    assert got["/a"].type is FileType.DIRECTORY
    assert got["/a/f"] == Change(
        "/a/f",
        ADDED,
        FileType.FILE,
        0o4755,
        1000,
        1000,
        5,
        "sha256:2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824",
    )


def test_ids_outside_the_range_are_nobody(layers: Layers) -> None:
    for name, uid in (("host", 0), ("last", BASE + 65_535), ("next", BASE + 65_536)):
        layers.write(name, uid=uid)
    got = layers.changes()
    assert [got[f"/{name}"].uid for name in ("host", "last", "next")] == [65_534, 65_535, 65_534]


def test_copied_up_but_equal_file_is_no_change(layers: Layers) -> None:
    lower(layers.top, "d/f", b"same")
    layers.write("d/f", b"same")
    os.utime(layers.upper / "d/f", (1, 1))
    assert layers.changes() == {}


@pytest.mark.parametrize("difference", ["content", "size", "mode", "owner", "xattr", "type"])
def test_each_real_difference_is_modified(layers: Layers, difference: str) -> None:
    lower(layers.bottom, "d/f", b"same")
    file = layers.write("d/f", b"same")
    if difference == "content":
        file.write_bytes(b"eman")
    elif difference == "size":
        file.write_bytes(b"same+")
    elif difference == "mode":
        file.chmod(0o4644)
    elif difference == "owner":
        os.chown(file, BASE + 1, BASE)
    elif difference == "xattr":
        os.setxattr(file, "user.x", b"1")
    else:
        file.unlink()
        file.symlink_to("same")
        os.lchown(file, BASE, BASE)
    assert layers.kinds() == {"/d/f": MODIFIED}


def test_overlays_own_attributes_are_no_difference(layers: Layers) -> None:
    lower(layers.bottom, "d/f", b"same")
    file = layers.write("d/f", b"same")
    os.setxattr(file, "trusted.overlay.origin", b"x")
    os.setxattr(file, "user.overlay.opaque", b"y")
    assert layers.changes() == {}


def test_directory_is_modified_only_by_its_own_metadata(layers: Layers) -> None:
    lower(layers.top, "d/e/f")
    layers.write("d/e/g")
    (layers.upper / "d").chmod(0o700)
    assert layers.kinds() == {"/d": MODIFIED, "/d/e/g": ADDED}


def test_whiteout_is_deleted_only_if_the_lowers_show_the_file(layers: Layers) -> None:
    lower(layers.bottom, "d/both")
    lower(layers.bottom, "d/gone")
    lower(layers.top, "d/both", mode=0o755)
    os.mknod(layers.top / "d/gone", stat.S_IFCHR, os.makedev(0, 0))
    for name in ("both", "gone", "never"):
        layers.whiteout(f"d/{name}")
    got = layers.changes()
    assert list(got) == ["/d/both"]
    assert (got["/d/both"].kind, got["/d/both"].mode) == (DELETED, 0o755)


def test_deleted_directory_is_one_change(layers: Layers) -> None:
    lower(layers.bottom, "d/e/f")
    layers.whiteout("d")
    got = layers.changes()
    assert list(got) == ["/d"]
    assert got["/d"].type is FileType.DIRECTORY


def test_opaque_directory_deletes_what_it_hides(layers: Layers) -> None:
    lower(layers.bottom, "d/old")
    lower(layers.bottom, "d/sub/x")
    lower(layers.top, "d/kept", b"same")
    lower(layers.top, "d/again/y")
    layers.directory("d", opaque=True)
    layers.write("d/kept", b"same")
    layers.write("d/new")
    layers.directory("d/again")
    wanted = {"/d/again/y": DELETED, "/d/new": ADDED, "/d/old": DELETED, "/d/sub": DELETED}
    assert layers.kinds() == wanted


def test_lower_opaque_directory_hides_what_is_below_it(layers: Layers) -> None:
    lower(layers.bottom, "d/f")
    (layers.top / "d").mkdir()
    os.setxattr(layers.top / "d", "trusted.overlay.opaque", b"y")
    layers.write("d/f")
    assert layers.kinds() == {"/d/f": ADDED}


def test_directory_over_a_file_and_file_over_a_directory_are_modified(layers: Layers) -> None:
    lower(layers.top, "was_file")
    lower(layers.bottom, "was_file/below")  # hidden by the file above it
    lower(layers.bottom, "was_dir/f")
    layers.directory("was_file", opaque=True)
    layers.write("was_file/below")
    layers.write("was_dir")
    wanted = {"/was_dir": MODIFIED, "/was_file": MODIFIED, "/was_file/below": ADDED}
    assert layers.kinds() == wanted


def test_special_files_are_listed_and_never_opened(layers: Layers, monkeypatch) -> None:
    os.mkfifo(layers.upper / "fifo")  # opening it would wait for a writer
    os.mknod(layers.upper / "dev", stat.S_IFCHR, os.makedev(1, 3))
    with socket.socket(socket.AF_UNIX) as sock:
        old = os.getcwd()
        os.chdir(layers.upper)
        sock.bind("sock")
        os.chdir(old)
    (layers.upper / "link").symlink_to("/etc/shadow")

    def fail(*_args: object) -> None:
        raise AssertionError("opened")

    monkeypatch.setattr(files, "open_regular", fail)
    got = layers.changes()
    assert {path: one.type.value for path, one in got.items()} == {
        "/dev": "c",
        "/fifo": "p",
        "/link": "l",
        "/sock": "s",
    }
    assert got["/link"].target == "/etc/shadow"


def test_names_that_are_no_text_are_kept(layers: Layers) -> None:
    layers.write("a\udcff/b\nc\udcfe")
    assert set(layers.changes()) == {"/a\udcff", "/a\udcff/b\nc\udcfe"}


def test_hard_links_are_read_once(layers: Layers, monkeypatch) -> None:
    file = layers.write("a", b"x" * 100)
    for at in range(50):
        os.link(file, layers.upper / f"h{at}")
    got = layers.changes(bytes_max=100)  # 51 readings would be too many
    assert len({one.digest for one in got.values()}) == 1
    assert len(got) == 51


def test_five_thousand_levels_with_few_descriptors(layers: Layers) -> None:
    for where, uid in ((layers.upper, BASE), (layers.bottom, 0)):
        fd = os.open(where, os.O_RDONLY)
        for _ in range(5000):
            os.mkdir("d", 0o755, dir_fd=fd)
            deeper = os.open("d", os.O_RDONLY, dir_fd=fd)
            os.close(fd)
            fd = deeper
            os.fchown(fd, uid, uid)
        os.close(os.open("f", os.O_CREAT | os.O_WRONLY, dir_fd=fd))
        os.fchown(fd, uid, uid)
        os.close(fd)
    before = len(os.listdir("/proc/self/fd"))
    most = 0
    count = 0
    for _ in walk_upper(layers.view, UpperLimits()):
        count += 1
        if count % 500 == 0:
            most = max(most, len(os.listdir("/proc/self/fd")))
    assert count == 5002
    assert most - before < 300
    assert len(os.listdir("/proc/self/fd")) == before
    assert layers.kinds() == {"/" + "d/" * 5000 + "f": MODIFIED}  # its owner is the host's root


def test_path_longer_than_any_layer_may_hold_is_a_limit(layers: Layers) -> None:
    fd = os.open(layers.upper, os.O_RDONLY)
    for _ in range(70):
        os.mkdir("n" * 250, dir_fd=fd)
        deeper = os.open("n" * 250, os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = deeper
    os.close(fd)
    with pytest.raises(ImageBroken) as error:
        layers.changes()
    assert error.value.fields == {"limit": "paths"}


@pytest.mark.parametrize(("limit", "value"), [("entries", 5), ("bytes", 50), ("path_bytes", 20)])
def test_each_bound_is_an_error_not_a_shorter_answer(
    layers: Layers, limit: str, value: int
) -> None:
    for at in range(6):
        layers.write(f"file-{at}", b"x" * 10)
    assert len(layers.changes(entries_max=6, bytes_max=60, path_bytes_max=42)) == 6
    with pytest.raises(ImageBroken) as error:
        layers.changes(**{f"{limit}_max": value})
    assert error.value.fields["limit"] == limit.replace("path_bytes", "paths")


def test_targets_of_links_have_a_limit_too(layers: Layers) -> None:
    for at in range(6):
        os.symlink("t" * 4000, layers.write("d/a").with_name(f"link-{at}"))
    assert len(layers.changes(path_bytes_max=30_000)) == 8
    with pytest.raises(ImageBroken) as error:
        layers.changes(path_bytes_max=15_000)
    assert error.value.fields == {"limit": "paths"}


def test_sparse_terabyte_is_told_by_what_it_holds(layers: Layers) -> None:
    os.truncate(layers.write("f"), 1 << 40)
    change = layers.changes()["/f"]
    assert change.size == 1 << 40
    assert (change.digest or "").startswith("sparse-sha256:")


def test_upper_of_an_overlay_with_redirects_is_a_bug(layers: Layers) -> None:
    os.setxattr(layers.directory("d"), "trusted.overlay.redirect", b"/etc")
    with pytest.raises(Bug):
        layers.changes()


# --- a tree that changes while it is read -------------------------------------------------


def test_directory_swapped_for_a_link_after_it_was_looked_at_is_not_followed(
    layers: Layers, tmp_path: Path, monkeypatch
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_bytes(b"x")
    layers.directory("d")

    def lstat_then_swap(parent: int, name: bytes):
        info = files.lstat(parent, name)
        if name == b"d" and not (layers.upper / "d").is_symlink():
            (layers.upper / "d").rmdir()
            (layers.upper / "d").symlink_to(outside)
        return info

    monkeypatch.setattr(upper_module, "lstat", lstat_then_swap)
    with pytest.raises(ImageBroken, match="changed"):
        list(walk_upper(layers.view, UpperLimits()))


def test_directory_swapped_for_a_link_all_the_time_never_shows_what_it_points_to(
    layers: Layers, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_bytes(b"x")
    layers.directory("d")
    (layers.upper / "l").symlink_to(outside)
    ended = threading.Event()

    def swap() -> None:
        exchange = ctypes.CDLL(None).renameat2
        names = [os.fsencode(layers.upper / name) for name in ("d", "l")]
        while not ended.is_set():
            exchange(-100, names[0], -100, names[1], 2)  # RENAME_EXCHANGE

    swapper = threading.Thread(target=swap)
    swapper.start()
    try:
        for _ in range(1000):
            try:
                seen = {one.path for one in walk_upper(layers.view, UpperLimits())}
            except ImageBroken:
                continue
            assert seen == {b"", b"d", b"l"}
    finally:
        ended.set()
        swapper.join()


def test_file_swapped_for_a_fifo_or_link_after_it_was_looked_at_is_not_opened(
    layers: Layers, tmp_path: Path
) -> None:
    for swap in (
        os.mkfifo,
        lambda p: p.symlink_to("/etc/passwd"),
        lambda p: p.write_bytes(b"y"),
    ):
        file = layers.write("f", b"x")
        expected = os.lstat(file)
        keep = os.open(file, os.O_RDONLY)  # so that the inode number is not used again
        file.unlink()
        swap(file)
        parent = os.open(layers.upper, os.O_RDONLY)
        with pytest.raises(ImageBroken, match="changed"):
            list(files.read_content(parent, b"f", expected, b"f"))
        os.close(parent)
        os.close(keep)
        file.unlink()


def test_growing_file_is_read_no_further_and_shrinking_one_is_an_error(layers: Layers) -> None:
    file = layers.write("f", b"x" * 10)
    expected = os.lstat(file)
    parent = os.open(layers.upper, os.O_RDONLY)
    os.truncate(file, 1 << 30)
    assert b"".join(files.read_content(parent, b"f", expected, b"f")) == b"x" * 10
    os.truncate(file, 5)
    with pytest.raises(ImageBroken, match="changed"):
        list(files.read_content(parent, b"f", expected, b"f"))
    os.close(parent)


def test_directory_moved_out_while_the_walk_is_below_it_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "in/a/b/c/d/e").mkdir(parents=True)
    (tmp_path / "out").mkdir()
    with Cursor(str(tmp_path / "in"), window=2) as cursor:
        cursor.move(b"a/b/c/d/e")
        (tmp_path / "in/a/b/c").rename(tmp_path / "out/c")
        with pytest.raises(ImageBroken, match="moved"):
            cursor.move(b"")


def test_another_file_system_below_is_refused() -> None:
    with Cursor("/") as cursor, pytest.raises(ImageBroken, match="another file system"):
        cursor.move(b"proc")


# --- the archive of changes ---------------------------------------------------------------


def test_archive_holds_added_and_modified_paths_below_one_directory(layers: Layers) -> None:
    lower(layers.bottom, "w/same")
    lower(layers.bottom, "w/changed")
    lower(layers.bottom, "w/gone")
    layers.write("w/same")
    layers.write("w/changed", b"new", 0o600, BASE + 7)
    layers.whiteout("w/gone")
    os.link(layers.write("w/new/a", b"two"), layers.upper / "w/new/b")
    os.mkfifo(layers.upper / "w/fifo")
    layers.write("wide", b"beside")
    layers.write("other/f")
    data = b"".join(write_tar(tar_entries(layers.view, UpperLimits(), "/w/")))
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        names = tar.getnames()
        changed = tar.getmember("w/changed")
        assert tar.extractfile("w/new/b").read() == b"two"  # type: ignore[union-attr]
    assert names == ["w/changed", "w/fifo", "w/new", "w/new/a", "w/new/b"]
    assert (changed.uid, changed.mode, changed.size) == (7, 0o600, 3)


def test_nobody_is_what_the_kernel_shows_for_unmapped_ids() -> None:
    assert Path("/proc/sys/kernel/overflowuid").read_text().strip() == str(diff_module.NOBODY)
