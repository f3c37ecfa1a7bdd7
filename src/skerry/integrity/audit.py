"""From what a sandbox changed to what may be graded: kept changes, dropped ones, and evidence.

Pure: changes in, decision out. Three things are told apart. What would have bent the grading is
**evidence**, and the rollout is tampered. What could bend something later (a git hook, a startup
file) is **noted**, for people. What merely does not belong to a fix (new tests, caches, virtual
environments, everything outside the workdir) is **dropped**, and the rest is graded. Nothing that is
dropped reaches the fresh sandbox, so a cheat that no rule knows still has no effect from outside the
source files. The rules are data (`table.py`); a task adds its own (`[integrity]`).
"""

from __future__ import annotations

import posixpath
import re
from collections import Counter
from collections.abc import Iterable

import msgspec

from skerry.integrity import table
from skerry.integrity.facts import FACTS
from skerry.integrity.protected import Rules, installed_module, module_name
from skerry.integrity.table import Rule
from skerry.spec.files import Change, ChangeKind, FileType
from skerry.spec.integrity import Severity, TaskRule, expression
from skerry.spec.verdict import Evidence
from skerry.wire.http import printable

EVIDENCE_MAX = 50
NOTES_MAX = 40


class Dropped(msgspec.Struct, frozen=True):
    """A change that is not graded, why, and by which rule."""

    path: str
    reason: str
    rule: str = "beneath_no_directory"


class Audit(msgspec.Struct, frozen=True):
    """What comes of a diff.

    Invariant: `kept` and `deleted` lie beneath the workdir, outside every protected path, and no
    directory above them is a link or was replaced by something else than a directory.
    """

    kept: tuple[Change, ...]  # added and modified: directories, regular files, links inside
    deleted: tuple[str, ...]
    dropped: tuple[Dropped, ...]
    evidence: tuple[Evidence, ...]
    noted: tuple[Evidence, ...] = ()  # no evidence: honest policies do such things too

    def notes(self) -> tuple[str, ...]:
        """Returns a few lines `RULE: PATH: REASON`: what was noted, then what was dropped.

        One line for each rule and reason, the most frequent first among the dropped.
        """
        noted = _grouped((one.kind, one.detail, one.path) for one in self.noted)
        dropped = _grouped((one.rule, one.reason, one.path) for one in self.dropped)
        return (*noted, *dropped)[:NOTES_MAX]


def _grouped(found: Iterable[tuple[str, str, str]]) -> list[str]:
    rows = list(found)
    counts = Counter((rule, reason) for rule, reason, _ in rows)
    first = {(rule, reason): path for rule, reason, path in reversed(rows)}
    return [
        f"{rule}: {first[rule, reason]}{f' and {count - 1} more' if count > 1 else ''}: {reason}"
        for (rule, reason), count in counts.most_common(NOTES_MAX)
    ]


def audit(changes: Iterable[Change], rules: Rules) -> Audit:
    """Returns what may be graded of a sandbox's changes, and the evidence among them."""
    kept: list[Change] = []
    deleted: list[str] = []
    dropped: list[Dropped] = []
    evidence: list[Evidence] = []
    noted: list[Evidence] = []
    asked = _Asked(rules)
    for change in sorted(changes, key=lambda one: one.path):
        ruling = asked.decide(change, noted)
        if ruling is None:
            if change.kind is ChangeKind.DELETED:
                deleted.append(change.path)
            else:
                kept.append(change)
        elif ruling.severity is Severity.TAMPERED:
            if len(evidence) < EVIDENCE_MAX:
                evidence.append(_finding(ruling, change))
        elif ruling.severity is Severity.DROPPED:
            found = _finding(ruling, change)
            dropped.append(Dropped(found.path, found.detail, found.kind))
    whole, cut = _without_broken_parents(kept)
    return Audit(tuple(whole), tuple(deleted), tuple(dropped + cut), tuple(evidence), tuple(noted))


