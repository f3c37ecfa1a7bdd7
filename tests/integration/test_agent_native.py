"""The real `skerry-init`, release and sanitizer build, driven over its socket."""

from __future__ import annotations

import errno
import hashlib
import io
import os
import random
import shutil
import signal
import socket
import struct
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from native_agent import (
    ACK,
    CANCEL,
    CANCELLED,
    COLS,
    CONNECT,
    CPU_US,
    CREDIT,
    DATA,
    DONE,
    END_NS,
    EOF,
    ERRNO,
    ERROR,
    ERROR_STEP,
    EXIT_CODE,
    HANDLE,
    LISTEN,
    OFFSET,
    OOM,
    OPENED,
    PING,
    PONG,
    PORT,
    RESET,
    RESIZE,
    ROWS,
    SIGNAL,
    SIGNO,
    START_NS,
    STARTED,
    STATE,
    TIMED_OUT,
    TOKEN,
    TOTAL,
    WINDOW,
    Client,
    Operation,
    Sandbox,
    pack,
    unpack,
)  # fmt: skip

NATIVE = Path(__file__).parents[2] / "native"
pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(os.getuid() != 0, reason="makes namespaces: needs root"),
    pytest.mark.skipif(shutil.which("musl-gcc") is None, reason="needs musl-gcc"),
]


@pytest.fixture(scope="module", params=["release", "san"])
def binary(request: pytest.FixtureRequest) -> Path:
    target = f"build/{request.param}/skerry-init"
    subprocess.run(["make", "-C", NATIVE, target], check=True, capture_output=True)
    return NATIVE / target


@pytest.fixture(scope="module")
def sandbox(binary: Path) -> Iterator[Sandbox]:
    with tempfile.TemporaryDirectory(prefix="skerry-test-", dir="/run") as run:
        box = Sandbox(binary, Path(run))
        yield box
        box.stop()


@pytest.fixture
def client(sandbox: Sandbox) -> Iterator[Client]:
    with_agent = sandbox.connect()
    yield with_agent
    with_agent.close()


def shell(client: Client, text: str, **options: object) -> Operation:
    return client.run("sh", "-c", text, **options)


def eventually(condition: object, timeout: float = 5) -> bool:
    until = time.monotonic() + timeout
    while time.monotonic() < until:
        if condition():  # type: ignore[operator]
            return True
        time.sleep(0.01)
    return False


def sleepers(client: Client, mark: str) -> int:
    """How many `sleep MARK` live inside."""
    return int(shell(client, f"ps axo args | grep -c '^sleep {mark}$'").stdout)


# --- commands


def test_true_ends_with_zero_and_times(client: Client) -> None:
    op = client.run("true")
    assert op.started
    assert op.done is not None
    assert op.done[EXIT_CODE] == 0
    assert op.done[END_NS] > op.done[START_NS] > 1_600_000_000_000_000_000
    assert op.done[CPU_US] > 0
    assert (op.done[TIMED_OUT], op.done[CANCELLED], op.done[OOM]) == (0, 0, 0)


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
    begin = time.monotonic()
    op = shell(client, f"echo before; {tree}", timeout_ms=300)
    assert time.monotonic() - begin < 3
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
    begin = time.monotonic()
    op = shell(client, f"(sleep 0.3; {noisy}) & echo early")
    assert time.monotonic() - begin < 2, "a daemon's pipe does not delay the result"
    assert op.stdout == b"early\n"
    assert eventually(lambda: client.file("read", mark, "0", "-1").stdout == b"done\n")


def test_groups_of_finished_commands_are_removed(client: Client, sandbox: Sandbox) -> None:
    for _ in range(8):
        shell(client, "sleep 0.5 & exit 0")
    assert eventually(lambda: len(list((sandbox.top / "w").glob("c[0-9]*"))) <= 4)


def test_orphans_are_reaped(client: Client) -> None:
    shell(client, "for i in 1 2 3 4 5; do (setsid sleep 0.1 &); done")
    time.sleep(0.3)
    assert shell(client, "ps axo stat | grep -c Z").stdout == b"0\n"


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


# --- streams and connections


