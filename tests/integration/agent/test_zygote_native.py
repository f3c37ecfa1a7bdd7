"""Calls of a zygote in a real function container: the real launcher, agent and extension, no node."""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Iterator

import pytest
from function_rig import CPU_LIMIT, DISK_USED, FunctionLauncher
from native_agent import CANCELLED, ERRNO, EXIT_CODE, PID, REAL, SIGNO, TIMED_OUT
from zygote_box import ZYGOTE_KIND, Box, answer_of, launched, zygote_image_build

from skerry.guest import zygote

pytestmark = REAL


@pytest.fixture(scope="module")
def launcher(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FunctionLauncher]:
    with launched(zygote_image_build(tmp_path_factory.mktemp("zygote"))) as made:
        yield made


@pytest.fixture(scope="module")
def box(launcher: FunctionLauncher) -> Iterator[Box]:
    made = Box(launcher, "shared")
    report = made.begin("json", "random")
    assert report.error is None
    yield made
    made.stop()


def test_call_returns_its_value_from_a_fresh_cell(box: Box) -> None:
    code = (
        "import os, socket, random\ndef main(x):\n    open('/tmp/left', 'w').write('x' * 9000)\n"
        "    assert [os.environ[n] for n in ('HOME', 'USER')] == ['/call', '1000'], os.environ\n"
        "    print('said'); return [x * x, os.getuid(), os.getcwd(), socket.gethostname(), "
        "os.listdir('/call'), sorted(p for p in os.listdir('/proc') if p.isdigit())]\n"
    )
    op = box.call(0, code, 7)
    assert answer_of(op).value == [49, 1000, "/call", "host-0", ["main.py"], ["1", "2"]]
    assert (op.stdout, op.stderr) == (b"said\n", b"")
    assert op.done is not None
    assert (op.done[EXIT_CODE], PID in op.done) == (0, True)
    assert 9000 < int(op.done[DISK_USED]) < 100_000
    assert box.value(0, "import os\ndef main(): return os.listdir('/tmp')") == []


def test_program_reads_its_input_and_streams_its_output(box: Box) -> None:
    box.at.renew(1)
    op = box.start(
        1, "import sys\nfor line in sys.stdin: print(line * 2000, end='')\n", None, stdin=1
    )
    box.at.client.feed(op, b"".join(b"%d\n" % n for n in range(200)))
    box.at.client.wait(op)
    assert op.stdout == b"".join(b"%d\n" % n * 2000 for n in range(200))
    assert op.done is not None
    assert (op.done[EXIT_CODE], bytes(op.out[1])) == (0, b"")


def test_calls_run_side_by_side_each_in_its_cell(box: Box) -> None:
    code = (
        "import time\ndef main(x):\n    open('/tmp/mine', 'x').close()\n"
        "    time.sleep(0.3)\n    return x\n"
    )
    for cell in range(3):
        box.at.renew(cell)
    ops = [box.start(cell, code, "main", cell) for cell in range(3)]
    assert [answer_of(box.at.client.wait(op)).value for op in ops] == [0, 1, 2]


def test_timeout_cancel_and_processor_time_end_every_process_of_a_call(box: Box) -> None:
    code = (
        "import os, time\ndef main():\n    if os.fork() == 0:\n        os.setsid()\n"
        "    while True: %s\n"
    )
    late = box.call(0, code % "time.sleep(1)", timeout_ms=200)
    assert late.done is not None
    assert (late.done[TIMED_OUT], late.done[SIGNO]) == (1, signal.SIGKILL)
    busy = box.call(0, code % "pass", cpu_ms=150, timeout_ms=30_000)
    assert busy.done is not None
    assert (busy.done[CPU_LIMIT], busy.done[TIMED_OUT]) == (1, 0)
    box.at.renew(1)
    op = box.start(1, code % "time.sleep(1)")
    while not op.started:
        box.at.client.step()
    box.at.client.send(0x06, op.handle << 2)
    box.at.client.wait(op)
    assert op.done is not None
    assert op.done[CANCELLED] == 1
    assert box.value(1, "def main(): return 1") == 1


def test_cell_that_is_renewed_ends_its_call(box: Box) -> None:
    box.at.renew(0)
    op = box.start(0, "import time\ntime.sleep(1000)", None)
    while not op.started:
        box.at.client.step()
    box.at.renew(0)
    box.at.client.wait(op)
    assert op.done is not None
    assert (op.done[CANCELLED], op.done[SIGNO]) == (1, signal.SIGKILL)
    assert box.value(0, "def main(): return 1") == 1


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("import os; os._exit(5)", {EXIT_CODE: 5}),
        ("import ctypes; ctypes.string_at(0)", {SIGNO: signal.SIGSEGV}),
        ("import os; os.kill(os.getpid(), 9)", {SIGNO: signal.SIGKILL}),
        ("import os; os.closerange(0, 4096)", {}),
        ("import os, signal; os.kill(-1, 9); os.kill(1, 9)", {EXIT_CODE: 1}),
    ],
)
def test_death_of_a_call_is_its_own(box: Box, code: str, told: dict[int, int]) -> None:
    box.at.renew(1)
    beside = box.start(1, "def main(): return input()", "main", stdin=1)
    op = box.call(0, f"def main():\n    {code}\n")
    assert op.done is not None
    assert {tag: op.done.get(tag) for tag in told} == told
    box.at.client.feed(beside, b"well\n")
    assert answer_of(box.at.client.wait(beside)).value == "well"


def test_second_zygote_and_a_zygote_in_a_cell_are_refused(box: Box) -> None:
    start = zygote.start("/usr/bin/python3", [], library=b"")
    for cell, error in ((None, errno.EBUSY), (0, errno.EINVAL)):
        op = box.at.run(cell, *start.args, script=start.script, kind=ZYGOTE_KIND)
        assert op.errors[0][ERRNO] == error


def test_agent_keeps_no_descriptor_nor_group_of_calls(box: Box) -> None:
    def count() -> int:
        box.value(0, "def main(): return 1")
        return len(os.listdir(f"/proc/{box.at.pid}/fd"))

    for _ in range(6):
        first = count()
    for number in range(20):
        box.call(number % 3, "import os; os._exit(1)")
    assert count() <= first + 3  # groups of the other cells that are kept
