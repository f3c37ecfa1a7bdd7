"""The directory that a recipe copies from: what a COPY takes of it, as a tar and as a digest.

`.dockerignore` in it is read as Docker reads it: patterns with *, ?, [..] and **, the last that
matches decides, ! takes back. Symbolic links are copied as links, none is followed.
"""

from __future__ import annotations

import hashlib
import os
import posixpath
import re
import stat
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from skerry.errors import InvalidRequest, NotFound
from skerry.sdk.pack import Look, Packer, opened

IGNORE_FILE = ".dockerignore"
IGNORE_BYTES_MAX = 1 << 20


class Picked(NamedTuple):
    """One thing that a COPY takes: a path below the context; a directory gives what is in it."""

    path: str
    directory: bool


class Context:
    """A local directory, seen through its ignore file. Raises InvalidRequest if it is none."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = Path(root)
        if not self.root.is_dir():
            raise InvalidRequest(f"context: {self.root} is not a directory")
        self._rules = _rules(self.root / IGNORE_FILE)
        self._takes_back = any(taken for _, taken in self._rules)

    def pick(self, source: str) -> list[Picked]:
        """Returns what a source, perhaps a pattern, stands for, sorted; NotFound if nothing."""
        found: list[str] = [""]
        for part in source.split("/") if source != "." else ():
            found = [step for path in found for step in self._matching(path, part)]
        picked = []
        for path in sorted(found):
            info = os.lstat(self.root / path)
            directory = stat.S_ISDIR(info.st_mode)
            if not path or self.takes(path) or (directory and self._takes_back):
                picked.append(Picked(path, directory))
        if not picked:
            raise NotFound(f"COPY {source}: nothing of that name in the context {self.root}")
        return picked

    def _matching(self, path: str, part: str) -> list[str]:
        directory = self.root / path
        if not stat.S_ISDIR(os.lstat(directory).st_mode):
            return []
        if not re.search(r"[*?\[\\]", part):
            return [posixpath.join(path, part)] if os.path.lexists(directory / part) else []
        pattern = re.compile(_part(part), re.DOTALL)
        return [
            posixpath.join(path, one) for one in os.listdir(directory) if pattern.fullmatch(one)
        ]

    def takes(self, path: str) -> bool:
        """Says whether the ignore file leaves a path in: it, or a directory above it, decides."""
        taken = True
        for pattern, takes_back in self._rules:
            if taken is not takes_back and pattern.fullmatch(path):
                taken = takes_back
        return taken

    def tar(
        self, picked: Sequence[tuple[Picked, str]], notes: list[str], look: Look | None = None
    ) -> Iterator[bytes]:
        """Yields an archive of picked things, each at the place given with it ("" or relative)."""
        packer = Packer(notes, look)
        for one, place in picked:
            if one.directory:
                yield from self._directory(packer, one.path, place)
                continue
            above, name = os.path.split(self.root / one.path)
            with opened(above, os.O_RDONLY | os.O_DIRECTORY) as fd:
                status = os.stat(name, dir_fd=fd, follow_symlinks=False)
                yield from packer.member(fd, name, place, status)
        yield packer.end()

    def _directory(self, packer: Packer, path: str, place: str) -> Iterator[bytes]:
        def keep(below: str) -> tuple[bool, bool]:
            taken = self.takes(posixpath.join(path, below))
            return taken, taken or self._takes_back

        prefix = place + "/" if place else ""
        if place:
            packer.add(tarfile.TarInfo(prefix), tarfile.DIRTYPE, 0o755)
        with opened(self.root / path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW) as fd:
            yield from packer.below(fd, prefix, keep)

    def digest(self, picked: Sequence[Picked]) -> str:
        """Returns what changes when names, contents, modes or links of it do; times do not count."""
        total = hashlib.sha256()
        pairs = [(one, one.path) for one in picked]
        for piece in self.tar(pairs, [], Look(times=False)):
            total.update(piece)
        return total.hexdigest()


def _rules(path: Path) -> list[tuple[re.Pattern[str], bool]]:
    try:
        with open(path, "rb") as file:
            text = file.read(IGNORE_BYTES_MAX + 1)
    except (FileNotFoundError, IsADirectoryError):
        return []
    if len(text) > IGNORE_BYTES_MAX:
        raise InvalidRequest(f"{path}: more than {IGNORE_BYTES_MAX} bytes")
    rules = []
    for line in text.decode("utf-8", "surrogateescape").splitlines():
        pattern = line.strip()
        if not pattern or pattern.startswith("#"):
            continue
        takes_back = pattern.startswith("!")
        pattern = posixpath.normpath("/" + pattern.removeprefix("!").strip()).strip("/")
        # What is below a directory that matches goes with it.
        rules.append((re.compile(_path(pattern) + "(?:/.*)?", re.DOTALL), takes_back))
    return rules


def _path(pattern: str) -> str:
    """Returns the expression for a pattern of several parts, in which ** stands for any number."""
    parts = pattern.split("/")
    out = []
    for at, part in enumerate(parts):
        last = at == len(parts) - 1
        if part == "**":
            out.append(".*" if last else "(?:[^/]*/)*")
        else:
            out.append(_part(part) + ("" if last else "/"))
    return "".join(out)


def _part(part: str) -> str:
    out, at = [], 0
    while at < len(part):
        char = part[at]
        end = part.find("]", at + 2)
        if char == "*":
            out.append("[^/]*")
        elif char == "?":
            out.append("[^/]")
        elif char == "[" and end > 0:
            inner = part[at + 1 : end].replace("\\", "\\\\").replace("[", "\\[")
            out.append("[" + inner + "]")
            at = end
        else:
            if char == "\\" and at + 1 < len(part):
                at += 1
                char = part[at]
            out.append(re.escape(char))
        at += 1
    return "".join(out)
