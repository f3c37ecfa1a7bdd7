"""The upper store (decision 20): where sandboxes write, and whether a disk limit can be enforced.

Probed in this order: XFS project quota and ext4 project quota are not used yet (they are reported);
a state directory on btrfs; a btrfs image on a loop device; a plain directory without limits. tmpfs
is refused: uppers would eat the memory that sandboxes were promised.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path

import msgspec

from skerry.errors import Overloaded, StorageFailed, Unavailable

POOL_MAX_BYTES = 256 << 30
POOL_MIN_BYTES = 512 << 20
HOST_FREE_MIN_BYTES = 1 << 30
ROOM_FRESH_S = 0.5
ROOM_AGAIN_S = 5.0
_TMPFS_MAGICS = {"tmpfs", "ramfs"}
_MKFS_TIMEOUT_S = 60.0


class UpperPlan(msgspec.Struct, frozen=True):
    """What UPPER_OPEN is asked for, and why nothing better."""

    kind: str  # "btrfs", "dir"
    path: str
    image: bool = False  # path is a file to be made
    reason: str = ""


def file_system(path: str, mountinfo: str) -> str:
    """Returns the type of the file system that holds a path."""
    best, found = "", ""
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        words = before.split()
        if len(words) < 5:
            continue
        where = words[4].replace("\\040", " ")
        inside = path == where or path.startswith(where.rstrip("/") + "/")
        if inside and len(where) >= len(best):
            best, found = where, after.split()[0]
    return found


def choose(state_dir: str, mountinfo: str, file_systems: str) -> UpperPlan:
    """Plans the store for a state directory; Unavailable if none is acceptable."""
    where = file_system(os.path.realpath(state_dir), mountinfo)
    if where in _TMPFS_MAGICS:
        raise Unavailable(
            f"{state_dir} is a {where}: choose a state directory on a disk, for what sandboxes write "
            "would otherwise take the host's memory"
        )
    if where == "btrfs":
        return UpperPlan("btrfs", f"{state_dir}/uppers")
    missing = _image_needs(file_systems)
    if not missing:
        return UpperPlan("btrfs", f"{state_dir}/uppers.btrfs", image=True)
    return UpperPlan(
        "dir", f"{state_dir}/uppers", reason=f"no disk limits and snapshots: {missing}"
    )


def _image_needs(file_systems: str) -> str:
    if "btrfs" not in file_systems.split():
        return "the kernel has no btrfs (load the module)"
    if not os.path.exists("/dev/loop-control"):
        return "the kernel has no loop devices (load the module)"
    if shutil.which("mkfs.btrfs", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin") is None:
        return "mkfs.btrfs is missing (install btrfs-progs)"
    return ""


def prepare(store: UpperPlan) -> None:
    """Makes the directory or a new, empty image; StorageFailed if the disk is too full.

    An image is sparse and as large as half of what is free, at most 256 GiB; it never grows.
    """
    if not store.image:
        Path(store.path).mkdir(mode=0o700, exist_ok=True)
        return
    free = free_bytes(os.path.dirname(store.path))
    size = min(free // 2, POOL_MAX_BYTES)
    if size < POOL_MIN_BYTES:
        raise StorageFailed(f"{free >> 20} MiB are free for {store.path}: too little for a pool")
    Path(store.path).unlink(missing_ok=True)
    handle = os.open(store.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.ftruncate(handle, size)
    finally:
        os.close(handle)
    mkfs = shutil.which("mkfs.btrfs", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
    argv = [mkfs or "mkfs.btrfs", "-q", "-K", "-m", "single", "-d", "single", store.path]
    done = subprocess.run(argv, capture_output=True, check=False, timeout=_MKFS_TIMEOUT_S)
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip()[-400:]
        raise StorageFailed(f"mkfs.btrfs failed on {store.path}: {said}")


def trash(store: UpperPlan) -> list[str]:
    """Returns what the launcher has still to delete; always nothing on btrfs."""
    try:
        return os.listdir(f"{store.path}/.trash") if store.kind == "dir" else []
    except OSError:
        return []


def remove(store: UpperPlan) -> None:
    """Removes the image, or the directory if it is empty."""
    try:
        if store.image:
            os.unlink(store.path)
            return
        if store.kind == "dir":
            os.rmdir(f"{store.path}/.trash")
        os.rmdir(store.path)
    except OSError:
        return  # what stays is deleted by the next launcher, and shows in the census


def free_bytes(path: str) -> int:
    """Returns what is free for root on the file system of a path."""
    numbers = os.statvfs(path)
    return numbers.f_bavail * numbers.f_frsize


class Room:
    """Watches the disk of the state directory; looks at most once in `ROOM_FRESH_S`."""

    def __init__(self, state_dir: str) -> None:
        self._state_dir = state_dir
        self._looked = 0.0
        self._free = 0

    def check(self) -> None:
        """Raises Overloaded while the disk is nearly full: a sparse pool would hit the wall."""
        now = time.monotonic()
        if now - self._looked > ROOM_FRESH_S:
            self._looked, self._free = now, free_bytes(self._state_dir)
        if self._free < HOST_FREE_MIN_BYTES:
            raise Overloaded(
                f"disk_free: {self._free >> 20} MiB are free on the disk of {self._state_dir}, "
                f"at least {HOST_FREE_MIN_BYTES >> 20} are needed to create a sandbox",
                limit="disk_free",
                free_bytes=self._free,
                retry_after_s=ROOM_AGAIN_S,
            )
