"""The witness of `skerry demo --preempt` sees what went wrong; kills are spread; tables are judged."""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import pytest
from fake_client import invoke

from skerry.cli.preempt.killing import kill_points
from skerry.cli.preempt.script import EXPECTED, KINDS, TURNS, Script
from skerry.cli.preempt.show import verdict_of
from skerry.cli.preempt.undergo import Outcome, unexpected
from skerry.cli.preempt.witness import Fact, Judgement, Witness
from skerry.spec.rollout import JobSummary

_notes = itertools.count()


def said(what: str, rollout: str = "r", turn: int = 0, **more) -> Fact:
    more = {"life": "a", "note": str(next(_notes)), **more}
    return Fact(what=what, rollout=rollout, turn=turn, **more)


def story() -> list[Fact]:
    """Two requests of one agent, as they must be."""
    facts = [said("began")]
    for turn in range(2):
        sample = f"s{turn}"
        facts += [
            said("asks", turn=turn),
            said("got", turn=turn, request=f"0.0.{turn}", life="t"),
            said("gave", turn=turn, request=f"0.0.{turn}", life="t", sample=sample, first=True),
            said("heard", turn=turn, sample=sample),
        ]
        if turn == 0:
            facts.append(said("ran", turn=0, count=1))
    return [*facts, said("ended", turn=1)]


def judged(facts: list[Fact]) -> Judgement:
    witness = Witness()
    for fact in facts:
        witness.take(fact)
    return witness.judge(1, 2)


def test_a_sound_story_is_good_also_when_messages_come_twice_and_deliveries_too() -> None:
    facts = story()
    again = [said("got", turn=1, request="0.0.1", life="u"), said("ready", life="t")]
    found = judged([*facts, *facts, *again])
    assert found == Judgement(requests=2, lost=0, double=0, restarted=0, lives=1)
    assert found.good


@pytest.mark.parametrize(
    ("more", "lost", "double", "restarted"),
    [
        ([said("began", life="b")], 0, 0, 1),
        ([said("ran", count=2)], 0, 1, 0),
        ([said("asks", turn=1)], 0, 1, 0),
        ([said("heard", sample="s0")], 0, 1, 0),
        ([said("got", request="0.0.7", life="u")], 0, 1, 0),
        ([said("gave", request="0.0.0", sample="other", first=True, life="u")], 0, 1, 0),
    ],
    ids=[
        "begun again",
        "run twice",
        "asked twice",
        "heard twice",
        "sampled anew",
        "recorded twice",
    ],
)
def test_what_happens_twice_is_seen(more, lost: int, double: int, restarted: int) -> None:
    found = judged([*story(), *more])
    assert (found.lost, found.double, found.restarted) == (lost, double, restarted)
    assert not found.good
    assert found.reasons


def test_another_answer_than_the_recorded_one_is_seen() -> None:
    facts = [one for one in story() if (one.what, one.turn) != ("heard", 0)]
    found = judged([*facts, said("heard", turn=0, sample="not recorded")])
    assert (found.lost, found.double) == (0, 1)


def test_a_command_that_ran_before_in_the_same_sandbox_is_seen() -> None:
    facts = [one for one in story() if one.what != "ran"]
    assert judged([*facts, said("ran", turn=0, count=2)]).double == 1


@pytest.mark.parametrize("missing", [("heard", 1), ("ended", 1)])
def test_what_never_came_is_lost(missing: tuple[str, int]) -> None:
    found = judged([one for one in story() if (one.what, one.turn) != missing])
    assert (found.lost, found.double, found.restarted) == (1, 0, 0)
    assert found.reasons


def test_agents_that_never_began_are_lost() -> None:
    assert judged([]).lost == 2


def test_kills_are_spread_and_come_before_the_end() -> None:
    for seed in range(50):
        points = kill_points(20, 400, random.Random(seed))
        assert points == sorted(points)
        assert len(points) == 20
        assert points[0] >= 1
        assert points[-1] < 0.8 * 400
    assert kill_points(0, 400, random.Random(1)) == []


def test_a_script_says_the_same_for_the_same_rollout_and_ends() -> None:
    tasks = tuple({kind: f"{task} {kind}" for kind in KINDS} for task in ("one", "two"))
    script = Script(tasks, n=8)
    assert [script.kind(number) for number in range(4)] == list(KINDS)
    assert script.command(9, 1) == "two nothing"
    assert script.command(9, TURNS - 1) is None
    assert all(script.command(9, turn) is not None for turn in range(TURNS - 1))


def outcome(table: tuple, **more) -> Outcome:
    judgement = Judgement(requests=8, lost=0, double=0, restarted=0, lives=3)
    summary = JobSummary(job="j", path="/x", records=(), build_seconds=0.0, seconds=1.0)
    fields = {"trainer_kills": 0, "worker_kills": 0, "deaths": (), "judgement": judgement, **more}
    return Outcome(summary=summary, table=table, **fields)


def test_the_demo_is_good_only_if_all_is_as_it_must_be() -> None:
    table = tuple(("task", at, kind, *EXPECTED[kind]) for at, kind in enumerate(KINDS))
    calm, killed = outcome(table), outcome(table, trainer_kills=2, worker_kills=1)
    assert unexpected(table) == []
    assert verdict_of(killed, calm, (2, 1)) == []
    assert verdict_of(outcome(table), calm, (2, 1))
    assert verdict_of(outcome(table[:3], trainer_kills=2, worker_kills=1), calm, (2, 1))
    paid = (*table[:2], ("task", 2, "cheat", 1.0, "passed"), table[3])
    assert len(verdict_of(outcome(paid), outcome(paid), (0, 0))) == 2
    bad = Judgement(requests=8, lost=1, double=0, restarted=0, lives=3)
    assert verdict_of(outcome(table, judgement=bad), calm, (0, 0))
    assert verdict_of(outcome(table, deaths=("why",)), calm, (0, 0))


async def test_the_witness_listens_on_loopback_and_refuses_what_is_no_fact() -> None:
    import aiohttp

    witness = Witness()
    async with witness.serving(), aiohttp.ClientSession() as http:
        body = {"what": "began", "note": "n", "life": "a", "rollout": "r"}
        async with http.post(witness.url, json=body) as answer:
            assert answer.status == 200
        async with http.post(witness.url, data=b"{") as answer:
            assert answer.status == 400
        async with http.post(witness.url, data=b"x" * 100_000) as answer:
            assert answer.status == 413
    assert witness.judge(1, 1).lost == 1


def test_the_agent_needs_nothing_but_the_standard_library() -> None:
    from skerry.cli.preempt import agent

    assert "skerry." not in Path(agent.__file__).read_text()


def test_kills_go_with_preempt_and_reach_no_other_machine() -> None:
    assert invoke(None, "demo", "--kills", "3").exit_code == 2
    assert invoke(None, "demo", "--worker-kills", "3").exit_code == 2
    far = ("--url", "http://192.0.2.1:1", "demo", "--preempt", "--worker-kills", "1")
    result = invoke(None, *far)
    assert result.exit_code != 0
    assert "another machine" in result.stderr
