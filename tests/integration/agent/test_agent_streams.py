"""The real `skerry-init`: streams, connections and terminals."""

from __future__ import annotations

import errno
import hashlib
import random
import socket
import struct
import tempfile
import time
from pathlib import Path

import pytest
from native_agent import (
    ACK,
    CANCEL,
    CANCELLED,
    COLS,
    CREDIT,
    DATA,
    ERRNO,
    ERROR,
    EXIT_CODE,
    HANDLE,
    OFFSET,
    PING,
    PONG,
    REAL,
    RESIZE,
    ROWS,
    STATE,
    TOKEN,
    WINDOW,
    Client,
    pack,
    unpack,
)
from native_sandbox import Sandbox

pytestmark = REAL


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
            if client.auto_credit:
                continue  # it is only slow
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
    client.run("true")
    client.send(CANCEL, flood.handle << 2)
    client.wait(flood)
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
