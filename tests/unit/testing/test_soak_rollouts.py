"""What the soak must object to in rollouts, in jobs of killed clients, and in a long pause."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from skerry.cli.preempt.script import EXPECTED, TURNS, Script
from skerry.cli.preempt.trainer import Orders
from skerry.cli.preempt.witness import Fact, Witness
from skerry.spec.job import JobInfo, JobSpec, JobState, OnLost
from skerry.spec.rollout import RolloutRecord
from skerry.spec.verdict import Outcome
from soak.__main__ import lost_as_agreed, options_of
from soak.crew import KINDS, Crew, Trainer
from soak.judge import Judge
from soak.standstill import PAUSE_S, Standstill

FITTING = {
    0: {"text": "four 0", "retries": 0, "timeout": 600.0},
    1: {"text": "four 1", "retries": 1, "timeout": 600.0},
}


def weighed(
    seen: dict[int, dict[str, Any]], *, twice: bool = False, attempts: tuple[str, ...] = ()
) -> list[str]:
    judge = Judge()
    standstill = Standstill(judge, PAUSE_S)
    for number, one in seen.items():
        for length in (1, 3):
            messages = [{"content": "2 + 2?"}] * length
            if length > 1:
                messages[-1] = {"content": json.dumps(one)}
            for ordinal in range(2 if twice and length == 1 else 1):
                name = f"{number}.0.{length + 10 * ordinal}"
                asked = SimpleNamespace(number=number)
                standstill._takes(
                    SimpleNamespace(id=name, asked=asked, body={"messages": messages})
                )
    standstill._weigh([attempts, ()])
    return judge.violations


def test_standstill_with_one_retry_and_one_sampling_is_as_promised() -> None:
    assert weighed(FITTING) == []
    assert weighed({**FITTING, 0: {**FITTING[0], "retries": 1}}) == []


@pytest.mark.parametrize(
    ("number", "change"),
    [
        (0, {"retries": 2}),
        (1, {"retries": 0}),  # it never gave up: its client was not late
        (1, {"retries": 2}),
        (0, {"text": "four 1"}),
        (1, {"timeout": 30.0}),  # not at its default settings
    ],
)
def test_standstill_objects_to_what_a_client_saw(number: int, change: dict[str, Any]) -> None:
    seen = {**FITTING, number: {**FITTING[number], **change}}
    assert len(weighed(seen)) == 1


def test_standstill_objects_to_a_second_sampling_a_lost_agent_and_a_second_attempt() -> None:
    assert any("otherwise than once" in line for line in weighed(FITTING, twice=True))
    assert len(weighed({1: FITTING[1]})) == 2  # nothing was seen of it, and requests are missing
    assert any("begun again" in line for line in weighed(FITTING, attempts=("fault",)))


@pytest.mark.parametrize(
    ("on_lost", "fields", "right"),
    [
        (OnLost.STOP, {"state": JobState.ENDED}, True),
        (OnLost.STOP, {"state": JobState.AWAY}, False),
        (OnLost.PAUSE, {"state": JobState.ACTIVE}, False),
        (
            OnLost.PAUSE,
            {"state": JobState.PAUSED, "paused_by": "loss", "sandboxes": {"paused": 2}},
            True,
        ),
        (
            OnLost.PAUSE,
            {"state": JobState.PAUSED, "paused_by": "loss", "sandboxes": {"running": 1}},
            False,
        ),
        (OnLost.KEEP, {"state": JobState.AWAY, "sandboxes": {"running": 1}}, True),
        (OnLost.KEEP, {"state": JobState.PAUSED, "paused_by": "loss"}, False),
    ],
)
def test_job_of_a_killed_client_must_be_what_was_agreed_on(
    on_lost: OnLost, fields: dict[str, Any], right: bool
) -> None:
    assert lost_as_agreed(JobInfo(id="j", spec=JobSpec(id="j", on_lost=on_lost), **fields)) is right


def acted(witness: Witness, *, rollouts: int = KINDS) -> None:
    """Agents that do all that they should."""
    for number in range(rollouts):
        who = {"rollout": f"soak-0-{number:04d}", "life": f"life {number}"}
        for turn in range(TURNS):
            for what in ("asks", "heard"):
                note = f"{number} {turn} {what}"
                witness.take(Fact(what=what, note=note, turn=turn, sample="s", **who))
        for what in ("began", "ended"):
            witness.take(Fact(what=what, note=f"{number} {what}", **who))


def records(**changes: Any) -> list[RolloutRecord]:
    earned = [EXPECTED[kind] for kind in EXPECTED]
    return [
        RolloutRecord(
            job="soak-0",
            rollout=f"soak-0-{number:04d}",
            task="t",
            policy="scripted",
            index=number,
            **{"reward": reward, "verdict": Outcome(verdict)} | (changes if number == 0 else {}),
        )
        for number, (reward, verdict) in enumerate(earned)
    ]


def judged(judge: Judge, witness: Witness, found: list[RolloutRecord]) -> list[str]:
    crew = Crew(None, judge)  # type: ignore[arg-type]  # it has nothing to do with a host here
    crew._script = Script(tasks=({},), n=KINDS)
    crew._witness = witness
    crew._trainer = Trainer(Orders(job="soak-0", witness="", script=crew._script))
    crew._began = 100.0
    crew._weigh(found)
    judge.settle()
    return judge.violations


def test_crew_that_did_all_once_and_earned_what_it_must_is_as_promised() -> None:
    witness = Witness()
    acted(witness)
    assert judged(Judge(), witness, records()) == []


def test_crew_objects_to_a_lost_request_a_second_life_and_another_reward() -> None:
    lost, again, paid = Witness(), Witness(), Witness()
    acted(lost, rollouts=KINDS - 1)
    assert "lost 4" in judged(Judge(), lost, records())[0]
    acted(again)
    again.take(Fact(what="began", note="again", rollout="soak-0-0001", life="another"))
    assert "restarted 1" in judged(Judge(), again, records())[0]
    acted(paid)
    (line,) = judged(Judge(), paid, records(reward=0.0, verdict=Outcome.FAILED))
    assert "expected (1.0, 'passed')" in line


def test_crew_is_excused_by_a_full_disk_alone() -> None:
    for fault, excused in (("disk", True), ("worker", False)):
        judge, witness = Judge(), Witness()
        judge.begin(fault, 100.0).end = 101.0
        acted(witness, rollouts=KINDS - 1)
        assert (judged(judge, witness, records()) == []) is excused


def test_crew_has_no_excuse_for_what_was_done_twice_in_one_life() -> None:
    judge, witness = Judge(), Witness()
    judge.begin("disk", 100.0).end = 101.0
    acted(witness)
    witness.take(
        Fact(what="heard", note="again", rollout="soak-0-0002", life="life 2", turn=1, sample="t")
    )
    assert "twice 1" in judged(judge, witness, records())[0]


def test_only_a_run_that_is_long_enough_has_the_long_pause_beside_it() -> None:
    assert options_of(["--seconds", "660"]).standstill == PAUSE_S
    assert options_of(["--seconds", "60"]).standstill == 0
    assert options_of(["--seconds", "60", "--standstill", "9"]).standstill == 9
