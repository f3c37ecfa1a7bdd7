"""The independent floor of decision 33, and the small things that it and the peers run on.

Nothing here comes from the product: the floor and the loop that starts the peers are built from
`bench/floor`, and the layer is a directory with one static program that does nothing.
"""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness import CHECKOUT, BenchmarkFailedError, run_json

BUILD = CHECKOUT / "build" / "floor"
HOW = "bench/floor, the independent C program of decision 33, same run"
SHARED_MEMORY = Path("/dev/shm")


@dataclass(frozen=True)
class Arena:
    """Directories that live as long as the run: a small root, its image, and a scratch place.

    `scratch` is on tmpfs where there is one: removing an upper then costs the floor nothing that
    the kernel's containers do not cost.
    """

    root: Path
    layer: Path
    scratch: Path
    place: Path


def build() -> None:
    """Build the C programs unless they are newer than their sources."""
    if shutil.which("musl-gcc") is None:
        raise BenchmarkFailedError("musl-gcc is missing: the floor must be a static program")
    subprocess.run(["make", "-s", "-C", str(CHECKOUT / "bench" / "floor")], check=True)


@contextmanager
def arena() -> Iterator[Arena]:
    """Build, lay out the directories, and remove them at the end."""
    build()
    scratch_parent = SHARED_MEMORY if os.access(SHARED_MEMORY, os.W_OK) else None
    with (
        tempfile.TemporaryDirectory(prefix="bench-floor-") as place,
        tempfile.TemporaryDirectory(prefix="bench-floor-", dir=scratch_parent) as scratch,
    ):
        root = Path(place, "root")
        for name in ("proc", "dev", "sys", "tmp"):
            (root / name).mkdir(parents=True)
        shutil.copy(BUILD / "noop", root / "noop")
        # The temporary directory is private; a sandbox's root is not the host's root.
        for path in (Path(place), root):
            path.chmod(0o755)
        yield Arena(root, _image(root, Path(place)), Path(scratch), Path(place))


def _image(root: Path, place: Path) -> Path:
    """Make an EROFS image of the root; it is the root itself where there is no mkfs.erofs."""
    if shutil.which("mkfs.erofs") is None:
        return root
    image = place / "layer.erofs"
    subprocess.run(["mkfs.erofs", str(image), str(root)], check=True, capture_output=True)
    return image


async def run_floor(place: Arena, *, seconds: float, workers: int) -> dict[str, Any]:
    """Lives of the floor program for `seconds`; a life that failed fails the benchmark."""
    argv = [str(BUILD / "floor"), "--layer", str(place.layer), "--scratch", str(place.scratch)]
    argv += ["--workers", str(workers), "--seconds", str(seconds)]
    return await run_json(argv, limit_seconds=seconds + 60)


def check_floor(floor_per_second: float, peers: dict[str, float]) -> None:
    """Fail if a peer was faster: that is no floor, and every ratio to it would flatter us."""
    for peer, per_second in peers.items():
        if per_second > floor_per_second:
            raise BenchmarkFailedError(
                f"the floor made {floor_per_second:.0f} lives a second, {peer} {per_second:.0f}"
            )
