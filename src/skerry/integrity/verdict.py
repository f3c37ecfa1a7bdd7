"""From audit and test report to a verdict. Pure; every path through here ends in one outcome.

| what is known | verdict | reward |
|---|---|---|
| the audit has evidence | tampered | 0 |
| the runner saw forged results | tampered | 0 |
| the runner failed before any code under test ran | infrastructure_error | none |
| no report, crash, timeout, out of memory | failed | 0 |
| the task's verifier gave no valid score | infrastructure_error | none |
| every named test passed, none failed, enough passed | passed | 1, or the score's |
| anything else | failed | 0, or the score's if the task says so |
"""

from __future__ import annotations

from skerry.integrity.audit import Audit
from skerry.integrity.report import Step, TestReport
from skerry.integrity.score import read_score
from skerry.spec.task import TaskSpec
from skerry.spec.verdict import Evidence, Limit, Outcome, Verdict

_BAD = frozenset({"failed", "error"})


def tampered(audit: Audit) -> Verdict | None:
    """Returns the verdict that the audit alone decides, or None if there is something to test."""
    if not audit.evidence:
        return None
    first = audit.evidence[0]
    detail = f"{first.kind}: {first.path}"
    return Verdict(Outcome.TAMPERED, 0.0, evidence=audit.evidence, detail=detail)


def failed(detail: str) -> Verdict:
    """Returns a failure that tests did not decide: the rollout's own doing."""
    return Verdict(Outcome.FAILED, 0.0, detail=detail)


def infrastructure_error(detail: str) -> Verdict:
    """Returns the verdict for a platform fault: no reward at all."""
    return Verdict(Outcome.INFRASTRUCTURE_ERROR, None, detail=detail)


def judge(task: TaskSpec, report: TestReport | None, lost: str = "") -> Verdict:
    """Returns the verdict of one verification; `lost` says why there is no report."""
    if report is None:
        return failed(f"no report from the tests: {lost or 'the runner ended early'}")
    if report.step is Step.SETUP:
        return infrastructure_error(f"the verifier could not start: {report.detail}")
    if report.forged:
        evidence = tuple(Evidence("forged_results", task.workdir, line) for line in report.forged)
        return Verdict(Outcome.TAMPERED, 0.0, evidence=evidence, detail=report.forged[0])
    passed = sum(outcome == "passed" for outcome in report.outcomes.values())
    broken = sorted(name for name, outcome in report.outcomes.items() if outcome in _BAD)
    detail = _why_not(task, report, passed, broken)
    reward, score = 0.0 if detail else 1.0, None
    program = task.tests.score
    if program is not None and report.finished and (not detail or not program.needs_pass):
        said = read_score(program, report.score)
        if isinstance(said, str):
            return infrastructure_error(f"the task's verifier (tests.score): {said}")
        reward, score = program.reward(said), said
    return Verdict(
        Outcome.FAILED if detail else Outcome.PASSED,
        reward,
        tests_passed=passed,
        tests_failed=len(broken),
        detail=detail,
        score=score,
        limit=_limit(report),
    )


def out_of_memory(task: TaskSpec) -> Verdict:
    """Returns the verdict of tests that took the runner with them when memory ran out."""
    return Verdict(Outcome.FAILED, 0.0, detail=_memory(task), limit=Limit.MEMORY)


def _memory(task: TaskSpec) -> str:
    return f"the tests ran out of memory: {task.tests.memory or task.limits.memory}"


def _limit(report: TestReport) -> Limit | None:
    if report.timed_out:
        return Limit.TIME
    return Limit.MEMORY if report.oom_killed and not report.finished else None


def _why_not(task: TaskSpec, report: TestReport, passed: int, broken: list[str]) -> str:
    if report.timed_out:
        return f"the tests took longer than {task.tests.timeout_s:g} s"
    if _limit(report) is Limit.MEMORY:
        return _memory(task)
    if not report.finished:
        return f"the tests broke off: {report.detail or f'status {report.status}'}"
    missing = [name for name in task.tests.fail_to_pass if report.outcomes.get(name) != "passed"]
    if missing:
        outcome = report.outcomes.get(missing[0], "did not run")
        count = f"{len(missing)} of {len(task.tests.fail_to_pass)} tests of the bug"
        return f"{count} did not pass: {missing[0]}: {outcome}"
    if broken:
        return f"{len(broken)} tests fail, first {broken[0]}"
    expected = task.tests.pass_to_pass + len(task.tests.fail_to_pass)
    if passed < expected:
        return f"only {passed} of {expected} tests passed"
    return ""
