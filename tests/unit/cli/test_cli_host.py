"""`skerry doctor`, `bench`, `up`: what they say of this machine and its checkout."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from fake_client import FakeClient, invoke

from skerry.cli import bench as bench_module
from skerry.cli import checks, holdings
from skerry.cli import doctor as doctor_module
from skerry.cli import up as up_module
from skerry.cli.app import App, Settings
from skerry.cli.checks import host_checks
from skerry.cli.clean import clean
from skerry.cli.features import FEATURES, feature_checks
from skerry.cli.findings import Check
from skerry.cli.holdings import Holdings, Thing
from skerry.cli.machine import Machine
from skerry.cli.up import logged_since, make_token
from skerry.errors import Conflict
from skerry.node import registry
from skerry.node.config import NodeConfig
from skerry.node.identity import claim
from skerry.wire.http import BlobsHealth, Health
from skerry.wire.workers import WorkerInfo

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
    monkeypatch.setattr(checks.proc, "text", lambda path: texts.get(path, ""))
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


@pytest.mark.parametrize(
    ("base", "words"),
    [
        (Check("base image", "note", "not asked: no node runs"), "First: skerry image build"),
        (Check("base image", "warning", "none"), "First: skerry image build base/debian:12"),
        (Check("base image", "ok", "base/mine:1"), "First: skerry image build base/debian:12"),
        (Check("base image", "ok", "base/debian:12, base/mine:1"), "Try: skerry run default"),
    ],
)
def test_doctor_ends_with_what_works_now(base: Check, words: str) -> None:
    assert doctor_module.first_step([Check("a", "ok", "fine"), base]).startswith(words)


def test_doctor_of_a_remote_node_asks_the_node_only() -> None:
    result = invoke(FakeClient(), "--url", "http://n:1", "doctor")
    assert result.exit_code == 0
    assert "abcde" in result.stdout


def test_node_is_known_by_its_command_line() -> None:
    words = ["python3", "-m", "skerry.cli.main", "--state", "/s", "node", "--embedded"]
    assert holdings._is_node(words)
    assert holdings._is_node(["python3", "/usr/bin/skerry", "node"])
    assert not holdings._is_node(["python3", "node.py"])
    assert not holdings._is_node(["bash", "-c", "skerry node"])


def test_what_waits_for_its_node_is_no_orphan() -> None:
    things = [Thing("control groups", "/a", "aaaaa"), Thing("control groups", "/b", "bbbbb"),
              Thing("control groups", "/c", "ccccc"), Thing("loop device", "/dev/loop1")]  # fmt: skip
    found = Holdings(things, running={"aaaaa"}, waiting={"bbbbb"})
    assert [thing.node for thing in found.orphans] == ["ccccc"]
    for node in ("aaaaa", "bbbbb", ""):
        assert "not an orphan" in clean(found, node, "/nonexistent")[0]


def test_registry_tells_a_node_that_may_come_back(tmp_path: Path) -> None:
    config = NodeConfig(state_dir=f"{tmp_path}/s", run_dir=f"{tmp_path}/r", store_dir="/x")
    (tmp_path / "s").mkdir()
    (tmp_path / "s/name").write_text("abcde\n")
    nodes = str(tmp_path / "nodes")
    registry.enter(nodes, "abcde", config)
    entry = registry.read_all(nodes)["abcde"]
    assert entry.adoptable("abcde")
    assert not entry.adoptable("fghij")
    (tmp_path / "nodes/odd name").write_text("{}")
    (tmp_path / "nodes/fghij").write_text("no json")
    assert set(registry.read_all(nodes)) == {"abcde"}
    registry.leave(nodes, "abcde")
    registry.leave(nodes, "abcde")
    assert registry.read_all(nodes) == {}


def test_two_running_nodes_may_not_have_one_name(tmp_path: Path) -> None:
    """They would use the same control groups, and each would clear away the other's."""
    nodes = str(tmp_path / "nodes")
    one = NodeConfig(state_dir=f"{tmp_path}/1", run_dir=f"{tmp_path}/r", store_dir="/x")
    two = NodeConfig(state_dir=f"{tmp_path}/2", run_dir=f"{tmp_path}/r", store_dir="/x")
    identity = claim(one.state_dir, "/s")
    registry.enter(nodes, identity.name, one)
    with pytest.raises(Conflict, match="another node with the name"):
        registry.enter(nodes, identity.name, two)
    registry.enter(nodes, identity.name, one)  # itself, again
    identity.release()
    registry.enter(nodes, identity.name, two)  # the other has ended


