"""A toolkit with OpenAI's own client, from where this machine gets its packages; wheels are cached."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

from skerry.cli.secrets import cache_home
from skerry.images.format.erofs import Tools
from skerry.images.library import ImageLibrary
from skerry.images.store.store import DirectoryStore

NAME = "toolkit/openai-client"
PACKAGE = "openai==3.57.0"
PLACE = "usr/local/lib/python3.11/dist-packages"  # of the python of base/debian:12


def wheels() -> tuple[list[Path], str]:
    """Returns the wheels, downloaded once a machine; or why they cannot be had."""
    directory = Path(cache_home(), f"test-{PACKAGE}")
    if not directory.is_dir():
        making = directory.with_name(f"{directory.name}.{os.getpid()}")
        platforms = ["--platform", "manylinux2014_x86_64", "--platform", "manylinux_2_17_x86_64"]
        download = [sys.executable, "-m", "pip", "download", "--quiet", "--only-binary=:all:"]
        done = subprocess.run(
            [*download, "--python-version", "3.11", *platforms, "--dest", str(making), PACKAGE],
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        if done.returncode:
            return [], f"{PACKAGE} cannot be downloaded here: {done.stderr.strip()[-300:]}"
        making.rename(directory)
    return sorted(directory.glob("*.whl")), ""


def add(store: str, scratch: Path) -> str:
    """Puts the layer into a store; returns why it cannot be made, or nothing."""
    found, reason = wheels()
    if reason:
        return reason
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for path in found:
            with zipfile.ZipFile(path) as wheel:
                for item in wheel.infolist():
                    if item.is_dir():
                        continue
                    info = tarfile.TarInfo(f"{PLACE}/{item.filename}")
                    info.size, info.mode = item.file_size, 0o644
                    tar.addfile(info, io.BytesIO(wheel.read(item)))
    out.seek(0)
    ImageLibrary(DirectoryStore(store), Tools(), str(scratch)).import_tar(NAME, out)
    return ""
