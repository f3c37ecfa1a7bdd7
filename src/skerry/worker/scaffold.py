"""`skerry task new DIR`: a skeleton that says what each field is for."""

from __future__ import annotations

import re
from pathlib import Path

from skerry.errors import Conflict, InvalidRequest, StorageFailed

TEMPLATE = '''\
# A bug-fix task. Every field is explained in docs/guide/tasks.md. Fill in what is marked TODO, then:
#   skerry task check {id}

id = "{id}"
title = "TODO: a few words"
# What a model is told. Say what is wrong and what should be, not where.
bug = """
TODO: the bug in words.
"""

# What the real fix changes: the gold patch is the difference of these between the two releases.
source_files = ["src/TODO/module.py"]
# Taken from the fix release when a rollout is graded. Nobody sees them before.
test_paths = ["tests"]
# A change here makes a rollout tampered. Every test path must be below one of these.
protected_paths = ["tests", "pyproject.toml", "tox.ini", "setup.cfg"]

[package]
name = "TODO"

# Source archives, downloaded at run time through this machine's pip configuration, by hash:
#   pip download --no-deps --no-binary :all: NAME==VERSION; sha256sum FILE
[package.bug]
version = "0"
file = "TODO-0.tar.gz"
sha256 = "{zeros}"

[package.fix]
version = "1"
file = "TODO-1.tar.gz"
sha256 = "{zeros}"

# What the tests need beyond pytest, one table a wheel:
# [[wheels]]
# name = "six"
# file = "six-1.17.0-py2.py3-none-any.whl"
# sha256 = "4721f391ed90541fddacab5acf947aa0d3dc7d27b2e1e8eda2be8970586c3274"

[tests]
argv = ["python", "-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", "addopts=", "tests"]
env = {{ PYTHONPATH = "src" }}
import_roots = ["src", "."]
# Fail on the bug release with the fix release's tests, pass with the fix.
fail_to_pass = ["tests/test_TODO.py::test_TODO"]
# How many others pass both before and after.
pass_to_pass = 0
timeout_s = 120

[limits]
cpu = 1
memory = "512MiB"
pids = 256
act_timeout_s = 900
'''


def new_task(folder: Path) -> Path:
    """Writes DIR/task.toml and returns its path; raises Conflict if it exists already."""
    name = folder.resolve().name.lower()
    if re.fullmatch(r"[a-z0-9][a-z0-9._-]{0,63}", name) is None:
        raise InvalidRequest(f"{name!r} is no task id: lowercase letters, digits and . _ - only")
    path = folder / "task.toml"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with path.open("x") as file:
            file.write(TEMPLATE.format(id=name, zeros="0" * 64))
    except FileExistsError as error:
        raise Conflict(f"{path} exists already") from error
    except OSError as error:
        raise StorageFailed(f"{path}: {error.strerror}") from error
    return path
