"""Layers whose data lies in a store elsewhere, as the real launcher mounts them."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from native_launcher import Launcher
from skerry.images.format.erofs import Tools
from skerry.images.format.pair import build_layer
from skerry.images.scratch import Spool
from skerry.images.tree.entry import Node, Tree, make_directory
from skerry.spec.files import FileType
from skerry.wire import plan

pytestmark = pytest.mark.root


@pytest.fixture
def pair(make: Callable[..., Launcher]) -> Iterator[tuple[Launcher, Path, Path]]:
    """A launcher, a metadata blob in its state directory, and its data blob in a store elsewhere.

    The store is a file system of its own, as a shared one is.
    """
    launcher = make()
    store = launcher.base / "store"
    store.mkdir()
    mount_tmpfs(store)
    try:
        yield make_pair(launcher, store)
    finally:
        subprocess.run(["umount", "-l", store], check=False, capture_output=True)


def mount_tmpfs(at: Path) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "store", at], check=True)


def make_pair(launcher: Launcher, store: Path) -> tuple[Launcher, Path, Path]:
    spool, tree, tools = Spool(str(store)), Tree(), Tools()
    for path, content in ((b"etc/os-release", b"NAME=pair\n"), (b"large", os.urandom(300_000))):
        file = Node(FileType.FILE, 0o644)
        file.content = spool.add([content])
        tree.put(path, file)
    for name in (b"proc", b"dev", b"tmp"):
        tree.put(name, make_directory())
    built = build_layer(tree, spool, str(store), tools=tools)
    spool.close()
    assert built.data
    metadata = launcher.state / "metadata"
    shutil.move(built.path, metadata)
    launcher.begin("--bind", str(store))
    launcher.prepare(0)
    return launcher, metadata, Path(built.data)


def test_layer_with_its_data_in_a_store_elsewhere_serves_instances(pair) -> None:
    launcher, metadata, data = pair
    layer = plan.LayerMount(layer="pair", path=str(metadata), device=str(data))
    launcher.ok(layer)
    launcher.ok(layer)
    launcher.start("a", 0, layer=("pair",))
    assert launcher.say("a", "cat /etc/os-release") == b"NAME=pair\n"
    # The files may go: the mount holds them.
    metadata.unlink()
    launcher.stop("a")
    launcher.ok(plan.LayerUnmount("pair"))
    assert launcher.failure(layer).errno == errno.ENOENT
    launcher.drop(0)
    subprocess.run(["umount", data.parent], check=True)
    launcher.end()


def test_store_that_is_mounted_anew_serves_again(pair) -> None:
    launcher, metadata, data = pair
    layer = plan.LayerMount(layer="pair", path=str(metadata), device=str(data))
    launcher.ok(layer)
    launcher.ok(plan.LayerUnmount("pair"))
    content = data.read_bytes()
    data.unlink()
    subprocess.run(["umount", data.parent], check=True)
    assert launcher.failure(layer).errno == errno.ENOENT
    mount_tmpfs(data.parent)
    data.write_bytes(content)
    launcher.ok(layer)
    launcher.start("a", 0, layer=("pair",))
    assert launcher.say("a", "cat /etc/os-release") == b"NAME=pair\n"
    launcher.stop("a")
    launcher.ok(plan.LayerUnmount("pair"))
    # What is gone from the same file system is just gone.
    data.unlink()
    before = Path(f"/proc/{launcher.process.pid}/mountinfo").read_text()
    assert launcher.failure(layer).errno == errno.ENOENT
    assert Path(f"/proc/{launcher.process.pid}/mountinfo").read_text() == before
    subprocess.run(["umount", data.parent], check=True)
    launcher.drop(0)
    launcher.end()


def test_device_that_cannot_be_had_is_named_and_mounts_nothing(pair) -> None:
    launcher, metadata, data = pair
    outside = launcher.base / "outside"
    shutil.copy(data, outside)
    (data.parent / "directory").mkdir()
    os.mkfifo(data.parent / "pipe")
    small = str(launcher.state / "small.erofs")
    cases = [
        (str(metadata), str(outside), errno.EACCES, "path", str(outside)),
        (str(metadata), f"{data.parent}/../outside", errno.EINVAL, "request", "device"),
        (str(outside), str(data), errno.EACCES, "path", str(outside)),
        (str(metadata), f"{data}.gone", errno.ENOENT, "device", f"{data}.gone"),
        (f"{metadata}.gone", str(data), errno.ENOENT, "file", f"{metadata}.gone"),
        (small, str(data), errno.EINVAL, "erofs", None),  # it has no slot
        (str(data), str(data), None, "erofs", None),  # no image
        (str(metadata), str(data.parent / "directory"), errno.EINVAL, "device", "directory"),
        (str(metadata), str(data.parent / "pipe"), errno.EINVAL, "device", "pipe"),
    ]
    for path, device, number, step, word in cases:
        failure = launcher.failure(plan.LayerMount(layer="bad", path=path, device=device))
        assert failure.error_step == step, (path, device, failure)
        assert number in (None, failure.errno), (path, device, failure)
        assert word is None or word in failure.text
    assert launcher.ok(plan.Status()).status().layer == ("small",)
    launcher.ok(plan.LayerMount(layer="bad", path=str(metadata), device=str(data)))
    launcher.drop(0)
    subprocess.run(["umount", data.parent], check=True)
    launcher.end()
