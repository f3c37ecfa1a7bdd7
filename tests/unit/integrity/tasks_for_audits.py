"""A task as the tests of this directory use it."""

from __future__ import annotations

from skerry.integrity.protected import Rules, rules_of
from skerry.spec.files import Change, ChangeKind, FileType
from skerry.spec.task import TaskSpec, parse_task

TEXT = """
id = "demo-1"
title = "A demo"
bug = "It is wrong."
source_files = ["src/demo/core.py", "src/demo/deep/inner.py"]
test_paths = ["tests"]
protected_paths = ["tests", "tox.ini", "pyproject.toml"]
report_paths = ["out/report.txt"]

[package]
name = "demo"
[package.bug]
version = "1"
file = "demo-1.tar.gz"
sha256 = "{a}"
[package.fix]
version = "2"
file = "demo-2.tar.gz"
sha256 = "{b}"

[tests]
argv = ["python", "-m", "pytest", "-q", "tests"]
env = {{ PYTHONPATH = "src" }}
import_roots = ["src", "."]
fail_to_pass = ["tests/test_core.py::test_bug"]
pass_to_pass = 2
""".format(a="a" * 64, b="b" * 64)

PRISTINE = "sha256:" + "1" * 64


def task() -> TaskSpec:
    return parse_task(TEXT, "demo")


def rules() -> Rules:
    return rules_of(
        task(),
        installed_modules={"pytest", "_pytest", "pluggy", "six"},
        pristine={"/testbed/tests/test_core.py": PRISTINE, "/testbed/conftest.py": PRISTINE},
    )


def added(path: str, **more: object) -> Change:
    return _change(path, ChangeKind.ADDED, more)


def modified(path: str, **more: object) -> Change:
    return _change(path, ChangeKind.MODIFIED, more)


def deleted(path: str) -> Change:
    return Change(path, ChangeKind.DELETED)


def _change(path: str, kind: ChangeKind, more: dict[str, object]) -> Change:
    values: dict[str, object] = {
        "type": FileType.FILE,
        "mode": 0o644,
        "digest": "sha256:" + "2" * 64,
    }
    return Change(path, kind, **(values | more))  # type: ignore[arg-type]


def link(path: str, target: str, kind: ChangeKind = ChangeKind.ADDED) -> Change:
    return Change(path, kind, FileType.SYMLINK, 0o777, target=target)


def folder(path: str, mode: int = 0o755, kind: ChangeKind = ChangeKind.MODIFIED) -> Change:
    return Change(path, kind, FileType.DIRECTORY, mode)
