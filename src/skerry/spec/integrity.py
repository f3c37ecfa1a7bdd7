"""What a task adds to the rules of the audit: `[integrity]` of a task file. No I/O.

A pattern is a path in which `*` stands for any part of one name and `**` for any number of names;
`~/` begins one in every home, `/` one from the root, and anything else lies beneath the workdir.
"""

from __future__ import annotations

import re
from enum import StrEnum

import msgspec

from skerry.errors import InvalidRequest
from skerry.spec.files import ChangeKind, FileType

RULES_MAX = 100
PATTERNS_MAX = 100
PATTERN_BYTES_MAX = 1024
STARS_MAX = 8  # in one pattern: what a match may cost
REASON_MAX = 500
HOMES = r"(?:/root|/home/[^/]+)"
_NAME = re.compile(r"[a-z][a-z0-9_]{0,39}")


class Severity(StrEnum):
    """What comes of a rule that matches.

    `tampered`: evidence; the rollout earns 0. `note`: listed, and the change is judged on. `dropped`:
    listed and not graded. `ignored`: not graded, and not worth a line.
    """

    TAMPERED = "tampered"
    NOTE = "note"
    DROPPED = "dropped"
    IGNORED = "ignored"


class TaskRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A rule of a task's own: about changed paths, or about what a policy does in words.

    `commands` and `answers` are pieces of text, found in any case of letters: in what a policy ran, and
    in what a model had its agent do. Such a rule notes or convicts.
    """

    name: str
    reason: str
    severity: Severity = Severity.TAMPERED
    paths: tuple[str, ...] = ()
    on: tuple[ChangeKind, ...] = tuple(ChangeKind)
    types: tuple[FileType, ...] = ()  # none: all
    commands: tuple[str, ...] = ()
    answers: tuple[str, ...] = ()

    def check(self) -> None:
        """Raises InvalidRequest naming what is out of bounds."""
        where = f"integrity.rules: {self.name!r}"
        if _NAME.fullmatch(self.name) is None:
            raise InvalidRequest(f"{where}: lowercase letters, digits and _ only")
        if not self.reason.strip() or len(self.reason) > REASON_MAX:
            raise InvalidRequest(f"{where}: reason is empty or too long")
        words = (*self.commands, *self.answers)
        if bool(self.paths) == bool(words):
            raise InvalidRequest(f"{where}: give either paths or commands (or answers)")
        if self.severity is Severity.IGNORED or (words and self.severity is Severity.DROPPED):
            raise InvalidRequest(f"{where}: severity {self.severity.value!r} is not possible here")
        if not self.on:
            raise InvalidRequest(f"{where}: on is empty")
        check_patterns(f"{where}: paths", self.paths)
        if len(words) > PATTERNS_MAX or any(
            not 0 < len(text.strip()) <= PATTERN_BYTES_MAX for text in words
        ):
            raise InvalidRequest(f"{where}: commands or answers are empty, too long or too many")


class TaskIntegrity(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What a task adds to the rules.

    `protected` are further protected paths: a change to one is evidence. `allowed` are patterns whose
    changes are no evidence (a fix that must change `setup.cfg`); they are graded if they lie in the
    workdir. Protected paths, hidden tests and sources stay what they are.
    """

    protected: tuple[str, ...] = ()
    allowed: tuple[str, ...] = ()
    rules: tuple[TaskRule, ...] = ()

    def check(self) -> None:
        """Raises InvalidRequest naming what is out of bounds."""
        check_patterns("integrity.allowed", self.allowed)
        check_patterns("integrity.protected", self.protected)
        for path in self.protected:
            if "*" in path or path.startswith("~"):
                raise InvalidRequest(f"integrity.protected: {path!r} is a pattern, not a path")
        if len(self.rules) > RULES_MAX:
            raise InvalidRequest(f"integrity.rules: at most {RULES_MAX}")
        for rule in self.rules:
            rule.check()


def check_patterns(field: str, patterns: tuple[str, ...]) -> None:
    """Raises InvalidRequest that begins with `field` if one of the patterns is none."""
    if len(patterns) > PATTERNS_MAX:
        raise InvalidRequest(f"{field}: at most {PATTERNS_MAX}")
    for pattern in patterns:
        parts = pattern.removeprefix("~").removeprefix("/").split("/")
        if (
            "\x00" in pattern
            or not 0 < len(pattern) <= PATTERN_BYTES_MAX
            or any(part in {"", ".", ".."} for part in parts)
            or any("**" in part and part != "**" for part in parts)
            or pattern.count("*") > STARS_MAX
            or (pattern.startswith("~") and not pattern.startswith("~/"))
        ):
            raise InvalidRequest(f"{field}: {pattern!r} is no path or pattern of a path")


def expression(pattern: str, workdir: str) -> str:
    """Returns the regular expression for whole paths that a checked pattern stands for."""
    if pattern.startswith("~/"):
        start, rest = HOMES, pattern[2:]
    elif pattern.startswith("/"):
        start, rest = "", pattern[1:]
    else:
        start, rest = re.escape(workdir), pattern
    parts = [start]
    for part in rest.split("/"):
        if part == "**":
            parts.append(r"(?:/[^/]+)*")
        else:
            parts.append("/" + "[^/]*".join(re.escape(piece) for piece in part.split("*")))
    return "".join(parts)
