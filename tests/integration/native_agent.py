"""A small stand-in for the launcher, and a plain client: enough to test the real `skerry-init`.

The launcher's order of steps (native/PROTOCOL.md, "What the launcher's child hands to skerry-init")
is followed with the host's own root directory as the sandbox's, a private tmpfs on /tmp, and fresh
namespaces. The codec here is written a second time on purpose: a mistake shared with `skerry.wire`
would not be seen otherwise.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import secrets
import select
import signal
import socket
import struct
import time
from dataclasses import dataclass, field
from pathlib import Path

UID_BASE = 2_100_000
OWNER_UID = 2_900_000
UNIFIED = Path("/sys/fs/cgroup/unified")
MEMORY = Path("/sys/fs/cgroup/memory")
PIDS = Path("/sys/fs/cgroup/pids")
WINDOW = 131_072

HELLO, PING, START, CREDIT, SIGNAL, CANCEL, ATTACH, ACK, RESIZE = range(1, 10)
LISTEN, UNLISTEN, RESET, DATA, EOF, CONNECT = 0x0A, 0x0B, 0x0C, 0x10, 0x11, 0x12
MORE, HOLD = 0x0E, 0x0F
WELCOME, PONG, STARTED, DONE, OPENED, ERROR = 0x81, 0x82, 0x83, 0x84, 0x8A, 0x8F

NONCE, GENERATION, VERSION, OP, HANDLE, OP_ID, STATE, STDOUT_TOTAL, STDERR_TOTAL = range(1, 10)
TOKEN, KIND, ARG, ENV, CWD, USER, TIMEOUT_MS, STDIN, ROWS, COLS, PID = range(10, 21)
TOTAL, OFFSET, SIGNO, EXIT_CODE, TIMED_OUT, CANCELLED, OOM = range(21, 28)
START_NS, END_NS, CPU_US, ERROR_STEP, ERRNO, PORT = range(28, 34)
STDIN_TOTAL, STDIN_EOF, NO_OUTPUT_MS, NO_OUTPUT, MORE_BYTES, SCRIPT, HELD = range(40, 47)
CFG_TASKS, CFG_OOM, CFG_PEER_UID, CFG_NOFILE, CFG_ENV, CFG_DEADLINE, CFG_MAX_OPS = range(64, 71)
TEXTS = {VERSION, ERROR_STEP}
RAW = {NONCE, OP, OP_ID, TOKEN}

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


def pack(tag: int, value: int | str | bytes) -> bytes:
    """One field."""
    if isinstance(value, int):
        value = struct.pack("<Q", value)
    elif isinstance(value, str):
        value = value.encode(errors="surrogateescape")
    return struct.pack("<BI", tag, len(value)) + value


def unpack(payload: bytes) -> dict[int, list[int | str | bytes]]:
    """All fields of a payload, by tag."""
    out: dict[int, list[int | str | bytes]] = {}
    at = 0
    while at < len(payload):
        tag, length = struct.unpack_from("<BI", payload, at)
        raw = payload[at + 5 : at + 5 + length]
        at += 5 + length
        value: int | str | bytes = raw
        if tag in TEXTS:
            value = raw.decode()
        elif tag not in RAW:
            value = struct.unpack("<Q", raw)[0]
        out.setdefault(tag, []).append(value)
    return out


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
        pid = None
        with contextlib.suppress(IndexError, FileNotFoundError):
            pid = self.init_pid()
        if pid is not None:
            os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(self.pid, 0)
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
        assert pid is not None, "the agent ended by itself"
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


@dataclass
class Operation:
    """What came back for one operation so far."""

    handle: int
    op_id: bytes
    out: dict[int, bytearray] = field(default_factory=lambda: {2: bytearray(), 3: bytearray()})
    ended: dict[int, int] = field(default_factory=dict)
    started: bool = False
    done: dict[int, int | str | bytes] | None = None
    errors: list[dict[int, int | str | bytes]] = field(default_factory=list)
    stdin_credit: int = 0

    @property
    def stdout(self) -> bytes:
        return bytes(self.out[2])

    @property
    def stderr(self) -> bytes:
        return bytes(self.out[3])


class Client:
    """The host's side of one connection."""

    next_handle = 1

    def __init__(self, path: Path, *, auto_credit: bool = True) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.connect(str(path))
        self.auto_credit = auto_credit
        self.buffer = b""
        self.ops: dict[int, Operation] = {}
        self.other: list[tuple[int, int, bytes]] = []
        nonce = secrets.token_bytes(16)
        self.generation = 0
        self.send(HELLO, 0, pack(NONCE, nonce))
        kind, stream, payload = self.receive(10)
        fields = unpack(payload)
        assert (kind, stream, fields[NONCE]) == (WELCOME, 0, [nonce])
        self.generation = int(fields[GENERATION][0])
        self.live = [unpack(bytes(o)) for o in fields.get(OP, [])]

    def close(self) -> None:
        self.sock.close()

    def send(self, kind: int, stream: int, payload: bytes = b"") -> None:
        head = struct.pack("<HBBIII", 0x4B53, 1, kind, self.generation, stream, len(payload))
        self.sock.sendall(head + payload)

    def receive(self, timeout: float) -> tuple[int, int, bytes]:
        """The next frame; TimeoutError or ConnectionError otherwise."""
        until = time.monotonic() + timeout
        while True:
            if len(self.buffer) >= 16:
                magic, version, kind, generation, stream, length = struct.unpack_from(
                    "<HBBIII", self.buffer
                )
                assert (magic, version) == (0x4B53, 1)
                if len(self.buffer) >= 16 + length:
                    payload = self.buffer[16 : 16 + length]
                    self.buffer = self.buffer[16 + length :]
                    assert generation == self.generation or kind == WELCOME
                    return kind, stream, payload
            left = until - time.monotonic()
            if left <= 0 or not select.select([self.sock], [], [], left)[0]:
                raise TimeoutError
            got = self.sock.recv(1 << 18)
            if not got:
                raise ConnectionError
            self.buffer += got

    def start(self, *args: str | bytes, **options: object) -> Operation:
        """Sends START; options: env, cwd, user, timeout_ms, stdin, rows, cols, kind, op_id, handle."""
        handle = int(options.get("handle", 0)) or Client.next_handle
        Client.next_handle = max(Client.next_handle, handle) + 1
        op = Operation(handle, bytes(options.get("op_id") or secrets.token_bytes(16)))
        payload = pack(OP_ID, op.op_id) + pack(KIND, int(options.get("kind", 0)))
        payload += b"".join(pack(ARG, a) for a in args)
        payload += b"".join(pack(ENV, e) for e in options.get("env", ()))
        for name, tag in (
            ("cwd", CWD),
            ("user", USER),
            ("timeout_ms", TIMEOUT_MS),
            ("no_output_ms", NO_OUTPUT_MS),
            ("script", SCRIPT),
            ("rows", ROWS),
            ("cols", COLS),
        ):
            if options.get(name) is not None:
                payload += pack(tag, options[name])
        payload += pack(STDIN, int(options.get("stdin", 0)))
        self.ops[handle] = op
        self.send_start(handle, payload)
        return op

    def send_start(self, handle: int, payload: bytes) -> None:
        """Sends START, and in MORE frames what does not fit into it."""
        head = 65_536 - 13
        if len(payload) <= 65_536:
            self.send(START, handle << 2, payload)
            return
        self.send(START, handle << 2, pack(MORE_BYTES, len(payload) - head) + payload[:head])
        for at in range(head, len(payload), 65_536):
            self.send(MORE, handle << 2, payload[at : at + 65_536])

    def step(self, timeout: float = 10) -> tuple[int, int, bytes]:
        """Receives one frame and files it with its operation."""
        kind, stream, payload = self.receive(timeout)
        op = self.ops.get(stream >> 2) if not stream & 0x80000000 else None
        if op is None:
            self.other.append((kind, stream, payload))
        elif kind == DATA:
            data = op.out[stream & 3]
            assert struct.unpack_from("<Q", payload)[0] == len(data), "a gap in the stream"
            data += payload[8:]
            if self.auto_credit:
                self.credit(op, stream & 3)
        elif kind == EOF:
            op.ended[stream & 3] = int(unpack(payload)[TOTAL][0])
        elif kind == STARTED:
            op.started = True
        elif kind == DONE:
            op.done = {t: v[0] for t, v in unpack(payload).items()}
        elif kind == ERROR:
            op.errors.append({t: v[0] for t, v in unpack(payload).items()})
        elif kind == CREDIT:
            op.stdin_credit = int(unpack(payload)[OFFSET][0])
        else:
            self.other.append((kind, stream, payload))
        return kind, stream, payload

    def credit(self, op: Operation, channel: int) -> None:
        self.send(CREDIT, op.handle << 2 | channel, pack(OFFSET, len(op.out[channel])))

    def attach(self, op: Operation) -> None:
        self.ops[op.handle] = op
        self.send(
            ATTACH,
            op.handle << 2,
            pack(STDOUT_TOTAL, len(op.out[2])) + pack(STDERR_TOTAL, len(op.out[3])),
        )

    def wait(self, op: Operation, timeout: float = 20) -> Operation:
        """Steps until DONE or ERROR has come; acknowledges DONE."""
        until = time.monotonic() + timeout
        while op.done is None and not op.errors:
            self.step(until - time.monotonic())
        if op.done is not None:
            for channel, name in ((2, STDOUT_TOTAL), (3, STDERR_TOTAL)):
                assert op.done[name] == len(op.out[channel]) == op.ended[channel]
            self.send(ACK, op.handle << 2)
        return op

    def feed(self, op: Operation, data: bytes, *, end: bool = True) -> None:
        """Sends stdin within its credit, taking what comes meanwhile."""
        at = 0
        while at < len(data):
            while at >= op.stdin_credit + WINDOW:
                self.step()
            n = min(len(data) - at, 32768, op.stdin_credit + WINDOW - at)
            self.send(DATA, op.handle << 2 | 1, struct.pack("<Q", at) + data[at : at + n])
            at += n
            while select.select([self.sock], [], [], 0)[0] or len(self.buffer) > 16:
                try:
                    self.step(0.001)
                except TimeoutError:
                    break
        if end:
            self.send(EOF, op.handle << 2 | 1, pack(TOTAL, len(data)))

    def run(
        self, *args: str | bytes, stdin_data: bytes | None = None, **options: object
    ) -> Operation:
        op = self.start(*args, stdin=stdin_data is not None, **options)
        if stdin_data is not None:
            self.feed(op, stdin_data)
        return self.wait(op)

    def file(
        self, *words: str | bytes, stdin_data: bytes | None = None, **options: object
    ) -> Operation:
        return self.run(*words, stdin_data=stdin_data, kind=1, **options)
