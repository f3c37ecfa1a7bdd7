"""What a check has found so far."""

from __future__ import annotations

from typing import Any, Final

from skerry.spec.trajectory import Finding, FindingKind

FINDINGS_MAX: Final = 1000


class Findings:
    """What was found so far, in one log. Beyond a bound it is counted no more: it is bad enough."""

    def __init__(self, node: str) -> None:
        self.all: list[Finding] = []
        self._node = node

    def add(self, kind: FindingKind, detail: str, **where: Any) -> None:
        """Notes one, once."""
        finding = Finding(kind=kind, detail=detail, node=self._node, **where)
        if len(self.all) < FINDINGS_MAX and finding not in self.all:
            self.all.append(finding)
