"""How a task is graded beyond passed or failed: repeats, a score, what is taken. No I/O.

`[tests] repeats`, `passes`, `[tests.score]` and `[submission]` of a task file.
"""

from __future__ import annotations

import math

import msgspec

from skerry.errors import InvalidRequest
from skerry.spec.limits import check_duration

REPEATS_MAX = 100
PROGRAM_BYTES_MAX = 256 * 1024
ARTIFACTS_MAX = 100


class ScoreProgram(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """A verifier of the task's own that gives a score, in Python.

    It lies in the hidden layer only, readable by its own account alone, and runs after the tests,
    when no process of theirs is left. It writes one number to the descriptor that SKERRY_SCORE_FD
    names. The reward is where the number lies between `low` and `high`, from 0 to 1.
    """

    program: str
    low: float = 0.0
    high: float = 1.0
    timeout_s: float = 60.0
    needs_pass: bool = True  # False: a run whose tests fail keeps its score

    def check(self) -> None:
        """Raises InvalidRequest naming what is out of bounds."""
        if not self.program.strip() or len(self.program.encode()) > PROGRAM_BYTES_MAX:
            raise InvalidRequest("tests.score.program is empty or too long")
        bounds = (self.low, self.high, self.high - self.low)
        if not all(map(math.isfinite, bounds)) or self.low >= self.high:
            raise InvalidRequest("tests.score: low and high must be finite, low below high")
        check_duration(self.timeout_s, "tests.score.timeout_s")

    def reward(self, score: float) -> float:
        """Returns the reward of a score within the range."""
        return min(1.0, max(0.0, (score - self.low) / (self.high - self.low)))


class SubmissionRules(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What is taken from the agent's sandbox: without artifacts, its whole diff."""

    artifacts: tuple[str, ...] = ()  # files and directories, relative to the workdir


def check_repeats(repeats: int, passes: int | None) -> None:
    """Raises InvalidRequest unless so many of the repeats can pass."""
    if not 1 <= repeats <= REPEATS_MAX:
        raise InvalidRequest(f"tests.repeats must be between 1 and {REPEATS_MAX}")
    if passes is not None and not 1 <= passes <= repeats:
        raise InvalidRequest("tests.passes must be between 1 and tests.repeats")
