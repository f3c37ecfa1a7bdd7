"""Calls that attack their limits, their worker or the next call, and how each has to be answered."""

from __future__ import annotations

from typing import Any, NamedTuple

from skerry.spec.function import (
    CallKind,
    CallSpec,
    Environment,
    ProgramCall,
    PythonCall,
    ScriptCall,
)
from skerry.spec.function_limits import CallLimits
from skerry.spec.limits import MIB

LIMITS = CallLimits(
    wall_s=20, cpu_s=0.4, memory_bytes=64 * MIB, output_bytes=64 << 10, processes=16,
    disk_bytes=8 * MIB, open_files=64,
)  # fmt: skip
SHORT = CallLimits(
    wall_s=0.4, memory_bytes=64 * MIB, output_bytes=64 << 10, processes=16, disk_bytes=8 * MIB,
    open_files=64,
)  # fmt: skip
# For what is no race with the processor: a busy machine makes it slow, and not wrong.
PATIENT = CallLimits(
    wall_s=60, cpu_s=20, memory_bytes=64 * MIB, output_bytes=64 << 10, processes=16,
    disk_bytes=8 * MIB, open_files=64,
)  # fmt: skip


class Hostile(NamedTuple):
    """A call, and what its result has to say; the value ... is any."""

    name: str
    kind: CallKind
    limits: CallLimits
    limit: str | None = None
    signal: int | None = None
    exit_code: Any = ...
    value: Any = ...
    returned: Any = ...
    error: str | None = ...  # type: ignore[assignment] - the exception's name

    def call(self, environment: Environment) -> CallSpec:
        return CallSpec(kind=self.kind, environment=environment, limits=self.limits, wait_s=300)

    def objection(self, result: Any) -> str:
        """Returns what is wrong with its result, "" if nothing is."""
        wrong = []
        if result.limit != self.limit:
            wrong.append(f"limit {result.limit} and not {self.limit}")
        if self.limit is not None:
            if result.ok:
                wrong.append("it is ok")
        elif result.signal != self.signal:
            wrong.append(f"signal {result.signal} and not {self.signal}")
        for what in ("exit_code", "value", "returned"):
            expected, seen = getattr(self, what), getattr(result, what)
            if expected is not ... and seen != expected:
                wrong.append(f"{what} {seen!r} and not {expected!r}")
        seen = result.error and result.error.type
        if self.error is not ... and seen != self.error:
            wrong.append(f"error {result.error} and not {self.error}")
        if len(result.stdout) > self.limits.output_bytes or len(result.stderr) > 1 << 20:
            wrong.append("more output than its limit")
        return f"{self.name}: {', '.join(wrong)}; {result}"[:2000] if wrong else ""


def over(limit: str, name: str, code: str, limits: CallLimits = PATIENT) -> Hostile:
    """A Python call that has to be ended by this limit."""
    return Hostile(name, PythonCall(code=f"def main():\n{_in(code)}"), limits, limit)


def tries(name: str, code: str, value: Any, limits: CallLimits = PATIENT) -> Hostile:
    """A Python call that attacks, lives, and returns this."""
    kind = PythonCall(code=f"def main():\n{_in(code)}")
    if value is ...:  # it may have broken what would have told it
        return Hostile(name, kind, limits)
    return Hostile(name, kind, limits, exit_code=0, value=value, returned=True, error=None)


def dies(name: str, code: str, **how: Any) -> Hostile:
    """A Python call that ends itself like this."""
    kind = PythonCall(code=f"def main():\n{_in(code)}")
    return Hostile(name, kind, PATIENT, **{"returned": False, **how})


def _in(code: str) -> str:
    return "".join(f"    {line}\n" for line in code.strip().splitlines())


SYSCALL = """
import ctypes, errno
libc = ctypes.CDLL(None, use_errno=True)
def said(*words):
    ctypes.set_errno(0)
    done = libc.syscall(*[ctypes.c_long(w) if isinstance(w, int) else w for w in words])
    return "done" if done >= 0 else errno.errorcode[ctypes.get_errno()]
"""

