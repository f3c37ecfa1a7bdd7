"""`skerry ps`, `attach`, `kill`, `exec -d`, `logs -f`: commands in the background."""

from __future__ import annotations

import json

import pytest
from fake_client import ONE, FakeClient, info, invoke

from skerry.cli.ops import signal_number
from skerry.cli.terminal import DetachKeys
from skerry.errors import Conflict, InvalidRequest
from skerry.spec.command import RunResult
from skerry.wire.http import OpStatus, StreamEvent

RUNS, ENDED = "ab" + "0" * 30, "cd" + "0" * 30


@pytest.fixture
def client() -> FakeClient:
    made = FakeClient()
    made.infos[ONE] = info(ONE)
    made.operations = {
        RUNS: OpStatus(
            op_id=RUNS, state="running", command="vim x", terminal=True, interactive=True,
            holder="ann@host", stdout_total=2048,
        ),
        ENDED: OpStatus(op_id=ENDED, state="done", command="make", result=RunResult(exit_code=1)),
    }  # fmt: skip
    return made


def test_ps_lists_what_runs_and_with_a_what_has_ended(client: FakeClient) -> None:
    listed = invoke(client, "ps", ONE).stdout
    assert "vim x" in listed
    assert "ann@host" in listed
    assert "2 KiB" in listed
    assert "make" not in listed
    assert "make" in invoke(client, "ps", "-a", ONE).stdout
    lines = invoke(client, "ps", ONE, "--json").stdout.splitlines()
    assert [json.loads(line)["op_id"] for line in lines] == [RUNS]


def test_kill_ends_it_and_waits_or_sends_a_signal(client: FakeClient) -> None:
    assert invoke(client, "kill", ONE, "ab").exit_code == 0
    assert invoke(client, "kill", "-s", "hup", ONE, "ab").exit_code == 0
    calls = [call for call in client.calls if call[0] != "connect"]
    assert calls == [("kill", RUNS), ("wait", RUNS), ("signal", RUNS, 1)]
    wrong = invoke(client, "kill", ONE, "ff")
    assert wrong.exit_code == 125 or "is no operation" in wrong.stderr


@pytest.mark.parametrize(
    ("name", "number"), [("TERM", 15), ("sigterm", 15), ("9", 9), ("64", 64), ("winch", 28)]
)
def test_signals_are_known_by_name_and_number(name: str, number: int) -> None:
    assert signal_number(name) == number


@pytest.mark.parametrize("name", ["0", "65", "TREM", "", "-9"])
def test_what_is_no_signal_is_refused(name: str) -> None:
    with pytest.raises(InvalidRequest):
        signal_number(name)


def test_exec_in_the_background_prints_the_id(client: FakeClient) -> None:
    done = invoke(client, "exec", "-d", "--no-output-timeout", "5m", ONE, "--", "make", "-j2")
    assert (done.exit_code, done.stdout) == (0, "c" * 32 + "\n")
    sandbox, argv, keywords = client.commands[0]
    assert (sandbox, argv, keywords["interactive"]) == (ONE, ["make", "-j2"], False)
    assert keywords["no_output_timeout"] == 300.0
    client.result = RunResult(start_error="exec: No such file: x", start_errno=2)
    assert invoke(client, "exec", "-d", ONE, "--", "x").exit_code == 127


def test_attach_joins_and_ends_with_the_commands_status(client: FakeClient) -> None:
    client.result = RunResult(exit_code=7)
    done = invoke(client, "attach", ONE, "ab", "--takeover", input="typed")
    assert (done.exit_code, done.stdout) == (7, "got typed\x04")
    (call,) = [call for call in client.calls if call[0] == "attach"]
    assert (call[1], call[2]["takeover"], call[2]["watch"]) == (RUNS, True, False)
    assert call[2]["who"]


def test_attach_that_was_left_says_how_to_come_back(client: FakeClient) -> None:
    done = invoke(client, "attach", ONE, "ab", input=b"hi\x1dd not sent")
    assert done.exit_code == 0
    assert f"skerry attach {ONE} {RUNS[:12]}" in done.stderr
    assert client.live is not None
    assert client.live.sent == b"hi"


def test_attach_to_a_held_terminal_is_refused_with_the_holders_name(client: FakeClient) -> None:
    client.failure = Conflict("ann@host holds the terminal", holder="ann@host")
    done = invoke(client, "attach", ONE, "ab")
    assert done.exit_code == 125
    assert "ann@host" in done.stderr


def test_attach_that_is_taken_over_ends_quietly(client: FakeClient) -> None:
    client.failure = Conflict("the terminal was taken over by bob", by="bob")
    done = invoke(client, "exec", "-it", ONE, "--", "sh")
    assert done.exit_code == 125  # told at the very beginning: nothing was joined


def test_logs_of_a_running_command_are_shown_live_and_slow_nobody(client: FakeClient) -> None:
    client.events = [StreamEvent(stdout=b"now\n", at=0), StreamEvent(stderr=b"err\n", at=0)]
    done = invoke(client, "logs", "-f", ONE, "ab")
    assert (done.stdout, done.stderr) == ("now\n", "err\n")
    assert ("output", RUNS, {"pace": False}) in client.calls


# --- keys


def test_detach_keys_are_found_over_pieces_and_a_beginning_is_passed_on() -> None:
    keys = DetachKeys("ctrl-p,ctrl-q")
    assert keys.passed(b"abc\x10") == b"abc"
    assert keys.passed(b"d") == b"\x10d"  # it was no beginning after all
    assert keys.passed(b"\x10\x10") == b"\x10"
    assert not keys.seen.is_set()
    assert keys.passed(b"\x11rest") == b""
    assert keys.seen.is_set()
    assert keys.passed(b"more") == b""


@pytest.mark.parametrize("text", ["", "ctrl-", "ctrl-pq", "enter", "ctrl-1", "\u00e9"])
def test_keys_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(InvalidRequest):
        DetachKeys(text)
