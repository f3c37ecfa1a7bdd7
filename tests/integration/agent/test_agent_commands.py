"""The real `skerry-init`: long starts, scripts, silence, holds, input over connections."""

from __future__ import annotations

import signal
import struct
import time
from pathlib import Path

import pytest
from native_agent import (
    ATTACH,
    CANCELLED,
    CREDIT,
    DATA,
    EOF,
    ERRNO,
    ERROR_STEP,
    EXIT_CODE,
    HANDLE,
    HELD,
    HOLD,
    MORE,
    MORE_BYTES,
    NO_OUTPUT,
    OP_ID,
    PID,
    PING,
    PONG,
    REAL,
    SIGNO,
    START,
    STARTED,
    STDERR_TOTAL,
    STDIN_EOF,
    STDIN_TOTAL,
    STDOUT_TOTAL,
    TIMED_OUT,
    TOKEN,
    TOTAL,
    WINDOW,
    Client,
    Operation,
    pack,
)
from native_sandbox import Sandbox

E2BIG, EPROTO = 7, 71
pytestmark = REAL


def hold(client: Client, *, on: bool) -> None:
    """Says HOLD and waits until it was taken."""
    client.send(HOLD, 0, pack(HELD, int(on)))
    client.send(PING, 0, pack(TOKEN, b"held"))
    while client.step()[0] != PONG:
        pass


def ended(op: Operation) -> tuple[int, int, int]:
    assert op.done is not None
    return int(op.done[TIMED_OUT]), int(op.done[NO_OUTPUT]), int(op.done[CANCELLED])


# --- long starts


@pytest.mark.parametrize("size", [65_400, 70_000, 131_000])
def test_argument_of_any_length_up_to_the_kernels_limit_arrives(client: Client, size: int) -> None:
    """(report 29)"""
    op = client.run(
        "sh", "-c", 'printf %s "$1" | wc -c; printf %s "$1" | tail -c 3', "sh", "x" * size
    )
    assert op.stdout == f"{size}\nxxx".encode()


def test_arguments_and_environment_of_a_megabyte_and_a_half_arrive(client: Client) -> None:
    """(report 29)"""
    args = [f"{i:05d}-{'a' * 100}" for i in range(10_000)]
    env = [f"V{i}={'e' * 1000}" for i in range(400)]
    op = client.run(
        "sh", "-c", 'echo $# "$V399" | wc -c; echo $#; shift 9999; echo "$1"', "sh", *args, env=env
    )
    assert op.stderr == b""
    assert op.stdout.split() == [b"1007", b"10000", args[-1].encode()]


@pytest.mark.parametrize(
    "args",
    [("true", "x" * 140_000), ("true", *["y" * 120_000] * 17, "y" * 80_000)],
    ids=["one string", "all together"],
)
def test_what_the_kernel_refuses_is_a_start_error(client: Client, args: tuple[str, ...]) -> None:
    """(report 29)"""
    op = client.run(*args)
    assert op.done is not None
    assert (op.done[ERROR_STEP], op.done[ERRNO]) == ("args", E2BIG)
    assert client.run("true").done[EXIT_CODE] == 0  # type: ignore[index]


def test_start_longer_than_allowed_ends_the_conversation(sandbox: Sandbox) -> None:
    client = sandbox.connect()
    client.send(START, 4, pack(MORE_BYTES, (1 << 21) + 1) + pack(ARG_TAG, b"true"))
    with pytest.raises(ConnectionError):
        client.receive(5)
    assert sandbox.connect().run("true").done[EXIT_CODE] == 0  # type: ignore[index]


ARG_TAG = 12


@pytest.mark.parametrize("pieces", [[b"x" * 101], [b""]], ids=["too much", "nothing"])
def test_more_than_announced_or_nothing_ends_the_conversation(
    sandbox: Sandbox, pieces: list[bytes]
) -> None:
    client = sandbox.connect()
    client.send(START, 4, pack(MORE_BYTES, 100) + pack(ARG_TAG, b"true"))
    for piece in pieces:
        client.send(MORE, 4, piece)
    with pytest.raises(ConnectionError):
        client.receive(5)
    assert sandbox.connect().run("true").done[EXIT_CODE] == 0  # type: ignore[index]


def test_half_a_start_is_forgotten_with_its_connection(sandbox: Sandbox) -> None:
    first = sandbox.connect()
    first.send(START, 999 << 2, pack(MORE_BYTES, 1 << 21) + pack(ARG_TAG, b"true"))
    second = sandbox.connect()
    second.send(
        MORE, 999 << 2, b"x" * 1000
    )  # of a START that was refused, or of another connection
    op = second.run("echo", "z" * 100_000)
    assert len(op.stdout) == 100_001
    assert not second.other


