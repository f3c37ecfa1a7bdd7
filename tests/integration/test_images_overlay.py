"""Diff and commit against the kernel's own overlayfs, with the mounts of a real sandbox.

Each test runs overlay_scenarios.py as a program in a mount namespace of its own (the host's is never
touched): layers are file-backed EROFS mounts, idmapped for the sandbox's ids; random changes are
made by root of a user namespace inside the overlay. Two independent witnesses judge: the tree that
the kernel shows before and after the changes, and the one it shows with the committed layer in their
place.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from skerry.errors import Unavailable
from skerry.images.format.erofs import Tools

SCENARIOS = Path(__file__).with_name("overlay_scenarios.py")
pytestmark = pytest.mark.root


@pytest.fixture(autouse=True)
def nothing_left(tmp_path: Path) -> Iterator[None]:
    """The part of the census that concerns these tests: no process, mount or file in progress.

    They make no launcher, group or socket, so what the census finds of those is another's.
    """
    yield
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):  # processes of others come and go
            assert str(tmp_path) not in Path(f"/proc/{name}/mountinfo").read_text()
            assert str(tmp_path).encode() not in Path(f"/proc/{name}/cmdline").read_bytes()
    for place in ("scratch", "store/tmp"):
        for found in tmp_path.rglob(place):
            assert os.listdir(found) == []


def run_alone(tmp_path: Path, *words: str, timeout_s: float = 60) -> str:
    if os.geteuid() != 0:
        pytest.skip("needs root: mounts in a namespace of its own")
    try:
        Tools().mkfs()
    except Unavailable as error:
        pytest.skip(error.message)
    done = subprocess.run(
        [
            *("unshare", "--mount", "--propagation", "private", "--mount-proc"),
            *("--pid", "--fork", "--kill-child=KILL"),  # a test that hangs leaves nothing either
            *(sys.executable, SCENARIOS, str(tmp_path), *words),
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout_s,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout


@pytest.mark.parametrize("seed", range(12))
def test_random_changes_are_diffed_and_committed_exactly(tmp_path: Path, seed: int) -> None:
    counts = json.loads(run_alone(tmp_path, "random", str(seed)))
    assert counts["changes"] > 0


def test_each_kind_of_change_is_met_by_the_random_ones(tmp_path: Path) -> None:
    """A control: a diff that misses deletions, say, would not pass unnoticed."""
    kinds: dict[str, int] = {}
    for seed in range(3):
        (tmp_path / str(seed)).mkdir()
        counts = json.loads(run_alone(tmp_path / str(seed), "random", str(100 + seed)))
        for kind in ("added", "modified", "deleted", "opaque", "whiteouts", "capability"):
            kinds[kind] = kinds.get(kind, 0) + counts[kind]
    assert all(kinds.values()), kinds


def test_whiteouts_and_opaque_marks_of_an_imported_layer_hide(tmp_path: Path) -> None:
    run_alone(tmp_path, "whiteouts")


def test_commit_of_a_commit_composes(tmp_path: Path) -> None:
    run_alone(tmp_path, "twice")


@pytest.mark.slow
def test_real_debian_is_made_changed_and_committed(tmp_path: Path) -> None:
    if shutil.which("mmdebstrap") is None:
        pytest.skip("mmdebstrap is not installed")
    counts = json.loads(run_alone(tmp_path, "debian", timeout_s=900))
    assert counts["files"] > 5000
    assert counts["added"] > 20
    assert counts["deleted"] > 1
