"""What the census takes for an orphan while nodes come and go."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from types import SimpleNamespace

from skerry.backends.shared.launcher import Launcher
from skerry.cli import clean, holdings
from skerry.cli.holdings import Process, Thing
from skerry.node.identity import claim


def test_node_that_starts_while_the_census_looks_is_no_orphan(tmp_path, monkeypatch):
    registry, state = tmp_path / "nodes", tmp_path / "state"
    registry.mkdir()
    state.mkdir()

    def started():
        (state / "name").write_text("zzzzz\n")
        entry = {"state_dir": str(state), "run_dir": str(tmp_path / "run"), "pid": 1}
        (registry / "zzzzz").write_text(json.dumps(entry))
        yield Thing("control groups", "seen", "zzzzz")

    monkeypatch.setattr(holdings, "_groups", started)
    found = holdings.take(str(registry), str(tmp_path / "default"))
    assert Thing("control groups", "seen", "zzzzz") in found.things
    assert not any(thing.node == "zzzzz" for thing in found.orphans)


def test_daemon_is_known_by_the_lock_that_it_holds(tmp_path):
    """Its directories may stand in a file, and nobody else may have written down that it runs."""
    program = (
        "import sys, time\n"
        "from skerry.node.identity import claim\n"
        f"name = claim({str(tmp_path / 'state')!r}, {str(tmp_path / 'run/node.sock')!r}).name\n"
        "print(name, flush=True)\n"
        "sys.stdin.read()\n"
    )
    argv = [sys.executable, "-c", program, "skerry.cli.main", "node", "--config", "node.toml"]
    with subprocess.Popen(
        argv,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=os.path.dirname(__file__),
    ) as daemon:
        name = daemon.stdout.readline().strip()
        found = holdings.take(str(tmp_path / "nodes"), str(tmp_path / "default"))
        daemon.stdin.close()
    assert name in found.running


def test_run_directory_of_a_living_node_is_shared(tmp_path):
    found = holdings.Holdings()
    found.run_dirs["aaaaa"] = {str(tmp_path / "run")}
    assert not found.shared(str(tmp_path / "run"))
    identity = claim(str(tmp_path / "state"), str(tmp_path / "run/node.sock"))
    try:
        assert found.shared(str(tmp_path / "run"))
    finally:
        identity.release()
    found.run_dirs["bbbbb"] = {str(tmp_path / "run")}
    found.waiting.add("bbbbb")
    assert found.shared(str(tmp_path / "run"))


def test_launcher_of_another_node_at_the_same_place_is_not_shut_down(tmp_path, monkeypatch):
    """Nodes may have had one run directory, one after the other."""
    asked = []

    class Another:
        async def status(self, _timeout):
            return SimpleNamespace(pid=1)

        async def ask(self, request, _timeout):
            asked.append(request)

        def close(self):
            pass

    async def connect(_path, _on_exited):
        return Another()

    monkeypatch.setattr(Launcher, "connect", connect)
    monkeypatch.setattr(clean, "SHUT_DOWN_S", 0.0)
    with subprocess.Popen(["sleep", "1000"]) as stale:
        try:
            assert clean._shut_down(Process(stale.pid, ("sleep", "1000"), "sleep", ""))
            assert not asked
        finally:
            stale.kill()


def test_number_of_a_launcher_that_means_another_process_now_is_left_alone():
    with subprocess.Popen(["sleep", "1000"]) as innocent:
        try:
            assert clean._shut_down(Process(innocent.pid, ("skerry-spawn",), "skerry-spawn", ""))
            assert innocent.poll() is None
        finally:
            innocent.kill()
