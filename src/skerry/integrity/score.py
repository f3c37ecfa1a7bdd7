"""Reading a score: one number of plain digits, finite, within the task's range. Pure.

Nothing is rounded, clipped or guessed: what is no score says why, and there is no reward.
"""

from __future__ import annotations

import math
import re

from skerry.integrity.report import ScoreReport
from skerry.spec.grading import ScoreProgram

TEXT_MAX = 64
_NUMBER = re.compile(r"-?(0|[1-9][0-9]{0,17})(\.[0-9]{1,40})?([eE][+-]?[0-9]{1,4})?", re.ASCII)


def read_score(program: ScoreProgram, told: ScoreReport | None) -> float | str:
    """Returns the score that a verifier wrote, or in words why it is none."""
    if told is None:
        return "it did not run"
    if told.timed_out:
        return f"it took longer than {program.timeout_s:g} s"
    if told.status != 0:
        return f"it ended with status {told.status}: {told.detail[-500:]}"
    text = told.text.removesuffix("\n")
    if not text:
        return "it wrote no score"
    if "\n" in text:
        return "it wrote more than one score"
    if len(text) > TEXT_MAX or _NUMBER.fullmatch(text) is None:
        return f"{text[:TEXT_MAX]!r} is no number"
    score = float(text)
    if not math.isfinite(score):
        return f"{text} is not finite"
    if not program.low <= score <= program.high:
        return f"{text} is not within {program.low:g} to {program.high:g}"
    return score + 0.0  # not -0.0