def test_other_frames_between_the_parts_of_a_start_are_served(client: Client) -> None:
    other = client.start("cat", stdin=1)
    body = pack(OP_ID, b"o" * 16) + pack(11, 0) + b"".join(pack(ARG_TAG, a) for a in ("echo", "hi"))
    body += pack(17, 0)
    op = Operation(5000, b"o" * 16)
    client.ops[5000] = op
    client.send(START, 5000 << 2, pack(MORE_BYTES, len(body) - 3) + body[:3])
    client.feed(other, b"between")
    assert client.wait(other).stdout == b"between"
    client.send(MORE, 5000 << 2, body[3:])
    assert client.wait(op).stdout == b"hi\n"


# --- scripts


def script(client: Client, text: bytes, **options: object) -> Operation:
    return client.run("bash", "-c", ". /proc/self/fd/3", script=text, **options)


@pytest.mark.parametrize("user", ["0:0", "1000:1000"])
def test_script_longer_than_an_argument_may_be_is_run(client: Client, user: str) -> None:
    """(report 29)"""
    text = b"exec 3<&-; x=0\n" + b": padding padding padding\n" * 20_000 + b"echo $x; exit 7\n"
    op = script(client, text, user=user)
    assert (op.stdout, op.stderr) == (b"0\n", b"")
    assert op.done is not None
    assert op.done[EXIT_CODE] == 7


def test_script_is_a_sealed_file_of_this_command_alone(client: Client) -> None:
    op = script(client, b"echo x >> /proc/self/fd/3 || echo sealed; : > /proc/self/fd/3; wc -c <&3")
    assert op.stdout.split()[0] == b"sealed"
    assert client.run("sh", "-c", "ls /proc/self/fd/3").done[EXIT_CODE] != 0  # type: ignore[index]


# --- silence


def kinds(client: Client, op: Operation) -> list[int]:
    """Steps until DONE; returns what came of the operation before it."""
    seen = []
    while op.done is None:
        seen.append(client.step()[0])
    return seen[:-1]


def test_end_of_a_short_command_is_told_by_one_frame(client: Client) -> None:
    for script, least in (("exit 3", []), ("echo out", [DATA]), ("echo e >&2; echo o", [DATA] * 2)):
        seen = []
        for _ in range(50):  # on a busy machine, few are short enough
            op = client.start("sh", "-c", script)
            seen.append(kinds(client, op))
            assert op.done is not None
            assert op.done[PID] > 1
            client.wait(op)
            client.send(PING, 0, pack(TOKEN, b"nothing"))
            assert client.step()[0] == PONG  # no end of output behind it
            if seen[-1] == least:
                break
        assert seen[-1] == least, seen
    missing = client.start("no-such-program")
    assert STARTED not in kinds(client, missing)
    assert missing.done is not None
    assert PID not in missing.done
    client.wait(missing)


def test_end_of_a_long_command_repeats_what_was_said(client: Client) -> None:
    op = client.start("sh", "-c", "exec >&- 2>&-; sleep 0.4")
    assert sorted(kinds(client, op)) == [EOF, EOF, STARTED]
    assert op.done is not None
    assert op.done[PID] > 1
    client.wait(op)


def test_end_that_was_not_acknowledged_is_told_again_as_a_whole(sandbox: Sandbox) -> None:
    first = sandbox.connect(auto_credit=False)
    op = first.start("sh", "-c", "echo out; exit 4")
    assert DATA in kinds(first, op)
    second = sandbox.connect()
    again = Operation(op.handle, op.op_id)
    second.attach(again)
    assert [kind for kind in kinds(second, again) if kind != CREDIT] == [DATA]
    assert again.done == op.done
    second.wait(again)
    assert bytes(again.out[2]) == b"out\n"


def test_silence_beyond_the_limit_ends_the_tree(client: Client) -> None:
    """(report 22)"""
    op = client.run("sh", "-c", "echo begun; setsid sleep 333.2 & sleep 333.2", no_output_ms=300)
    assert op.stdout == b"begun\n"
    assert ended(op) == (1, 1, 0)
    left = client.run("sh", "-c", "ps axo args | grep -c '^sleep 333.2$'")
    assert left.stdout == b"0\n"


@pytest.mark.parametrize("stream", ["", ">&2"])
def test_output_on_either_stream_is_no_silence(client: Client, stream: str) -> None:
    """(report 22)"""
    line = f"for i in 1 2 3 4 5 6 7 8; do echo $i {stream}; sleep 0.15; done"
    op = client.run("sh", "-c", line, no_output_ms=700)
    assert ended(op) == (0, 0, 0)
    assert op.done is not None
    assert op.done[EXIT_CODE] == 0


