"""Verdicts: each row of the table, and that no report can be made up."""

from __future__ import annotations

import json

import pytest
from tasks_for_audits import added, rules, task

from skerry.integrity.audit import audit
from skerry.integrity.report import Step, TestReport, parse_report
from skerry.integrity.verdict import judge, tampered
from skerry.spec.verdict import Outcome

BUG = "tests/test_core.py::test_bug"
GOOD = {BUG: "passed", "tests/a": "passed", "tests/b": "passed"}


def report(outcomes: dict[str, str] | None = None, **more: object) -> TestReport:
    return TestReport(Step.RAN, finished=True, outcomes=outcomes or GOOD, **more)  # type: ignore[arg-type]


def test_all_that_must_pass_passed_earns_one() -> None:
    verdict = judge(task(), report())
    assert (verdict.outcome, verdict.reward, verdict.tests_passed) == (Outcome.PASSED, 1.0, 3)


@pytest.mark.parametrize(
    "outcomes",
    [
        GOOD | {BUG: "failed"},
        GOOD | {BUG: "error"},
        GOOD | {BUG: "skipped"},
        GOOD | {BUG: "xfailed"},
        GOOD | {BUG: "xpassed"},
        {"tests/a": "passed", "tests/b": "passed", "tests/c": "passed"},
        {BUG: "passed", "tests/a": "passed"},
        GOOD | {"tests/c": "failed"},
        GOOD | {"tests/c": "error"},
    ],
)
def test_anything_less_earns_nothing(outcomes: dict[str, str]) -> None:
    verdict = judge(task(), report(outcomes))
    assert (verdict.outcome, verdict.reward) == (Outcome.FAILED, 0.0)
    assert verdict.detail


def test_skipped_tests_beside_enough_passed_ones_do_no_harm() -> None:
    assert judge(task(), report(GOOD | {"tests/c": "skipped"})).reward == 1.0


def test_forged_results_are_tampered_even_if_all_passed() -> None:
    verdict = judge(task(), report(forged=("a test that must have failed is reported as passed",)))
    assert (verdict.outcome, verdict.reward) == (Outcome.TAMPERED, 0.0)
    assert verdict.evidence[0].kind == "forged_results"


@pytest.mark.parametrize(
    "broken",
    [
        TestReport(Step.RAN, finished=False, outcomes=GOOD, status=0),
        TestReport(Step.RAN, finished=True, timed_out=True, outcomes=GOOD),
        None,
    ],
)
def test_a_missing_or_broken_report_is_a_failure(broken: TestReport | None) -> None:
    verdict = judge(task(), broken, "killed")
    assert (verdict.outcome, verdict.reward) == (Outcome.FAILED, 0.0)


def test_a_runner_that_never_started_the_tests_is_no_reward() -> None:
    verdict = judge(task(), TestReport(Step.SETUP, detail="no user nobody"))
    assert (verdict.outcome, verdict.reward) == (Outcome.INFRASTRUCTURE_ERROR, None)


def test_evidence_decides_before_any_test_runs() -> None:
    found = audit([added("/testbed/conftest.py")], rules())
    verdict = tampered(found)
    assert verdict is not None
    assert (verdict.outcome, verdict.reward) == (Outcome.TAMPERED, 0.0)
    assert tampered(audit([], rules())) is None


def line(nonce: str, **values: object) -> bytes:
    body = {"step": "ran", "finished": True, "outcomes": GOOD} | values
    return f"SKERRY-REPORT-{nonce} {json.dumps(body)}\n".encode()


def test_a_report_is_found_among_other_output() -> None:
    found = parse_report(b"noise\n" + line("n1") + b"more", "n1")
    assert found is not None
    assert found.outcomes == GOOD


@pytest.mark.parametrize(
    "output",
    [
        b"",
        line("other"),
        line("n1") + line("n1"),
        line("n1")[:-20],
        b"SKERRY-REPORT-n1 {}\n",
        line("n1", unknown=1),
        line("n1", outcomes={"a": 1}),
        line("n1", seconds=float("nan")),
        b"x" + line("n1"),
        b"\xff\xfe" * 100,
    ],
)
def test_a_report_without_the_nonce_or_malformed_is_none(output: bytes) -> None:
    assert parse_report(output, "n1") is None