def test_ten_mebibytes_with_slow_credit_are_identical(sandbox: Sandbox) -> None:
    client = sandbox.connect(auto_credit=False)
    script = "import random,sys; sys.stdout.buffer.write(random.Random(7).randbytes(10 << 20))"
    client.file("write", "/tmp/big.py", "755", "-", stdin_data=script.encode())
    client.file(
        "write", "/tmp/big.bin", "644", "-", stdin_data=random.Random(7).randbytes(10 << 20)
    )
    op = client.start("cat", "/tmp/big.bin")
    granted = 0
    while op.done is None:
        try:
            client.step(0.02)
        except TimeoutError:
            assert len(op.stdout) <= granted + WINDOW
            granted = min(len(op.stdout), granted + 60_000)
            client.send(CREDIT, op.handle << 2 | 2, pack(OFFSET, granted))
            if len(op.stdout) >= 1 << 20:
                client.auto_credit = True  # the rest at full speed
                client.credit(op, 2)
    client.wait(op)
    assert (
        hashlib.sha256(op.stdout).digest()
        == hashlib.sha256(random.Random(7).randbytes(10 << 20)).digest()
    )
    client.close()


def test_flood_does_not_delay_another_command_or_a_cancel(sandbox: Sandbox) -> None:
    client = sandbox.connect()
    flood = client.start("yes")
    while len(flood.stdout) < 1_000_000:
        client.step()
    begin = time.monotonic()
    client.run("true")
    client.send(CANCEL, flood.handle << 2)
    client.wait(flood)
    assert time.monotonic() - begin < 2
    assert flood.done[CANCELLED] == 1  # type: ignore[index]
    client.close()


def test_reconnect_in_the_middle_of_output_loses_and_repeats_nothing(sandbox: Sandbox) -> None:
    first = sandbox.connect()
    op = first.start("sh", "-c", "seq 1 300000; seq 1 1000 >&2")
    while len(op.stdout) < 500_000:
        first.step()
    kept = len(op.stdout) - 1000  # as if the last bytes were never recorded
    first.auto_credit = False
    first.close()
    del op.out[2][kept:]
    # What was credited is gone: go on from the last credit at the earliest.
    second = sandbox.connect()
    live = {int(o[HANDLE][0]): o for o in second.live}
    assert live[op.handle][STATE] in ([0], [1])
    whole = b"".join(b"%d\n" % i for i in range(1, 300001))
    op.out[2][:] = whole[: kept + 1000]
    second.attach(op)
    second.wait(op)
    assert op.stdout == whole
    assert op.stderr == b"".join(b"%d\n" % i for i in range(1, 1001))
    second.close()


def test_unread_output_and_result_wait_for_a_new_connection(sandbox: Sandbox) -> None:
    first = sandbox.connect(auto_credit=False)
    op = first.start("sh", "-c", "seq 1 10000; exit 3")
    while len(op.stdout) < 1000:
        first.step()
    first.close()
    op.out[2].clear()
    op.ended.clear()
    time.sleep(0.2)
    second = sandbox.connect()
    state = next(o for o in second.live if o[HANDLE] == [op.handle])
    assert state[STATE] == [1]
    with pytest.raises(TimeoutError):  # nothing is sent before ATTACH
        second.receive(0.2)
    second.attach(op)
    second.wait(op)
    assert op.stdout == b"".join(b"%d\n" % i for i in range(1, 10001))
    assert op.done[EXIT_CODE] == 3  # type: ignore[index]
    second.close()
    third = sandbox.connect()
    assert all(o[HANDLE] != [op.handle] for o in third.live), "acknowledged: forgotten"
    third.close()


def test_duplicate_operation_is_refused_while_live_and_after(client: Client) -> None:
    live = client.start("sleep", "0.3")
    again = client.start("sh", "-c", "echo twice > /tmp/twice", op_id=live.op_id)
    client.wait(again)
    assert again.errors[0][ERRNO] == errno.EEXIST
    client.wait(live)
    late = client.wait(client.start("touch", "/tmp/twice", op_id=live.op_id))
    assert late.errors[0][ERRNO] == errno.EEXIST
    assert client.file("stat", "/tmp/twice").done[EXIT_CODE] == 1  # type: ignore[index]


