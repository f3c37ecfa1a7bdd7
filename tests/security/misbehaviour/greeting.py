"""A task of the tests' own, small enough that a rollout takes a moment: greetings lack a comma."""

from __future__ import annotations

import gzip
import hashlib
import io
import shutil
import tarfile
from pathlib import Path

from skerry.errors import NotFound
from skerry.spec.task import parse_task
from skerry.worker.downloads import Downloads
from skerry.worker.environment import PYTEST, Builder, Environment
from skerry.worker.ports import Client

GIT = "toolkit/git:host"

BUG = """def greet(name):
    return "Hello " + name


def shout(name):
    return name.upper() + "!"
"""
FIX = BUG.replace('"Hello "', '"Hello, "')
TESTS = """from greet import greet, shout

def test_comma():
    assert greet("Ada") == "Hello, Ada"

def test_shout():
    assert shout("Ada") == "ADA!"

def test_type():
    assert isinstance(greet("Ada"), str)
"""
HIDDEN = (
    TESTS
    + """
def test_comma_of_others():
    assert greet("Grace") == "Hello, Grace"
"""
)
TASK = """
id = "greeting-2"
title = "A greeting lacks its comma"
bug = "greet() leaves out the comma before the name."
source_files = ["greet.py"]
test_paths = ["tests"]
protected_paths = ["tests"]
layers = ["toolkit/git:host"]
[package]
name = "greeting"
[package.bug]
version = "1"
file = "greeting-1.tar.gz"
sha256 = "{bug}"
[package.fix]
version = "2"
file = "greeting-2.tar.gz"
sha256 = "{fix}"
[tests]
argv = ["python", "-m", "pytest", "-q", "tests"]
fail_to_pass = ["tests/test_greet.py::test_comma", "tests/test_greet.py::test_comma_of_others"]
pass_to_pass = 2
timeout_s = 30
[limits]
pids = 200
"""


def archive(version: int, source: str, tests: str) -> bytes:
    """Returns a source archive; equal input gives equal bytes."""
    data = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=data, mode="wb", mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w") as tar,
    ):
        for name, text in (("greet.py", source), ("tests/test_greet.py", tests)):
            info = tarfile.TarInfo(f"greeting-{version}/{name}")
            info.size = len(text)
            tar.addfile(info, io.BytesIO(text.encode()))
    return data.getvalue()


async def environment_of(client: Client, cache: Path, ordinary: Downloads) -> Environment:
    """Returns the task's environment, made if it is not there yet.

    Its archives, and pytest's wheels from the ordinary cache, lie in a cache below `cache`. Git is a
    layer, made of this machine's own program: its libraries are in the base.
    """
    archives = {"bug": archive(1, BUG, TESTS), "fix": archive(2, FIX, HIDDEN)}
    digests = {name: hashlib.sha256(data).hexdigest() for name, data in archives.items()}
    task = parse_task(TASK.format(**digests), "greeting")
    downloads = Downloads(cache, {})
    await ordinary.fetch(PYTEST)
    files = {task.package.bug.archive: archives["bug"], task.package.fix.archive: archives["fix"]}
    files |= {wheel: ordinary.read(wheel) for wheel in PYTEST}
    for wanted, data in files.items():
        path = downloads.path(wanted)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    context = cache / "git"
    context.mkdir(exist_ok=True)
    shutil.copy(shutil.which("git") or "/usr/bin/git", context / "git")
    step = "install -m 755 /build/git /usr/bin/git && git --version"
    try:
        await client.images.inspect(GIT)
    except NotFound:
        await client.images.build(GIT, image="debian:12", context=context, steps=[step])
    return (await Builder(client.images, downloads, lambda text: None).build([task]))[0]
