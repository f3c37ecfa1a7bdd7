"""The directory that a recipe copies from."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path

import pytest

from skerry.errors import InvalidRequest, NotFound
from skerry.sdk.context import Context
from skerry.sdk.pack import Look


def make(root: Path, *names: str) -> Context:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    return Context(root)


def names(context: Context, source: str = ".", look: Look | None = None) -> list[str]:
    pairs = [(one, "" if one.directory else one.path) for one in context.pick(source)]
    data = b"".join(context.tar(pairs, [], look))
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        return sorted(archive.getnames())


@pytest.mark.parametrize(
    ("source", "paths"),
    [
        (".", [""]), ("a", ["a"]), ("d", ["d"]), ("d/x.py", ["d/x.py"]),
        ("*.py", ["y.py"]), ("*/*.py", ["d/x.py"]), ("[a-c]", ["a"]), ("?", ["a", "d"]),
    ],
)  # fmt: skip
def test_sources_are_names_and_patterns(tmp_path: Path, source: str, paths: list[str]) -> None:
    context = make(tmp_path, "a", "y.py", "d/x.py")
    assert [one.path for one in context.pick(source)] == paths


def test_a_source_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"COPY nope"):
        make(tmp_path, "a").pick("nope")
    with pytest.raises(InvalidRequest, match="not a directory"):
        Context(tmp_path / "a")


@pytest.mark.parametrize(
    ("rules", "left"),
    [
        ("*.log", ["a", "d", "d/b", "d/c.log"]),
        ("**/*.log", ["a", "d", "d/b"]),
        ("d", ["a", "x.log"]),
        ("d\n!d/b", ["a", "d/b", "x.log"]),
        ("*\n!a", ["a"]),
        ("# d\n\n /x.log ", ["a", "d", "d/b", "d/c.log"]),
        ("d/**", ["a", "d", "x.log"]),
    ],
)
def test_the_ignore_file_is_read_as_docker_does(
    tmp_path: Path, rules: str, left: list[str]
) -> None:
    context = make(tmp_path, "a", "d/b", "d/c.log", "x.log")
    (tmp_path / ".dockerignore").write_text(rules)
    found = names(Context(context.root))
    assert [name for name in found if name != ".dockerignore"] == left


def test_an_ignored_source_is_not_there(tmp_path: Path) -> None:
    make(tmp_path, "secret")
    (tmp_path / ".dockerignore").write_text("secret")
    with pytest.raises(NotFound):
        Context(tmp_path).pick("secret")


def test_the_digest_is_of_what_is_copied_and_not_of_its_times(tmp_path: Path) -> None:
    context = make(tmp_path, "d/a", "d/b", "other")
    before = context.digest(context.pick("d"))
    os.utime(tmp_path / "d" / "a", (1, 1))
    (tmp_path / "other").write_text("changed")
    assert context.digest(context.pick("d")) == before
    (tmp_path / "d" / "a").chmod(0o700)
    assert context.digest(context.pick("d")) != before


def test_links_stay_links_and_looks_are_given(tmp_path: Path) -> None:
    context = make(tmp_path, "a")
    (tmp_path / "link").symlink_to("/etc/passwd")
    pairs = [(one, one.path) for source in ("a", "link") for one in context.pick(source)]
    data = b"".join(context.tar(pairs, [], Look(uid=3, gid=4, mode=0o640)))
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        file, link = archive.getmembers()
    assert (file.uid, file.gid, file.mode) == (3, 4, 0o640)
    assert link.linkname == "/etc/passwd"
