"""Whoever does not use a harness never loads one: adapters are imported by their users alone."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[3]

# Imports every module of Skerry but the adapters, and tells who asked for a harness or an adapter.
CODE = """
import importlib, pathlib, sys, traceback

HARNESSES = set(sys.argv[1].split(","))
asked = []

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in HARNESSES or name.startswith("skerry.compat."):
            asked.append(name)
        return None

sys.meta_path.insert(0, Finder())
import skerry, skerry.aio, skerry.cli.main
skerry.connect, skerry.SandboxOptions  # these are loaded when they are asked for
count = 0
root = pathlib.Path(skerry.__path__[0])  # pkgutil would import the adapters that are packages
for path in sorted(root.rglob("*.py")):
    name = ".".join(("skerry", *path.relative_to(root).with_suffix("").parts))
    name = name.removesuffix(".__init__")
    if name.startswith("skerry.compat.") or name.endswith("__main__"):
        continue
    try:
        importlib.import_module(name)
    except ImportError as error:
        assert error.name in {"obstore", "pyarrow"}, error  # other extras
    count += 1
print(count, *asked)
"""


def harnesses() -> list[str]:
    """Their modules, as mypy is told of them."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    first, *_ = project["tool"]["mypy"]["overrides"]
    return [name.removesuffix(".*") for name in first["module"]]


def test_importing_all_of_skerry_imports_no_harness_and_no_adapter() -> None:
    assert "inspect_ai" in harnesses()
    done = subprocess.run(
        [sys.executable, "-c", CODE, ",".join(harnesses())],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    count, *asked = done.stdout.split()
    assert int(count) > 200
    assert asked == []


def test_no_harness_is_needed_to_install_skerry() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = " ".join(project["dependencies"]).replace("-", "_")
    assert not [name for name in harnesses() if name in needed]
