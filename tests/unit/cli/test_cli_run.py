"""`skerry run`, `exec`, `shell`: which sandbox is asked for, and what exit status comes back."""

from __future__ import annotations

import errno
import json

import pytest
from fake_client import ONE, FakeClient, info, invoke

from skerry.errors import OutcomeUnknown, Unavailable
from skerry.spec.command import RunResult
from skerry.wire.http import StreamEvent


def test_run_shows_both_streams_apart_and_removes_the_sandbox() -> None:
    client = FakeClient()
    client.events = [StreamEvent(stdout=b"out\n"), StreamEvent(stderr=b"err\n")]
    result = invoke(client, "run", "default", "--", "echo", "-n", "out")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "out\n", "err\n")
    assert client.commands[0][1] == ["echo", "-n", "out"]
    assert client.created[0]["image"] == "debian:12"
    assert client.created[0]["detached"] is False
    assert client.destroyed == [ONE]
    assert client.closed == 1


@pytest.mark.parametrize(
    ("ended", "status"),
    [
        (RunResult(exit_code=3), 3),
        (RunResult(signal=9), 137),
        (RunResult(signal=15), 143),
        (RunResult(signal=9, timed_out=True, started=1.0, ended=3.0), 124),
        (RunResult(signal=9, oom_killed=True), 137),
        (RunResult(start_error="exec: No such file: x", start_errno=errno.ENOENT), 127),
        (RunResult(start_error="exec: Permission denied: x", start_errno=errno.EACCES), 126),
        (RunResult(start_error="cwd: No such file: /x", start_errno=errno.ENOENT), 126),
    ],
)
def test_run_ends_with_the_status_that_a_shell_would_give(ended: RunResult, status: int) -> None:
    client = FakeClient()
    client.result = ended
    assert invoke(client, "run", "default", "--", "x").exit_code == status
    assert client.destroyed == [ONE]


