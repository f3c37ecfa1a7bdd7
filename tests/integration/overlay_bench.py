"""Layers and overlays as a sandbox has them, mounted in the namespace of this process."""

from __future__ import annotations

import ctypes
import io
import os
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from skerry.images.format.erofs import Tools
from skerry.images.library import ImageLibrary
from skerry.images.store.store import DirectoryStore
from skerry.spec.layers import LayerManifest

BASE = 100_000
IDS = 65_536
OPTIONS = "redirect_dir=off,metacopy=off,index=off,xino=off"
_libc = ctypes.CDLL(None, use_errno=True)


def check(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def mount(source: str, target: str, kind: str, options: str, flags: int = 0) -> None:
    args = (source.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags))
    check(_libc.mount(*args, options.encode()), f"mount {target} ({options})")


def user_namespace() -> int:
    """A descriptor of a user namespace with the sandbox's ids."""
    ready, go = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        check(_libc.unshare(0x10000000), "unshare")
        os.write(ready[1], b"x")
        os.read(go[0], 1)
        os._exit(0)
    os.read(ready[0], 1)
    for name in ("uid_map", "gid_map"):
        Path(f"/proc/{child}/{name}").write_text(f"0 {BASE} {IDS}\n")
    fd = os.open(f"/proc/{child}/ns/user", os.O_RDONLY)
    os.write(go[1], b"x")
    os.waitpid(child, 0)
    return fd


def idmapped(source: str, target: str, namespace: int) -> None:
    """A clone of a mount in which the ids of a layer are those of the sandbox on the host."""
    tree = check(_libc.syscall(428, -100, source.encode(), 1), "open_tree")
    attributes = struct.pack("<4Q", 0x00100000, 0, 0, namespace)
    args = (tree, b"", 0x1000, attributes, len(attributes))
    check(_libc.syscall(442, *args), "mount_setattr")
    check(_libc.syscall(429, tree, b"", -100, target.encode(), 4), "move_mount")
    os.close(tree)


class View(NamedTuple):
    path: str
    uid_base: int
    lowers: tuple[str, ...]


class Bench:
    """Layers and overlays of one test."""

    def __init__(self, top: str) -> None:
        self.top = top
        self.namespace = user_namespace()
        self.library = ImageLibrary(DirectoryStore(f"{top}/store"), Tools(), f"{top}/scratch")
        self.count = 0

    def directory(self, name: str) -> str:
        self.count += 1
        path = f"{self.top}/{self.count}-{name}"
        os.mkdir(path)
        return path

    def layer(self, name: str, archive: bytes) -> LayerManifest:
        return self.library.import_tar(name, io.BytesIO(archive))

    def mount_layer(self, made: LayerManifest) -> tuple[str, str]:
        plain, mapped = self.directory("layer"), self.directory("mapped")
        data = made.data_digest
        options = f"device={self.library.store.path(data)}" if data else ""
        mount(self.library.store.path(made.digest), plain, "erofs", options, flags=1)
        idmapped(plain, mapped, self.namespace)
        return plain, mapped

    def overlay(self, mounted: list[tuple[str, str]]) -> tuple[str, View]:
        """A sandbox's root over mounted layers, lowest first."""
        upper, work, merged = (self.directory(name) for name in ("upper", "work", "merged"))
        os.chmod(upper, 0o755)
        os.chown(upper, BASE, BASE)
        lowers = ":".join(mapped for _, mapped in reversed(mounted))
        options = f"lowerdir={lowers},upperdir={upper},workdir={work},{OPTIONS},volatile"
        mount("overlay", merged, "overlay", options)
        return merged, View(upper, BASE, tuple(plain for plain, _ in reversed(mounted)))

    def inside(self, merged: str, work: Callable[[], None]) -> None:
        """Runs `work` as the sandbox's root, with the overlay as its root directory."""
        child = os.fork()
        if child == 0:
            status = 1
            try:
                if os.path.isdir(f"{merged}/dev"):  # for these processes alone
                    check(_libc.unshare(0x20000), "unshare")
                    mount("/dev", f"{merged}/dev", "none", "", flags=0x5000)
                os.chroot(merged)
                os.chdir("/")
                check(_libc.setns(self.namespace, 0), "setns")
                os.setgroups([])
                os.setresgid(0, 0, 0)
                os.setresuid(0, 0, 0)
                os.umask(0o022)
                work()
                status = 0
            finally:
                sys.stderr.flush()
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
