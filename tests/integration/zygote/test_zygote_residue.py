"""What a call leaves behind, and what it can do to the zygote and to other calls: nothing."""

from __future__ import annotations

import errno
import os
import signal
import socket
import struct

import pytest
from zygote_stand import (
    CALL,
    ERRNO,
    FAILED,
    FD,
    GID,
    STEP,
    UID,
    Warden,
    Zygote,
    frame,
    pack,
    unpack,
)

pytestmark = [pytest.mark.root, pytest.mark.skipif(os.getuid() != 0, reason="needs root")]

# Changes everything of its process that one may want to find again; SECRET is in its memory only.
CHANGES = """
import atexit, builtins, json, os, resource, signal, sys, threading, time
def main(secret):
    json.dumps = lambda *a, **k: "changed"
    json.left = secret
    builtins.len = lambda x: 42
    builtins.left = secret
    sys.path.append("/left")
    sys.modules["left"] = sys
    sys.setrecursionlimit(77)
    sys.setswitchinterval(1)
    os.environ["LEFT"] = secret
    os.putenv("LEFT", secret)
    os.chdir("/")
    os.umask(0o777)
    os.nice(5)
    signal.signal(signal.SIGUSR1, lambda *a: None)
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    signal.setitimer(signal.ITIMER_REAL, 1000)
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
    threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
    atexit.register(open, "/tmp/call/at-exit", "w")
    global kept
    kept = [secret * 1000 for _ in range(100)]
    return True
"""
STATE = """
import atexit, builtins, gc, json, os, resource, signal, sys, threading
SEEN = ("Umask", "Sig", "Shd", "Threads", "Cap", "NoNew")
def main():
    me = open("/proc/self/status").read()
    return {
        "dumps": json.dumps([1]), "module": hasattr(json, "left"), "builtin": hasattr(builtins, "left"),
        "len": len("abc"), "path": sys.path, "modules": sorted(sys.modules), "env": dict(os.environ),
        "limit": [sys.getrecursionlimit(), sys.getswitchinterval()], "cwd": os.getcwd(),
        "status": [line for line in me.splitlines() if line.startswith(SEEN)],
        "nice": os.nice(0), "timer": signal.getitimer(signal.ITIMER_REAL), "alarm": signal.alarm(0),
        "usr1": str(signal.getsignal(signal.SIGUSR1)),
        "limits": [resource.getrlimit(n) for n in range(16)],
        "threads": threading.active_count(), "files": sorted(os.listdir("/tmp/call")),
        "fds": sorted(os.listdir("/proc/self/fd")), "callbacks": atexit._ncallbacks(),
        "gc": gc.isenabled(),
        "pids": sorted(p for p in os.listdir("/proc") if p.isdigit()),
    }
"""
# Looks through all of its memory that it can read for a text, which it knows only turned around.
SEARCH = """
def main(turned):
    text = turned[::-1].encode()
    found = 0
    with open("/proc/self/maps") as maps, open("/proc/self/mem", "rb", 0) as memory:
        for line in maps:
            words = line.split()
            begin, end = (int(x, 16) for x in words[0].split("-"))
            if "r" not in words[1] or line.rstrip().endswith(("[vvar]", "[vsyscall]", "[vvar_vclock]")):
                continue
            try:
                memory.seek(begin)
                found += memory.read(end - begin).count(text * 3)
            except (OSError, OverflowError):
                continue
    return found
"""


def test_changes_of_a_call_are_not_seen_by_the_next(zygote: Zygote) -> None:
    before = zygote.value(STATE)
    secret = os.urandom(12).hex()
    changed = zygote.call(CHANGES, "main", [secret])
    assert changed.answer.value is True, changed
    assert zygote.value(STATE) == before


def test_memory_of_a_call_is_not_found_by_the_next(zygote: Zygote) -> None:
    secret = os.urandom(12).hex()
    held = "    global kept; kept = turned[::-1] * 9\n    text ="
    control = "kept = None\n" + SEARCH.replace("    text =", held)
    assert zygote.value(control, "main", [secret[::-1]]) > 1
    assert zygote.call(CHANGES, "main", [secret]).exit_code == 0
    # The pattern itself is in the memory of who looks for it.
    own = zygote.value(SEARCH, "main", [os.urandom(12).hex()])
    assert zygote.value(SEARCH, "main", [secret[::-1]]) == own


def test_random_state_differs_between_calls(zygote: Zygote) -> None:
    code = (
        "import random, os, tempfile\ndef main(): return [random.random(), os.urandom(8).hex()]\n"
    )
    rows = [zygote.value(code) for _ in range(6)]
    assert len({row[0] for row in rows}) == len({row[1] for row in rows}) == 6


def test_hash_seed_is_a_zygotes_own(warden: Warden, newest: str, zygote: Zygote) -> None:
    code = "import sys\ndef main(): return [hash('a'), sys.flags.hash_randomization]\n"
    other = Zygote(warden, newest)
    seeds = [zygote.value(code), zygote.value(code), other.value(code)]
    other.stop()
    assert seeds[0] == seeds[1] != seeds[2]
    assert {seed[1] for seed in seeds} == {1}


