"""`skerry pause`, `resume`, `stop`, `extend`, `drain` and `top`."""

from __future__ import annotations

import json

import pytest
from fake_client import ONE, TWO, FakeClient, info, invoke
from msgspec import UNSET

from skerry.cli import control, top
from skerry.spec.sandbox import Usage
from skerry.wire.control import NodeUsage, SandboxUsage


def two() -> FakeClient:
    client = FakeClient()
    client.infos = {ONE: info(ONE), TWO: info(TWO)}
    return client


@pytest.mark.parametrize(
    ("verb", "state"), [("pause", "paused"), ("resume", "running"), ("stop", "stopped")]
)
def test_each_named_sandbox_is_asked_once_and_its_state_is_said(verb: str, state: str) -> None:
    client = two()
    result = invoke(client, verb, ONE, TWO, ONE)
    assert result.exit_code == 0
    assert result.stdout.splitlines() == [f"{ONE} {state}", f"{TWO} {state}"]
    assert [call[:2] for call in client.calls if call[0] == verb] == [(verb, ONE), (verb, TWO)]
    said = invoke(two(), verb, ONE, "--json").stdout
    assert json.loads(said)["state"] == state


def test_unknown_sandbox_is_an_error() -> None:
    result = invoke(FakeClient(), "pause", ONE)
    assert result.exit_code == 125
    assert "there is no sandbox" in result.stderr


def test_extend_changes_only_what_was_given() -> None:
    client = two()
    invoke(client, "extend", ONE, "--ttl", "2h")
    assert client.calls[-1] == ("update", ONE, {"ttl": 7200.0, "idle_timeout": UNSET})
    assert invoke(two(), "extend", ONE).exit_code == 125


def test_drain_says_how_far_it_is_and_waits_if_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "POLL_S", 0.0)
    client = two()
    assert "2 sandboxes live" in invoke(client, "drain").stdout
    assert ("drain", None) in client.calls
    waited = invoke(client, "drain", "--grace", "5m", "--wait")
    assert waited.stdout == "drained: nothing lives\n"
    assert ("drain", 300.0) in client.calls
    assert json.loads(invoke(two(), "drain", "--now", "--json").stdout)["draining"] is True
    assert "takes new sandboxes" in invoke(two(), "drain", "--undo").stdout
    assert invoke(two(), "drain", "--undo", "--now").exit_code == 125


def reading(at: float, **cpu: float) -> NodeUsage:
    names = {"one": ONE, "two": TWO}
    return NodeUsage(
        at=at,
        items=tuple(
            SandboxUsage(
                id=names[name],
                state="running",
                usage=Usage(cpu_seconds=spent, memory_bytes=3 << 20, pids=2),
                commands=1,
                image="debian:12",
                created=1.0,
                memory_limit_bytes=1 << 30,
            )
            for name, spent in cpu.items()
        ),
        cores=2,
        memory_total_bytes=8 << 30,
        memory_available_bytes=5 << 30,
        load=(1.5, 1.0, 0.5),
        pressure={"memory": 2.5},
    )


def test_top_in_a_pipe_is_one_table_with_the_busiest_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(top, "FIRST_S", 0.0)
    client = FakeClient()
    client.readings = [reading(10.0, one=1.0, two=5.0), reading(12.0, one=2.0, two=5.5)]
    result = invoke(client, "top", "--label", "a=b")
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    rows = [line.split() for line in lines if line.startswith(("sa", "sb")) and "%" not in line]
    rows = [row for row in rows if row[0] in (ONE, TWO)]
    assert [(row[0], row[2]) for row in rows] == [(ONE, "50.0"), (TWO, "25.0")]
    assert "75 % of 200 %" in result.stdout
    assert "pressure (10 s, %): memory 2.5" in result.stdout
    assert client.calls[-1] == ("usage", {"a": "b"})


def test_top_json_is_one_object_with_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(top, "FIRST_S", 0.0)
    client = FakeClient()
    client.readings = [reading(10.0, two=5.0), reading(12.0, one=1.0, two=5.0)]
    value = json.loads(invoke(client, "top", "--json", "--sort", "memory").stdout)
    rates = {item["id"]: item["cpu_percent"] for item in value["items"]}
    assert rates == {ONE: 50.0, TWO: 0.0}  # one that is new has used all of it since
    assert value["cores"] == 2
