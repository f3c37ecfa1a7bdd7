"""The census tells what is new, and whose."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import msgspec
import pytest

from skerry.node import registry
from skerry.testing import census
from skerry.testing.census import Process, compare, descriptors, take


def new_lines(before, places=()):
    return compare(before, take(pids_of_interest=(os.getpid(),), places=places))


def test_nothing_happened_is_told_as_nothing_of_ours(tmp_path):
    before = take(pids_of_interest=(os.getpid(),), places=(str(tmp_path),))
    assert not [line for line in new_lines(before, (str(tmp_path),)) if str(tmp_path) in line]


def test_left_file_socket_and_descriptor_are_named(tmp_path):
    before = take(pids_of_interest=(os.getpid(),), places=(str(tmp_path),))
    left = socket.socket(socket.AF_UNIX)
    left.bind(str(tmp_path / "left.sock"))
    lines = new_lines(before, (str(tmp_path),))
    left.close()
    assert f"unix socket was not there before: {tmp_path}/left.sock" in lines
    assert f"file was not there before: {tmp_path}/left.sock" in lines
    assert any("open descriptors of socket" in line for line in lines)


def test_left_process_is_named_with_its_command():
    before = take()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        lines = new_lines(before)
        child.communicate(b"\n")
    assert any(f"process {child.pid} " in line and "input()" in line for line in lines)


def test_daemon_of_another_run_is_told_by_its_environment(tmp_path):
    """It has no parent, no argument that is told and no group."""
    program = "import os, time\nif os.fork(): os._exit(0)\nprint(os.getpid(), flush=True)\ninput()"
    for run, foreign in (("another", True), (os.environ[census.RUN], False)):
        with subprocess.Popen(
            [sys.executable, "-c", program, "skerry"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={census.RUN: run},
        ) as child:  # fmt: skip
            pid = int(child.stdout.readline())
            strangers, _ = census._foreign(census._processes(), (str(tmp_path),))
            child.stdin.close()
        assert (pid in strangers) == foreign


def test_left_memory_file_is_named():
    before = take()
    handle = os.memfd_create("left-behind")
    lines = new_lines(before)
    os.close(handle)
    assert any("memfd:left-behind" in line for line in lines)


def test_descriptors_are_counted_by_kind():
    reader, writer = os.pipe()
    counts = descriptors(os.getpid())
    os.close(reader)
    os.close(writer)
    assert counts["pipe"] >= 2


@pytest.fixture(autouse=True)
def no_nodes(monkeypatch):
    """Nodes that run on this machine are no part of these tables."""
    monkeypatch.setattr(registry, "read_all", dict)


def test_another_skerry_is_told_from_ours_by_its_arguments():
    def spawn(pid, run):
        command = f"/x/skerry-spawn --run {run} --state {run}/s --init /x/skerry-init"
        return Process(pid, 1, 1, command)

    table = {
        (p.pid, p.start): p
        for p in (
            spawn(2**22 + 1, "/run/ours"),
            spawn(2**22 + 2, "/run/other"),
            # as they are: below the run directory of a node that has died
            spawn(2**22 + 3, "/run/ours/container"),
            spawn(2**22 + 4, "/run/ours-too/container"),
        )
    }
    strangers, prefixes = census._foreign(table, ("/run/ours",))
    assert strangers == {2**22 + 2, 2**22 + 4}
    assert "/run/other" in prefixes
    assert census._foreign(table, ()) == (set(), set())


def test_blobs_process_is_of_the_node_whose_socket_it_has():
    def serve(pid, run):
        command = f"python -I -m skerry.images.lazy.main 16 18 --socket {run}/blobs.sock"
        return Process(pid, 1, 1, command)

    table = {(p.pid, p.start): p for p in (serve(2**22 + 1, "/run/a"), serve(2**22 + 2, "/run/b"))}
    strangers, prefixes = census._foreign(table, ("/run/a",))
    assert strangers == {2**22 + 2}
    assert prefixes >= {"/run/b/blobs.sock"}
    assert "/run/a/blobs.sock" not in prefixes


def test_another_run_of_tests_is_told_by_where_it_keeps_its_files():
    def run(pid, parent, command):
        return Process(pid, 1, parent, command)

    here = os.getpid()
    table = {
        (p.pid, p.start): p
        for p in (
            run(here, 2**22 + 1, "python -c exec(...)"),
            run(2**22 + 1, 1, "python -m pytest --basetemp=/var/tmp/ours tests"),
            run(2**22 + 2, 1, "python -m pytest -q --basetemp=/var/tmp/theirs/ tests"),
            run(2**22 + 3, 2**22 + 2, "python -m skerry.images.disks.packing"),
        )
    }
    strangers, prefixes = census._foreign(table, ("/run/ours",))
    assert strangers == {2**22 + 2, 2**22 + 3}
    assert prefixes == {"/var/tmp/theirs"}


def test_agent_without_a_launcher_is_of_the_node_whose_group_it_is_in(monkeypatch):
    nodes = {
        "other": registry.Entry("/var/tmp/other", "/run/other", 2**22 + 9),
        "ours": registry.Entry("/var/tmp/ours", "/run/ours", 2**22 + 8),
    }
    monkeypatch.setattr(registry, "read_all", lambda: nodes)
    groups = {2**22 + 1: "0::/skerry-other/s1/agent\n", 2**22 + 2: "0::/skerry-ours/s1/agent\n"}
    monkeypatch.setattr(
        census.proc, "text", lambda path: groups.get(int(path.split("/")[2]), "") or "0::/\n"
    )
    table = {(pid, 1): Process(pid, 1, 1, "skerry-init") for pid in groups}
    strangers, prefixes = census._foreign(table, ("/var/tmp/ours", "/run/ours"))
    assert strangers == {2**22 + 1}
    assert prefixes == {"/skerry-other", "/skerry-other-idle", "/var/tmp/other", "/run/other"}


def test_another_skerry_hides_only_what_lies_below_its_places():
    before = census.take()
    sockets = frozenset({"/run/other/node.sock", "/run/other-1/node.sock"})
    after = msgspec.structs.replace(
        before, sockets=before.sockets | sockets, foreign=frozenset({"/run/other"})
    )
    lines = census.compare(before, after)
    assert lines == ["unix socket was not there before: /run/other-1/node.sock"]


class Host:
    """A host whose looks are laid out: the files that each one sees; the last one for ever."""

    def __init__(self, monkeypatch, *looks: set[str], look_s: float = 0.0) -> None:
        self.now, self.looks, self._look_s = 0.0, 0, look_s
        self._files = [set(), *looks]
        self._empty = take()
        monkeypatch.setattr(census, "take", self._take)
        monkeypatch.setattr(census.time, "monotonic", lambda: self.now)
        monkeypatch.setattr(census.time, "sleep", self._sleep)

    def _take(self, **_: object) -> census.Census:
        files = self._files[min(self.looks, len(self._files) - 1)]
        self.looks += 1
        self.now += self._look_s
        return msgspec.structs.replace(self._empty, files=frozenset(files))

    def _sleep(self, seconds: float) -> None:
        self.now += seconds


def test_what_ends_while_a_look_is_taken_is_not_left_however_long_that_took(monkeypatch):
    host = Host(monkeypatch, {"/ends"}, set(), look_s=3 * census.SETTLE_S)
    assert census.Watch().left() == []
    assert host.looks == 3


def test_what_stays_is_left_though_others_come_and_go(monkeypatch):
    comings = [{"/stays", f"/{number}"} for number in range(10_000)]
    host = Host(monkeypatch, *comings, look_s=1.0)
    assert census.Watch().left() == ["file was not there before: /stays"]
    assert host.now > census.PATIENCE_S


def test_what_stays_is_told_soon_if_nothing_else_moves(monkeypatch):
    host = Host(monkeypatch, {"/stays"}, look_s=1.0)
    assert census.Watch().left() == ["file was not there before: /stays"]
    assert host.now < 3 * census.SETTLE_S


def test_what_is_made_anew_again_and_again_is_left(monkeypatch):
    Host(monkeypatch, *({f"/{number}"} for number in range(10_000)), look_s=1.0)
    assert len(census.Watch().left()) == 1


def test_descriptors_whose_count_moves_have_stood_all_the_same(monkeypatch):
    host = Host(monkeypatch, set())
    counts = iter(range(4, 10_000))

    def take_(**_: object) -> census.Census:
        host.now += 1.0
        held = {} if host.now <= 1.0 else {7: {"socket": next(counts)}}
        return msgspec.structs.replace(host._empty, descriptors=held)

    monkeypatch.setattr(census, "take", take_)
    (line,) = census.Watch().left()
    assert "open descriptors of socket" in line
    assert host.now < census.PATIENCE_S


def test_without_time_to_settle_the_first_look_counts(monkeypatch):
    host = Host(monkeypatch, {"/ends"}, set())
    assert census.Watch().left(0.0) == ["file was not there before: /ends"]
    assert host.looks == 2


def test_lines_of_others_are_not_waited_for(monkeypatch):
    host = Host(monkeypatch, {"/theirs/file"})
    assert census.Watch().left(others=("/theirs/",)) == []
    assert host.looks == 2
