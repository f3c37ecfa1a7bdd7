"""Verdicts in the records of the sandboxes that they were found in: the agent's, or a verifier's."""

from __future__ import annotations

from typing import Any

from skerry.spec.verdict import Verdict
from skerry.worker.ports import Sandbox


async def record_verdict(
    sandbox: Sandbox, verdict: Verdict, labels: dict[str, str], op_id: str | None = None
) -> None:
    """It is in the record of its sandbox, for the rollout that the labels name.

    Raises platform errors: a verdict that cannot be recorded is none yet.
    """
    result: dict[str, Any] = {
        "outcome": str(verdict.outcome),
        "reward": verdict.reward,
        "tests_passed": verdict.tests_passed,
        "tests_failed": verdict.tests_failed,
        "detail": _text(verdict.detail),
        "evidence": [
            {"kind": one.kind, "path": _text(one.path), "detail": _text(one.detail)}
            for one in verdict.evidence
        ],
    }
    if verdict.score is not None:
        result["score"] = verdict.score
    if verdict.limit is not None:
        result["limit"] = str(verdict.limit)
    await sandbox.record("verdict", request=dict(labels), result=result, op_id=op_id)


def _text(value: str) -> str:
    """Returns what is text of it in any case: paths may hold bytes that are none."""
    return value.encode(errors="backslashreplace").decode()
