"""`skerry doctor`, `bench`, `up`: what they say of this machine and its checkout."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from fake_client import FakeClient, invoke

from skerry.cli import bench as bench_module
from skerry.cli import census, checks
from skerry.cli import doctor as doctor_module
from skerry.cli.checks import host_checks
from skerry.cli.findings import Check
from skerry.cli.up import make_token

DOC = Path(__file__).parents[3] / "docs/guide/cli.md"


def test_every_check_that_is_not_good_says_what_it_costs_and_what_to_do(tmp_path: Path) -> None:
    for check in host_checks(str(tmp_path), str(tmp_path)):
        assert check.status in ("ok", "note", "warning", "missing")
        if check.status in ("warning", "missing"):
            assert check.consequence, check


def test_checks_read_limits_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = {
        "/proc/sys/kernel/core_pattern": "|/bin/crash %p",
        "/proc/sys/fs/suid_dumpable": "2",
        "/proc/sys/kernel/pid_max": "32768",
        "/proc/sys/user/max_user_namespaces": "0",
        "/proc/filesystems": "nodev\toverlay\n\text4\n",
        "/proc/meminfo": "MemTotal: 9 kB\nMemAvailable: 1024 kB\n",
    }
    monkeypatch.setattr(checks, "_text", lambda path: texts.get(path, ""))
    assert checks.core_pattern_check().status == "warning"
    assert checks.suid_dumpable_check().status == "warning"
    assert checks.pid_max_check().status == "warning"
    assert checks.user_namespaces_check().status == "missing"
    assert "erofs" in checks.kernel_check().found
    assert checks.kernel_check().status == "missing"
    assert checks.memory_check().status == "warning"


def test_a_run_directory_too_long_for_sockets_is_found() -> None:
    assert checks.run_check("/" + "x" * 90).status == "missing"


def test_doctor_ends_with_1_only_if_something_is_missing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found = [Check("a", "ok", "fine"), Check("b", "warning", "so so", "slower", "do this")]
    monkeypatch.setattr(doctor_module, "host_checks", lambda *_: list(found))
    words = ("--run", str(tmp_path), "doctor")
    result = invoke(None, *words)
    assert result.exit_code == 0, result.output
    assert "-> do this" in result.stdout
    found.append(Check("c", "missing", "not there", "nothing works", "get it"))
    result = invoke(None, *words, "--json")
    assert result.exit_code == 1
    assert [json.loads(line)["name"] for line in result.stdout.splitlines()][:3] == ["a", "b", "c"]


def test_doctor_of_a_remote_node_asks_the_node_only() -> None:
    result = invoke(FakeClient(), "--url", "http://n:1", "doctor")
    assert result.exit_code == 0
    assert "abcde" in result.stdout


def test_census_knows_our_processes_by_their_names() -> None:
    words = ["python3", "-m", "skerry.cli.main", "--state", "/s", "node", "--embedded"]
    assert census._is_node("python3", words)
    assert census._is_node("skerry", ["python3", "/usr/bin/skerry", "node"])
    assert not census._is_node("python3", ["python3", "node.py"])
    assert not census._is_node("bash", ["bash", "-c", "skerry node"])
    assert census._is_native("skerry-init", ["skerry-init"])
    assert census._is_native("x", ["/opt/skerry-spawn", "--run"])


def test_census_has_every_kind(tmp_path: Path) -> None:
    found = census.take(str(tmp_path / "s"), str(tmp_path / "r"))
    assert found["sockets of agents"] == []
    assert set(found) >= {"nodes", "mounts", "control groups", "loop devices"}


def test_bench_outside_a_checkout_is_2(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_module, "checkout", lambda: None)
    result = invoke(None, "bench", "create")
    assert result.exit_code == 2
    assert "make bench" in result.stderr


@pytest.fixture
def tree(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A checkout with two benchmarks; one fails."""
    folder = tmp_path / "bench"
    folder.mkdir()
    write = "import pathlib, sys\npathlib.Path('ran').open('a').write(f'{sys.argv}\\n')\n"
    (folder / "good.py").write_text(write)
    (folder / "bad.py").write_text(write + "sys.exit(1)\n")
    (folder / "report.py").write_text(write)
    monkeypatch.setattr(bench_module, "checkout", lambda: tmp_path)
    return tmp_path


def test_bench_runs_one_with_its_options_and_gives_its_status(tree: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    assert invoke(None, "bench", "good", "--quick", "--json", "--out", str(out)).exit_code == 0
    ran = (tree / "ran").read_text()
    assert f"'--quick', '--json', '--out', '{out}'" in ran
    assert invoke(None, "bench", "bad").exit_code == 1
    assert invoke(None, "bench", "none").exit_code == 2


def test_bench_all_goes_on_after_a_failure_and_draws_the_table(tree: Path) -> None:
    result = invoke(None, "bench", "--all")
    assert result.exit_code == 1
    assert "failed: bad" in result.stderr
    ran = (tree / "ran").read_text()
    assert "good.py" in ran
    assert "README.md" in ran
    (tree / "ran").unlink()
    invoke(None, "bench", "--all", "--quick")
    assert "README.md" not in (tree / "ran").read_text()  # quick figures do not go into the README


def test_bench_without_a_name_lists_them(tree: Path) -> None:
    assert invoke(None, "bench").stdout.split() == ["bad", "good"]


def test_a_token_is_made_once_and_is_the_owners_alone(tmp_path: Path) -> None:
    state = str(tmp_path / "state")
    path = make_token(state)
    text = Path(path).read_text()
    assert len(text.strip()) >= 32
    assert os.stat(path).st_mode & 0o777 == 0o600
    assert Path(make_token(state)).read_text() == text


def test_the_guide_names_every_command_and_every_key_of_the_configuration() -> None:
    import dataclasses

    from skerry.cli.main import COMMANDS
    from skerry.node.config import Limits, NodeConfig

    text = DOC.read_text()
    for name in COMMANDS:
        assert f"`skerry {name}" in text, name
    for item in (*dataclasses.fields(NodeConfig), *dataclasses.fields(Limits)):
        assert f"`{item.name}`" in text, item.name
