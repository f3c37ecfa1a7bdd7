"""A plain client of the real `skerry-init`.

The codec here is written a second time on purpose: a mistake shared with `skerry.wire` would not be
seen otherwise.
"""

from __future__ import annotations

import os
import secrets
import select
import shutil
import socket
import struct
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest

NATIVE = Path(__file__).parents[3] / "native"
REAL = [
    pytest.mark.root,
    pytest.mark.skipif(os.getuid() != 0, reason="makes namespaces: needs root"),
    pytest.mark.skipif(shutil.which("musl-gcc") is None, reason="needs musl-gcc"),
]
WINDOW = 131_072
PATIENCE_S = 60.0  # reached only by what never comes, also on a busy host

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
RESULT_TOTAL = 61
TEXTS = {VERSION, ERROR_STEP}
RAW = {NONCE, OP, OP_ID, TOKEN}


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
        kind, stream, payload = self.receive(PATIENCE_S)
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
        payload += pack(STDIN, int(options.get("stdin", 0))) + bytes(options.get("more", b""))
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

    def step(self, timeout: float = PATIENCE_S) -> tuple[int, int, bytes]:
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
            zeros = (TIMED_OUT, NO_OUTPUT, CANCELLED, OOM, CPU_US, STDOUT_TOTAL, STDERR_TOTAL)
            op.done = dict.fromkeys(zeros, 0) | {t: v[0] for t, v in unpack(payload).items()}
            op.started = op.started or PID in op.done
            for channel, name in ((2, STDOUT_TOTAL), (3, STDERR_TOTAL), (1, RESULT_TOTAL)):
                op.ended.setdefault(channel, int(op.done.get(name, 0)))
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

    def wait(self, op: Operation, timeout: float = PATIENCE_S) -> Operation:
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


def shell(client: Client, text: str, **options: object) -> Operation:
    return client.run("sh", "-c", text, **options)


def sleepers(client: Client, mark: str) -> int:
    """How many `sleep MARK` live inside."""
    return int(shell(client, f"ps axo args | grep -c '^sleep {mark}$'").stdout)


def failed(op: Operation) -> tuple[int, str]:
    assert op.done is not None
    assert op.done[EXIT_CODE] == 1, op.done
    number, step = op.stderr.decode().split("\n")[0].split()
    return int(number), step


def records(data: bytes) -> dict[bytes, tuple[str, int, int, int, int, bytes]]:
    """Name -> type, mode, uid, gid, size, link."""
    out = {}
    while data:
        head, _, data = data.partition(b"\n")
        kind, mode, uid, gid, size, _mtime, n, k, _allocated = head.decode().split()
        name, link = data[: int(n)], data[int(n) : int(n) + int(k)]
        data = data[int(n) + int(k) :]
        out[name] = (kind, int(mode, 8), int(uid), int(gid), int(size), link)
    return out