def machine(
    texts: dict[str, str], *, release: tuple[int, int] = (6, 18), calls: int = 0
) -> Machine:
    """A machine that consists of these files."""

    class Played(Machine):
        def text(self, path: str) -> str:
            return texts.get(path, "")

        def exists(self, path: str) -> bool:
            return any(name == path or name.startswith(f"{path}/") for name in texts)

        def names(self, path: str) -> list[str]:
            below = (name[len(path) + 1 :] for name in texts if name.startswith(f"{path}/"))
            return sorted({name.partition("/")[0] for name in below})

        def release(self) -> tuple[int, int]:
            return release

        def option(self, name: str) -> str | None:
            return texts.get(f"CONFIG_{name}")

        def call(self, number: int, *arguments: int) -> int:
            return calls

        def opens(self, path: str) -> str:
            return "" if path in texts else "No such file or directory"

    return Played()


def test_every_feature_has_a_finding_a_consequence_and_a_remedy() -> None:
    names = [feature.name for feature in FEATURES]
    assert len(set(names)) == len(names)
    assert all(feature.consequence and feature.remedy for feature in FEATURES)
    for check in feature_checks():  # of this machine
        assert check.status in ("ok", "note", "warning")
        assert check.found, check.name
        assert check.status == "ok" or (check.consequence and check.remedy), check.name


def test_doctor_says_everything_once(tmp_path: Path) -> None:
    checks = host_checks(str(tmp_path), str(tmp_path)) + feature_checks()
    names = [check.name for check in checks]
    assert len(set(names)) == len(names)
    for word in ("swap", "core scheduling"):
        assert sum(word in f"{check.name} {check.found}" for check in checks) == 1, word


def test_features_of_a_bare_machine_are_missed_and_of_a_full_one_are_found() -> None:
    bare = {check.name: check for check in feature_checks(machine({}, release=(5, 0), calls=38))}
    assert not [name for name, check in bare.items() if check.status == "ok"]
    assert bare["seccomp"].status == bare["groups: memory"].status == "warning"
    assert bare["kvm"].status == bare["zram"].status == "note"  # nothing depends on these yet
    mount = "30 1 0:1 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw"
    group = "/sys/fs/cgroup/some.slice"
    files = ("cgroup.procs", "memory.max", "memory.reclaim", "pids.max", "cpu.max", "cpu.idle",
             "cpu.max.burst", "io.max", "cgroup.kill", "cgroup.freeze", "memory.pressure")  # fmt: skip
    texts = {f"{group}/{name}": "x" for name in files} | {
        "/proc/self/mountinfo": mount,
        "/proc/pressure/memory": "some",
        "/proc/filesystems": "nodev fuse",
        "/dev/fuse": "", "/dev/kvm": "", "/dev/loop-control": "", "/sys/block/zram0": "",
        "/sys/fs/btrfs/features/simple_quota": "",
        "/proc/sys/kernel/seccomp/actions_avail": "kill errno allow",
        "CONFIG_EROFS_FS_BACKED_BY_FILE": "y", "CONFIG_EROFS_FS_ZIP_ZSTD": "y",
    }  # fmt: skip
    limits = ("user/max_net_namespaces", "fs/inotify/max_user_instances", "kernel/threads-max",
              "fs/inotify/max_user_watches", "kernel/keys/maxkeys", "fs/file-max")  # fmt: skip
    texts |= {f"/proc/sys/{name}": "99999999" for name in limits}
    full = feature_checks(machine(texts, calls=9))
    assert [check.name for check in full if check.status != "ok"] == []


def test_limit_that_is_low_is_told_with_its_value() -> None:
    texts = {"/proc/sys/user/max_net_namespaces": "100"}
    found = {check.name: check for check in feature_checks(machine(texts))}
    assert found["network namespaces"].status == "warning"
    assert "100" in found["network namespaces"].found


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


