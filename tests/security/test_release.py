"""The weakened build is a test's affair: nothing of it is in what is shipped."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from skerry.backends.shared import binaries

pytestmark = pytest.mark.root

NAMES = ("skerry-spawn", "skerry-init")
WORDS = {
    "skerry-spawn": (b"counters", b"SKERRY_WEAK"),
    "skerry-init": (b"dumpable", b"SKERRY_WEAK"),
}


@pytest.mark.parametrize("name", NAMES)
def test_release_binaries_cannot_be_weakened(name, weak_pair):
    shipped = [path for path in binaries.candidates(name) if path.exists()]
    assert shipped
    for path in shipped:
        content = path.read_bytes()
        assert not [word for word in WORDS[name] if word in content]
    weak = (weak_pair / name).read_bytes()
    assert all(word in weak for word in WORDS[name])  # the control: it would be seen


@pytest.mark.parametrize("name", NAMES)
def test_the_search_for_binaries_never_meets_the_weak_ones(name):
    assert "weak" not in {part for path in binaries.candidates(name) for part in Path(path).parts}


def test_every_test_that_the_security_page_names_exists():
    top = Path(__file__).parents[2]
    page = (top / "SECURITY.md").read_text()
    source = "\n".join(path.read_text() for path in (top / "tests/security").glob("*.py"))
    named = set(re.findall(r"`(test_\w+)`", page))
    assert len(named) > 25
    assert not {name for name in named if f"def {name}(" not in source}
    for path in re.findall(r"`(tests/[\w/.]+)`", page):
        assert (top / path).exists(), path