class _Asked:
    """The table for one task, ready to be asked."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        own = [_rule_of(one) for one in rules.extra if one.paths]
        firm = [one for one in own if one.severity is not Severity.DROPPED]
        loose = [one for one in own if one.severity is Severity.DROPPED]
        ordered = (*table.FIRST, *firm, *table.RESIDUE, *table.CONVICTING, *loose, *table.WORKDIR)
        self._table = [_Test(rule, rules) for rule in ordered]
        self._allowed = _Patterns(rules.allowed, rules.workdir)

    def decide(self, change: Change, noted: list[Evidence]) -> Rule | None:
        """Returns the rule that decides, or None if the change is graded; adds what is noted."""
        allowed = self._allowed.match(change.path)
        known: dict[str, bool] = {}
        for test in self._table:
            rule = test.rule
            if (allowed and not rule.firm) or not test.matches(change, known):
                continue
            if rule.severity is not Severity.NOTE:
                return rule
            noted.append(_finding(rule, change))
        return None


class _Test:
    """One rule, with its patterns and facts looked up."""

    def __init__(self, rule: Rule, rules: Rules) -> None:
        self.rule = rule
        self._rules = rules
        self._on = frozenset(rule.on)
        self._types = frozenset(rule.types)
        self._paths = _Patterns(rule.paths, rules.workdir) if rule.paths else None
        self._facts = [
            (word.removeprefix("not "), not word.startswith("not ")) for word in rule.when
        ]

    def matches(self, change: Change, known: dict[str, bool]) -> bool:
        """Returns whether the rule speaks of this change; `known` holds its facts asked so far."""
        if change.kind not in self._on:
            return False
        if self._types and change.kind is not ChangeKind.DELETED and change.type not in self._types:
            return False
        if self._paths is not None and not self._paths.match(change.path):
            return False
        for name, wanted in self._facts:
            holds = known.get(name)
            if holds is None:
                holds = known[name] = FACTS[name](change, self._rules)
            if holds is not wanted:
                return False
        return True


class _Patterns:
    """Patterns of paths.

    Each is tried only on a path that holds its longest plain piece: diffs have tens of thousands of
    paths, and nearly none matches.
    """

    def __init__(self, patterns: Iterable[str], workdir: str) -> None:
        self._tries = [
            (
                max(pattern.removeprefix("~").split("*"), key=len).strip("/"),
                re.compile(expression(pattern, workdir), re.DOTALL),
            )
            for pattern in patterns
        ]

    def match(self, path: str) -> bool:
        """Returns whether one of the patterns stands for the path."""
        return any(plain in path and known.fullmatch(path) for plain, known in self._tries)


def _rule_of(rule: TaskRule) -> Rule:
    return Rule(
        name=rule.name,
        severity=rule.severity,
        reason=rule.reason,
        paths=rule.paths,
        on=rule.on,
        types=rule.types,
        firm=True,
    )


def _finding(rule: Rule, change: Change) -> Evidence:
    return Evidence(rule.name, printable(change.path), printable(_text(rule, change)))


def _text(rule: Rule, change: Change) -> str:
    text = rule.reason
    for word, value in (
        ("{kind}", change.kind.value),
        ("{type}", change.type.name.lower()),
        ("{mode}", f"{change.mode & 0o7777:04o}"),
        ("{module}", installed_module(change.path) or module_name(change.path)),
        # The last: a target is the policy's own text, and is not looked at again.
        ("{target}", f"to {change.target}" if change.target is not None else ""),
    ):
        text = text.replace(word, value)
    return text.strip()


def _without_broken_parents(kept: list[Change]) -> tuple[list[Change], list[Dropped]]:
    # A diff of a real tree has no file beneath a link; one that claims so is not followed.
    solid = {change.path for change in kept if change.type is not FileType.DIRECTORY}
    whole, cut = [], []
    for change in kept:
        parent = posixpath.dirname(change.path)
        while parent not in {"/", ""} and parent not in solid:
            parent = posixpath.dirname(parent)
        if parent in solid:
            cut.append(Dropped(change.path, "lies beneath something that is no directory"))
        else:
            whole.append(change)
    return whole, cut
