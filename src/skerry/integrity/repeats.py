"""From several verifications of one submission to one verdict. Pure.

| the runs | verdict | reward |
|---|---|---|
| one saw forged results | tampered | 0 |
| one met a fault of the platform or of the task's verifier | infrastructure_error | none |
| enough passed (`tests.passes`, or all) | passed | 1; with a score: the mean of the runs' rewards |
| too few passed | failed | 0; with a score that needs no pass: the mean likewise |
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec

from skerry.spec.task import TaskSpec
from skerry.spec.verdict import Outcome, Repeats, Run, Verdict

NAMES_MAX = 300
DETAIL_MAX = 500


class Ran(msgspec.Struct, frozen=True):
    """One verification: its verdict, what each test came to, and how long it took."""

    verdict: Verdict
    outcomes: Mapping[str, str] = {}
    seconds: float = 0.0


def combine(task: TaskSpec, ran: Sequence[Ran]) -> Verdict:
    """Returns the verdict of at least one verification."""
    if len(ran) == 1 and task.tests.repeats == 1:
        return ran[0].verdict
    repeats = _repeats(task, ran)
    for outcome in (Outcome.TAMPERED, Outcome.INFRASTRUCTURE_ERROR):
        for one in ran:
            if one.verdict.outcome is outcome:
                return msgspec.structs.replace(one.verdict, repeats=repeats)
    enough = repeats.passed >= repeats.needed
    shown = next(one.verdict for one in ran if enough == (one.verdict.outcome is Outcome.PASSED))
    scores = [one.verdict.score for one in ran if one.verdict.score is not None]
    return msgspec.structs.replace(
        shown,
        outcome=Outcome.PASSED if enough else Outcome.FAILED,
        reward=_reward(task, repeats, enough=enough),
        detail="" if enough else _why(repeats, shown),
        score=sum(scores) / len(scores) if scores else None,
        repeats=repeats,
    )


def _reward(task: TaskSpec, repeats: Repeats, *, enough: bool) -> float:
    score = task.tests.score
    if score is None:
        return 1.0 if enough else 0.0
    if not enough and score.needs_pass:
        return 0.0
    return min(1.0, sum(run.reward or 0.0 for run in repeats.runs) / len(repeats.runs))


def _why(repeats: Repeats, shown: Verdict) -> str:
    count = f"passed in {repeats.passed} of {len(repeats.runs)} fresh sandboxes"
    return f"{count}, {repeats.needed} needed: {shown.detail}"


def _repeats(task: TaskSpec, ran: Sequence[Ran]) -> Repeats:
    passes: Counter[str] = Counter()
    for one in ran:
        for name, outcome in one.outcomes.items():
            passes[name] += outcome == "passed"
    unstable = {name: count for name, count in sorted(passes.items()) if 0 < count < len(ran)}
    never = [name for name, count in sorted(passes.items()) if not count]
    return Repeats(
        runs=tuple(
            Run(
                outcome=one.verdict.outcome,
                reward=one.verdict.reward,
                score=one.verdict.score,
                limit=one.verdict.limit,
                detail=one.verdict.detail[:DETAIL_MAX],
                seconds=round(one.seconds, 3),
            )
            for one in ran
        ),
        needed=task.tests.needed,
        tests=len(passes),
        unstable=dict(list(unstable.items())[:NAMES_MAX]),
        never=tuple(never[:NAMES_MAX]),
    )
