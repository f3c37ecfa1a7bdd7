"""What the verifier inside the fresh sandbox says, read from its own channel. Pure.

The channel is the standard output of the runner, which the code under test does not share. A report
is one line: a marker with the run's nonce, then JSON. Anything else is no report.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

MARK = "SKERRY-REPORT-"
TESTS_MAX = 200_000
DETAIL_MAX = 2000


class Step(StrEnum):
    """How far the runner came."""

    SETUP = "setup"  # its own preparations failed: nothing of the code under test ran
    RAN = "ran"


class ScoreReport(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What came of the task's own verifier: the text of its channel, and how it ended."""

    text: str = ""
    status: int | None = None
    timed_out: bool = False
    detail: str = ""


class TestReport(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Outcomes by test id, and what the runner noticed about their truth.

    `finished` says that the test process reported by itself and ended with the status it named.
    `forged` holds one line for each sign that results were made up.
    """

    __test__ = False  # the name is no test's

    step: Step
    finished: bool = False
    outcomes: dict[str, str] = {}  # id -> passed, failed, error, skipped, xfailed, xpassed
    forged: tuple[str, ...] = ()
    timed_out: bool = False
    status: int | None = None
    detail: str = ""
    seconds: float = 0.0
    score: ScoreReport | None = None
    oom_killed: bool = False  # by the sandbox's own limit; noted outside


def parse_report(output: bytes, nonce: str) -> TestReport | None:
    """Returns the one report with this nonce; None if there is none, several, or it is malformed."""
    prefix = f"{MARK}{nonce} ".encode()
    lines = [line for line in output.split(b"\n") if line.startswith(prefix)]
    if len(lines) != 1:
        return None
    try:
        report = msgspec.json.decode(lines[0][len(prefix) :], type=TestReport)
    except msgspec.DecodeError:
        return None
    if len(report.outcomes) > TESTS_MAX:
        return None
    return msgspec.structs.replace(report, detail=report.detail[:DETAIL_MAX])