def test_unknown_handle_is_an_error_not_a_crash(client: Client) -> None:
    client.send(ACK, 99999 << 2)
    kind, stream, payload = client.step()
    assert (kind, stream) == (ERROR, 99999 << 2)
    assert unpack(payload)[ERRNO] == [errno.ENOENT]
    client.send(CREDIT, 99999 << 2 | 2, pack(OFFSET, 5))  # may have crossed an ACK: no fault
    client.send(PING, 0, pack(TOKEN, b"x"))
    assert client.step()[0] == PONG


def test_too_many_operations_are_refused(binary: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="skerry-test-", dir="/run") as run:
        box = Sandbox(binary, Path(run), max_ops=4)
        try:
            client = box.connect()
            live = [client.start("sleep", "1") for _ in range(4)]
            refused = client.wait(client.start("true"))
            assert refused.errors[0][ERRNO] == errno.EAGAIN
            for op in live:
                client.send(CANCEL, op.handle << 2)
                client.wait(op)
            assert client.run("true").done[EXIT_CODE] == 0  # type: ignore[index]
        finally:
            box.stop()


def test_newest_connection_wins(sandbox: Sandbox) -> None:
    old = sandbox.connect()
    new = sandbox.connect()
    assert new.generation == old.generation + 1
    with pytest.raises(ConnectionError):
        old.receive(2)
    assert new.run("true").done[EXIT_CODE] == 0  # type: ignore[index]
    new.close()


