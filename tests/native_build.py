"""Builds of the native programs that tests want: one at a time, whoever asks."""

from __future__ import annotations

import subprocess
from pathlib import Path

NATIVE = Path(__file__).resolve().parents[1] / "native"


def build(*targets: str) -> None:
    """Returns once the targets are up to date; tests in another process may want them too."""
    argv = ["flock", str(NATIVE / "Makefile"), "make", "-s", "-C", str(NATIVE), *targets]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