DEATHS = {
    "import os; os._exit(5)": 5,
    "import os; os.kill(os.getpid(), 9)": -signal.SIGKILL,
    "import os; os.abort()": -signal.SIGABRT,
    "import ctypes; ctypes.string_at(0)": -signal.SIGSEGV,
    "import os; os.closerange(0, 4096)": None,
    "import sys; sys.setrecursionlimit(10 ** 8)\n    x = []\n"
    "    for _ in range(10 ** 6): x = [x]\n    repr(x)": None,
    "def g(): g()\n    g()": 1,
    "import os; [os.kill(p, 9) for p in (os.getppid(), 1, -1) if p != 0 and p != os.getpid()]": None,
    "import sys; sys.stdout.close(); sys.stderr.close(); print(1)": None,
    "import os, signal; os.kill(0, signal.SIGTERM)": -signal.SIGTERM,
    "import sys, os; sys.modules.clear(); os.environ = None; sys.excepthook = 1; 1 / 0": 1,
    "import builtins; vars(builtins).clear(); 1 / 0": None,
    "x = bytearray(1 << 62)": 1,
    "class E(BaseException):\n        def __str__(self): raise E\n    raise E": 1,
    "import threading, os; threading.Thread(target=os._exit, args=(3,)).start()\n    input()": None,
}


@pytest.mark.parametrize("code", list(DEATHS))
def test_death_of_a_call_is_its_own(zygote: Zygote, code: str) -> None:
    beside = zygote.begin("def main():\n    return input()\n", stdin=b"well\n")
    ended = zygote.call(f"def main():\n    {code}\n")
    assert ended.entered
    if DEATHS[code] is not None:
        assert ended.exit_code == DEATHS[code], ended
    assert not ended.answer.returned or ended.answer.value is None
    assert zygote.wait(beside).answer.value == "well"
    assert zygote.value("def main(x): return x + 1", "main", [1]) == 2


def test_cell_that_is_killed_ends_its_call_alone(zygote: Zygote) -> None:
    cell = zygote.warden.cell()
    call = zygote.begin(
        "import os, time\nos.fork()\nprint(1, flush=True)\ntime.sleep(1000)\n", None, cell=cell
    )
    while call.bytes[1].count(b"1") < 2:
        zygote.turn(1)
    signal.pidfd_send_signal(cell, signal.SIGKILL)
    assert zygote.wait(call).exit_code == -signal.SIGKILL
    late = zygote.call("def main(): return 1", cell=cell)
    assert late.failed is not None  # and not run elsewhere
    assert late.failed[0] in {"join", "fork"}
    os.close(cell)
    assert zygote.value("def main(): return 1") == 1


FORBIDDEN = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
def tried(result):
    return ctypes.get_errno() if result < 0 else "allowed"
def main():
    own = os.open("/proc/self/ns/uts", os.O_RDONLY)
    buffer = ctypes.create_string_buffer(64)
    return [
        tried(libc.mount(b"none", b"/tmp", b"tmpfs", 0, b"")), tried(libc.unshare(0x20000)),
        tried(libc.setns(own, 0)),
        tried(libc.setuid(0)), tried(libc.syscall(435, buffer, 64)), tried(libc.sethostname(b"x", 1)),
        libc.prctl(23, 21, 0, 0, 0), tried(libc.kill(1, 9)),
        os.getresuid() + os.getresgid(), os.getgroups(),
    ]
"""


def test_call_has_no_privilege_and_no_way_back_to_one(zygote: Zygote) -> None:
    got = zygote.value(FORBIDDEN)
    # mount, unshare, setns, setuid, clone3, sethostname, the bounding set, kill of the cell's init
    forbidden = [errno.EPERM] * 4 + [errno.ENOSYS, errno.EPERM]
    assert got == [*forbidden, 0, errno.EPERM, [1000] * 6, []]


def test_call_finds_nothing_of_the_zygotes_descriptors(zygote: Zygote) -> None:
    code = (
        "import os\ndef main():\n    where = '/proc/self/fd/'\n"
        "    there = [n for n in os.listdir(where) if os.path.lexists(where + n)]\n"
        "    return {n: os.readlink(where + n) for n in there}\n"
    )
    found = zygote.value(code)
    assert set(found) == {"0", "1", "2", "230"}
    assert found["0"] == "/dev/null"
    assert not any("socket" in what or "ns/" in what or "pidfd" in what for what in found.values())


@pytest.mark.parametrize(
    "packet",
    [
        b"x" * 100, frame(9, 5, b""), frame(CALL, 5, b"\x01"), frame(CALL, 5, pack(FD, 1)),
        frame(CALL, 5, b"".join(pack(FD, n) for n in (1, 2, 3)) + pack(UID, 0) + pack(GID, 0)),
        frame(CALL, 5, b"".join(pack(FD, n) for n in (1, 2, 3)) + pack(UID, 1) + pack(GID, 1)),
        frame(CALL, 5, b"\xff" * 3000), struct.pack("<HBBIII", 0x4B53, 1, CALL, 0, 5, 1 << 31),
    ],
)  # fmt: skip
def test_packet_that_is_no_call_is_answered_and_runs_nothing(zygote: Zygote, packet: bytes) -> None:
    with open("/dev/null") as null:
        socket.send_fds(zygote.talk, [packet], [null.fileno(), null.fileno()])
    kind, _, fields = unpack(zygote.packet())
    assert (kind, fields[STEP]) == (FAILED, "call")
    assert fields[ERRNO] in {errno.EPROTO, errno.EPERM}
    assert zygote.value("def main(): return 1") == 1


def test_zygote_keeps_no_descriptor_of_calls_that_are_over(zygote: Zygote) -> None:
    def count() -> int:
        begin = zygote.begin("input()", None, stdin=b"\n")
        zygote.wait(begin)
        holders = [
            pid
            for pid in os.listdir("/proc")
            if pid.isdigit() and b"skerry_" in cmdline(pid) and zygote.tag.encode() in environ(pid)
        ]
        assert len(holders) == 1, holders
        return len(os.listdir(f"/proc/{holders[0]}/fd"))

    first = count()
    for _ in range(5):
        zygote.call("import os; os._exit(1)", None)
    assert count() == first


def cmdline(pid: str) -> bytes:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read()
    except OSError:
        return b""


def environ(pid: str) -> bytes:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return file.read()
    except OSError:
        return b""