def test_output_that_the_host_holds_back_is_no_silence(sandbox: Sandbox) -> None:
    """(report 22)"""
    client = sandbox.connect(auto_credit=False)
    op = client.start("sh", "-c", "head -c 400000 /dev/zero; echo end >&2", no_output_ms=300)
    while len(op.out[2]) < WINDOW:
        client.step()
    with pytest.raises(TimeoutError):
        client.step(1.2)  # four times the limit, and nothing but us to blame
    client.auto_credit = True
    client.credit(op, 2)
    assert client.wait(op).stderr == b"end\n"
    assert ended(op) == (0, 0, 0)


# --- holds


def test_no_deadline_passes_while_held(client: Client) -> None:
    ops = [
        client.start("sh", "-c", "kill -STOP $$", timeout_ms=400),
        client.start("sleep", "333", no_output_ms=400),
    ]
    for op in ops:
        while not op.started:
            client.step()
    hold(client, on=True)
    with pytest.raises(TimeoutError):
        client.step(1.0)
    hold(client, on=False)
    for op in ops:
        assert ended(client.wait(op))[0] == 1


def test_hold_outlives_the_connection_and_is_taken_twice(sandbox: Sandbox) -> None:
    first = sandbox.connect()
    op = first.start("sleep", "333", timeout_ms=300)
    while not op.started:
        first.step()
    hold(first, on=True)
    second = sandbox.connect()
    hold(second, on=True)
    second.attach(op)
    for _ in range(2):  # STARTED, and where input goes on
        second.step()
    with pytest.raises(TimeoutError):
        second.step(0.8)
    hold(second, on=False)
    hold(second, on=False)
    assert ended(second.wait(op)) == (1, 0, 0)


def test_cancel_works_while_held(client: Client) -> None:
    op = client.start("sleep", "333")
    hold(client, on=True)
    client.send(6, op.handle << 2)
    assert ended(client.wait(op)) == (0, 0, 1)
    hold(client, on=False)


# --- standard input over connections


def test_welcome_says_how_much_input_has_come(sandbox: Sandbox) -> None:
    first = sandbox.connect()
    reading = first.start("cat", stdin=1)
    first.feed(reading, b"a" * 100_000, end=False)
    ended_ = first.start("sh", "-c", "sleep 333", stdin=1)
    first.feed(ended_, b"four")
    hold(first, on=False)  # a round trip: all of it was taken
    second = sandbox.connect()
    live = {op[HANDLE][0]: (op[STDIN_TOTAL][0], op[STDIN_EOF][0]) for op in second.live}
    assert live == {reading.handle: (100_000, 0), ended_.handle: (4, 1)}
    second.attach(reading)
    stream = reading.handle << 2 | 1
    second.send(DATA, stream, struct.pack("<Q", 100_000) + b"b" * 1000)
    second.send(EOF, stream, pack(TOTAL, 101_000))
    assert second.wait(reading).stdout == b"a" * 100_000 + b"b" * 1000
    second.attach(ended_)
    second.send(6, ended_.handle << 2)
    second.wait(ended_)


def test_attach_always_tells_where_input_goes_on(sandbox: Sandbox) -> None:
    first = sandbox.connect()
    op = first.start("sh", "-c", "exec <&-; sleep 333", stdin=1)
    while not op.started:
        first.step()
    second = sandbox.connect()
    second.ops[op.handle] = op
    second.send(ATTACH, op.handle << 2, pack(STDOUT_TOTAL, 0) + pack(STDERR_TOTAL, 0))
    while second.step()[0] != 4:  # CREDIT
        pass
    second.send(5, op.handle << 2, pack(SIGNO, 9))
    second.wait(op)


# --- what a command inherits


def test_command_inherits_neither_niceness_nor_signals_and_has_its_groups(client: Client) -> None:
    """(report 31) (report 33)"""
    op = client.run(
        "sh", "-c", "nice; cat /proc/self/oom_score_adj; grep -E 'SigIgn|SigBlk' /proc/self/status"
    )
    nice, oom, *signals = op.stdout.split(b"\n")[:-1]
    assert (nice, oom) == (b"0", Path("/proc/self/oom_score_adj").read_bytes().strip())
    assert [line.split()[1] for line in signals] == [b"0000000000000000"] * 2


def test_writer_into_a_closed_pipe_ends_by_sigpipe(client: Client) -> None:
    """(report 31)"""
    op = client.run("bash", "-c", "yes | head -n 1; echo ${PIPESTATUS[0]}", timeout_ms=20_000)
    assert op.stdout == f"y\n{128 + signal.SIGPIPE}\n".encode()


def test_half_a_second_of_silence_before_input_does_not_matter(client: Client) -> None:
    """A command that waits for input that does not come is ended by its timeout (report 26)."""
    op = client.start("cat", stdin=1, timeout_ms=300)
    time.sleep(0.01)
    assert ended(client.wait(op)) == (1, 0, 0)
