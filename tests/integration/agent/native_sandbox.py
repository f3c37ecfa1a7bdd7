"""A small stand-in for the launcher: enough to start the real `skerry-init`.

The launcher's order of steps (native/PROTOCOL.md, "What the launcher's child hands to skerry-init")
is followed with the host's own root directory as the sandbox's, a private tmpfs on /tmp, and fresh
namespaces.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import secrets
import signal
import socket
import struct
import time
from pathlib import Path

from native_agent import (
    CFG_DEADLINE,
    CFG_ENV,
    CFG_MAX_OPS,
    CFG_NOFILE,
    CFG_OOM,
    CFG_PEER_UID,
    CFG_TASKS,
    Client,
    pack,
)

UID_BASE = 2_100_000
OWNER_UID = 2_900_000
UNIFIED = Path("/sys/fs/cgroup/unified")
MEMORY = Path("/sys/fs/cgroup/memory")
PIDS = Path("/sys/fs/cgroup/pids")

_libc = ctypes.CDLL(None, use_errno=True)
_NEWNS, _NEWUSER, _NEWPID, _NEWNET = 0x20000, 0x10000000, 0x20000000, 0x40000000
_NEWIPC, _NEWUTS = 0x8000000, 0x4000000
_REC, _PRIVATE, _BIND = 0x4000, 1 << 18, 0x1000


def _check(result: int, what: str) -> None:
    if result < 0:
        raise OSError(ctypes.get_errno(), what)


def _unshare(flags: int) -> None:
    _check(_libc.unshare(flags), "unshare")


def _mount(source: str, target: str, kind: str | None, flags: int, data: str = "") -> None:
    args = (source.encode(), target.encode(), kind.encode() if kind else None)
    _check(_libc.mount(*args, ctypes.c_ulong(flags), data.encode()), f"mount {target}")


def _user_namespace() -> int:
    """A descriptor of a fresh user namespace that belongs to OWNER_UID."""
    ready, done = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setgroups([])
            os.setresgid(OWNER_UID, OWNER_UID, OWNER_UID)
            os.setresuid(OWNER_UID, OWNER_UID, OWNER_UID)
            _unshare(_NEWUSER)
            os.write(ready[1], b"r")
            os.read(done[0], 1)
            os._exit(0)
        finally:
            os._exit(1)
    os.read(ready[0], 1)
    for name in ("uid_map", "gid_map"):
        Path(f"/proc/{pid}/{name}").write_text(f"0 {UID_BASE} 65536")
    fd = os.open(f"/proc/{pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    os.write(done[1], b"d")
    os.waitpid(pid, 0)
    for end in (*ready, *done):
        os.close(end)
    return fd


def _image(binary: Path) -> int:
    writer = os.memfd_create("skerry-init", os.MFD_CLOEXEC)
    os.write(writer, binary.read_bytes())
    os.fchmod(writer, 0o711)
    reader = os.open(f"/proc/self/fd/{writer}", os.O_RDONLY)
    os.close(writer)
    return reader


def _loopback_up() -> None:
    with socket.socket() as s:
        request = struct.pack("16sH22x", b"lo", 1)  # IFF_UP
        fcntl.ioctl(s, 0x8914, request)


def _become_init(descriptors: list[int | None]) -> None:
    """In PID 1 of the new namespaces: mounts, descriptors, credentials, exec."""
    _mount("none", "/", None, _REC | _PRIVATE)
    _mount("proc", "/proc", "proc", 0)
    _mount("tmpfs", "/tmp", "tmpfs", 0, f"mode=1777,uid={UID_BASE},gid={UID_BASE},size=512m")
    _mount(
        "devpts", "/dev/pts", "devpts", 0, f"newinstance,ptmxmode=0666,mode=0620,gid={UID_BASE + 5}"
    )
    _mount("/dev/pts/ptmx", "/dev/ptmx", None, _BIND)
    Path("/proc/sys/net/ipv4/ip_unprivileged_port_start").write_text("0")
    _loopback_up()
    os.chdir("/")
    null = os.open("/dev/null", os.O_RDWR)
    moved = [None if fd is None else fcntl.fcntl(fd, fcntl.F_DUPFD, 100) for fd in descriptors]
    for fd in range(3):
        os.dup2(null, fd)
    os.closerange(3, 99)
    for number, fd in enumerate(moved, start=3):
        if fd is not None:
            os.dup2(fd, number)
    os.closerange(3 + len(moved), 400)
    os.setgroups([])
    os.setresgid(OWNER_UID, OWNER_UID, OWNER_UID)
    os.setresuid(OWNER_UID, OWNER_UID, OWNER_UID)
    empty = (ctypes.c_char_p * 1)(None)
    argv = (ctypes.c_char_p * 2)(b"skerry-init", None)
    ignore = (ctypes.c_ulong * 4)(1)  # the kernel's struct sigaction with SIG_IGN
    for number in (15, 32, 33, 64):  # as a parent may leave them: commands must not inherit that
        _libc.syscall(13, number, ignore, None, 8)
    _libc.syscall(322, 4, b"", argv, empty, 0x1000)  # execveat(AT_EMPTY_PATH)
    os._exit(126)


class Sandbox:
    """One running agent in namespaces of its own."""

    def __init__(self, binary: Path, run: Path, *, groups: bool = True, **config: int) -> None:
        self.name = f"skerry-test-{os.getpid()}-{secrets.token_hex(3)}"
        self.path = run / "agent.sock"
        self.groups = groups and UNIFIED.is_dir()
        self.top = UNIFIED / self.name
        self.memory = MEMORY / self.name if MEMORY.is_dir() else None
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.listener.bind(str(self.path))
        self.listener.listen(16)
        self.listener.setblocking(False)
        self._config = config
        self._clients: list[Client] = []
        self.pid = self._start(binary)

    def _make_groups(self) -> tuple[int | None, list[int]]:
        work: int | None = None
        tasks: list[int] = []
        if self.groups:
            for directory in (self.top, self.top / "agent", self.top / "w"):
                directory.mkdir()
            for name in ("", "cgroup.procs", "cgroup.threads", "cgroup.subtree_control"):
                os.chown(self.top / name, OWNER_UID, OWNER_UID)
                os.chown(self.top / "w" / name, OWNER_UID, OWNER_UID)
            work = os.open(self.top / "w", os.O_RDONLY | os.O_DIRECTORY)
        if self.memory:
            self.memory.mkdir()
            (self.memory / "memory.limit_in_bytes").write_text(str(256 << 20))
            tasks.append(os.open(self.memory / "tasks", os.O_WRONLY))
            tasks.append(os.open(self.memory / "memory.oom_control", os.O_RDONLY))
        return work, tasks

    def _start(self, binary: Path) -> int:
        work, tasks = self._make_groups()
        config = {
            CFG_PEER_UID: os.getuid(),
            CFG_TASKS: 1 if tasks else 0,
            CFG_OOM: 1 if tasks else 0,
            CFG_NOFILE: 4096,
        }
        for name, value in self._config.items():
            config[{"max_ops": CFG_MAX_OPS, "deadline_ms": CFG_DEADLINE}[name]] = value
        reader, writer = os.pipe()
        os.write(
            writer, b"".join(pack(t, v) for t, v in config.items()) + pack(CFG_ENV, "LANG=C.UTF-8")
        )
        os.close(writer)
        given = [self.listener.fileno(), _image(binary), _user_namespace(), work, reader, *tasks]
        middle = os.fork()
        if middle == 0:
            try:
                os.setsid()
                if self.groups:
                    (self.top / "agent" / "cgroup.procs").write_text("0")
                _unshare(_NEWNS | _NEWPID | _NEWNET | _NEWIPC | _NEWUTS)
                init = os.fork()
                if init == 0:
                    _become_init(given)
                _, status = os.waitpid(init, 0)
                os._exit(0 if os.WIFSIGNALED(status) else 1)
            finally:
                os._exit(125)
        for fd in given[1:]:
            if fd is not None:
                os.close(fd)
        return middle

    def init_pid(self) -> int:
        """The agent's process id as the host sees it."""
        return int(Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()[0])

    def connect(self, *, auto_credit: bool = True) -> Client:
        """A new conversation; closed with the sandbox at the latest."""
        self._clients.append(Client(self.path, auto_credit=auto_credit))
        return self._clients[-1]

    def stop(self) -> None:
        """Kills the sandbox and removes its groups; fails if the agent had died before."""
        for client in self._clients:
            client.close()
        died = os.waitpid(self.pid, os.WNOHANG)[0] != 0
        status = 0
        while not died:
            with contextlib.suppress(IndexError, FileNotFoundError):  # not there yet, or gone
                os.kill(self.init_pid(), signal.SIGKILL)
            time.sleep(0.002)
            ended, status = os.waitpid(self.pid, os.WNOHANG)
            if ended:
                break
        self.listener.close()
        if self.groups:
            for directory in [
                *(self.top / "w").glob("c[0-9]*"),
                self.top / "w",
                self.top / "agent",
                self.top,
            ]:
                _rmdir(directory)
        if self.memory:
            _rmdir(self.memory)
        assert not died, "the agent ended by itself"
        assert status == 0, "the agent ended by itself"


def _rmdir(directory: Path) -> None:
    for _ in range(200):
        try:
            directory.rmdir()
        except OSError:
            time.sleep(0.01)
        else:
            return
    raise AssertionError(f"{directory} is still in use")
