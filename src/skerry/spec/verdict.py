"""What grading says. An infrastructure error has no reward: it never reads as 0."""

from __future__ import annotations

import math
from enum import StrEnum

import msgspec

from skerry.errors import Bug


class Outcome(StrEnum):
    """The bare word of a verdict."""

    PASSED = "passed"
    FAILED = "failed"
    TAMPERED = "tampered"
    INFRASTRUCTURE_ERROR = "infrastructure_error"


class Evidence(msgspec.Struct, frozen=True, omit_defaults=True):
    """One reason to call a rollout tampered: what kind of cheat, on which path, and details."""

    kind: str  # e.g. "protected_path", "planted_conftest", "shadowed_interpreter"
    path: str
    detail: str = ""


class Verdict(msgspec.Struct, frozen=True, omit_defaults=True):
    """The result of grading one rollout.

    Invariant: reward is None exactly for an infrastructure error; else finite and within 0..1, and
    0 when tampered.
    """

    outcome: Outcome
    reward: float | None
    evidence: tuple[Evidence, ...] = ()
    tests_passed: int = 0
    tests_failed: int = 0
    detail: str = ""

    def __post_init__(self) -> None:
        if (self.reward is None) != (self.outcome is Outcome.INFRASTRUCTURE_ERROR):
            raise Bug("a verdict has no reward exactly when it is an infrastructure error")
        if self.reward is not None and not (math.isfinite(self.reward) and 0 <= self.reward <= 1):
            raise Bug(f"reward {self.reward} is not within 0..1")
        if self.outcome is Outcome.TAMPERED and self.reward != 0:
            raise Bug("a tampered rollout earns 0")
