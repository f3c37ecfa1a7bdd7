"""A real zygote, without an agent: cells, descriptors and packets are the test's.

The codec is written again on purpose, as in native_agent.py.
"""

from __future__ import annotations

import json
import os
import select
import socket
import struct
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from native_build import NATIVE, build
from skerry.guest import zygote

LIBRARY = NATIVE / "build/release/skerry-zygote.so"
PATIENCE_S = 60.0  # reached only by what never comes, also on a busy host
CALL, READY, FAILED, ENTERED, ENDED = 0x01, 0x81, 0x82, 0x83, 0x84
FD, JOIN, GROUP, RLIMIT, UID, GID, CWD, STEP, ERRNO, PID, STATUS, CPU_US, PEAK = range(1, 14)
NEWPID, CELL = 0x20000000, 0x20000 | 0x4000000 | 0x8000000 | 0x20000000 | 0x40000000
RLIMIT_NUMBERS = {"cpu": 0, "fsize": 1, "data": 2, "stack": 3, "core": 4, "nofile": 7}


def pythons() -> dict[str, str]:
    """The machine's interpreters that may be zygotes, by version."""
    found = {}
    for path in sorted((Path.home() / ".pyenv/versions").glob("3.*/bin/python3")):
        minor = int(path.parts[-3].split(".")[1])
        if minor >= 7:
            found[path.parts[-3]] = str(path)
    if os.access("/usr/bin/python3", os.X_OK):
        found["debian"] = "/usr/bin/python3"
    return found


def pack(tag: int, *values: int | str) -> bytes:
    raw = b"".join(v.encode() if isinstance(v, str) else struct.pack("<Q", v) for v in values)
    return struct.pack("<BI", tag, len(raw)) + raw


def frame(kind: int, stream: int, payload: bytes) -> bytes:
    return struct.pack("<HBBIII", 0x4B53, 1, kind, 0, stream, len(payload)) + payload


def unpack(packet: bytes) -> tuple[int, int, dict[int, Any]]:
    magic, version, kind, _, stream, length = struct.unpack_from("<HBBIII", packet)
    assert (magic, version, length) == (0x4B53, 1, len(packet) - 16)
    fields, at = {}, 16
    while at < len(packet):
        tag, size = struct.unpack_from("<BI", packet, at)
        raw = packet[at + 5 : at + 5 + size]
        fields[tag] = raw.decode() if tag == STEP else struct.unpack("<Q", raw)[0]
        at += 5 + size
    return kind, stream, fields


class Warden:
    """The privileged part: one user namespace, cells, and zygotes in it."""

    def __init__(self) -> None:
        self.socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        program = str(Path(__file__).with_name("zygote_warden.py"))
        self.process = subprocess.Popen(
            [sys.executable, program, str(theirs.fileno())], pass_fds=(theirs.fileno(),)
        )
        theirs.close()

    def cell(self) -> int:
        """A pidfd of a new cell's init."""
        self.socket.send(json.dumps({"do": "cell"}).encode())
        message, fds, _, _ = socket.recv_fds(self.socket, 16, 1)
        assert message == b"made"
        return fds[0]

    def start(self, argv: tuple[str, ...], env: dict[str, str], fds: list[int]) -> None:
        request = {"do": "zygote", "argv": argv, "env": env}
        socket.send_fds(self.socket, [json.dumps(request).encode()], fds)
        assert self.socket.recv(16) == b"started"

    def stop(self) -> None:
        self.socket.close()
        self.process.wait(PATIENCE_S)


@dataclass
class Ended:
    """A call that is over."""

    stdout: bytes = b""
    stderr: bytes = b""
    answer: zygote.Answer = field(default_factory=zygote.Answer)
    raw: bytes = b""
    entered: bool = False
    failed: tuple[str, int] | None = None
    status: int | None = None
    cpu_us: int = 0

    @property
    def exit_code(self) -> int:
        assert self.status is not None
        return os.waitstatus_to_exitcode(self.status)


class Running:
    """A call whose pipes are here."""

    def __init__(self, number: int, ends: dict[int, int]) -> None:
        self.number = number
        self.ends = ends  # what is still open, by its number inside
        self.bytes = dict.fromkeys(ends, b"")
        self.ended = Ended()

    @property
    def over(self) -> bool:
        reaped = self.ended.status is not None or self.ended.failed is not None
        return reaped and not self.ends


