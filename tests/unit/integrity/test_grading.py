"""Scores, repeats, limits and artifacts: what a run says, and what several say together."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tasks_for_audits import added, deleted, modified, rules, task

from skerry.errors import InvalidRequest
from skerry.integrity.artifacts import declared
from skerry.integrity.audit import audit
from skerry.integrity.repeats import Ran, combine
from skerry.integrity.report import ScoreReport, Step, TestReport
from skerry.integrity.score import read_score
from skerry.integrity.verdict import failed, infrastructure_error, judge
from skerry.spec.files import FileType
from skerry.spec.grading import ScoreProgram, SubmissionRules
from skerry.spec.task import TaskSpec
from skerry.spec.verdict import Evidence, Limit, Outcome, Verdict

BUG = "tests/test_core.py::test_bug"
GOOD = {BUG: "passed", "tests/a": "passed", "tests/b": "passed"}
PROGRAM = ScoreProgram(program="print()")


def of_tests(**more: Any) -> TaskSpec:
    return msgspec.structs.replace(task(), tests=msgspec.structs.replace(task().tests, **more))


def report(outcomes: dict[str, str] | None = None, **more: Any) -> TestReport:
    whole: dict[str, Any] = {"finished": True, "outcomes": outcomes or GOOD}
    return TestReport(Step.RAN, **(whole | more))


def wrote(text: str, **more: Any) -> ScoreReport:
    return ScoreReport(text, **({"status": 0} | more))


# --- scores --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "score"),
    [("1.0", 1.0), ("1.0\n", 1.0), ("0", 0.0), ("-0.0", 0.0), ("0.25", 0.25), ("5e-1", 0.5),
     ("1e-400", 0.0)],
)  # fmt: skip
def test_a_plain_number_in_range_is_the_reward(text: str, score: float) -> None:
    verdict = judge(of_tests(score=PROGRAM), report(score=wrote(text)))
    assert (verdict.outcome, verdict.reward, verdict.score) == (Outcome.PASSED, score, score)
    assert str(verdict.reward)[0] != "-"


BAD = [
    "", "\n", "nan", "NaN", "inf", "-inf", "Infinity", "1e999", "-1e999", "1e99999", "1.0001",
    "-0.1", "2", '"1.0"', "one", "True", "0x1", "1_0", " 1", "1 ", "+1", "01", ".5", "1.", "\u0661",
    "1.0\n1.0", "1.0\n0.0\n", "1.0\n\n", "\n1.0", "1.0\r", "1.0\x00", "[1.0]", '{"score": 1.0}',
    '{"score": 1.0, "score": 0.0}', "1.0,1.0", "1" * 5000, "0." + "1" * 100, "\ufffd",
]  # fmt: skip


@pytest.mark.parametrize("text", BAD)
def test_anything_else_is_no_reward_and_names_the_verifier(text: str) -> None:
    verdict = judge(of_tests(score=PROGRAM), report(score=wrote(text)))
    assert (verdict.outcome, verdict.reward) == (Outcome.INFRASTRUCTURE_ERROR, None)
    assert "tests.score" in verdict.detail
    assert len(verdict.detail) < 300


@pytest.mark.parametrize(
    "told",
    [None, wrote("1.0", status=1, detail="boom"), wrote("1.0", status=-9),
     wrote("1.0", timed_out=True, status=-9)],
)  # fmt: skip
def test_a_verifier_that_did_not_end_well_gives_no_score(told: ScoreReport | None) -> None:
    verdict = judge(of_tests(score=PROGRAM), report(score=told))
    assert verdict.reward is None


def test_a_score_of_another_range_is_told_as_it_is_and_scaled_to_the_reward() -> None:
    wide = ScoreProgram(program="x", low=-10.0, high=30.0)
    verdict = judge(of_tests(score=wide), report(score=wrote("10")))
    assert (verdict.reward, verdict.score) == (0.5, 10.0)
    assert read_score(wide, wrote("30.1")) == "30.1 is not within -10 to 30"


def test_a_score_counts_only_if_the_tests_pass_unless_the_task_says_so() -> None:
    broken = report(GOOD | {BUG: "failed"}, score=wrote("0.75"))
    assert judge(of_tests(score=PROGRAM), broken).reward == 0.0
    partly = ScoreProgram(program="x", needs_pass=False)
    verdict = judge(of_tests(score=partly), broken)
    assert (verdict.outcome, verdict.reward) == (Outcome.FAILED, 0.75)
    unfinished = report(finished=False, score=None)
    assert judge(of_tests(score=partly), unfinished).reward == 0.0
    forged = report(forged=("a lie",), score=wrote("0.75"))
    assert judge(of_tests(score=partly), forged).reward == 0.0


@pytest.mark.parametrize(
    "program",
    [{"program": " "}, {"program": "x" * 300_000}, {"low": 1.0}, {"low": float("nan")},
     {"high": float("inf")}, {"low": -1.7e308, "high": 1.7e308}, {"timeout_s": 0.0}],
)  # fmt: skip
def test_a_score_program_out_of_bounds_is_refused(program: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match=r"tests\.score"):
        of_tests(score=ScoreProgram(**({"program": "x"} | program))).check()


# --- repeats -------------------------------------------------------------------------------------

PASSED = Verdict(Outcome.PASSED, 1.0, tests_passed=3)
FAILED = Verdict(Outcome.FAILED, 0.0, tests_failed=1, detail="1 tests fail")


def runs(*verdicts: Verdict) -> list[Ran]:
    return [
        Ran(one, GOOD if one.outcome is Outcome.PASSED else GOOD | {BUG: "failed"}, 0.5)
        for one in verdicts
    ]


def test_one_verification_is_its_own_verdict() -> None:
    assert combine(task(), runs(FAILED)) is FAILED


def test_all_repeats_must_pass_by_default_and_the_report_names_flaky_tests() -> None:
    verdict = combine(of_tests(repeats=3), runs(PASSED, FAILED, PASSED))
    assert (verdict.outcome, verdict.reward) == (Outcome.FAILED, 0.0)
    assert verdict.detail == "passed in 2 of 3 fresh sandboxes, 3 needed: 1 tests fail"
    assert verdict.repeats is not None
    assert verdict.repeats.unstable == {BUG: 2}
    assert (verdict.repeats.tests, verdict.repeats.never) == (3, ())
    assert [run.outcome for run in verdict.repeats.runs] == ["passed", "failed", "passed"]


def test_a_threshold_of_passes_is_enough_and_what_is_flaky_is_still_told() -> None:
    verdict = combine(of_tests(repeats=3, passes=2), runs(FAILED, PASSED, PASSED))
    assert (verdict.outcome, verdict.reward, verdict.detail) == (Outcome.PASSED, 1.0, "")
    assert verdict.repeats is not None
    assert verdict.repeats.unstable == {BUG: 2}


def test_tests_that_never_pass_are_not_called_flaky() -> None:
    verdict = combine(of_tests(repeats=2), runs(FAILED, FAILED))
    assert verdict.repeats is not None
    assert (verdict.repeats.unstable, verdict.repeats.never) == ({}, (BUG,))


def test_one_forged_run_or_one_fault_of_the_platform_decides() -> None:
    lie = Verdict(Outcome.TAMPERED, 0.0, evidence=(Evidence("forged_results", "/"),))
    assert combine(of_tests(repeats=3, passes=1), runs(PASSED, PASSED, lie)).reward == 0.0
    fault = infrastructure_error("no runner")
    assert combine(of_tests(repeats=3, passes=1), runs(PASSED, PASSED, fault)).reward is None
    # What a policy did weighs more than what the platform did.
    assert combine(of_tests(repeats=2), runs(fault, lie)).outcome is Outcome.TAMPERED


def test_the_reward_of_scored_repeats_is_their_mean() -> None:
    def scored(score: float) -> Verdict:
        return Verdict(Outcome.PASSED, score, score=score)

    spec = of_tests(repeats=3, passes=2, score=PROGRAM)
    verdict = combine(spec, runs(scored(0.9), scored(0.6), FAILED))
    assert verdict.reward == pytest.approx(0.5)
    assert verdict.score == pytest.approx(0.75)
    assert combine(spec, runs(scored(0.9), FAILED, FAILED)).reward == 0.0
    partly = of_tests(repeats=2, score=ScoreProgram(program="x", needs_pass=False))
    low = Verdict(Outcome.FAILED, 0.2, score=0.2, detail="some fail")
    assert combine(partly, runs(low, scored(0.4))).reward == pytest.approx(0.3)


def test_a_report_names_a_few_hundred_tests_at_most() -> None:
    many = {f"tests/{number}": "passed" for number in range(2000)}
    ran = [Ran(PASSED, many), Ran(failed("x"), dict.fromkeys(many, "failed"))]
    verdict = combine(of_tests(repeats=2), ran)
    assert verdict.repeats is not None
    assert (len(verdict.repeats.unstable), verdict.repeats.tests) == (300, 2000)


@pytest.mark.parametrize(
    "wrong",
    [{"repeats": 0}, {"repeats": 101}, {"passes": 0}, {"repeats": 2, "passes": 3},
     {"memory": "much"}, {"user": "root"}],
)  # fmt: skip
def test_rules_out_of_bounds_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match=r"tests\."):
        of_tests(**wrong).check()


# --- limits --------------------------------------------------------------------------------------


def test_limits_of_the_task_are_told_apart_from_faults() -> None:
    slow = judge(task(), report(finished=False, timed_out=True))
    assert (slow.outcome, slow.limit) == (Outcome.FAILED, Limit.TIME)
    full = judge(of_tests(memory="64MiB"), report(finished=False, status=-9, oom_killed=True))
    assert (full.outcome, full.limit) == (Outcome.FAILED, Limit.MEMORY)
    assert full.detail == "the tests ran out of memory: 64MiB"
    # A child of the tests was ended, and they went on: what they say counts.
    survived = judge(task(), report(oom_killed=True))
    assert (survived.outcome, survived.limit) == (Outcome.PASSED, None)


# --- artifacts -----------------------------------------------------------------------------------


def of_artifacts(*paths: str) -> TaskSpec:
    return msgspec.structs.replace(task(), submission=SubmissionRules(paths))


def test_only_declared_artifacts_are_taken() -> None:
    changes = [
        modified("/testbed/src/demo/core.py"),
        added("/testbed/src/demo/more.py"),
        deleted("/testbed/src/demo/old.py"),
        added("/testbed/out", type=FileType.DIRECTORY, mode=0o755),
        added("/testbed/out/answer.txt"),
        added("/testbed/out/other.txt"),
        added("/testbed/elsewhere.txt"),
    ]
    found = declared(audit(changes, rules()), of_artifacts("src/demo/core.py", "out/answer.txt"))
    assert [one.path for one in found.kept] == [
        "/testbed/out", "/testbed/out/answer.txt", "/testbed/src/demo/core.py",
    ]  # fmt: skip
    assert found.deleted == ()
    assert {one.path for one in found.dropped if one.rule == "undeclared"} == {
        "/testbed/src/demo/more.py", "/testbed/src/demo/old.py", "/testbed/out/other.txt",
        "/testbed/elsewhere.txt",
    }  # fmt: skip


def test_without_artifacts_the_diff_is_taken() -> None:
    found = audit([modified("/testbed/src/demo/core.py")], rules())
    assert declared(found, task()) is found


def test_links_that_lead_out_of_the_artifacts_are_refused() -> None:
    def link(path: str, target: str) -> Any:
        return added(path, type=FileType.SYMLINK, target=target)

    changes = [
        added("/testbed/out", type=FileType.DIRECTORY, mode=0o755),
        link("/testbed/out/in", "answer"),
        link("/testbed/out/side", "../src/demo/core.py"),
        link("/testbed/out/abs", "/etc/passwd"),
        link("/testbed/whole", "out"),
    ]
    found = declared(audit(changes, rules()), of_artifacts("out", "whole", "src/demo/deep"))
    assert [one.path for one in found.kept] == ["/testbed/out", "/testbed/out/in"]


def test_evidence_counts_wherever_it_was_found() -> None:
    changes = [added("/testbed/conftest.py"), added("/testbed/out/answer.txt")]
    found = declared(audit(changes, rules()), of_artifacts("out"))
    assert [one.kind for one in found.evidence] == ["planted_conftest"]


def test_protected_paths_are_no_artifacts_and_the_fix_must_be_one() -> None:
    with pytest.raises(InvalidRequest, match="is protected"):
        of_artifacts("src", "tests/test_core.py").check()
    with pytest.raises(InvalidRequest, match="could not be graded"):
        of_artifacts("out").check()
    with pytest.raises(InvalidRequest, match=r"without '\.' and"):
        of_artifacts("src", "../out").check()
    of_artifacts("src", "out").check()
