"""The real `skerry-init`, release and sanitizer build: commands and their ends."""

from __future__ import annotations

import errno
import random
import signal
import struct
import tempfile
import time
from pathlib import Path

import pytest
from native_agent import (
    ACK,
    CANCEL,
    CANCELLED,
    CPU_US,
    DATA,
    END_NS,
    ERRNO,
    ERROR_STEP,
    EXIT_CODE,
    OOM,
    REAL,
    SIGNAL,
    SIGNO,
    START_NS,
    TIMED_OUT,
    WINDOW,
    Client,
    pack,
    shell,
    sleepers,
)
from native_sandbox import Sandbox

from waiting import soon

pytestmark = REAL


# --- commands


def test_true_ends_with_zero_and_times(client: Client) -> None:
    op = client.run("true")
    assert op.started
    assert op.done is not None
    assert op.done[EXIT_CODE] == 0
    assert op.done[END_NS] > op.done[START_NS] > 1_600_000_000_000_000_000
    assert op.done[CPU_US] > 0
    assert (op.done[TIMED_OUT], op.done[CANCELLED], op.done[OOM]) == (0, 0, 0)


def test_short_command_is_told_in_one_message(client: Client) -> None:
    # On a machine under load many take longer than the millisecond in which nothing is said.
    for _ in range(200):
        op = client.start("sh", "-c", "echo out; echo err >&2")
        client.step()
        while client.buffer:  # what came with the first frame
            client.step()
        at_once = op.done is not None
        client.wait(op)
        assert (op.started, op.stdout, op.stderr) == (True, b"out\n", b"err\n")
        if at_once:
            return
    pytest.fail("each came in pieces")


def test_output_is_separate_and_exact(client: Client) -> None:
    op = shell(client, r"printf 'a\r\n\0b\377'; printf 'no newline' >&2")
    assert op.stdout == b"a\r\n\0b\xff"
    assert op.stderr == b"no newline"


def test_arguments_and_environment_arrive_as_bytes(client: Client) -> None:
    op = client.run(
        "sh", "-c", 'printf "%s|" "$@" "$X" "$LANG"', "sh", b"\xff\xfe", "", "a b", env=["X=1=2"]
    )
    assert op.stdout == b"\xff\xfe||a b|1=2|C.UTF-8|"


def test_stdin_is_at_its_end_by_default(client: Client) -> None:
    assert client.run("cat", timeout_ms=5000).stdout == b""


def test_large_stdin_with_concurrent_output_does_not_deadlock(client: Client) -> None:
    data = random.Random(1).randbytes(5_000_000)
    assert client.run("cat", stdin_data=data).stdout == data


def test_stdin_of_a_program_that_does_not_read_is_reported_not_stuck(client: Client) -> None:
    op = client.start("sh", "-c", "exec <&-; sleep 0.3; echo ok", stdin=1)
    while not op.started:
        client.step()
    time.sleep(0.1)
    at = 0
    while op.done is None:
        if at < op.stdin_credit + WINDOW and at < 400_000:
            client.send(DATA, op.handle << 2 | 1, struct.pack("<Q", at) + bytes(32768))
            at += 32768
        else:
            client.step()
    assert at >= 400_000, "credit must come although nobody reads"
    assert [(e[ERROR_STEP], e[ERRNO]) for e in op.errors] == [("stdin", errno.EPIPE)]
    assert op.stdout == b"ok\n"
    client.send(ACK, op.handle << 2)


@pytest.mark.parametrize("code", [1, 7, 255])
def test_exit_code_is_reported(client: Client, code: int) -> None:
    assert shell(client, f"exit {code}").done[EXIT_CODE] == code  # type: ignore[index]


@pytest.mark.parametrize("name", ["KILL", "TERM", "SEGV", "PIPE"])
def test_death_by_signal_is_reported(client: Client, name: str) -> None:
    done = shell(client, f"kill -{name} $$").done
    assert done is not None
    assert done[SIGNO] == signal.Signals[f"SIG{name}"]
    assert EXIT_CODE not in done


@pytest.mark.parametrize(
    ("args", "options", "step", "number"),
    [
        (["no-such-program"], {}, "exec", errno.ENOENT),
        (["/etc/passwd"], {}, "exec", errno.EACCES),
        (["true"], {"cwd": "/no/such/dir"}, "cwd", errno.ENOENT),
        (["true"], {"cwd": "/etc/passwd"}, "cwd", errno.ENOTDIR),
        (["true"], {"cwd": "/root", "user": "1000:1000"}, "cwd", errno.EACCES),
        (["true"], {"user": "no-such-user"}, "user", errno.EINVAL),
        (["true"], {"user": "70000"}, "user", errno.EINVAL),
        (["x"], {"env": ["PATH=/etc:/no:/root"], "user": "1000:1000"}, "exec", errno.EACCES),
        ([""], {}, "exec", errno.ENOENT),
    ],
)
def test_what_cannot_start_says_why(
    client: Client, args: list[str], options: dict[str, object], step: str, number: int
) -> None:
    op = client.run(*args, **options)
    assert op.done is not None
    assert (op.done[ERROR_STEP], op.done[ERRNO]) == (step, number)
    assert not op.started