class Zygote:
    """A zygote of one interpreter; its cells, one per call unless told otherwise."""

    def __init__(
        self, warden: Warden, python: str, modules: list[str] | None = None,
        *, env: dict[str, str] | None = None, allow: list[str] | None = None,
        library: bytes | None = None,
    ) -> None:  # fmt: skip
        build("build/release/skerry-zygote.so")
        begun = zygote.start(
            python, modules or [], library=library or LIBRARY.read_bytes(), allow=allow or []
        )
        self.warden = warden
        self.talk, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        script = os.memfd_create("script")
        os.write(script, begun.script)
        self.log, out = os.pipe()
        report, told = os.pipe()
        self.tag = f"STAND={os.urandom(8).hex()}"  # finds its process
        where = {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "STAND": self.tag[6:], **(env or {})}
        warden.start(begun.args, where, [out, out, script, told, theirs.fileno()])
        for fd in (out, told, script):
            os.close(fd)
        theirs.close()
        with os.fdopen(report, "rb") as file:
            raw = file.read()
        try:
            self.report = zygote.read_report(raw)
        except ValueError as error:
            raise AssertionError(f"{error}: {self.read_log()}") from None
        self.calls: dict[int, Running] = {}
        self.last = 0
        if self.report.error is None:
            assert unpack(self.packet())[0] == READY

    def packet(self) -> bytes:
        assert select.select([self.talk], [], [], PATIENCE_S)[0], "the zygote is silent"
        return self.talk.recv(4096)

    def begin(
        self, code: str, entry: str | None = "main", args: list[Any] | None = None, *,
        cell: int | None = None, stdin: bytes | None = None, limits: dict[str, int] | None = None,
        result: bool = True, kwargs: dict[str, Any] | None = None, env: dict[str, str] | None = None,
        cwd: str = "/tmp/call", result_bytes: int = 1 << 20, groups: list[int] | None = None,
        raw: bytes | None = None,
    ) -> Running:  # fmt: skip
        """Sends a call, in a fresh cell if none is given."""
        self.last += 1
        fresh = cell is None
        if cell is None:
            cell = self.warden.cell()
        payload = zygote.payload(
            code, entry, args or [], kwargs, env=env, result_bytes=result_bytes
        )
        script = os.memfd_create("payload")
        os.write(script, payload if raw is None else raw)
        os.lseek(script, 0, 0)
        fields, fds, ends = b"", [], {}
        for number in (1, 2, 4)[: 3 if result else 2]:
            ends[number], theirs = os.pipe()
            os.fchmod(theirs, 0o666)
            fields += pack(FD, number)
            fds.append(theirs)
        if stdin is not None:
            theirs, mine = os.pipe()
            fields += pack(FD, 0)
            fds.append(theirs)
            os.write(mine, stdin)
            os.close(mine)
        fields += pack(FD, 3) + pack(JOIN, CELL)
        fds += [script, cell]
        for group in groups or []:
            fields += pack(GROUP, 0)
            fds.append(os.dup(group))
        for name, value in {"core": 0, **(limits or {})}.items():
            fields += pack(RLIMIT, RLIMIT_NUMBERS[name], value, value)
        fields += pack(UID, 1000) + pack(GID, 1000) + pack(CWD, cwd)
        socket.send_fds(self.talk, [frame(CALL, self.last, fields)], fds)
        for fd in fds:
            if fd != cell or fresh:
                os.close(fd)
        running = self.calls[self.last] = Running(self.last, ends)
        return running

    def turn(self, timeout: float) -> None:
        """Takes what has come of all calls."""
        waits: dict[int, Running | None] = {self.talk.fileno(): None}
        for call in self.calls.values():
            waits |= dict.fromkeys(call.ends.values(), call)
        for fd in select.select(list(waits), [], [], timeout)[0]:
            call = waits[fd]
            if call is None:
                self.hear(self.talk.recv(4096))
                continue
            number = next(n for n, end in call.ends.items() if end == fd)
            data = os.read(fd, 1 << 16)
            call.bytes[number] += data
            if not data:
                os.close(call.ends.pop(number))

    def hear(self, packet: bytes) -> None:
        if not packet:
            raise ConnectionError("the zygote has ended")
        kind, number, fields = unpack(packet)
        ended = self.calls[number].ended
        if kind == FAILED:
            ended.failed = (fields[STEP], fields[ERRNO])
        elif kind == ENTERED:
            ended.entered = True
        else:
            assert kind == ENDED
            ended.status, ended.cpu_us = fields[STATUS], fields[CPU_US]

    def wait(self, call: Running, patience: float = PATIENCE_S) -> Ended:
        """The call's end, with everything that came before it."""
        until = time.monotonic() + patience
        while not call.over:
            left = until - time.monotonic()
            assert left > 0, (call.ended, call.bytes)
            self.turn(left)
        del self.calls[call.number]
        ended = call.ended
        ended.stdout, ended.stderr = call.bytes.get(1, b""), call.bytes.get(2, b"")
        ended.raw = call.bytes.get(4, b"")
        if ended.raw:
            ended.answer = zygote.read_answer(ended.raw)
        return ended

    def call(self, code: str, *args: Any, **options: Any) -> Ended:
        return self.wait(self.begin(code, *args, **options))

    def value(self, code: str, *args: Any, **options: Any) -> Any:
        """What `main` returns; fails with what was said if it does not."""
        ended = self.call(code, *args, **options)
        assert ended.answer.returned, ended
        return ended.answer.value

    def read_log(self) -> str:
        """What the zygote has written to its streams, once it has ended or is silent."""
        text = b""
        while select.select([self.log], [], [], 0)[0]:
            data = os.read(self.log, 1 << 16)
            if not data:
                break
            text += data
        return text.decode()

    def stop(self) -> None:
        self.talk.close()
        os.close(self.log)