def test_up_refuses_what_cannot_be_meant_before_it_starts_anything(tmp_path: Path) -> None:
    refused = invoke(FakeClient(), "up", "--destroy")
    assert refused.exit_code == 125
    assert "--destroy goes with --stop" in refused.stderr


def test_up_uses_the_directories_that_its_file_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "node.toml"
    config.write_text(
        f'state_dir = "{tmp_path}/s"\nrun_dir = "{tmp_path}/r"\ntcp = "127.0.0.1:1"\n'
    )
    started: list[Settings] = []

    async def start(app: App, *_: object) -> Health:
        started.append(app.settings)
        return Health(node="abcde", version="0", epoch=1, pid=1, sandboxes=0, uptime_s=0.0)

    monkeypatch.setattr(up_module, "start_node", start)
    monkeypatch.setattr(up_module.os, "geteuid", lambda: 0)
    shown = invoke(None, "up", "--config", str(config)).stdout
    assert (started[-1].state, started[-1].run) == (f"{tmp_path}/s", f"{tmp_path}/r")
    assert f"--state {tmp_path}/s --run {tmp_path}/r up --stop" in shown
    assert "SKERRY_URL=http://127.0.0.1:1" in shown
    invoke(None, "--state", f"{tmp_path}/other", "up", "--config", str(config))
    assert (started[-1].state, started[-1].run) == (f"{tmp_path}/other", f"{tmp_path}/r")
    stopped = invoke(None, "up", "--stop", "--config", str(config))
    assert f"no node answers at {tmp_path}/r/node.sock" in stopped.stderr


def test_a_node_that_did_not_start_is_told_by_its_own_lines(tmp_path: Path) -> None:
    log = tmp_path / "node.log"
    log.write_text("a node of before\n")
    before = log.stat().st_size
    with log.open("a") as file:
        file.write("the reason\n")
    assert logged_since(log, before) == "the reason"
    log.write_text("turned over\n")
    assert logged_since(log, 1000) == "turned over"


def test_the_guide_names_every_command_and_every_key_of_the_configuration() -> None:
    import dataclasses

    from skerry.cli.main import COMMANDS
    from skerry.node.config import Limits, NodeConfig

    text = DOC.read_text()
    for name in COMMANDS:
        assert f"`skerry {name}" in text, name
    for item in (*dataclasses.fields(NodeConfig), *dataclasses.fields(Limits)):
        assert f"`{item.name}`" in text, item.name


@pytest.mark.parametrize(
    ("change", "status", "words"),
    [
        ({}, "ok", "3 hits, 2 misses, 0 verify failures"),
        ({"serving": False}, "warning", "not served now"),
        ({"store_failing": True}, "warning", "the layer store does not answer"),
        ({"verify_failures": 1}, "warning", "1 verify failures, 0 reads failed"),
        ({"faults": 4}, "warning", "4 reads failed"),
    ],
    ids=["fine", "down", "store", "wrong", "failed"],
)
def test_doctor_says_how_layers_are_read_on_demand(change: dict, status: str, words: str) -> None:
    blobs = BlobsHealth(**({"pid": 7, "serving": True, "hits": 3, "misses": 2} | change))
    check = doctor_module.blobs_check(blobs)
    assert check.status == status
    assert words in check.found


@pytest.mark.parametrize(
    ("states", "status", "words"),
    [
        ([("unused", 0, "")], None, ""),
        ([("ready", 7, ""), ("unused", 0, "")], "ok", "1 of 2 run (pid 7)"),
        ([("ready", 7, ""), ("starting", 0, "it ends with 1")], "warning", "worker 1 does not run"),
    ],
)
def test_doctor_tells_of_workers_that_were_used(states, status, words) -> None:
    workers = [
        WorkerInfo(worker=number, state=state, pid=pid, problem=problem)
        for number, (state, pid, problem) in enumerate(states)
    ]
    checks = doctor_module.workers_check(workers)
    assert [check.status for check in checks] == ([] if status is None else [status])
    assert all(words in check.found for check in checks)
