"""Stands in for the agent's privileged part: a user namespace, cells in it, and a zygote's process.

Run as root with the number of a seqpacket socket. It is PID 1 of a pid namespace, root of a user
namespace of its own, and ends with its socket; everything that it made ends with it. What it is asked:
"cell" (answers with a pidfd of the cell's init), "zygote" + argv and environment as JSON (with the
descriptors that become 1 to 5).
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import sys
from pathlib import Path

libc = ctypes.CDLL(None, use_errno=True)
NEWNS, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET = (
    0x20000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000,
)  # fmt: skip
NOSUID, NODEV, REC, PRIVATE, BIND, REMOUNT, RDONLY = 2, 4, 16384, 1 << 18, 4096, 32, 1
DROP_BOUNDING, DUMPABLE = 24, 4
# setgid, setuid, setpcap, sys_chroot, sys_admin
KEPT = {6, 7, 8, 18, 21}
UID_BASE = 700_000_000


def do(result: int) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def mount(source: str, target: str, kind: str, flags: int, data: str = "") -> None:
    do(libc.mount(source.encode(), target.encode(), kind.encode(), flags, data.encode()))


def pythons_show() -> None:
    """Makes the interpreters in root's home readable to others, in this mount namespace."""
    home = Path.home()
    if not (home / ".pyenv").is_dir():
        return
    mount("tmpfs", "/mnt", "tmpfs", 0)
    os.mkdir("/mnt/pythons")
    mount(str(home / ".pyenv"), "/mnt/pythons", "", BIND)
    mount("tmpfs", str(home), "tmpfs", 0, "mode=755")
    os.mkdir(home / ".pyenv")
    mount("/mnt/pythons", str(home / ".pyenv"), "", BIND)


def enter_user_namespace() -> None:
    """Becomes root of a new user namespace; the maps are written by a helper that stayed outside."""
    ready_r, ready_w = os.pipe()
    done_r, done_w = os.pipe()
    target = os.getpid()
    helper = os.fork()
    if not helper:
        os.read(ready_r, 1)
        for name in ("uid_map", "gid_map"):
            Path(f"/proc/{target}/{name}").write_text(f"0 {UID_BASE} 65536\n")
        os.write(done_w, b"x")
        os._exit(0)
    do(libc.unshare(NEWUSER))
    os.write(ready_w, b"x")
    os.read(done_r, 1)
    os.waitpid(helper, 0)
    os.setgroups([])
    os.setgid(0)
    os.setuid(0)


def private_root() -> None:
    """A fresh proc and temporary directories over a root that nobody here may write to."""
    mount("", "/", "", REC | PRIVATE)
    mount("tmpfs", "/tmp", "tmpfs", NOSUID | NODEV, "mode=1777,size=16m")
    os.mkdir("/tmp/call")
    os.chown("/tmp/call", 1000, 1000)
    mount("proc", "/proc", "proc", NOSUID | NODEV)


def cell_make() -> int:
    """Returns a pidfd of a new cell's init."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    maker = os.fork()
    if not maker:
        do(libc.unshare(NEWNS | NEWPID | NEWIPC | NEWNET | NEWUTS))
        init = os.fork()
        if not init:
            ours.close()
            private_root()
            for number in range(64):
                libc.prctl(DROP_BOUNDING, number, 0, 0, 0)
            signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
            # No capability, as cells' inits have none: the zygote needs nothing over it.
            head, data = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
            do(libc.capset(head, data))
            do(libc.prctl(DUMPABLE, 1, 0, 0, 0))
            theirs.send(b"made")
            os.closerange(3, 4096)
            while True:
                try:
                    os.wait()
                except ChildProcessError:  # orphans may come: looked for again by their signal
                    signal.sigtimedwait([signal.SIGCHLD], 1)
        socket.send_fds(theirs, [b"init"], [os.pidfd_open(init)])
        os._exit(0)
    theirs.close()
    os.waitpid(maker, 0)
    told = [socket.recv_fds(ours, 4, 1)[:2] for _ in range(2)]  # in any order
    ours.close()
    assert sorted(words for words, _ in told) == [b"init", b"made"], told
    return next(fds[0] for _, fds in told if fds)


def zygote_start(request: dict[str, object], fds: list[int]) -> int:
    pid = os.fork()
    if pid:
        return pid
    do(libc.unshare(NEWNS | NEWIPC | NEWNET | NEWUTS))
    high = [os.dup(fd) for fd in fds]
    null = os.open("/dev/null", os.O_RDWR)
    os.dup2(null, 0)
    for number, fd in enumerate(high, 1):
        os.dup2(fd, number)
    os.closerange(6, 4096)
    os.chdir("/")
    for number in range(64):
        if number not in KEPT:
            libc.prctl(DROP_BOUNDING, number, 0, 0, 0)
    argv = [str(word) for word in request["argv"]]
    os.execve(argv[0], argv, request["env"])
    raise AssertionError


def serve(host: socket.socket) -> None:
    children: set[int] = set()
    while True:
        message, fds, _, _ = socket.recv_fds(host, 1 << 16, 8)
        if not message:
            return
        request = json.loads(message)
        if request["do"] == "cell":
            fd = cell_make()
            socket.send_fds(host, [b"made"], [fd])
            os.close(fd)
        else:
            children.add(zygote_start(request, fds))
            host.send(b"started")
        for fd in fds:
            os.close(fd)


def main() -> None:
    host = socket.socket(fileno=int(sys.argv[1]))
    do(libc.unshare(NEWNS | NEWPID))
    mount("", "/", "", REC | PRIVATE)
    pythons_show()
    child = os.fork()
    if not child:
        mount("proc", "/proc", "proc", NOSUID | NODEV)
        enter_user_namespace()
        do(libc.unshare(NEWNS))
        serve(host)
        os._exit(0)
    host.close()
    os.waitpid(child, 0)


if __name__ == "__main__":
    sys.exit(main())
