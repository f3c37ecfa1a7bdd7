"""Uppers made by hand, over two layers."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from skerry.images.commits.diff import changes
from skerry.images.scratch import remove_tree
from skerry.images.tree.upper import UpperLimits
from skerry.spec.files import Change, ChangeKind

BASE = 100_000


class View(NamedTuple):
    path: str
    uid_base: int
    lowers: tuple[str, ...]


class Layers:
    """An upper over a top and a bottom layer."""

    def __init__(self, top: Path) -> None:
        self.upper, self.top, self.bottom = (top / name for name in ("upper", "top", "bottom"))
        for one in (self.upper, self.top, self.bottom):
            one.mkdir()
        os.chown(self.upper, BASE, BASE)
        self.view = View(str(self.upper), BASE, (str(self.top), str(self.bottom)))

    def write(self, path: str, content: bytes = b"x", mode: int = 0o644, uid: int = BASE) -> Path:
        """A file of the sandbox's in its upper, with its directories."""
        file = self.upper / path
        self.directory(str(Path(path).parent))
        file.write_bytes(content)
        os.chown(file, uid, uid)
        file.chmod(mode)
        return file

    def directory(self, path: str, opaque: bool = False) -> Path:
        made = self.upper / path
        for one in (*reversed(made.relative_to(self.upper).parents), made.relative_to(self.upper)):
            if not (self.upper / one).exists():
                (self.upper / one).mkdir()
                os.chown(self.upper / one, BASE, BASE)
        if opaque:
            os.setxattr(made, "trusted.overlay.opaque", b"y")
        return made

    def whiteout(self, path: str) -> None:
        self.directory(str(Path(path).parent))
        os.mknod(self.upper / path, stat.S_IFCHR, os.makedev(0, 0))

    def changes(self, **limits: int) -> dict[str, Change]:
        return {one.path: one for one in changes(self.view, UpperLimits(**limits))}

    def kinds(self) -> dict[str, ChangeKind]:
        return {path: one.kind for path, one in self.changes().items()}


@pytest.fixture
def layers(tmp_path: Path) -> Iterator[Layers]:
    (tmp_path / "l").mkdir()
    yield Layers(tmp_path / "l")
    remove_tree(str(tmp_path / "l"))  # pytest's own removal ends at a depth of a thousand


def lower(where: Path, path: str, content: bytes = b"x", mode: int = 0o644) -> None:
    (where / path).parent.mkdir(parents=True, exist_ok=True)
    (where / path).write_bytes(content)
    (where / path).chmod(mode)
