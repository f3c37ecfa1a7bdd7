"""`skerry ls`, `inspect`, `rm`, `logs`, `cp`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fake_client import ONE, TWO, FakeClient, info, invoke

from skerry.cli.copy import place
from skerry.spec.command import RunResult
from skerry.spec.sandbox import State
from skerry.wire.http import OpStatus


def two() -> FakeClient:
    client = FakeClient()
    client.infos = {ONE: info(ONE, labels={"job": "7"}), TWO: info(TWO, State.FAILED)}
    return client


def test_ls_shows_live_ones_and_with_all_the_ended_too() -> None:
    assert TWO not in invoke(two(), "ls").stdout
    shown = invoke(two(), "ls", "-a").stdout
    assert ONE in shown
    assert "failed" in shown
    assert "job=7" in shown


def test_ls_shows_names_without_the_digests_that_pin_them() -> None:
    client, digest = FakeClient(), "@sha256:" + "5" * 64
    pinned = {"image": "base/debian:12" + digest, "layers": ("workspace/a:1" + digest,)}
    client.infos = {ONE: info(ONE, **pinned)}
    assert " base/debian:12 + workspace/a:1 " in invoke(client, "ls").stdout
    assert digest in invoke(client, "ls", "--json").stdout


def test_ls_json_gives_one_complete_object_a_line() -> None:
    lines = invoke(two(), "ls", "-a", "--json").stdout.splitlines()
    assert [json.loads(line)["id"] for line in lines] == [ONE, TWO]
    assert json.loads(lines[0])["spec"]["memory_bytes"] == 1 << 30  # defaults are not left out


def test_ls_filters_on_the_node() -> None:
    client = two()
    invoke(client, "ls", "--label", "job=7", "--state", "failed")
    assert client.calls[-1] == ("list", {"state": "failed", "labels": {"job": "7"}, "job": None})


def test_ls_of_nothing_says_so_to_people_only() -> None:
    result = invoke(FakeClient(), "ls")
    assert (result.stdout, "no live sandboxes" in result.stderr) == ("", True)
    assert invoke(FakeClient(), "ls", "--json").output == ""


def test_inspect_shows_usage_of_a_live_sandbox() -> None:
    result = invoke(two(), "inspect", ONE)
    assert "1.50 s CPU" in result.stdout
    assert "None" not in result.stdout
    lines = invoke(two(), "inspect", "--json", ONE, TWO).stdout.splitlines()
    assert [json.loads(line)["usage"] is None for line in lines] == [False, True]


def test_rm_destroys_what_was_named() -> None:
    client = two()
    result = invoke(client, "rm", ONE, ONE, TWO)
    assert client.destroyed == [ONE, TWO]
    assert result.stdout.split() == [ONE, TWO]


def test_rm_of_an_unknown_id_destroys_nothing() -> None:
    client = two()
    result = invoke(client, "rm", ONE, "s" + "c" * 20)
    assert result.exit_code == 125
    assert client.destroyed == []


@pytest.mark.parametrize("words", [(), ("--all", ONE), ("--all", "--label", "a=b")])
def test_rm_wants_exactly_one_way_of_naming(words: tuple[str, ...]) -> None:
    assert invoke(None, "rm", *words).exit_code == 125


def test_rm_all_destroys_all() -> None:
    client = two()
    assert invoke(client, "rm", "--all").exit_code == 0
    assert client.destroyed == [ONE, TWO]


def with_operations() -> FakeClient:
    client = two()
    done = RunResult(exit_code=1, stdout=b"out\n", stderr=b"err\n", started=1.0, ended=2.5)
    client.operations = {
        "a" * 32: OpStatus(op_id="a" * 32, state="done", command="make test", result=done),
        "b" * 32: OpStatus(op_id="b" * 32, state="running", command="sleep 9"),
    }
    return client


def test_logs_lists_commands_with_outcome_and_output() -> None:
    shown = invoke(with_operations(), "logs", ONE)
    assert "exit 1, 1.50 s" in shown.stdout
    assert "make test" in shown.stdout
    assert "out\n" in shown.stdout
    assert "running" in shown.stdout


def test_logs_of_one_command_gives_its_streams_as_they_were() -> None:
    shown = invoke(with_operations(), "logs", ONE, "aaaa")
    assert (shown.stdout, shown.stderr) == ("out\n", "err\n")


def test_logs_of_an_unknown_or_ambiguous_command_is_refused() -> None:
    assert invoke(with_operations(), "logs", ONE, "c").exit_code == 125
    client = with_operations()
    client.operations["ab" * 16] = OpStatus(op_id="ab" * 16, state="running")
    assert "begins 2 operations" in invoke(client, "logs", ONE, "a").stderr


def test_a_place_is_remote_only_with_a_sandbox_id() -> None:
    assert place(f"{ONE}:/a:b") == place(f"{ONE}:/a:b")
    assert place(f"{ONE}:/a:b").sandbox == ONE
    assert place(f"{ONE}:/a:b").path == "/a:b"
    assert place(f"{ONE[:12]}:/a").sandbox == ONE[:12]
    assert place("host:/a").sandbox is None
    assert place(f"{ONE}:").path == "."
    assert place("-").stream


@pytest.mark.parametrize("sides", [("a", "b"), (f"{ONE}:a", f"{TWO}:b"), ("-", "-")])
def test_cp_wants_exactly_one_side_inside(sides: tuple[str, str]) -> None:
    assert invoke(None, "cp", *sides).exit_code == 125


@pytest.mark.parametrize("words", [("cp", f"{ONE[:6]}:/a", "b"), ("watch", f"{ONE[:6]}:/a")])
def test_an_id_that_is_too_short_before_a_path_is_told_so(words: tuple[str, ...]) -> None:
    assert "ten characters or more" in invoke(None, *words).stderr


def test_cp_of_a_file_goes_into_a_directory_or_to_a_name(tmp_path: Path) -> None:
    source = tmp_path / "f.txt"
    source.write_text("hello")
    client = two()
    client.files.content["/srv/"] = b""
    invoke(client, "cp", str(source), f"{ONE}:/srv")
    invoke(client, "cp", str(source), f"{ONE}:/new")
    invoke(client, "cp", str(source), f"{ONE}:/other/")
    uploads = [call[2] for call in client.files.calls if call[0] == "upload"]
    assert uploads == ["/srv/f.txt", "/new", "/other/f.txt"]


def test_cp_of_a_tree_keeps_its_name_unless_its_content_is_meant(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    client = two()
    client.files.content["/srv/"] = b""
    invoke(client, "cp", str(tree), f"{ONE}:/srv")
    invoke(client, "cp", f"{tree}/.", f"{ONE}:/srv")
    invoke(client, "cp", str(tree), f"{ONE}:/new")
    uploads = [call[2] for call in client.files.calls if call[0] == "upload"]
    assert uploads == ["/srv/tree", "/srv", "/new"]


def test_cp_out_of_a_tree_goes_into_a_directory_that_exists(tmp_path: Path) -> None:
    client = two()
    client.files.content["/srv/"] = b""
    invoke(client, "cp", f"{ONE}:/srv", str(tmp_path))
    invoke(client, "cp", f"{ONE}:/srv", str(tmp_path / "new"))
    assert [call[2] for call in client.files.calls] == [
        str(tmp_path / "srv"),
        str(tmp_path / "new"),
    ]


def test_cp_speaks_to_standard_streams() -> None:
    client = two()
    client.files.content = {"/f": b"\x00\xff", "/d/": b""}
    assert invoke(client, "cp", f"{ONE}:/f", "-").stdout_bytes == b"\x00\xff"
    assert invoke(client, "cp", f"{ONE}:/d", "-").stdout_bytes == b"a tar"
    invoke(client, "cp", "-", f"{ONE}:/new", input=b"\x01\x02")
    assert client.files.content["/new"] == b"\x01\x02"
    invoke(client, "cp", "-", f"{ONE}:/d/", input=b"tar bytes")
    assert client.files.calls[-1] == ("put_tree", "/d/", b"tar bytes")


def test_cp_of_a_missing_local_file_sends_nothing(tmp_path: Path) -> None:
    client = two()
    result = invoke(client, "cp", str(tmp_path / "none"), f"{ONE}:/x")
    assert result.exit_code == 125
    assert client.files.calls == []


def test_cp_json_counts_bytes(tmp_path: Path) -> None:
    source = tmp_path / "f"
    source.write_text("hello")
    result = invoke(two(), "cp", "--json", str(source), f"{ONE}:/x")
    assert json.loads(result.stdout)["bytes"] == 5


def test_watch_tells_a_line_an_event() -> None:
    done = invoke(two(), "watch", "-r", f"{ONE}:/srv")
    assert done.exit_code == 0
    assert done.stdout.splitlines() == ["moved      /srv/b\\n  from /srv/a", "overflow   /srv"]
    assert invoke(two(), "watch", "/here").exit_code == 125


def test_cp_says_what_was_left_out(tmp_path: Path) -> None:
    client = two()
    client.files.content["/srv/f"] = b"x"
    done = invoke(client, "cp", f"{ONE}:/srv/f", str(tmp_path / "f"))
    assert done.exit_code == 0
    assert "skipped a\\npipe (a FIFO)" in done.stderr
