"""A root file system to test containers with, made once from the cached tar of the base image."""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
import subprocess
from pathlib import Path

from skerry.backends.api import Health
from skerry.errors import Unavailable
from skerry.images.sources import debian
from skerry.spec.layers import LayerFile, RootfsPlan

CACHE = os.environ.get("SKERRY_CACHE", "/var/cache/skerry")  # as `make setup` takes it
_MKFS_TIMEOUT_S = 300.0
_SUITE = "bookworm"


def directory() -> Path:
    """Returns the directory that holds the test layers; it is there, for launchers to bind."""
    place = Path(CACHE) / "test-rootfs"
    place.mkdir(parents=True, exist_ok=True)
    return place


def _mkfs() -> str:
    built = sorted(Path(CACHE).glob("erofs-utils-*/bin/mkfs.erofs"))
    found = str(built[-1]) if built else shutil.which("mkfs.erofs")
    if not found:
        raise Unavailable("mkfs.erofs is missing: run make setup")
    return found


def _check_tar() -> None:
    """Raises Unavailable if there is no archive of the base image, and none can be made."""
    made = any(Path(CACHE).glob(f"debian/{_SUITE}-*.tar"))
    if not made and not shutil.which("mmdebstrap"):
        raise Unavailable(
            f"no base image lies in {CACHE}/debian, nor is mmdebstrap here: make setup"
        )


def _tar() -> Path:
    """Returns the archive that `skerry image build debian:12` takes; the first time it is made."""
    return Path(debian.root_tar(_SUITE, (), CACHE, lambda _line: None))


def plan() -> RootfsPlan:
    """Returns a plan of one Debian layer, made on first use; Unavailable says what is missing."""
    tar = _tar()
    image = directory() / f"{tar.stem}.erofs"
    if not image.exists():
        fresh = image.with_suffix(f".{os.getpid()}.new")
        argv = [_mkfs(), "--tar=f", "--quiet", str(fresh), str(tar)]
        done = subprocess.run(argv, capture_output=True, check=False, timeout=_MKFS_TIMEOUT_S)
        if done.returncode:
            fresh.unlink(missing_ok=True)
            raise Unavailable(f"mkfs.erofs: {done.stderr.decode(errors='replace')[-400:]}")
        fresh.rename(image)
    digest = hashlib.sha256(f"{image.name} {image.stat().st_size}".encode()).hexdigest()
    return RootfsPlan((LayerFile(digest[:32], f"sha256:{digest}", str(image)),))


def container_reason() -> str:
    """Returns why containers cannot be tested here; "" if they can."""
    from skerry.backends.registry import load

    async def ask() -> Health:
        return await load("container", state_dir="/var/tmp", run_dir="/run", node="probe").probe()  # noqa: S108

    health = asyncio.run(ask())
    if not health.usable:
        return health.reason
    try:
        _check_tar()
        _mkfs()
    except Unavailable as error:
        return error.message
    return ""
