"""Programs in cells of a function container: the real launcher, the real agent, no node."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from function_rig import (
    CELL,
    CPU_LIMIT,
    DISK_BYTES,
    DISK_USED,
    FAILED,
    FSIZE,
    GONE,
    LIMIT_NOFILE,
    READY,
    RESULT_TOTAL,
    STACK,
    Container,
    FunctionLauncher,
)
from left_in_cells import ALL, LEAVE, LOOK
from native_agent import CANCELLED, CPU_US, ERRNO, ERROR_STEP, EXIT_CODE, REAL, SIGNO

from waiting import soon

pytestmark = REAL


@pytest.fixture
def make(image: Path) -> Iterator[Callable[..., FunctionLauncher]]:
    with contextlib.ExitStack() as stack:

        def build(**options: object) -> FunctionLauncher:
            base = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sk")))
            launcher = FunctionLauncher(image, base, **options)  # type: ignore[arg-type]
            stack.callback(launcher.clear)
            return launcher

        yield build


@pytest.fixture
def box(make: Callable[..., FunctionLauncher]) -> Iterator[Container]:
    launcher = make()
    launcher.begin()
    launcher.prepare(0)
    box = launcher.function("f", 0)
    yield box
    box.client.close()
    launcher.stop("f")
    launcher.drop(0)
    launcher.end()


def test_program_in_a_cell_is_a_plain_user_with_its_own_places(box: Container) -> None:
    box.renew(0)
    assert box.ok(0, "id -u; id -g; pwd; echo $HOME").split() == ["1000", "1000", "/call", "/call"]
    pid, name = box.ok(0, "echo $$; hostname").split()
    assert (int(pid) < 20, name) == (True, "host-0")
    status = box.ok(0, "cat /proc/self/status")
    for line in ("CapPrm", "CapEff", "CapBnd", "CapInh", "CapAmb"):
        assert int(status.split(f"{line}:")[1].split()[0], 16) == 0
    assert "NoNewPrivs:\t1" in status
    assert "Seccomp:\t2" in status
    for place in ("/tmp", "/var/tmp", "/dev/shm", "/run", "/call"):
        assert box.ok(0, f"echo x > {place}/f; cat {place}/f") == "x\n"
    refused = box.sh(0, "touch /x /etc/x /usr/bin/x /dev/x")
    assert refused.stderr.count(b"Read-only file system") == 4, refused.stderr


def test_nothing_of_a_call_is_left_for_the_next_one_in_its_cell(box: Container) -> None:
    box.renew(0)
    leave = (
        "for d in /tmp /var/tmp /dev/shm /run /call; do echo x > $d/left; done;"
        "setsid sh -c 'sleep 1000 & sleep 1000' >/dev/null 2>&1 &"
        "(setsid sleep 1001 >/dev/null 2>&1 &) ; echo done"
    )
    assert box.ok(0, leave) == "done\n"
    assert box.ok(0, "ps -e | grep -c sleep") == "3\n"
    box.renew(0)
    assert box.ok(0, "ls -A /tmp /var/tmp /dev/shm /run /call | grep -c left || true") == "0\n"
    assert box.ok(0, "ps -e | grep -c sleep || true") == "0\n"
    assert box.ok(0, "df -k /tmp | grep -c '^skerry .* 0%'") == "1\n"


def test_programs_of_two_cells_see_nothing_of_each_other(box: Container) -> None:
    box.renew(0)
    box.renew(1)
    box.ok(0, "echo mine > /tmp/mine; setsid sleep 1000 >/dev/null 2>&1 &")
    assert box.ok(1, "ls -A /tmp; ps -e | grep -c sleep || true") == "0\n"
    assert box.ok(0, "cat /tmp/mine") == "mine\n"


def test_renewal_ends_what_runs_in_the_cell_before_it_is_ready(box: Container) -> None:
    box.renew(0)
    op = box.start(0, "sh", "-c", "trap '' TERM; while :; do sleep 1000; done")
    while not op.started:
        box.client.step()
    box.renew(0)
    box.client.wait(op)
    assert op.done is not None
    assert (op.done[SIGNO], op.done[CANCELLED]) == (9, 1)
    assert box.ok(0, "ps -e | grep -c sleep || true") == "0\n"


def test_what_needs_no_cell_is_refused_and_so_is_a_cell_that_is_not_there(box: Container) -> None:
    assert box.run(None, "true").errors == [{ERRNO: errno.EPERM, ERROR_STEP: "cell"}]
    assert box.run(0, "true").errors == [{ERRNO: errno.EAGAIN, ERROR_STEP: "cell"}]
    assert box.run(7, "true").errors == [{ERRNO: errno.EAGAIN, ERROR_STEP: "cell"}]
    box.renew(0)
    assert box.run(0, "true", rows=2, cols=2).errors == [{ERRNO: errno.EINVAL, ERROR_STEP: "start"}]
    assert box.run(0, "sh", "x", kind=2).errors == [{ERRNO: errno.EINVAL, ERROR_STEP: "start"}]
    for user in ("root", "0:1000"):
        done = box.run(0, "true", user=user).done
        assert done is not None
        assert (done[ERROR_STEP], done[ERRNO]) == ("user", errno.EPERM)
    box.drop(0)
    assert box.run(0, "true").errors == [{ERRNO: errno.EAGAIN, ERROR_STEP: "cell"}]


def test_result_comes_on_a_channel_of_its_own(box: Container) -> None:
    box.renew(0)
    size = 1 << 20
    line = f"head -c {size} /dev/zero >&4; echo out; echo err >&2; echo end >&4"
    op = box.sh(0, line, result=True)
    assert op.done is not None
    assert op.done[RESULT_TOTAL] == size + 4
    assert bytes(op.out[1]) == bytes(size) + b"end\n"
    assert (op.stdout, op.stderr) == (b"out\n", b"err\n")
    assert box.ok(0, "(echo x >&4) 2>/dev/null || echo closed") == "closed\n"


def test_processor_time_of_all_descendants_ends_it(box: Container) -> None:
    box.renew(0)
    line = "(setsid sh -c 'while :; do :; done' &); while :; do :; done"
    op = box.sh(0, line, cpu_ms=300)
    assert op.done is not None
    assert (op.done[CPU_LIMIT], op.done[SIGNO]) == (1, 9)
    assert 300_000 <= int(op.done[CPU_US]) < 600_000
    assert CPU_LIMIT not in box.sh(0, "true", cpu_ms=300).done


def test_limits_are_lowered_and_disk_is_counted(box: Container) -> None:
    box.renew(0, disk=1 << 20)
    limits = {FSIZE: 65536, LIMIT_NOFILE: 32, STACK: 1 << 20}
    op = box.sh(0, "ulimit -Hf; ulimit -Hn; ulimit -Hs", limits=limits)
    assert op.stdout.split() == [b"128", b"32", b"1024"]
    op = box.sh(0, "head -c 100000 /dev/zero > /tmp/f", limits=limits)
    assert op.done is not None
    assert op.done[DISK_USED] == 65536
    op = box.sh(0, "head -c 2000000 /dev/zero > /tmp/g")
    assert b"No space left" in op.stderr
    assert op.done[DISK_USED] == 1 << 20
    box.renew(0, inodes=32)
    op = box.sh(0, "i=0; while [ $i -lt 40 ]; do : > /tmp/$i || exit 1; i=$((i+1)); done")
    assert op.done is not None
    assert op.done[DISK_USED] == DISK_BYTES


def test_file_helper_works_in_the_cell(box: Container) -> None:
    box.renew(0)
    op = box.start(0, "write", "in", "644", "-", kind=1, stdin=True)
    box.client.feed(op, b"content\n")
    assert box.client.wait(op).done[EXIT_CODE] == 0
    assert box.ok(0, "cat /call/in; stat -c %u /call/in") == "content\n1000\n"
    assert box.run(0, "read", "/call/in", "0", "-1", kind=1).stdout == b"content\n"
    op = box.start(0, "write", "/etc/x", "644", "-", kind=1, stdin=True)
    box.client.feed(op, b"x")
    assert box.client.wait(op).stderr.startswith(b"%d " % errno.EROFS)


def test_cells_stay_over_a_new_connection(box: Container) -> None:
    box.renew(1)
    box.ok(1, "echo kept > /tmp/kept")
    box.reconnect()
    assert box.ok(1, "cat /tmp/kept") == "kept\n"


def test_all_that_a_call_left_on_purpose_is_there_until_its_cell_is_renewed(box: Container) -> None:
    """The first half is the control: what the look finds nothing of, it would have found."""
    box.renew(0)
    box.renew(1)
    left = box.python(0, LEAVE)
    assert left.stdout == b"left\n", left.stderr
    assert set(box.python(0, LOOK).stdout.decode().split()) == set(ALL.split())
    assert box.python(1, LOOK).stdout == b"\n"
    box.renew(0)
    look = box.python(0, LOOK)
    assert look.stdout == b"\n", look.stderr


def test_network_is_used_again_only_if_nobody_can_tell(box: Container) -> None:
    def network() -> str:
        return box.ok(0, "readlink /proc/self/ns/net")

    box.renew(0)
    first = network()
    box.ok(0, "true")
    box.renew(0)
    assert network() == first
    for trace in (
        "s.bind(('127.0.0.1', 0)); s.listen(); c.connect(s.getsockname()); s.accept()",
        "c.connect_ex(('127.0.0.1', 9))",  # refused
        "c.connect_ex(('192.0.2.1', 9))",  # no route
    ):
        box.python(0, f"import socket; s = socket.socket(); c = socket.socket(); {trace}")
        box.renew(0)
        again = network()
        assert again != first, trace
        first = again
        box.renew(0)
        assert network() == first


def test_cell_whose_first_process_is_killed_from_outside_is_gone(box: Container) -> None:
    box.renew(0)
    op = box.start(0, "sleep", "1000")
    while not op.started:
        box.client.step()
    (init,) = [pid for pid in _children(box.pid) if "pause" in _wchan(pid)]
    os.kill(init, signal.SIGKILL)
    assert box.answer() == {CELL: 0, 7: GONE}
    assert box.client.wait(op).done[SIGNO] == 9
    assert box.run(0, "true").errors == [{ERRNO: errno.EAGAIN, ERROR_STEP: "cell"}]
    box.renew(0)
    assert box.ok(0, "echo again") == "again\n"


def test_cell_that_cannot_be_made_says_at_which_step_and_can_be_made_later(box: Container) -> None:
    for size in ({"disk": 1}, {"inodes": 1}):
        box.ask(0, 1, **size)
        assert box.answer() == {CELL: 0, 7: FAILED, ERROR_STEP: "disk", ERRNO: errno.EINVAL}
    box.renew(0)


def test_cells_come_and_go_and_leave_nothing(box: Container) -> None:
    for cell in (0, 1):
        box.renew(cell)
        box.ok(cell, "true")
    held = _descriptors(box.pid)
    for _ in range(20):
        box.ask(0, 1)
        box.ask(0, 1)  # both are answered by what came of the second
        box.ask(1, 2)
        box.ask(1, 1)
        said = [box.answer() for _ in range(4)]
        assert [s for s in said if s[CELL] == 0] == [{7: READY, CELL: 0}] * 2
        assert box.ok(0, "echo a > /tmp/a; cat /tmp/a") == "a\n"
        box.python(1, LEAVE)
    for cell in (0, 1):
        box.renew(cell)
        box.ok(cell, "true")
    # Groups that are kept for the next have files open.
    assert _descriptors(box.pid) <= held + 8
    assert len(_children(box.pid)) == 2
    for cell in (0, 1):
        box.drop(cell)
    assert soon(lambda: not _children(box.pid))


def _children(pid: int) -> list[int]:
    return [int(n) for n in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _wchan(pid: int) -> str:
    return Path(f"/proc/{pid}/wchan").read_text()


def _descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))