def test_relative_directory_is_below_the_home_of_its_user(client: Client) -> None:
    home = client.run("sh", "-c", "cd; pwd", user="games").stdout.strip()
    assert home == b"/usr/games"
    assert client.run("sh", "-c", "pwd", cwd="../lib", user="games").stdout == b"/usr/lib\n"
    homeless = client.run("sh", "-c", "pwd", cwd="etc", user="4242:17")
    assert homeless.stdout == b"/etc\n"
    op = client.run("true", cwd="below", user="games")
    assert op.done is not None
    assert (op.done[ERROR_STEP], op.done[ERRNO]) == ("cwd", errno.ENOENT)


def test_users_get_their_groups_and_home(client: Client) -> None:
    client.file(
        "write",
        "/tmp/show",
        "755",
        "-",
        stdin_data=b"id -u; id -g; echo $HOME $USER $LOGNAME; umask; nice; pwd",
    )
    root = client.run("/tmp/show").stdout.split()  # without "#!", as execvp runs it
    assert root[:5] == [b"0", b"0", b"/root", b"root", b"root"]
    nobody = client.run("sh", "/tmp/show", user="nobody", cwd="/tmp").stdout.split()
    assert nobody[0] == b"65534"
    assert nobody[-3:] == [b"0022", b"0", b"/tmp"]
    number = client.run("sh", "/tmp/show", user="4242:17").stdout.split()
    assert number[:5] == [b"4242", b"17", b"/", b"4242", b"4242"]


def test_command_holds_container_capabilities_and_no_descriptor(client: Client) -> None:
    status = shell(client, "cat /proc/self/status").stdout.decode()
    fields = dict(line.split(":\t", 1) for line in status.splitlines())
    for name in ("CapPrm", "CapEff", "CapBnd"):
        assert fields[name] == "00000000a80425fb"
    assert (fields["NoNewPrivs"], fields["SigIgn"], fields["SigBlk"]) == ("0", "0" * 16, "0" * 16)
    user = shell(client, "grep Cap /proc/self/status", user="1000:1000").stdout
    assert user.count(b"0000000000000000") == 4
    assert shell(client, "ls /proc/self/fd").stdout.split() == [b"0", b"1", b"2", b"3"]


def test_agent_cannot_be_looked_into_or_killed_from_inside(client: Client) -> None:
    op = shell(client, "cat /proc/1/environ /proc/1/maps; ls /proc/1/fd; kill -9 1; kill -9 -1")
    assert op.stdout == b""
    assert client.run("true").done[EXIT_CODE] == 0  # type: ignore[index]


@pytest.mark.parametrize("user", ["0:0", "1000:1000"])
def test_standard_streams_can_be_opened_by_name(client: Client, user: str) -> None:
    op = shell(
        client,
        "echo a > /dev/stdout; echo b > /dev/stderr; cat /dev/stdin",
        user=user,
        stdin_data=b"c",
    )
    assert (op.stdout, op.stderr) == (b"a\nc", b"b\n")


# --- ends


def test_timeout_ends_double_forked_session_leaders(client: Client) -> None:
    tree = (
        "for i in 1 2 3; do (setsid sh -c '(setsid sleep 6001 &) ; sleep 6001' &); done; sleep 6001"
    )
    op = shell(client, f"echo before; {tree}", timeout_ms=300)
    assert op.done is not None
    assert (op.done[TIMED_OUT], op.done[SIGNO]) == (1, signal.SIGKILL)
    assert op.stdout == b"before\n", "partial output survives"
    assert sleepers(client, "6001") == 0


def test_timeout_ends_a_fork_bomb(client: Client) -> None:
    op = shell(client, "f() { while :; do sleep 6004 & done; }; f & f", timeout_ms=500)
    assert op.done is not None
    assert op.done[TIMED_OUT] == 1
    assert sleepers(client, "6004") == 0


def test_cancel_ends_the_whole_tree(client: Client) -> None:
    op = client.start("sh", "-c", "(setsid sleep 6002 &) ; trap '' TERM; echo up; sleep 6002")
    while op.stdout != b"up\n":
        client.step()
    client.send(CANCEL, op.handle << 2)
    client.wait(op)
    assert op.done is not None
    assert (op.done[CANCELLED], op.done[SIGNO]) == (1, signal.SIGKILL)
    assert sleepers(client, "6002") == 0