@pytest.mark.parametrize("seed", range(6))
def test_hostile_peer_never_crashes_the_agent(sandbox: Sandbox, seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(60):
        client = sandbox.connect()
        try:
            for _ in range(rng.randrange(1, 6)):
                payload = rng.randbytes(rng.randrange(0, 200))
                if rng.random() < 0.6:
                    payload = b"".join(
                        pack(
                            rng.choice([*range(1, 40)]),
                            rng.choice([rng.randbytes(16), rng.getrandbits(63), 1]),
                        )
                        for _ in range(rng.randrange(6))
                    )
                stream = rng.choice([0, 4, 5, 6, 7, rng.getrandbits(32), 0x80000004])
                client.send(rng.choice([*range(1, 0x12), 0x81, 0xFF]), stream, payload)
            if rng.random() < 0.3:
                client.sock.sendall(rng.randbytes(rng.randrange(100)))
        except (ConnectionError, BrokenPipeError):
            pass
        client.close()
    last = sandbox.connect()
    for op in last.live:
        last.send(CANCEL, int(op[HANDLE][0]) << 2)
    assert last.run("true").done[EXIT_CODE] == 0  # type: ignore[index]
    last.close()


def test_silent_and_half_spoken_connections_do_not_block_others(sandbox: Sandbox) -> None:
    idle = []
    for _ in range(10):
        s = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        s.connect(str(sandbox.path))
        s.send(b"\x53\x4b\x01")
        idle.append(s)
    client = sandbox.connect()
    assert client.run("true").done[EXIT_CODE] == 0  # type: ignore[index]
    for s in idle:
        s.close()
    client.close()


# --- terminals


def test_terminal_echoes_resizes_and_reports_its_user(client: Client) -> None:
    op = client.start(
        "bash",
        "--norc",
        "-c",
        "stty size; tty; read x; echo got:$x; stty size",
        rows=24,
        cols=80,
        user="1000:1000",
    )
    while b"/dev/pts/" not in op.stdout:
        client.step()
    client.send(RESIZE, op.handle << 2, pack(ROWS, 50) + pack(COLS, 132))
    client.send(DATA, op.handle << 2 | 1, struct.pack("<Q", 0) + b"foo\n")
    client.wait(op)
    lines = op.stdout.split(b"\r\n")
    assert lines[0] == b"24 80"
    assert lines[2:5] == [b"foo", b"got:foo", b"50 132"]


def test_terminal_output_is_not_cut(client: Client) -> None:
    op = client.run("seq", "1", "100000", rows=24, cols=80)
    assert op.stdout == b"".join(b"%d\r\n" % i for i in range(1, 100001))


def test_end_of_input_on_a_terminal_is_control_d(client: Client) -> None:
    op = client.start("cat", rows=24, cols=80)
    client.feed(op, b"x\n")
    client.wait(op)
    assert op.stdout == b"x\r\nx\r\n"


# --- forwards


def test_reverse_forward_carries_bytes_both_ways_and_half_closes(client: Client) -> None:
    handle = Client.next_handle
    Client.next_handle += 1
    client.send(LISTEN, handle << 2, pack(PORT, 3128))
    assert client.receive(5)[:2] == (STARTED, handle << 2)
    script = (
        "import socket,sys\n"
        "s=socket.create_connection((sys.argv[1],3128)); s.sendall(b'q'*500000); s.shutdown(1)\n"
        "d=b''\n"
        "while True:\n c=s.recv(65536)\n if not c: break\n d+=c\n"
        "print(len(d), d[:3])"
    )
    client.file("write", "/tmp/peer.py", "644", "-", stdin_data=script.encode())
    for address in ("127.0.0.1", "::1"):
        op = client.start("/usr/bin/python3", "/tmp/peer.py", address)
        got, stream, ended = 0, 0, False
        while not ended:
            kind, at, payload = client.step()
            if kind == OPENED:
                assert unpack(payload) == {HANDLE: [handle], PORT: [3128]}
                stream = at
            elif kind == DATA and at & 0x80000000:
                got += len(payload) - 8
                client.send(CREDIT, stream | 2, pack(OFFSET, got))
            elif kind == EOF and at & 0x80000000:
                assert unpack(payload)[TOTAL] == [got]
                ended = True
        assert got == 500_000
        client.send(DATA, stream | 1, struct.pack("<Q", 0) + b"abc" * 20000)
        client.send(EOF, stream | 1, pack(TOTAL, 60000))
        client.wait(op)
        assert op.stdout == b"60000 b'abc'\n", op.stderr
    # A second listener on the port fails by name.
    client.send(LISTEN, (handle + 1) << 2, pack(PORT, 3128))
    Client.next_handle += 2
    kind, _, payload = client.receive(5)
    while kind != DONE:
        kind, _, payload = client.receive(5)
    assert unpack(payload) == {ERROR_STEP: ["listen"], ERRNO: [errno.EADDRINUSE]}


SERVER = """
import socket, sys
s = socket.create_server((sys.argv[1], int(sys.argv[2])), family=socket.AF_INET6 if ":" in sys.argv[1]
                         else socket.AF_INET, backlog=512)
print("ready", flush=True)
for _ in range(int(sys.argv[3])):
    c = s.accept()[0]; d = b""
    while p := c.recv(65536):
        d += p
    c.sendall(d.upper() + b"!"); c.close()
"""


def serve(client: Client, address: str, port: int, times: int = 1) -> Operation:
    client.file("write", "/tmp/serve.py", "644", "-", stdin_data=SERVER.encode())
    op = client.start("/usr/bin/python3", "/tmp/serve.py", address, str(port), str(times))
    while b"ready" not in op.stdout:
        client.step()
    return op


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_host_connects_to_a_port_inside_and_each_half_closes(client: Client, address: str) -> None:
    op = serve(client, address, 8000)
    stream = 0xC0000000 | 7 << 2
    client.send(CONNECT, stream, pack(PORT, 8000))
    while (got := client.step())[1] != stream:
        pass
    assert got[0] == OPENED
    assert unpack(got[2]) == {PORT: [8000]}
    # One that is open already cannot be asked for again.
    client.send(CONNECT, stream, pack(PORT, 8000))
    while (got := client.step())[:2] != (ERROR, stream):
        pass
    assert unpack(got[2])[ERRNO] == [errno.EEXIST]
    client.send(DATA, stream | 1, struct.pack("<Q", 0) + b"abc" * 20000)
    client.send(EOF, stream | 1, pack(TOTAL, 60000))
    data, ended = b"", False
    while not ended:
        kind, at, payload = client.step()
        if kind == DATA and at == stream | 2:
            data += payload[8:]
        ended = kind == EOF and at == stream | 2
    assert data == b"ABC" * 20000 + b"!"
    client.wait(op)


def test_connection_that_the_host_cuts_is_a_reset_inside_and_not_an_end(client: Client) -> None:
    script = (
        "import socket; s = socket.create_server(('127.0.0.1', 8002)); print('ready', flush=True)\n"
        "c = s.accept()[0]; c.recv(1)\n"
        "try: print('end', c.recv(1))\n"
        "except ConnectionResetError: print('reset')\n"
    )
    op = client.start("/usr/bin/python3", "-c", script)
    while b"ready" not in op.stdout:
        client.step()
    stream = 0xC0000000 | 50 << 2
    client.send(CONNECT, stream, pack(PORT, 8002))
    while client.step()[0] != OPENED:
        pass
    client.send(DATA, stream | 1, struct.pack("<Q", 0) + b"x")
    client.send(RESET, stream)
    client.wait(op)
    assert op.stdout == b"ready\nreset\n"


def test_port_that_nobody_listens_on_is_refused_and_frees_its_place(client: Client) -> None:
    for number in range(1, 600):  # more than may be open at once
        stream = 0xC0000000 | number << 2
        client.send(CONNECT, stream, pack(PORT, 9))
        kind, at, payload = client.receive(5)
        assert (kind, at) == (ERROR, stream)
        assert unpack(payload) == {ERROR_STEP: ["connect"], ERRNO: [errno.ECONNREFUSED]}


def test_connections_that_the_host_asks_for_are_bounded(client: Client) -> None:
    serve(client, "127.0.0.1", 8001, 300)
    answers = []
    for number in range(1, 261):
        client.send(CONNECT, 0xC0000000 | (1000 + number) << 2, pack(PORT, 8001))
    while len(answers) < 260:
        kind, _, payload = client.step()
        if kind in (OPENED, ERROR):
            answers.append(unpack(payload).get(ERRNO, [0])[0])
    # A place may be refused for want of descriptors before the table is full.
    assert set(answers) <= {0, errno.EAGAIN, errno.EMFILE}
    assert 0 < answers.count(0) <= 256
    for number in range(1, 261):
        client.send(RESET, 0xC0000000 | (1000 + number) << 2)
    client.send(PING, 0, pack(TOKEN, b"here"))
    while client.step()[0] != PONG:
        pass


def test_reset_from_the_host_ends_the_connection_inside(client: Client) -> None:
    handle = Client.next_handle
    Client.next_handle += 1
    client.send(LISTEN, handle << 2, pack(PORT, 3129))
    assert client.receive(5)[0] == STARTED
    op = client.start("bash", "-c", "exec 3<>/dev/tcp/127.0.0.1/3129; read x <&3; echo ended")
    while (frame := client.step())[0] != OPENED:
        pass
    client.send(RESET, frame[1])
    client.wait(op)
    assert op.stdout == b"ended\n"


# --- files


def records(data: bytes) -> dict[bytes, tuple[str, int, int, int, int, bytes]]:
    """Name -> type, mode, uid, gid, size, link."""
    out = {}
    while data:
        head, _, data = data.partition(b"\n")
        kind, mode, uid, gid, size, _mtime, n, k, _allocated = head.decode().split()
        name, link = data[: int(n)], data[int(n) : int(n) + int(k)]
        data = data[int(n) + int(k) :]
        out[name] = (kind, int(mode, 8), int(uid), int(gid), int(size), link)
    return out


def failed(op: Operation) -> tuple[int, str]:
    assert op.done is not None
    assert op.done[EXIT_CODE] == 1, op.done
    number, step = op.stderr.decode().split("\n")[0].split()
    return int(number), step


def test_write_and_read_back_is_exact_and_atomic(client: Client) -> None:
    data = random.Random(3).randbytes(3_000_000)
    op = client.file("write", "/tmp/w/x/file", "640", "p", stdin_data=data)
    assert records(op.stdout)[b"/tmp/w/x/file"][:5] == ("f", 0o640, 0, 0, len(data))
    assert client.file("read", "/tmp/w/x/file", "0", "-1").stdout == data
    assert client.file("read", "/tmp/w/x/file", "1000", "10").stdout == data[1000:1010]
    assert client.file("read", "/tmp/w/x/file", "3000000", "-1").stdout == b""
    assert list(records(client.file("list", "/tmp/w/x").stdout)) == [b"file"], "no temporary stays"


def test_write_flags_append_exclusive_and_parents(client: Client) -> None:
    client.file("write", "/tmp/flags", "644", "-", stdin_data=b"a")
    client.file("write", "/tmp/flags", "644", "a", stdin_data=b"b")
    assert client.file("read", "/tmp/flags", "0", "-1").stdout == b"ab"
    assert (
        failed(client.file("write", "/tmp/flags", "644", "x", stdin_data=b"c"))[0] == errno.EEXIST
    )
    assert (
        failed(client.file("write", "/tmp/no/dir", "644", "-", stdin_data=b"c"))[0] == errno.ENOENT
    )
    assert failed(client.file("write", "/tmp", "644", "-", stdin_data=b"c"))[0] == errno.EISDIR


def test_write_through_a_link_keeps_the_link(client: Client) -> None:
    shell(client, "cd /tmp; echo old > target; ln -sf target link; chown 1000:1000 target")
    client.file("write", "/tmp/link", "600", "-", stdin_data=b"new")
    listed = records(client.file("list", "/tmp").stdout)
    assert listed[b"link"][0] == "l"
    assert listed[b"link"][5] == b"target"
    assert listed[b"target"][:5] == ("f", 0o600, 1000, 1000, 3), "the owner stays"


def test_words_run_as_the_user_for_whom_they_act(client: Client) -> None:
    shell(client, "umask 077; mkdir -p /tmp/private; echo secret > /tmp/private/x")
    for words in (
        ["read", "/tmp/private/x", "0", "-1"],
        ["list", "/tmp/private"],
        ["write", "/tmp/private/y", "644", "-"],
        ["tree-get", "/tmp/private"],
    ):
        assert failed(client.file(*words, user="1000:1000"))[0] == errno.EACCES
    op = client.file("write", "/tmp/mine", "644", "-", stdin_data=b"", user="1000:1001")
    assert records(op.stdout)[b"/tmp/mine"][2:4] == (1000, 1001)


def test_fifo_and_device_do_not_hang_reads(client: Client) -> None:
    shell(client, "mkfifo /tmp/fifo")
    assert failed(client.file("read", "/tmp/fifo", "0", "-1", timeout_ms=5000))[0] == errno.EINVAL
    assert failed(client.file("write", "/tmp/fifo", "644", "-", stdin_data=b"", timeout_ms=5000))
    assert failed(client.file("read", "/tmp", "0", "-1"))[0] == errno.EISDIR


def test_mkdir_remove_rename_chmod_stat(client: Client) -> None:
    client.file("mkdir", "/tmp/d/e/f", "1777", "p")
    assert records(client.file("stat", "/tmp/d/e/f").stdout)[b"/tmp/d/e/f"][:2] == ("d", 0o1777)
    assert failed(client.file("mkdir", "/tmp/d/e/f", "755", "-"))[0] == errno.EEXIST
    assert client.file("mkdir", "/tmp/d/e/f", "755", "p").done[EXIT_CODE] == 0  # type: ignore[index]
    client.file("rename", "/tmp/d/e/f", "/tmp/d/g")
    client.file("chmod", "/tmp/d/g", "700")
    assert records(client.file("list", "/tmp/d").stdout)[b"g"][1] == 0o700
    assert failed(client.file("remove", "/tmp/d", "-"))[0] == errno.ENOTEMPTY
    assert client.file("remove", "/tmp/d", "r").done[EXIT_CODE] == 0  # type: ignore[index]
    assert failed(client.file("stat", "/tmp/d"))[0] == errno.ENOENT


def test_remove_of_a_very_deep_tree_succeeds(client: Client) -> None:
    deep = (
        "import os\nos.mkdir('/tmp/deep'); os.chdir('/tmp/deep')\n"
        "for i in range(3000):\n os.mkdir('d'); os.chdir('d')"
    )
    client.file("write", "/tmp/deep.py", "644", "-", stdin_data=deep.encode())
    assert client.run("/usr/bin/python3", "/tmp/deep.py").done[EXIT_CODE] == 0  # type: ignore[index]
    op = client.file("remove", "/tmp/deep", "r")
    assert op.done[EXIT_CODE] == 0, op.stderr  # type: ignore[index]


ODD = [
    "plain",
    ".dot",
    "with space",
    "ü-ñ-日本",
    "new\nline",
    "-dash",
    "tab\t",
    "x" * 200,
    "a" * 99,
]


def big_tree() -> bytes:
    """A thousand files with odd names, links, modes and times."""
    out = io.BytesIO()
    rng = random.Random(5)
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for i in range(1000):
            name = f"./dir{i % 20}/{'y' * (i % 7) * 20}/{ODD[i % len(ODD)]}{i}"
            info = tarfile.TarInfo(name)
            data = rng.randbytes(rng.randrange(3000))
            info.size, info.mode, info.mtime = (
                len(data),
                rng.choice([0o644, 0o755, 0o4755, 0o000]),
                i + 0.5,
            )
            info.uid, info.gid = (1000, 1000) if i % 3 else (3_000_000, 5)
            tar.addfile(info, io.BytesIO(data))
        for name, target in (("link", "dir1"), ("dangling", "/no/where"), ("long", "z" * 300)):
            info = tarfile.TarInfo(name)
            info.type, info.linkname = tarfile.SYMTYPE, target
            tar.addfile(info)
        info = tarfile.TarInfo("hard")
        info.type, info.linkname = tarfile.LNKTYPE, "dir0/plain0"
        tar.addfile(info)
        info = tarfile.TarInfo("closed")
        info.type, info.mode, info.mtime = tarfile.DIRTYPE, 0o555, 77
        tar.addfile(info)
        info = tarfile.TarInfo("closed/inside")
        tar.addfile(info, io.BytesIO())
    return out.getvalue()


def content(data: bytes) -> dict[str, tuple[object, ...]]:
    out: dict[str, tuple[object, ...]] = {}
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        for info in tar:
            name = os.path.normpath(info.name)
            if info.isdir():
                continue
            body = tar.extractfile(info).read() if info.isfile() else b""  # type: ignore[union-attr]
            out[name] = (
                info.type,
                info.mode if info.isfile() else 0,
                info.linkname,
                body,
                info.mtime if info.isfile() else 0,
            )
    return out


def test_tree_of_a_thousand_odd_files_survives_put_and_get(client: Client) -> None:
    archive = big_tree()
    put = client.file("tree-put", "/tmp/tree/new", stdin_data=archive)
    assert put.done[EXIT_CODE] == 0, put.stderr  # type: ignore[index]
    got = client.file("tree-get", "/tmp/tree/new")
    assert got.done[EXIT_CODE] == 0, got.stderr  # type: ignore[index]
    want, have = content(archive), content(got.stdout)
    hard = {"hard", "dir0/plain0"}  # which of the two names comes first is the directory's choice
    assert want.keys() == have.keys()
    assert {k: v for k, v in want.items() if k not in hard} == {
        k: v for k, v in have.items() if k not in hard
    }
    assert sorted(have[name][0] for name in hard) == [tarfile.REGTYPE, tarfile.LNKTYPE]
    listed = records(client.file("list", "/tmp/tree/new").stdout)
    assert listed[b"closed"][:2] == ("d", 0o555)
    again = client.file("tree-put", "/tmp/tree/new", stdin_data=archive)
    assert again.done[EXIT_CODE] == 0, "what is there is replaced"  # type: ignore[index]


def test_tree_ownership_is_kept_for_root_and_mapped_where_it_cannot_be(client: Client) -> None:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, uid in (("a", 1000), ("b", 70000), ("c", 0)):
            info = tarfile.TarInfo(name)
            info.uid = info.gid = uid
            info.mode = 0o4755
            tar.addfile(info, io.BytesIO())
    client.file("tree-put", "/tmp/owned", stdin_data=out.getvalue())
    listed = records(client.file("list", "/tmp/owned").stdout)
    assert [listed[n][1:4] for n in (b"a", b"b", b"c")] == [
        (0o4755, 1000, 1000),
        (0o4755, 0, 0),
        (0o4755, 0, 0),
    ]
    client.file("mkdir", "/tmp/user", "777", "-")
    client.file("tree-put", "/tmp/user/t", stdin_data=out.getvalue(), user="1000:1000")
    assert {r[2] for r in records(client.file("list", "/tmp/user/t").stdout).values()} == {1000}


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_every_common_tar_format_is_read(client: Client, form: int) -> None:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=form) as tar:
        name = "p" * 90 + "/" + "q" * 90
        info = tarfile.TarInfo(name)
        info.size = 3
        tar.addfile(info, io.BytesIO(b"abc"))
    client.file("tree-put", f"/tmp/form{form}", stdin_data=out.getvalue())
    assert client.file("read", f"/tmp/form{form}/{name}", "0", "-1").stdout == b"abc"


