"""Residue of a build: the rules by which it is left out of a committed layer, and what they took.

A rule has a name; a commit names the rules that it wants. `images.commits.residue` says what each one
matches.
"""

from __future__ import annotations

from typing import Final

import msgspec

from skerry.errors import InvalidRequest

RULES: Final = {
    "temporary": "what is in /tmp and /var/tmp",
    "packages": "caches, lists and logs of apt, dnf, yum, apk and pacman",
    "caches": "~/.cache, caches of pip, npm, yarn, cargo, go, gradle and maven; compiled Python; "
    "those of pytest, mypy, ruff, tox and nox",
    "histories": "what shells, editors, pagers, debuggers and database clients remember in a home",
    "editors": "swap, backup and undo files of editors, anywhere",
    "logs": "what is in /var/log",
    "credentials": "tokens and passwords of git, package registries, clouds and containers; private "
    "keys of ssh and gpg",
    "builds": "directories named build, dist, target, .eggs, .gradle, .tox, .nox, _build, CMakeFiles",
    "git": "what a .git directory remembers beside the commit that HEAD names",
}
# Not by default: what a workspace may be there for, and `git`, which has to look into repositories.
DEFAULT: Final = tuple(name for name in RULES if name not in ("logs", "builds", "git"))
PATHS_MAX: Final = 10


class Scrubbed(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one rule left out: how many files, their bytes, and the first paths."""

    rule: str
    files: int
    bytes: int = 0
    paths: tuple[str, ...] = ()


def check_rules(names: tuple[str, ...] | None, *, git: bool = False) -> tuple[str, ...]:
    """Returns the rules that were asked for, None being the default; raises InvalidRequest."""
    wanted = DEFAULT if names is None else tuple(dict.fromkeys(names))
    for name in wanted:
        if name not in RULES:
            raise InvalidRequest(f"scrub: {name[:40]!r} is none of {', '.join(RULES)}")
    return (*wanted, "git") if git and "git" not in wanted else wanted