def test_signal_reaches_every_process(client: Client) -> None:
    child = "trap 'echo got; exit' USR1; echo up; while :; do sleep 0.05; done"
    op = client.start("bash", "-c", f'(setsid bash -c "{child}" &); {child}')
    while op.stdout.count(b"up") < 2:
        client.step()
    client.send(SIGNAL, op.handle << 2, pack(SIGNO, signal.SIGUSR1))
    while op.stdout.count(b"got") < 1:
        client.step()
    client.wait(op)
    assert op.done is not None


def test_daemon_lives_on_and_its_pipe_never_blocks(client: Client) -> None:
    mark = "/tmp/daemon-mark"
    noisy = f"i=0; while [ $i -lt 3000 ]; do echo {'x' * 200}; i=$((i+1)); done; echo done > {mark}"
    wait = "while ! [ -e /tmp/daemon-go ]; do sleep 0.05; done"
    op = shell(client, f"({wait}; {noisy}) & echo early")
    shell(client, "touch /tmp/daemon-go")
    assert op.stdout == b"early\n"
    assert soon(lambda: client.file("read", mark, "0", "-1").stdout == b"done\n")


def test_groups_of_finished_commands_are_removed(client: Client, sandbox: Sandbox) -> None:
    for _ in range(8):
        shell(client, "sleep 0.5 & exit 0")
    assert soon(lambda: len(list((sandbox.top / "w").glob("c[0-9]*"))) <= 4)


def test_agent_left_alone_keeps_no_group(client: Client, sandbox: Sandbox) -> None:
    shell(client, "true")
    groups = (sandbox.top / "w").glob
    assert len(list(groups("c[0-9]*"))) == 1  # for the next one
    assert soon(lambda: not list(groups("c[0-9]*")))
    assert shell(client, "echo again").stdout == b"again\n"
    assert len(list(groups("c[0-9]*"))) == 1


def test_orphans_are_reaped(client: Client) -> None:
    shell(client, "for i in 1 2 3 4 5; do (setsid sleep 0.125 &); done")
    look = "ps axo stat,args | grep -cE '^Z|^[^ ]+ +sleep 0.125$'"
    assert soon(lambda: shell(client, look).stdout == b"0\n")


def test_out_of_memory_is_flagged(client: Client, sandbox: Sandbox) -> None:
    if sandbox.memory is None:
        pytest.skip("no v1 memory controller")
    op = client.run(
        "python3",
        "-c",
        "x = bytearray(1 << 30)\nfor i in range(0, 1 << 30, 4096): x[i] = 1",
        timeout_ms=60000,
    )
    if op.done[OOM] == 0 and op.done.get(EXIT_CODE) is not None:  # type: ignore[index]
        pytest.skip("python3 cannot run as a stranger here")
    assert op.done[OOM] == 1  # type: ignore[index]
    assert client.run("true").done[OOM] == 0  # type: ignore[index]


def test_child_stopped_before_exec_meets_the_deadline(binary: Path) -> None:
    """A PATH entry on a FIFO cannot stop it, but a slow kernel can: the deadline is tiny here."""
    with tempfile.TemporaryDirectory(prefix="skerry-test-", dir="/run") as run:
        box = Sandbox(binary, Path(run), deadline_ms=0)
        try:
            done = box.connect().run("true").done
            assert done is not None
            assert done.get(ERROR_STEP) == "deadline" or done.get(EXIT_CODE) == 0
        finally:
            box.stop()


# --- without cgroup2


def test_without_groups_timeouts_still_end_the_session(binary: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="skerry-test-", dir="/run") as run:
        box = Sandbox(binary, Path(run), groups=False)
        try:
            client = box.connect()
            op = shell(client, "sleep 6003 & sleep 6003", timeout_ms=200)
            assert op.done[TIMED_OUT] == 1  # type: ignore[index]
            assert sleepers(client, "6003") == 0
        finally:
            box.stop()


def test_idle_release_agent_is_small(binary: Path) -> None:
    if "release" not in str(binary):
        pytest.skip("sanitizers are not small")
    with tempfile.TemporaryDirectory(prefix="skerry-test-", dir="/run") as run:
        box = Sandbox(binary, Path(run))
        try:
            client = box.connect()
            client.run("true")
            status = Path(f"/proc/{box.init_pid()}/status").read_text()
            assert int(status.split("RssAnon:")[1].split()[0]) <= 84
        finally:
            box.stop()