def hostile(*members: tuple[str, bytes, str]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, kind, link in members:
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, link
            tar.addfile(info)
    return out.getvalue()


@pytest.mark.parametrize(
    "members",
    [
        [("../out", tarfile.REGTYPE, "")],
        [("a/../../out", tarfile.REGTYPE, "")],
        [("/tmp/out", tarfile.REGTYPE, "")],
        [("l", tarfile.SYMTYPE, "/tmp"), ("l/out", tarfile.REGTYPE, "")],
        [("l", tarfile.SYMTYPE, ".."), ("l/out", tarfile.REGTYPE, "")],
        [("out", tarfile.LNKTYPE, "../victim")],
        [("out", tarfile.LNKTYPE, "/tmp/victim")],
        [("l", tarfile.SYMTYPE, "/tmp"), ("m", tarfile.LNKTYPE, "l/victim")],
    ],
)
def test_archive_cannot_escape_its_target(
    client: Client, members: list[tuple[str, bytes, str]]
) -> None:
    shell(client, "rm -rf /tmp/jail /tmp/out; echo v > /tmp/victim")
    op = client.file("tree-put", "/tmp/jail", stdin_data=hostile(*members))
    assert failed(op)[0] in {errno.EPERM, errno.ELOOP, errno.ENOENT}
    assert failed(client.file("stat", "/tmp/out"))[0] == errno.ENOENT
    assert shell(client, "stat -c %h /tmp/victim").stdout == b"1\n"


def test_member_of_a_links_name_replaces_the_link_not_its_target(client: Client) -> None:
    shell(
        client,
        "rm -rf /tmp/jail; mkdir /tmp/jail; echo v > /tmp/victim; ln -s /tmp/victim /tmp/jail/l",
    )
    client.file("tree-put", "/tmp/jail", stdin_data=hostile(("l", tarfile.REGTYPE, "")))
    assert (
        shell(client, "cat /tmp/victim; stat -c %F /tmp/jail/l").stdout
        == b"v\nregular empty file\n"
    )


@pytest.mark.parametrize("cut", [1, 511, 512, 700, 1024])
def test_broken_archive_is_an_error(client: Client, cut: int) -> None:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name in ("a", "b"):
            info = tarfile.TarInfo(name)
            info.size = 100
            tar.addfile(info, io.BytesIO(bytes(100)))
    assert (
        failed(client.file("tree-put", "/tmp/broken", stdin_data=out.getvalue()[:cut]))[0]
        == errno.EIO
    )
    assert (
        failed(client.file("tree-put", "/tmp/broken", stdin_data=b"junk" * 200))[0] == errno.EBADMSG
    )


def test_large_file_streams_in_constant_memory(
    client: Client, sandbox: Sandbox, binary: Path
) -> None:
    shell(client, "truncate -s 60M /tmp/large")
    assert len(client.file("read", "/tmp/large", "0", "-1").stdout) == 60 << 20
    status = Path(f"/proc/{sandbox.init_pid()}/status").read_text()
    peak = int(status.split("VmHWM:")[1].split()[0])
    assert peak < (1024 if "release" in str(binary) else 32768), peak
    client.file("remove", "/tmp/large", "-")


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
