"""The fake agent's sessions: commands of `fake_commands`, with a directory and variables that stay.

`cd`, `export NAME=VALUE` and `exit N` are the shell's own here; `kill 9` ends the shell.
"""

from __future__ import annotations

import asyncio
import errno
import os
import posixpath
from typing import TYPE_CHECKING

from skerry.testing.fake_commands import Call, Ended, run_line
from skerry.testing.fake_wire import Code, Tag

if TYPE_CHECKING:
    from skerry.testing.fake_operation import FakeOperation

Pairs = list[tuple[int, int | bytes]]


class FakeShell:
    """What makes an operation of KIND 2 a session (native/PROTOCOL.md)."""

    def __init__(self, operation: FakeOperation) -> None:
        self.operation = operation
        self.seq = 0
        self.script = bytearray()
        self.base = [0, 0]
        self.command: asyncio.Task[None] | None = None
        self.ran: Pairs | None = None  # until it is acknowledged
        self.ran_sent = False
        self.ended: asyncio.Future[Ended] = asyncio.get_running_loop().create_future()
        self._stopped: asyncio.Future[str] | None = None
        self._fresh()

    def _fresh(self) -> None:
        fields = self.operation.fields
        pairs = [os.fsdecode(item).partition("=") for item in fields.get(Tag.ENV, [])]
        self.cwd = os.fsdecode(fields.get(Tag.CWD, [b"/"])[0])
        self.env = self.operation.agent.env | {name: value for name, _, value in pairs}

    async def run(self) -> Ended:
        """The life of the operation: to its close, or to a reason why it could not begin."""
        operation = self.operation
        name = posixpath.basename(os.fsdecode(operation.fields[Tag.ARG][0]))
        if name not in ("sh", "bash", "dash"):
            return Ended(error_step="exec", errno=errno.ENOENT)
        if self.cwd not in operation.agent.files.nodes:
            return Ended(error_step="cwd", errno=errno.ENOENT)
        self.tell_started()
        return await self.ended

    def tell_started(self) -> None:
        """Sends STARTED: what came last, and where its output begins."""
        pairs: Pairs = [(Tag.PID, 1000 + self.operation.handle), (Tag.SEQ, self.seq)]
        pairs += [(Tag.STDOUT_TOTAL, self.base[0]), (Tag.STDERR_TOTAL, self.base[1])]
        self.operation.agent.send(Code.STARTED, self.operation.handle << 2, pairs)

    def data(self, offset: int, content: bytes) -> None:
        """Takes a piece of a long script."""
        del self.script[offset:]
        self.script += content

    def execute(self, fields: dict[int, list[bytes]]) -> None:
        """Serves EXEC."""
        numbers = {
            tag: int.from_bytes(v[0], "little") for tag, v in fields.items() if len(v[0]) == 8
        }
        seq, stream = numbers[Tag.SEQ], self.operation.handle << 2
        script = fields.get(Tag.LINE, [bytes(self.script)])[0]
        if seq <= self.seq:
            self.operation.agent.fail(stream, errno.EEXIST, "exec")
        elif self.command is not None:
            self.operation.agent.fail(stream, errno.EBUSY, "exec")
        elif numbers[Tag.SIZE] != len(script):
            self.operation.agent.fail(stream, errno.EINVAL, "exec")
        else:
            self.acknowledge(self.seq)
            self.seq = seq
            self.base = [output.total for output in self.operation.output.values()]
            timeout_ms = numbers.get(Tag.TIMEOUT_MS, 0)
            self.command = asyncio.ensure_future(self._command(script, timeout_ms))

    def acknowledge(self, seq: int) -> None:
        """Serves ACK with SEQ."""
        if seq == self.seq and self.ran is not None:
            self.ran = None
            self.base = [output.total for output in self.operation.output.values()]

    def stop(self, seq: int, reason: str) -> None:
        """Serves CANCEL and SIGNAL with SEQ."""
        if seq == self.seq and self._stopped is not None and not self._stopped.done():
            self._stopped.set_result(reason)

    def close(self) -> None:
        """Serves EOF of channel 1."""
        if not self.ended.done():
            self.ended.set_result(Ended(exit_code=0))

    def pump(self) -> None:
        """Sends RAN once; called when all output went out."""
        if self.ran is not None and not self.ran_sent:
            self.ran_sent = True
            self.operation.agent.send(Code.RAN, self.operation.handle << 2, self.ran)

    async def _command(self, script: bytes, timeout_ms: int) -> None:
        clock = self.operation.agent.clock
        begin = clock.now_ns()
        stopped = self._stopped = asyncio.get_running_loop().create_future()
        work = asyncio.ensure_future(self._script(os.fsdecode(script)))
        waits: set[asyncio.Future[Ended] | asyncio.Future[str] | asyncio.Future[None]]
        waits = {work, stopped}
        if timeout_ms:
            waits.add(asyncio.ensure_future(clock.sleep(timeout_ms / 1000)))
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            forced = not work.done()
            timed_out = forced and not stopped.done()
            ended = Ended(signal=9) if forced else work.result()
        finally:
            for waiting in waits:
                waiting.cancel()
        reset = not forced and ended.signal is not None
        if reset:
            self._fresh()
        self._finish(
            ended,
            [
                (Tag.TIMED_OUT, int(timed_out)),
                (Tag.CANCELLED, int(forced and not timed_out)),
                (Tag.RESET, int(reset)),
                (Tag.START_NS, begin),
                (Tag.END_NS, clock.now_ns()),
            ],
        )

    def _finish(self, ended: Ended, pairs: Pairs) -> None:
        if ended.signal is not None:
            pairs.append((Tag.SIGNO, ended.signal))
        else:
            pairs.append((Tag.EXIT_CODE, ended.exit_code or 0))
        outputs = self.operation.output
        pairs += [(Tag.STDOUT_TOTAL, outputs[2].total), (Tag.STDERR_TOTAL, outputs[3].total)]
        self.ran = [(Tag.SEQ, self.seq), *pairs]
        self.ran_sent = False
        self.command = None
        self.operation.agent.pump(self.operation)

    async def _script(self, line: str) -> Ended:
        call = Call(
            argv=["sh"],
            env=self.env,
            cwd=self.cwd,
            user="0:0",
            files=self.operation.agent.files,
            clock=self.operation.agent.clock,
            write=self.operation.write,
            read=self._nothing,
        )
        ended = await run_line(call, line)
        self.cwd = call.cwd
        return ended

    async def _nothing(self) -> bytes:
        return b""
