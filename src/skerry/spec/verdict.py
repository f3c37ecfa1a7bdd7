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


class Limit(StrEnum):
    """A limit of the task's own that the tests ran into; never one of the platform."""

    TIME = "time"
    MEMORY = "memory"


class Run(msgspec.Struct, frozen=True, omit_defaults=True):
    """One of several verifications, in a sandbox of its own."""

    outcome: Outcome
    reward: float | None
    score: float | None = None
    limit: Limit | None = None
    detail: str = ""
    seconds: float = 0.0


class Repeats(msgspec.Struct, frozen=True, omit_defaults=True):
    """What several verifications of one submission say together.

    `unstable` counts passes of tests that passed in some runs and not in all, `never` of those that
    passed in none; each names a few hundred at most, `tests` is how many there were in all.
    """

    runs: tuple[Run, ...]
    needed: int  # of the runs that must pass
    tests: int = 0
    unstable: dict[str, int] = {}
    never: tuple[str, ...] = ()

    @property
    def passed(self) -> int:
        """How many runs passed."""
        return sum(run.outcome is Outcome.PASSED for run in self.runs)


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
    score: float | None = (
        None  # what the task's verifier said, in its own range; of several, the mean
    )
    limit: Limit | None = None  # that ended the tests
    repeats: Repeats | None = None  # if there were several verifications

    def __post_init__(self) -> None:
        if (self.reward is None) != (self.outcome is Outcome.INFRASTRUCTURE_ERROR):
            raise Bug("a verdict has no reward exactly when it is an infrastructure error")
        if self.reward is not None and not (math.isfinite(self.reward) and 0 <= self.reward <= 1):
            raise Bug(f"reward {self.reward} is not within 0..1")
        if self.outcome is Outcome.TAMPERED and self.reward != 0:
            raise Bug("a tampered rollout earns 0")
