"""Notes about what a submission's files say."""

from __future__ import annotations

import io
import tarfile

import pytest

from skerry.integrity.sources import REMARKS, REMARKS_MAX, remarked, remarks

TEXTS = {
    "leaves_early": "import os\nos._exit(0)",
    "knows_tests": "if 'PYTEST_CURRENT_TEST' in environ: pass",
    "bends_others": "f.__code__ = g.__code__",
    "equality": "class A:\n    def __eq__(self, other): return True",
    "writes_descriptors": "import os\nos.write(230, b'x')",
}


def tar(files: dict[str, str]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, text in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(text)
            archive.addfile(info, io.BytesIO(text.encode()))
    return out.getvalue()


@pytest.mark.parametrize("name", TEXTS)
def test_code_that_minds_who_runs_it_is_told(name: str) -> None:
    made = tar({"src/a.py": TEXTS[name], "src/b.py": "x = 1", "notes.txt": TEXTS[name]})
    (one,) = remarks(made, frozenset(), "/testbed")
    assert (one.kind, one.path) == (name, "/testbed/src/a.py")


def test_every_rule_has_an_example() -> None:
    assert [rule.name for rule in REMARKS] == list(TEXTS)


def test_what_a_file_said_before_is_not_told() -> None:
    before = remarked({"src/a.py": TEXTS["equality"].encode()})
    both = tar({"src/a.py": TEXTS["equality"] + "\n" + TEXTS["leaves_early"]})
    assert [one.kind for one in remarks(both, before, "/testbed")] == ["leaves_early"]


def test_an_empty_submission_says_nothing() -> None:
    assert remarks(b"", frozenset(), "/testbed") == ()


def test_what_is_looked_at_and_told_is_bounded() -> None:
    assert remarks(tar({"a.py": " " * (1 << 20) + TEXTS["equality"]}), frozenset(), "/w") == ()
    filler = {f"{n:03}.py": " " * 262_144 for n in range(16)}
    assert remarks(tar(filler | {"z.py": TEXTS["equality"]}), frozenset(), "/w") == ()
    many = tar({f"{n:03}.py": TEXTS["equality"] for n in range(REMARKS_MAX + 9)})
    assert len(remarks(many, frozenset(), "/w")) == REMARKS_MAX
