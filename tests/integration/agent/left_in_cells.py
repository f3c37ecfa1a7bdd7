"""What a call leaves behind on purpose, and the look of the next one: text of programs for a cell.

LEAVE prints "left" when all is there; LOOK prints a line of what it finds, each by a word.
"""

from __future__ import annotations

_SHARED = """
import ctypes, os, socket, sys, time
libc = ctypes.CDLL(None, use_errno=True)
libc.shmat.restype = ctypes.c_void_p
KEY = 0x5eed
"""

LEAVE = (
    _SHARED
    + """
if os.fork():
    while not os.path.exists("/tmp/ready"):
        time.sleep(0.005)
    print("left")
    sys.exit()
os.setsid()
if os.fork():
    os._exit(0)
for fd in (0, 1, 2):
    os.dup2(os.open("/dev/null", os.O_RDWR), fd)
kept = []
for family, address in (
    (socket.AF_UNIX, "\\0left"),
    (socket.AF_UNIX, "/tmp/left.sock"),
    (socket.AF_INET, ("127.0.0.1", 7777)),
):
    s = socket.socket(family)
    s.bind(address)
    s.listen()
    kept.append(s)
udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
udp.bind(("127.0.0.1", 7778))
segment = libc.shmget(KEY, 4096, 0o1600)
assert segment >= 0
ctypes.memmove(libc.shmat(segment, None, 0), b"left", 4)
assert libc.semget(KEY, 1, 0o1600) >= 0
assert libc.msgget(KEY, 0o1600) >= 0
assert libc.mq_open(b"/left", os.O_CREAT | os.O_RDWR, 0o600, None) >= 0
for place in ("/tmp", "/var/tmp", "/dev/shm", "/run", "/call"):
    open(place + "/left", "w").write("left")
os.symlink("/etc", "/tmp/left.link")
os.mkfifo("/tmp/left.fifo")
open("/tmp/ready", "w")
time.sleep(1000)
"""
)

LOOK = (
    _SHARED
    + """
found = set()
def look(word, there):
    try:
        if there():
            found.add(word)
    except OSError:
        pass
def reach(family, address):
    with socket.socket(family) as s:
        s.connect(address)
    return True
def taken(kind, port):
    with socket.socket(socket.AF_INET, kind) as s:
        try:
            s.bind(("127.0.0.1", port))
        except OSError:
            return True
look("abstract", lambda: reach(socket.AF_UNIX, "\\0left"))
look("abstract-table", lambda: "left" in open("/proc/net/unix").read())
look("socket-file", lambda: reach(socket.AF_UNIX, "/tmp/left.sock"))
look("tcp", lambda: reach(socket.AF_INET, ("127.0.0.1", 7777)))
look("udp", lambda: taken(socket.SOCK_DGRAM, 7778))
look("shm", lambda: libc.shmget(KEY, 0, 0) >= 0)
look("sem", lambda: libc.semget(KEY, 0, 0) >= 0)
look("msg", lambda: libc.msgget(KEY, 0) >= 0)
look("mqueue", lambda: libc.mq_open(b"/left", os.O_RDWR) >= 0)
for place in ("/tmp", "/var/tmp", "/dev/shm", "/run", "/call"):
    look(place, lambda: os.listdir(place))
look("processes", lambda: len([n for n in os.listdir("/proc") if n.isdigit()]) > 2)
print(" ".join(sorted(found)))
"""
)

ALL = (
    "abstract abstract-table socket-file tcp udp shm sem msg mqueue /tmp /var/tmp /dev/shm /run /call "
    "processes"
)
