"""`skerry forward`, `skerry network`, and `--network`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fake_client import ONE, FakeClient, info, invoke

from skerry.cli.findings import Check
from skerry.cli.network_checks import services_check
from skerry.errors import Unavailable
from skerry.network.services import NetworkConfig, Service
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


SERVICES = {
    "pypi": Service(hosts=("index.example", "files.example")),
    "npm": Service(hosts=("npm.example:8443", "*.cdn.example")),
    "debian": Service(hosts=("deb.example",)),
}


def services(addresses: dict[str, str], config: NetworkConfig | None = None) -> Check:
    """What doctor says where names have these addresses, and others a public one."""
    return services_check(
        config, SERVICES.__getitem__, lambda host: [addresses.get(host, "93.184.215.14")]
    )


@pytest.fixture
def clients(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine that has the three package clients."""
    for name in ("npm", "apt-get", "pip"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


def test_doctor_says_which_words_it_cannot_learn(clients: Path) -> None:
    assert services({}).status == "ok"
    (clients / "npm").unlink()
    found = services({})
    assert found.status == "note"
    assert "npm" in found.consequence
    assert "[network.services.npm]" in found.remedy
    told = NetworkConfig(services={"npm": SERVICES["npm"]})
    assert services({}, told).status == "ok"


def test_doctor_says_what_it_looked_up_and_that_it_is_private(clients: Path) -> None:
    found = services({"index.example": "10.1.2.3", "npm.example": "127.0.0.1"})
    assert found.status == "warning"
    for words in ("pypi (index.example, files.example)", "npm (npm.example)",
                  "index.example: at 10.1.2.3, a private or reserved address",
                  "npm.example: at 127.0.0.1, a loopback address"):  # fmt: skip
        assert words in found.found
    assert "pypi, npm" in found.consequence
    assert '[network] private = ["index.example", "npm.example"]' in found.remedy
    allowed = NetworkConfig(private=("*.example",))
    assert (
        services({"index.example": "10.1.2.3", "npm.example": "127.0.0.1"}, allowed).status == "ok"
    )
    pinned = NetworkConfig(addresses={"index.example": ("10.1.2.3",)})
    assert services({"index.example": "10.1.2.3"}, pinned).status == "ok"


def test_doctor_says_what_is_not_found_and_what_cannot_be_learned(clients: Path) -> None:
    def lookup(host: str) -> list[str]:
        raise OSError(0, f"no address for {host}")

    found = services_check(None, SERVICES.__getitem__, lookup)
    assert found.status == "warning"
    assert "deb.example: not found (no address for deb.example)" in found.found

    def discover(word: str) -> Service:
        raise Unavailable(f"{word} says nothing")

    found = services_check(None, discover, lambda _host: ["93.184.215.14"])
    assert "npm: npm says nothing" in found.found
    assert "[network.services.pypi]" in found.remedy
