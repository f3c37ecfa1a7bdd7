"""An environment of its own for each tool, kept between runs.

Its name is a digest of all that decides its content: the interpreter and lock.txt, which pins every
distribution. Skerry itself is not installed in it: the checkout's src/ comes by PYTHONPATH, with the
metadata that `make setup` wrote there, so checkouts share the environments.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

from interop import inside
from interop.tools import ROOT, Tool

CACHE = Path(os.environ.get("SKERRY_CACHE", "/var/cache/skerry"), "interop")
INSTALL_TIMEOUT_S = 1200
_DIGEST = re.compile(r"[0-9a-f]{16}")


class NoEnvironment(Exception):
    """The tool cannot be installed here; the text says why."""


def interpreter(wanted: str) -> str:
    """Returns the first Python that there is of "3.12 3.13", "" is our own; raises NoEnvironment."""
    if not wanted:
        return sys.executable
    versions = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"), "versions")
    for version in wanted.split():
        pyenv = sorted(versions.glob(f"{version}.*/bin/python{version}"))
        for candidate in (shutil.which(f"python{version}"), *map(str, pyenv)):
            # A pyenv shim may be only a name.
            if candidate and _version(candidate) == version:
                return candidate
    raise NoEnvironment(f"no Python {' or '.join(wanted.split())} on this machine")


def _version(program: str) -> str:
    code = "import sys; print('%d.%d' % sys.version_info[:2])"
    try:
        done = subprocess.run(
            [program, "-c", code], capture_output=True, text=True, timeout=30, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()


def environment(tool: Tool) -> Path:
    """Returns the python of the tool's environment, made first if need be; raises NoEnvironment.

    Where there is none of the versions that it needs, it is one in a sandbox (inside.py).
    """
    lock = tool.place / "lock.txt"
    if not lock.exists():
        raise NoEnvironment(f"{lock} is missing: python -m interop --lock {tool.name}")
    try:
        python = interpreter(tool.python)
    except NoEnvironment:
        if inside.VERSION not in tool.python.split():
            raise
        return inside.program(tool, CACHE)
    key = hashlib.sha256(f"{os.path.realpath(python)}\n".encode() + lock.read_bytes()).hexdigest()
    place = CACHE / f"{tool.name}-{key[:16]}"
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / f"{tool.name}.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        if not (place / "complete").exists():
            shutil.rmtree(place, ignore_errors=True)
            # The lock is the whole of it; of `alone` it leaves out what it shall.
            _install(python, place, ["--no-deps", "-r", str(lock)])
            (place / "complete").touch()
            _drop_older(tool, place)
    return place / "bin" / "python"


def _drop_older(tool: Tool, keep: Path) -> None:
    """Environments are up to 500 MB; those of two locks at most stay, for other checkouts.

    Only a digest is a name that we gave: what somebody made by hand beside them stays.
    """
    ours = [
        place
        for place in CACHE.glob(f"{tool.name}-*")
        if place != keep and _DIGEST.fullmatch(place.name.removeprefix(f"{tool.name}-"))
    ]
    for place in sorted(ours, key=lambda place: place.stat().st_mtime, reverse=True)[1:]:
        shutil.rmtree(place, ignore_errors=True)


def _install(python: str, place: Path, *steps: list[str]) -> None:
    pip = [f"{place}/bin/python", "-m", "pip", "install", "-q", "--no-input"]
    for argv in ([python, "-m", "venv", str(place)], *([*pip, *what] for what in steps if what)):
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=INSTALL_TIMEOUT_S,
            env=os.environ | {"PIP_DISABLE_PIP_VERSION_CHECK": "1"},
            check=False,
        )
        if done.returncode:
            raise NoEnvironment(f"{argv[-1]}: {(done.stderr or done.stdout).strip()[-2000:]}")


def wanted(tool: Tool) -> list[str]:
    """What a user of the extra gets, and pytest: the input of the lock."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extra = project["optional-dependencies"][tool.extra]
    return [*project["dependencies"], *extra, "pytest>=8.3", "pytest-asyncio>=0.24", *tool.requires]


def lock(tool: Tool) -> None:
    """Installs what is wanted today and writes down every version: lock.txt."""
    CACHE.mkdir(parents=True, exist_ok=True)
    place = CACHE / f"locking-{tool.name}"
    shutil.rmtree(place, ignore_errors=True)
    try:
        alone = ["--no-deps", *tool.alone] if tool.alone else []
        _install(interpreter(tool.python), place, wanted(tool), alone)
        frozen = subprocess.run(
            [f"{place}/bin/python", "-m", "pip", "freeze"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        (tool.place / "lock.txt").write_text(frozen)
    finally:
        shutil.rmtree(place, ignore_errors=True)
