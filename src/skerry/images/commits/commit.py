"""From what a sandbox wrote to a layer that gives the same tree again on the same lowers.

Left out, so that answers and traces of the build do not leak into environments:

| where | what stays |
|---|---|
| /dev, /proc, /run, /sys | the directory: the sandbox's own mounts cover it |
| what the rules of `skerry.images.commits.residue` match | the directory it is in, and deletions |
| `exclude` (prefixes given by the caller) | nothing: as if the sandbox had not touched it |

Also left out: sockets and devices (with a note), `user.overlay.*`, and whiteouts that hide
nothing, which would show as broken names where the layer is not merged with another.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from skerry.errors import InvalidRequest
from skerry.images.commits.diff import NOBODY, inside_id
from skerry.images.commits.gitresidue import Repositories
from skerry.images.commits.inplace import InPlace
from skerry.images.commits.residue import Residue
from skerry.images.scratch import Content
from skerry.images.tree.copier import Copier
from skerry.images.tree.entry import Tree, make_whiteout
from skerry.images.tree.files import read_content
from skerry.images.tree.notes import Notes
from skerry.images.tree.upper import Seen, UpperLimits, UpperView, walk_upper

_MOUNTS = re.compile(rb"(?:dev|proc|run|sys)/.+", re.DOTALL)


@dataclass
class Wish:
    """How an upper is read; notes and what was scrubbed are filled meanwhile."""

    notes: Notes
    scrub: Residue
    limits: UpperLimits = field(default_factory=UpperLimits)
    exclude: Sequence[str] = ()


def read_upper(view: UpperView, contents: InPlace, wish: Wish) -> Tree:
    """Returns the layer's tree; the contents are in the upper still, and must stay as they are.

    Raises ImageBroken at a limit or if the upper changes meanwhile, InvalidRequest for a prefix
    that is not absolute.
    """
    return _Reading(view, contents, wish).tree()


class _Reading:
    def __init__(self, view: UpperView, contents: InPlace, wish: Wish) -> None:
        self._view, self._notes, self._limits = view, wish.notes, wish.limits
        self._scrub = wish.scrub
        self._prefixes = [_prefix(text) for text in wish.exclude]
        self._gone: tuple[bytes, str] | None = None  # a directory that was left out, and why
        asked = "git" in wish.scrub.rules
        self._repositories = Repositories(view, wish.limits) if asked else None
        self._contents = contents

        def keep(seen: Seen, info: os.stat_result) -> Content:
            return contents.note(seen.path, info)

        self._copier = Copier(view.uid_base, self._owners, keep, wish.notes, wish.limits)

    def tree(self) -> Tree:
        for seen in walk_upper(self._view, self._limits):
            if seen.stat is not None:
                self._take(seen, seen.stat)
        return self._copier.tree

    def _take(self, seen: Seen, info: os.stat_result) -> None:
        if _MOUNTS.fullmatch(seen.path) or self._is_excluded(seen.path):
            seen.prune = True
            return
        rule = self._rule(seen, info)
        if rule is None and self._git_goes(seen, info):
            if not seen.whiteout:
                self._scrub.take("git", seen.path, info.st_size)
            return
        if rule is not None:
            if not seen.whiteout:
                size = info.st_size if stat.S_ISREG(info.st_mode) else 0
                self._scrub.take(rule, seen.path, size)
                return
            if self._gone is not None:
                return
        if not seen.whiteout:
            self._copier.place(seen.path, seen, info)
        elif seen.lower is not None and not seen.hides_below:
            self._copier.tree.put(seen.path, make_whiteout())

    def _rule(self, seen: Seen, info: os.stat_result) -> str | None:
        if self._gone is not None:
            directory, rule = self._gone
            if seen.path.startswith(directory):
                return rule
            self._gone = None
        size = info.st_size if stat.S_ISREG(info.st_mode) else None
        content = partial(_content, seen, info)
        found = self._scrub.rule_for(seen.path, size, content)
        if found is not None and stat.S_ISDIR(info.st_mode):
            self._gone = (seen.path + b"/", found)
        if found is None and self._scrub.is_suspect(seen.path, size, content):
            self._notes.add("seems to hold a password, and was kept", seen.path)
        return found

    def _git_goes(self, seen: Seen, info: os.stat_result) -> bool:
        """Whether it is a part of a repository that does not stay (see `gitresidue`)."""
        held = None if self._repositories is None else self._repositories.find(seen.path)
        if held is None:
            return False
        repository, path = held
        if seen.whiteout:
            return repository.deletion_goes(path)
        directory = stat.S_ISDIR(info.st_mode)
        if not repository.goes(path, directory=directory):
            if path == b"packed-refs" and repository.packed_refs is not None:
                self._contents.replace(seen.path, repository.packed_refs)
            return False
        if directory:
            self._gone = (seen.path + b"/", "git")
        return True

    def _is_excluded(self, path: bytes) -> bool:
        return any(path == one or path.startswith(one + b"/") for one in self._prefixes)

    def _owners(self, info: os.stat_result, path: bytes) -> tuple[int, int, int]:
        base = self._view.uid_base
        uid, gid = inside_id(info.st_uid, base), inside_id(info.st_gid, base)
        if NOBODY in (uid, gid):
            self._notes.add("owned by nobody", path)
        return uid, gid, stat.S_IMODE(info.st_mode)


def _content(seen: Seen, info: os.stat_result) -> bytes:
    return b"".join(read_content(seen.parent, seen.name, info, seen.path))


def _prefix(text: str) -> bytes:
    if not text.startswith("/") or not text.strip("/"):
        raise InvalidRequest(f"exclude: {text!r} is no absolute path below /")
    return os.fsencode(text).strip(b"/")