def test_run_passes_what_the_sandbox_is_made_of() -> None:
    client = FakeClient()
    result = invoke(
        client, "run", "debian:13", "--cpu", "2", "--memory", "64MiB", "--pids", "9", "--disk", "1GiB",
        "--layer", "workspace/a", "--layer", "toolkit/b", "-e", "A=1=2", "-u", "nobody", "-w", "/tmp",
        "--timeout", "2m", "--label", "job=7", "--wait", "5m", "--", "true",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    made = client.created[0]
    assert made["layers"] == ("workspace/a", "toolkit/b")
    assert (made["cpu"], made["memory"], made["pids"], made["disk"]) == (2.0, "64MiB", 9, "1GiB")
    assert (made["env"], made["user"], made["workdir"]) == ({"A": "1=2"}, "nobody", "/tmp")
    assert (made["labels"], made["wait"]) == ({"job": "7"}, 300.0)
    assert client.commands[0][2]["timeout"] == 120.0
    assert invoke(client, "run", "--wait", "0", "default", "true").exit_code == 0
    assert client.created[1]["wait"] == 0.0


def test_words_after_the_image_are_the_command_without_a_dash_dash() -> None:
    client = FakeClient()
    assert invoke(client, "run", "default", "ls", "-l", "--json").exit_code == 0
    assert client.commands[0][1] == ["ls", "-l", "--json"]


def test_restored_commit_takes_the_place_of_an_image() -> None:
    client = FakeClient()
    assert invoke(client, "run", "--restore", "workspace/x", "--", "ls", "-l").exit_code == 0
    assert client.created[0]["restore"] == "workspace/x"
    assert "image" not in client.created[0]
    assert client.commands[0][1] == ["ls", "-l"]
    assert invoke(client, "run", "--restore", "workspace/x", "true").exit_code == 0
    assert client.commands[1][1] == ["true"]
    assert invoke(client, "shell", "--restore", "workspace/x", "--image", "x").exit_code == 125
    assert invoke(client, "run", "default", "--", "true").exit_code == 0
    assert client.created[2]["image"] == "debian:12"


def test_an_option_where_the_command_should_be_is_explained() -> None:
    result = invoke(FakeClient(), "run", "default", "--cpu", "2", "ls")
    assert result.exit_code == 125
    assert "options come first" in result.stderr


def test_keep_makes_a_sandbox_that_stays_and_names_it_on_stderr() -> None:
    client = FakeClient()
    result = invoke(client, "run", "--keep", "default", "--", "true")
    assert client.created[0]["detached"] is True
    assert client.destroyed == []
    assert ONE in result.stderr
    assert result.stdout == ""


def test_standard_input_reaches_the_command_only_when_asked_for() -> None:
    client = FakeClient()
    result = invoke(client, "run", "-i", "default", "--", "cat", input=b"a\xff\nb")
    assert result.stdout_bytes == b"got a\xff\nb"
    assert client.live is not None
    assert client.live.ended
    other = FakeClient()
    invoke(other, "run", "default", "--", "cat", input=b"unread")
    assert other.live is None


def test_json_gives_one_object_and_keeps_the_status() -> None:
    client = FakeClient()
    client.result = RunResult(exit_code=4, stdout=b"\xff\x00", stderr=b"e")
    result = invoke(client, "run", "--json", "default", "--", "x")
    assert result.exit_code == 4
    body = json.loads(result.stdout)
    assert body["stdout_base64"] == "/wA="
    assert (body["stderr"], body["sandbox"], body["timed_out"]) == ("e", ONE, False)
    assert result.stderr == ""


def test_an_error_of_the_platform_is_125_and_the_sandbox_goes() -> None:
    client = FakeClient()
    client.failure = Unavailable("the launcher is gone")
    result = invoke(client, "run", "default", "--", "x")
    assert result.exit_code == 125
    assert result.stderr.startswith("skerry: the launcher is gone\n  ")
    assert client.destroyed == [ONE]


def test_an_error_with_json_is_one_object_on_stderr() -> None:
    client = FakeClient()
    client.failure = OutcomeUnknown("lost", instance="i")
    result = invoke(client, "--json", "run", "default", "--", "x")
    body = json.loads(result.stderr)
    assert (body["code"], body["fault"], body["fields"]) == (
        "outcome_unknown", "platform", {"instance": "i"},
    )  # fmt: skip
    assert "before you run it again" in body["hint"]
    assert result.stdout == ""


@pytest.mark.parametrize(
    "words",
    [
        ("run",),
        ("run", "default"),
        ("run", "default", "--timeout", "-1", "--", "x"),
        ("run", "default", "--timeout", "nan", "--", "x"),
        ("run", "default", "-e", "novalue", "--", "x"),
        ("exec", ONE),
        ("shell",),
        ("shell", ONE, "--image", "debian:12"),
    ],
)
def test_wrong_usage_of_what_carries_a_status_is_125_and_connects_to_nothing(
    words: tuple[str, ...],
) -> None:
    result = invoke(None, *words)
    assert result.exit_code == 125
    assert result.stderr.startswith("skerry: ")
    assert "Traceback" not in result.stderr


def test_a_terminal_and_json_do_not_go_together() -> None:
    result = invoke(None, "run", "-t", "--json", "default", "--", "x")
    assert result.exit_code == 125
    assert json.loads(result.stderr)["code"] == "invalid"


def test_exec_runs_in_the_live_sandbox_and_leaves_it() -> None:
    client = FakeClient()
    client.infos[ONE] = info(ONE)
    client.result = RunResult(exit_code=5)
    result = invoke(client, "exec", ONE, "-u", "7:7", "-w", "/tmp", "-e", "A=b", "--", "id")
    assert result.exit_code == 5
    sandbox_id, command, keywords = client.commands[0]
    assert (sandbox_id, command) == (ONE, ["id"])
    assert (keywords["user"], keywords["cwd"], keywords["env"]) == ("7:7", "/tmp", {"A": "b"})
    assert client.destroyed == []


def test_exec_in_a_session_makes_it_once_and_says_when_it_was_lost() -> None:
    client = FakeClient()
    client.infos[ONE] = info(ONE)
    client.result = RunResult(exit_code=3)
    result = invoke(client, "exec", "--session", "s", "-e", "A=b", ONE, "--", "cd /x && make")
    assert result.exit_code == 3
    assert client.commands[0][1:] == ("cd /x && make", {"session": "s", "timeout": None})
    assert client.sessions["s"].spec.env == {"A": "b"}
    client.result = RunResult(exit_code=0, session_reset=True)
    result = invoke(client, "exec", "--session", "s", ONE, "--", "echo", "a b")
    assert client.commands[1][1] == "echo 'a b'"
    assert "fresh one" in result.stderr
    assert invoke(client, "exec", "--session", "s", "-i", ONE, "--", "cat").exit_code == 125


def test_exec_in_a_sandbox_that_does_not_exist_says_where_to_look() -> None:
    result = invoke(FakeClient(), "exec", ONE, "--", "id")
    assert result.exit_code == 125
    assert "skerry ls -a" in result.stderr


def test_shell_asks_for_a_terminal_of_the_right_kind_and_removes_its_own_sandbox() -> None:
    client = FakeClient()
    client.result = RunResult(exit_code=2)
    result = invoke(client, "shell", "--image", "default", input=b"exit 2\n")
    assert result.exit_code == 2
    keywords = client.commands[0][2]
    assert (keywords["terminal"].rows, keywords["terminal"].cols) == (24, 80)
    assert keywords["env"] == {"TERM": "xterm-256color"}
    assert client.destroyed == [ONE]


def test_a_terminal_is_told_the_end_of_a_pipe_by_ctrl_d() -> None:
    client = FakeClient()
    result = invoke(client, "run", "-i", "-t", "default", "--", "cat", input="ls\n")
    assert "got ls\n\x04" in result.stdout
