"""House rules as tests: sizes, names, and what must never be written into a tracked file."""

from __future__ import annotations

import ast
import re
import subprocess
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILE_LINES_MAX = 450
FUNCTION_LINES_MAX = 70
VAGUE = {"utils", "util", "common", "manager", "base", "helpers", "misc", "shared_utils"}
# One machine's paths, and registries' hosts: the machine's own configuration names those.
FORBIDDEN = re.compile(
    r"(?<![\w.])(/w" + r"ork/[a-z]|/r" + r"oot/\.pyenv|/f" + r"arm/)"
    r"|\b(?:deb|security|snapshot)\.deb" + r"ian\.org|\bpypi\." + r"org|registry\.npm" + r"js"
)


def tracked(*patterns: str) -> list[Path]:
    """Files that git tracks; outside a checkout there is nothing to check."""
    listed = subprocess.run(
        ["git", "ls-files", *patterns], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if listed.returncode != 0:
        pytest.skip("not a git checkout: there are no tracked files to check")
    return [ROOT / name for name in listed.stdout.splitlines() if (ROOT / name).is_file()]


def test_every_source_file_stays_short() -> None:
    long = {
        str(path.relative_to(ROOT)): count
        for path in tracked("src/*.py", "native/*.c", "native/*.h")
        if path.name != "sync.py"  # generated
        and (count := len(path.read_text().splitlines())) > FILE_LINES_MAX
    }
    assert not long, f"a concept is missing in {long}"


def test_every_function_stays_short() -> None:
    long = {}
    for path in tracked("src/*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if lines > FUNCTION_LINES_MAX:
                    long[f"{path.relative_to(ROOT)}:{node.lineno} {node.name}"] = lines
    assert not long, long


def test_no_module_has_a_vague_name() -> None:
    vague = [str(path) for path in tracked("src/*.py") if path.stem in VAGUE]
    assert not vague


def test_no_tracked_file_names_a_machine_or_a_registry() -> None:
    found = []
    for path in tracked():
        if path.suffix in {".png", ".lock"}:
            continue
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
            if FORBIDDEN.search(line):
                found.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()[:120]}")
    assert not found, found


def test_source_has_no_silent_broad_handler() -> None:
    found = []
    for path in tracked("src/*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.ExceptHandler):
                continue
            broad = node.type is None or (
                isinstance(node.type, ast.Name) and node.type.id in {"Exception", "BaseException"}
            )
            silent = all(isinstance(part, ast.Pass | ast.Continue) for part in node.body)
            if broad and silent:
                found.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert not found, f"an error that nobody hears of: {found}"


def test_every_module_says_why_it_exists() -> None:
    mute = [
        str(path.relative_to(ROOT))
        for path in tracked("src/*.py")
        if path.read_text().strip() and ast.get_docstring(ast.parse(path.read_text())) is None
    ]
    assert not mute


def test_no_two_test_files_have_one_name() -> None:
    """pytest imports them by their names alone, and would collect only one of the two."""
    names = Counter(path.name for path in tracked("tests/*.py") if path.name.startswith("test_"))
    assert [name for name, count in names.items() if count > 1] == []


def test_every_numbered_promise_names_an_existing_test_or_is_pending() -> None:
    text = (ROOT / "SPECIFICATION.md").read_text()
    rows = re.findall(r"^\| (\d+) \| (.+?) \| (.+?) \|$", text, re.MULTILINE)
    assert len(rows) >= 20, "the specification has lost its promises"
    assert [int(row[0]) for row in rows] == list(range(1, len(rows) + 1))
    missing = {
        number: absent(shown) for number, _, shown in rows if not shown.startswith("pending")
    }
    assert not any(missing.values()), missing


def test_every_report_names_existing_tests() -> None:
    text = (ROOT / "docs/reference/reports.md").read_text()
    rows = re.findall(r"^\| (\d+) \| .+? \| (.+?) \|$", text, re.MULTILINE)
    numbers = [int(number) for number, _ in rows]
    assert len(numbers) >= 60
    assert numbers == sorted(set(numbers))
    missing = {number: absent(tried) for number, tried in rows}
    assert not any(missing.values()), missing


def absent(shown: str) -> list[str]:
    """Returns which of the tests and benchmarks that a cell names are not there."""
    missing = []
    for name in re.findall(r"`([^`]+)`", shown):
        path, _, test = name.partition("::")
        target = ROOT / path
        if path.startswith(("tests/", "native/", "bench/", "src/", "interop/")) and (
            not target.exists() or (test and f"def {test}(" not in target.read_text())
        ):
            missing.append(name)
    return missing
