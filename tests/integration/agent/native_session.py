"""A session of the real `skerry-init` over a plain client."""

from __future__ import annotations

import shutil
import struct
from dataclasses import dataclass

from native_agent import (
    ACK,
    DATA,
    DONE,
    EOF,
    ERRNO,
    ERROR,
    EXIT_CODE,
    PATIENCE_S,
    SIGNO,
    STARTED,
    STDERR_TOTAL,
    STDOUT_TOTAL,
    TIMEOUT_MS,
    TOTAL,
    Client,
    Operation,
    pack,
    unpack,
)

from skerry.guest import shells

ATTACH, EXEC, RAN = 0x07, 0x0D, 0x85
SEQ, SIZE, LINE, RESET, STDOUT_DROPPED, NO_OUTPUT_MS, NO_OUTPUT = 34, 35, 36, 37, 38, 42, 43
PIECE = 60_000


@dataclass
class Result:
    """What RAN said, and the output between the totals."""

    code: int | None
    signal: int | None
    stdout: bytes
    stderr: bytes
    fields: dict[int, int | str | bytes]

    @property
    def reset(self) -> bool:
        return self.fields[RESET] == 1


class Session:
    """A session over a plain client."""

    def __init__(self, client: Client, shell: str, **options: object) -> None:
        self.client = client
        words = shells.argv(shutil.which(shell) or shell)
        self.op: Operation = client.start(*words, kind=2, **options)
        self.stream = self.op.handle << 2
        self.seq = 0
        self.base = [0, 0]
        self.rans: dict[int, dict[int, int | str | bytes]] = {}
        self.started: dict[int, int | str | bytes] = {}
        self.errors: list[int] = []

    def step(self, timeout: float = PATIENCE_S) -> None:
        kind, stream, payload = self.client.receive(timeout)
        assert stream >> 2 == self.op.handle
        if kind == DATA:
            data = self.op.out[stream & 3]
            assert struct.unpack_from("<Q", payload)[0] == len(data), "a gap in the stream"
            data += payload[8:]
            self.client.credit(self.op, stream & 3)
        elif kind != EOF:
            fields = {tag: values[0] for tag, values in unpack(payload).items()}
            if kind == RAN:
                self.rans[int(fields[SEQ])] = fields
            elif kind == STARTED:
                self.started = fields
            elif kind == ERROR:
                self.errors.append(int(fields[ERRNO]))
            else:
                assert kind == DONE
                self.op.done = fields

    def send(self, kind: int, payload: bytes = b"") -> None:
        self.client.send(kind, self.stream, payload)

    def start(self, text: str | bytes, *, timeout_ms: int = 0, quiet_ms: int = 0) -> None:
        script = text.encode() if isinstance(text, str) else text
        self.seq += 1
        payload = pack(SEQ, self.seq) + pack(SIZE, len(script)) + pack(TIMEOUT_MS, timeout_ms)
        payload += pack(NO_OUTPUT_MS, quiet_ms)
        if len(script) <= 32_768:
            payload += pack(LINE, script)
        else:
            for at in range(0, len(script), PIECE):
                head = struct.pack("<Q", at)
                self.client.send(DATA, self.stream | 1, head + script[at : at + PIECE])
        self.send(EXEC, payload)

    def wait(self) -> Result:
        while self.seq not in self.rans:
            assert self.op.done is None, "the session has ended"
            self.step()
        ran = self.rans[self.seq]
        ends = [int(ran[STDOUT_TOTAL]), int(ran[STDERR_TOTAL])]
        out, err = (
            bytes(self.op.out[channel][self.base[i] : ends[i]]) for i, channel in enumerate((2, 3))
        )
        self.base = ends
        self.send(ACK, pack(SEQ, self.seq))
        code, signo = ran.get(EXIT_CODE), ran.get(SIGNO)
        return Result(
            None if code is None else int(code),
            None if signo is None else int(signo),
            out,
            err,
            ran,
        )

    def run(self, text: str | bytes, **options: int) -> Result:
        self.start(text, **options)
        return self.wait()

    def out(self, text: str) -> str:
        """The output of a command that must succeed."""
        result = self.run(text)
        assert result.code == 0, result
        return result.stdout.decode()

    def close(self) -> None:
        """Asks the shell to end, and waits for the end of everything."""
        self.client.send(EOF, self.stream | 1, pack(TOTAL, 0))
        while self.op.done is None:
            self.step()
        self.send(ACK)
