"""`skerry forward`, `skerry network`, and `--network`."""

from __future__ import annotations

import json

import pytest
from fake_client import ONE, FakeClient, info, invoke

from skerry.wire.network import Decision, NetworkView, Totals


def one(**network) -> FakeClient:
    client = FakeClient()
    client.infos = {ONE: info(ONE)}
    client.network = NetworkView(**network)
    return client


@pytest.mark.parametrize(
    ("words", "call"),
    [
        (("8000",), ("forward", 8000, 0, {"host": "127.0.0.1"})),
        (("9000:8000",), ("forward", 8000, 9000, {"host": "127.0.0.1"})),
        (("0:8000", "--bind", "0.0.0.0"), ("forward", 8000, 0, {"host": "0.0.0.0"})),
        (("-R", "5432"), ("reverse_forward", 5432, "127.0.0.1", 5432)),
        (("-R", "80:8080"), ("reverse_forward", 80, "127.0.0.1", 8080)),
        (("-R", "80:db.local:5432"), ("reverse_forward", 80, "db.local", 5432)),
        (("-R", "80:[::1]:5432"), ("reverse_forward", 80, "::1", 5432)),
    ],
)
def test_ports_are_read_as_they_are_written(words, call) -> None:
    client = one()
    assert invoke(client, "forward", ONE, *words).exit_code == 125
    assert client.calls[-1] == call


@pytest.mark.parametrize("ports", ["", "x", "0", "70000", "1:2:3", "80:", ":80", "-1"])
def test_bad_ports_are_refused_before_anything_is_asked(ports: str) -> None:
    client = one()
    result = invoke(client, "forward", ONE, "--", ports)
    assert result.exit_code != 0
    assert not client.calls


def test_network_shows_the_policy_and_the_last_decisions() -> None:
    decisions = tuple(
        Decision(at=1.0, verdict="refused", method="GET", host=f"h{n}.example", port=80, why="no")
        for n in range(30)
    )
    client = one(
        network=("pypi",),
        hosts=("index.example",),
        totals=Totals(allowed=1, refused=30),
        decisions=decisions,
    )
    shown = invoke(client, "network", ONE, "-n", "2").stdout
    assert "may reach  pypi" in shown
    assert "index.example" in shown
    assert "30 refused" in shown
    assert "h29.example:80" in shown
    assert "h27" not in shown
    full = json.loads(invoke(client, "network", ONE, "--json").stdout)
    assert len(full["decisions"]) == 30
    assert {call[0] for call in client.calls} == {"connect"}


@pytest.mark.parametrize(
    ("words", "entries"),
    [
        (("--allow", "npm,x.org"), ("pypi", "a.org", "npm", "x.org")),
        (("--forbid", "pypi"), ("a.org",)),
        (("--allow", "pypi", "--forbid", "a.org"), ("pypi",)),
        (("--none",), ()),
    ],
)
def test_network_is_changed_entry_by_entry(words, entries) -> None:
    client = one(network=("pypi", "a.org"))
    assert invoke(client, "network", ONE, *words).exit_code == 0
    assert client.calls[1:] == [("set_network", ONE, entries)]


def test_none_goes_alone_and_bad_entries_go_nowhere() -> None:
    client = one()
    assert invoke(client, "network", ONE, "--none", "--allow", "x.org").exit_code != 0
    assert invoke(client, "network", ONE, "--allow", "http://x.org").exit_code != 0
    assert not client.calls


def test_new_sandbox_gets_the_entries_of_all_its_options() -> None:
    client = FakeClient()
    invoke(
        client, "run", "--network", "pypi,x.org", "--network", "*.y.org", "debian:12", "--", "id"
    )
    assert client.created[-1]["network"] == ("pypi", "x.org", "*.y.org")
    invoke(client, "run", "debian:12", "--", "id")
    assert client.created[-1]["network"] == ()


def test_doctor_says_which_words_it_cannot_learn(tmp_path, monkeypatch) -> None:
    from skerry.cli.network_checks import services_check

    for name in ("npm", "apt-get", "pip"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert services_check().status == "ok"
    (tmp_path / "npm").unlink()
    found = services_check()
    assert found.status == "note"
    assert "npm" in found.consequence
    assert "[network.services.npm]" in found.remedy
