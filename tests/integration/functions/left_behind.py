"""What one call may try to leave for the next, and how the next would find it."""

from __future__ import annotations

from typing import NamedTuple

_LIBC = "import ctypes; libc = ctypes.CDLL(None, use_errno=True)\n"


class Trace(NamedTuple):
    """Code that leaves something, and an expression, after some lines, of what is found of it.

    `nothing` is what it says where nobody left anything.
    """

    name: str
    leave: str
    look: str
    nothing: object

    def leaving(self) -> str:
        return f"def main():\n{_in(self.leave)}    return 'left'\n"

    def looking(self) -> str:
        return f"def main():\n{_in(self.look)}"

    def both(self) -> str:
        """In one call, so that it is there to be found."""
        return f"def main():\n{_in(self.leave)}{_in(self.look)}"


def _in(code: str) -> str:
    return "".join(f"    {line}\n" for line in code.strip().splitlines())


TRACES = [
    Trace("files", """
import os
for top in ('/tmp', '/var/tmp', '/dev/shm', '/run', '/call'):
    open(top + '/left', 'w').write('x')
    os.mkdir(top + '/.left')""", """
import os
return sorted(top for top in ('/tmp', '/var/tmp', '/dev/shm', '/run', '/call')
              if any('left' in name for name in os.listdir(top)))""", []),
    Trace("an attribute of a directory", "import os; os.utime('/call', (1, 1))",
          "import os; return os.stat('/call').st_mtime == 1", False),
    Trace("processes", """
import os, time
for n in range(3):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0: time.sleep(600)
        os._exit(0)
time.sleep(0.05)""", """
import os
mine = {1, os.getpid(), os.getppid()}
return len([pid for pid in os.listdir('/proc') if pid.isdigit() and int(pid) not in mine])""", 0),
    Trace("abstract sockets", """
import os, socket, time
s = socket.socket(socket.AF_UNIX); s.bind(chr(0) + 'left-behind'); s.listen()
if os.fork() == 0: time.sleep(600)""",
          "return 'left-behind' in open('/proc/net/unix').read()", False),
    Trace("listening ports", """
import os, socket, time
s = socket.socket(); s.bind(('127.0.0.1', 4242)); s.listen()
if os.fork() == 0: time.sleep(600)""", """
import socket
return socket.socket().connect_ex(('127.0.0.1', 4242)) == 0""", False),
    Trace("System V memory, semaphores and queues", f"""
{_LIBC}
for made in (libc.shmget(77, 4096, 0o1666), libc.semget(77, 1, 0o1666), libc.msgget(77, 0o1666)):
    assert made >= 0""", """
return [len(open('/proc/sysvipc/' + name).readlines()) - 1 for name in ('shm', 'sem', 'msg')]""",
          [0, 0, 0]),
    Trace("POSIX shared memory", """
import mmap, os
f = os.open('/dev/shm/left', os.O_CREAT | os.O_RDWR); os.ftruncate(f, 4096)""",
          "import os; return os.path.exists('/dev/shm/left')", False),
    Trace("message queues", f"""
{_LIBC}
libc.mq_open.restype = ctypes.c_int
assert libc.mq_open(b'/left', 0o102, 0o666, None) >= 0""", f"""
{_LIBC}
return libc.mq_open(b'/left', 0) >= 0""", False),
    Trace("modules", """
import builtins, json, os, sys
json.left = builtins.left = os.left = sys.left = 1
sys.modules['left'] = json
sys.path.insert(0, '/left')
json.dumps = lambda *a, **k: '"forged"'""", """
import builtins, json, os, sys
return [hasattr(json, 'left'), hasattr(builtins, 'left'), hasattr(os, 'left'), hasattr(sys, 'left'),
        'left' in sys.modules, '/left' in sys.path, json.dumps(1) != '1']""", [False] * 7),
    Trace("names of the program", "global left; left = 1", "return 'left' in globals()", False),
    Trace("environment", "import os; os.environ['LEFT'] = 'x'; os.environ['PATH'] = '/left'", """
import os
return 'LEFT' in os.environ or '/left' in os.environ.get('PATH', '')""", False),
    Trace("limits", """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))
resource.setrlimit(resource.RLIMIT_FSIZE, (5, 5))""", """
import resource
return [resource.getrlimit(resource.RLIMIT_NOFILE)[1] == 40,
        resource.getrlimit(resource.RLIMIT_FSIZE)[0] == 5]""", [False, False]),
    Trace("timers and handlers", """
import signal
signal.signal(signal.SIGALRM, lambda *a: None)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
signal.setitimer(signal.ITIMER_REAL, 100)
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})""", """
import signal
return [signal.getitimer(signal.ITIMER_REAL)[0] > 0, callable(signal.getsignal(signal.SIGALRM)),
        signal.getsignal(signal.SIGTERM) == signal.SIG_IGN,
        bool(signal.pthread_sigmask(signal.SIG_BLOCK, set()))]""", [False] * 4),
    Trace("the directory and the mask", """
import os
os.makedirs('/tmp/left'); os.chdir('/tmp/left'); os.umask(0o777)""", """
import os
return os.getcwd() == '/tmp/left' or os.umask(0o22) == 0o777""", False),
    Trace("how it is scheduled", f"""
import os
{_LIBC}
os.nice(19)
os.sched_setaffinity(0, {{min(os.sched_getaffinity(0))}})
libc.prctl(1, 15, 0, 0, 0)  # the signal at the parent's death
libc.prctl(15, b'left', 0, 0, 0)  # its name
libc.prctl(29, 10**9, 0, 0, 0)  # slack of its timers
open('/proc/self/oom_score_adj', 'w').write('900')""", """
import os
return [os.nice(0) == 19, open('/proc/self/comm').read() == 'left\\n',
        open('/proc/self/oom_score_adj').read() == '900\\n',
        open('/proc/self/timerslack_ns').read() == '1000000000\\n']""", [False] * 4),
    Trace("random numbers", """
import random
random.seed(7); random.left = [random.random() for n in range(3)]""", """
import random
return hasattr(random, 'left') or random.random() == random.Random(7).random()""", False),
    Trace("open files", """
import os
f = os.open('/tmp/left', os.O_CREAT | os.O_RDWR); os.dup2(f, 60)""", """
import os
return any('left' in os.readlink('/proc/self/fd/' + n) for n in os.listdir('/proc/self/fd')
           if os.path.lexists('/proc/self/fd/' + n))""", False),
    Trace("memory", """
global kept
secret = 'left'.encode() + 'in memory'.encode()
kept = [secret * 1000 for n in range(1000)]""", """
import re
secret = bytes([108, 101, 102, 116]) + bytes([105, 110, 32, 109]) + bytes([101, 109, 111, 114, 121])
found = 0
memory = open('/proc/self/mem', 'rb')
for line in open('/proc/self/maps'):
    low, high, mode = re.match('([0-9a-f]+)-([0-9a-f]+) (..)', line).groups()
    if mode == 'rw' and '[v' not in line:
        try: memory.seek(int(low, 16)); data = memory.read(int(high, 16) - int(low, 16))
        except (OSError, ValueError, OverflowError): continue
        found += data.count(secret * 8)
return found > 10""", False),
    Trace("threads and work at the end", """
import atexit, threading, time
threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
atexit.register(print, 'left')""", """
import threading
return threading.active_count() > 1 or len(__import__('os').listdir('/proc/self/task')) > 1""", False),
]  # fmt: skip