TIME = [
    over("cpu", "loop", "while True: pass", LIMITS),
    over("cpu", "loops in children", """
import os
for n in range(3): os.fork()
while True: pass""", LIMITS),
    over("cpu", "loops in threads", """
import threading
def spin():
    while True: pass
for n in range(6): threading.Thread(target=spin).start()
spin()""", LIMITS),
    over("cpu", "a regular expression", "import re; re.match('(a+)+$', 'a' * 64 + 'b')", LIMITS),
    over("wall", "sleep", "import time; time.sleep(99)", SHORT),
    over("wall", "sleep with every signal blocked", """
import signal, time
signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))
for n in range(1, 65):
    try: signal.signal(n, signal.SIG_IGN)
    except (OSError, ValueError): pass
while True: time.sleep(1)""", SHORT),
    over("wall", "stopped", "import os; os.kill(os.getpid(), 19); return 1", SHORT),
    over("wall", "reads what never comes", "import os; r, w = os.pipe(); os.read(r, 1)", SHORT),
]  # fmt: skip
SPACE = [
    over("memory", "bytes", "x = []\nwhile True: x.append(bytearray(1 << 20))"),
    over("memory", "one block", "x = b'x' * (1 << 28); return len(x)"),
    over("memory", "shared pages", """
import mmap
m = mmap.mmap(-1, 1 << 28)
for n in range(0, 1 << 28, 4096): m[n] = 1"""),
    over("memory", "in children", """
import os, time
for n in range(8):
    if os.fork() == 0:
        x = b'x' * (20 << 20); time.sleep(60)
time.sleep(60)"""),
    over("memory", "a list in itself", "x = [0] * 1000\nwhile True: x = x + x"),
    over("output", "stdout", "while True: print('x' * 4096)"),
    over("output", "stderr", "import os\nwhile True: os.write(2, b'x' * 4096)"),
    over("output", "a value", "return 'x' * (9 << 20)"),
    over("processes", "fork bomb", "import os\nwhile True: os.fork()"),
    over("processes", "threads", """
import threading, time
while True: threading.Thread(target=time.sleep, args=(60,)).start()"""),
    Hostile("fork bomb of a shell",
            ScriptCall(source=":(){ :|:; };:", interpreter=("bash",)), PATIENT, "processes"),
    over("disk", "a file in /tmp", "f = open('/tmp/a', 'wb')\nwhile True: f.write(bytes(1 << 16))"),
    over("disk", "a file in /dev/shm", "open('/dev/shm/a', 'wb').write(bytes(9 << 20))"),
    over("disk", "inodes", "n = 0\nwhile True:\n    open(f'/call/{n}', 'w').close(); n += 1"),
    Hostile("yes", ProgramCall(argv=("yes",)), PATIENT, "output"),
    Hostile("tail of zeros", ScriptCall(source="tail /dev/zero"), PATIENT, "memory"),
    Hostile("dd", ScriptCall(source="dd if=/dev/zero of=/run/a bs=64k"), PATIENT, "disk"),
    Hostile("a shell that spins", ScriptCall(source="while :; do :; done"), LIMITS, "cpu"),
]  # fmt: skip
DEATHS = [
    dies("_exit", "import os; os._exit(0)", exit_code=0, error=None),
    dies("_exit 77", "import os; os._exit(77)", exit_code=77, error=None),
    dies("exit", "raise SystemExit(5)", exit_code=5, error=None),
    dies("abort", "import os; os.abort()", signal=6, error=None),
    dies("segfault", "import ctypes; ctypes.string_at(0)", signal=11, error=None),
    dies("kills itself", "import os; os.kill(os.getpid(), 9)", signal=9, error=None),
    dies("kills its group", "import os; os.kill(0, 9)", signal=9, error=None),
    dies("recursion", "def f(): return f()\nf()", exit_code=1, error="RecursionError"),
    dies("recursion in C", """
import sys
sys.setrecursionlimit(1 << 30)
x = []
for n in range(1 << 18): x = [x]
repr(x)""", signal=11, error=None),
    dies("an exception", "raise ValueError('x' * 10)", exit_code=1, error="ValueError"),
    dies("an exception whose text fails", """
class Bad(Exception):
    def __str__(self): raise Bad
raise Bad""", exit_code=1, error="main.<locals>.Bad"),
    dies("no value of JSON", "return object()", exit_code=1),
    dies("open files", "x = [open('/proc/self/stat') for n in range(100)]", error="OSError"),
    dies("a value that holds itself", "x = []\nx.append(x)\nreturn x"),
    Hostile("no entry", PythonCall(code="x = 1"), PATIENT, returned=False),
    Hostile("no Python", PythonCall(code="def main(:"), PATIENT, error="SyntaxError"),
    Hostile("no program", ProgramCall(argv=("/no/such/program",)), PATIENT),
]  # fmt: skip
ATTACKS = [
    tries("kills all", """
import os
for n in (9, 15, 19):
    try: os.kill(-1, n)
    except OSError as error: said = error.errno
return said""", 3),
    tries("kills its parent and process 1", """
import os
said = []
for pid in (1, os.getppid() or 1):
    for n in (9, 11, 19):
        try: os.kill(pid, n); said.append(os.path.exists('/proc/1'))
        except OSError as error: said.append(error.errno)
return all(said)""", True),
    tries("daemons", """
import os, time
for n in range(4):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.closerange(0, 64); time.sleep(600)
        os._exit(0)
return 'left'""", "left"),
    tries("daemons that hold its output", """
import os, time
if os.fork() == 0:
    os.setsid(); time.sleep(600)
return 'left'""", "left"),
    tries("the same abstract socket each time", """
import socket
s = socket.socket(socket.AF_UNIX); s.bind(chr(0) + 'skerry-hostile'); s.listen()
import os, time
if os.fork() == 0: time.sleep(600)
return 'bound'""", "bound"),
    tries("the same port each time", """
import os, socket, time
s = socket.socket(); s.bind(('127.0.0.1', 4242)); s.listen()
if os.fork() == 0: time.sleep(600)
return 'bound'""", "bound"),
    tries("the same System V segment each time", f"""{SYSCALL}
return [said(29, 4242, 1 << 20, 0o1000 | 0o2000 | 0o600), said(68, 77, 0o1000 | 0o2000 | 0o600)]""",
          ["done", "done"]),
    tries("ptrace of process 1", f"""{SYSCALL}
return said(101, 16, 1, 0, 0)""", "EPERM"),
    tries("mounts and namespaces", f"""{SYSCALL}
tmp = ctypes.c_char_p(b'/tmp'); kind = ctypes.c_char_p(b'tmpfs')
words = [said(165, kind, tmp, kind, 0, 0), said(166, tmp, 2), said(272, 0x20000), said(272, 0x10000000),
         said(272, 0x40000000), said(161, tmp), said(155, tmp, tmp), said(430, kind, 0)]
return "done" in words""", False),
    tries("other namespaces by their files", f"""{SYSCALL}
import os
said_ = []
for name in os.listdir('/proc/1/ns') if os.access('/proc/1/ns', os.R_OK) else []:
    try: f = os.open('/proc/1/ns/' + name, os.O_RDONLY)
    except OSError: continue
    said_.append(said(308, f, 0)); os.close(f)
return 'done' in said_""", False),
    tries("the kernel's other doors", f"""{SYSCALL}
doors = [(323, 0), (298, 0, 0, -1, -1, 0), (321, 0, 0, 0), (250, 0, -3, 0), (246, 0), (175, 0, 0, 0)]
return any(said(*door) == 'done' for door in doors)""", False),
    tries("files of the kernel", """
done = []
for path in ('/proc/sysrq-trigger', '/proc/sys/kernel/hostname', '/proc/sys/kernel/core_pattern',
             '/proc/sys/vm/drop_caches', '/proc/1/oom_score_adj', '/proc/1/mem', '/dev/mem', '/dev/kmsg',
             '/sys/fs/cgroup/cgroup.procs', '/proc/1/environ'):
    try: open(path, 'r+b').write(b'1'); done.append(path)
    except OSError: pass
return done""", []),
    tries("deletes what there is", """
import os, shutil
for top in ('/proc/1', '/proc/self', '/usr/lib/python3', '/bin', '/etc', '/dev'):
    shutil.rmtree(top, ignore_errors=True)
return all(map(os.path.exists, ('/proc/1', '/usr/lib', '/etc/passwd', '/dev/null')))""", True),
    tries("higher limits", """
import resource
said = []
for what in (resource.RLIMIT_NOFILE, resource.RLIMIT_CORE):
    try: resource.setrlimit(what, (1 << 40, 1 << 40)); said.append(what)
    except (ValueError, OSError): pass
return said""", []),
    tries("another user", """
import os
said = []
for do in (lambda: os.setuid(0), lambda: os.setgroups([0]), lambda: os.chown('/tmp', 0, 0),
           lambda: os.setresgid(0, 0, 0), lambda: os.chroot('/tmp')):
    try: do(); said.append(1)
    except OSError: pass
return said, os.getuid()""", [[], 1000]),
    tries("broken modules", """
import builtins, json, os, sys
json.dumps = json.loads = json.JSONEncoder = os.write = os._exit = None
builtins.print = builtins.repr = builtins.len = None
sys.stdout = sys.stderr = sys.excepthook = None
sys.modules.clear()
return 'broken'""", ...),
    tries("timers", """
import signal
signal.signal(signal.SIGALRM, signal.SIG_IGN)
signal.setitimer(signal.ITIMER_REAL, 1e-6, 1e-6)
signal.setitimer(signal.ITIMER_VIRTUAL, 60)
return 1""", 1),
    tries("its environment", """
import os
return sorted(name for name in os.environ if 'SKERRY' in name or 'TOKEN' in name)""", []),
    tries("the world", """
import socket
said = []
for where in (('127.0.0.1', 22), ('8.8.8.8', 53), ('169.254.169.254', 80)):
    s = socket.socket(); s.settimeout(2)
    try: s.connect(where); said.append(where)
    except OSError: pass
return said""", []),
    dies("closes everything", "import os; os.closerange(0, 1 << 16); return 1"),
    Hostile("writes into all descriptors", PythonCall(code="""
import os
def main():
    for n in range(3, 512):
        try: os.write(n, b'{"value": 1}{"value": 2}' * 100)
        except OSError: pass
    os._exit(0)"""), PATIENT, returned=False),
]  # fmt: skip
ALL = [*TIME, *SPACE, *DEATHS, *ATTACKS]
