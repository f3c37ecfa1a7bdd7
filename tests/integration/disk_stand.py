"""What tests of block disks share: nodes over one store, loop devices and mounts that are taken away."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from skerry.images.disks.config import ServiceConfig, open_store
from skerry.images.disks.library import Disks
from skerry.images.format.erofs import Tools
from skerry.images.lazy.fetch import FetchConfig
from skerry.images.library import ImageLibrary
from skerry.images.objects.s3_options import S3Options

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
_numbers = itertools.count()


def run(*argv: str, codes: tuple[int, ...] = (0,)) -> str:
    """Returns what a command says; fails with it unless its status is one of those."""
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode in codes, f"{argv}: {done.returncode}: {done.stdout}{done.stderr}"
    return done.stdout


def until(holds: Callable[[], bool], seconds: float = 20.0) -> None:
    """Returns once it holds; fails after that time."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "it did not come to hold"
        time.sleep(0.02)


@contextlib.contextmanager
def attached(path: str) -> Iterator[str]:
    """A loop device on a file, as a node attaches a disk: direct, so that nothing lies here twice."""
    device = run("losetup", "--find", "--show", "--direct-io=on", path).strip()
    try:
        yield device
    finally:
        run("losetup", "-d", device)
        # It goes when its last user has gone, who may be a stranger that looks at all devices.
        until(lambda: not os.path.exists(f"/sys/block/{device[5:]}/loop"))


@contextlib.contextmanager
def mounted(place: Path, path: str, *, mkfs: bool = False) -> Iterator[Path]:
    """A file system on a device, or on a disk that is attached first."""
    with contextlib.ExitStack() as stack:
        device = path if path.startswith("/dev/") else stack.enter_context(attached(path))
        if mkfs:
            run("mkfs.ext4", "-q", device)
        at = place / f"fs{next(_numbers)}"
        at.mkdir()
        run("mount", device, str(at))
        stack.callback(run, "umount", str(at))
        yield at


class Rig:
    """Nodes over one store; what they leave is taken away at the end."""

    def __init__(self, place: Path, store: str, s3: S3Options | None = None) -> None:
        self.place, self._store, self._s3 = place, store, s3 or S3Options()
        self._nodes: list[Disks] = []

    def __enter__(self) -> Rig:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def node(
        self,
        name: str,
        *,
        root: Path | None = None,
        fetch: FetchConfig | None = None,
        blobs_max: int = 16,
        endpoint: str = "",
    ) -> Disks:
        """Returns another node's disks."""
        s3 = dataclasses.replace(self._s3, endpoint=endpoint) if endpoint else self._s3
        made = Disks(
            ServiceConfig(
                root=str(root or self.place / name),
                store=self._store,
                s3=s3,
                holder=name,
                blobs_max=blobs_max,
                cache_bytes=512 * MIB,
                disk_free_min_bytes=0,
                fetch=fetch or FetchConfig(wait_s=10.0),
            )
        )
        self._nodes.append(made)
        return made

    def library(self) -> ImageLibrary:
        """Returns the library of all that is in the store."""
        store = open_store(self._store, self._s3)
        return ImageLibrary(store, Tools(), str(self.place / "library"))

    def blob_files(self) -> Iterator[Path]:
        """Gives all files of blobs in a store that is a directory."""
        return (path for path in Path(self._store, "blobs").rglob("*") if path.is_file())

    def close(self) -> None:
        """Ends all services."""
        while self._nodes:
            self._nodes.pop().stop(force=True)
