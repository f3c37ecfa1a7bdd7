"""One operation of the fake guest agent: its output, its work, its end."""

from __future__ import annotations

import asyncio
import errno
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from skerry.testing.fake_cells import CALL, FILE, SESSION, ZYGOTE
from skerry.testing.fake_commands import Call, Ended, run_program
from skerry.testing.fake_files import FakeFiles
from skerry.testing.fake_sessions import FakeShell
from skerry.testing.fake_wire import Code, Tag
from skerry.testing.fake_words import run_words, watch_words

if TYPE_CHECKING:
    from skerry.testing.fake_agent import FakeAgent

WINDOW = 131_072
CHUNK = 32_768


@dataclass
class Output:
    """One output stream. Invariant: base <= sent <= base + len(held), len(held) <= WINDOW."""

    held: bytearray = field(default_factory=bytearray)
    base: int = 0
    sent: int = 0
    limit: int = WINDOW
    open: bool = True

    @property
    def total(self) -> int:
        """Bytes written so far."""
        return self.base + len(self.held)


class FakeOperation:
    """A running or finished operation of the fake agent."""

    def __init__(self, agent: FakeAgent, handle: int, fields: dict[int, list[bytes]]) -> None:
        self.agent = agent
        self.handle = handle
        self.fields = fields
        self.op_id = fields[Tag.OP_ID][0]
        self.kind = number(fields, Tag.KIND)
        self.cell = number(fields, Tag.CELL) if Tag.CELL in fields else None
        self.output = {2: Output(), 3: Output()}
        if number(fields, Tag.RESULT):
            self.output[1] = Output()
        self.cpu_limit = False
        self.cpu_us = 1000
        self.lost_step: str | None = None  # what was lost under it, should it be killed
        self.stdin = asyncio.Queue[bytes]()
        self.stdin_open = bool(number(fields, Tag.STDIN))
        self.stdin_end = 0
        self.stdin_taken = 0
        self.stdin_eof = False
        self.no_output = False
        self.heard = asyncio.Event()
        self.moved = asyncio.Event()
        self.attached = True
        self.done: list[tuple[int, int | bytes]] | None = None
        self.done_sent = False
        self.task: asyncio.Task[None] | None = None
        self.timed_out = False
        self.cancelled = False
        self.signal = 9
        self.killed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.shell = FakeShell(self) if self.kind == SESSION else None

    @property
    def files(self) -> FakeFiles:
        """What it sees: its cell's, which may be gone, else the agent's."""
        if self.cell is None:
            return self.agent.files
        return self.agent.cells.files.get(self.cell, self.agent.files)

    async def write(self, channel: int, data: bytes) -> None:
        """Gives bytes to the host; waits while the window is full. Nobody has a result unasked."""
        output = self.output.get(channel)
        if output is None:
            return
        while data:
            room = WINDOW - len(output.held)
            if room <= 0:
                self.moved.clear()
                await self.moved.wait()
                continue
            output.held += data[:room]
            self.heard.set()
            data = data[room:]
            self.agent.pump(self)

    async def _write_merged(self, _channel: int, data: bytes) -> None:
        await self.write(2, data)

    async def read(self) -> bytes:
        """Returns the next piece of standard input; b"" at its end."""
        if not self.stdin_open:
            return b""
        data = await self.stdin.get()
        if data:
            self.stdin_taken += len(data)
            self.agent.send(Code.CREDIT, self.handle << 2 | 1, [(Tag.OFFSET, self.stdin_taken)])
        return data

    async def run(self) -> None:
        """Runs to the end, the timeout or the kill, and records DONE."""
        begin = self.agent.clock.now_ns()
        work = asyncio.ensure_future(self._work())
        waits: set[asyncio.Future[Ended] | asyncio.Future[None]] = {work, self.killed}
        timeout_ms = number(self.fields, Tag.TIMEOUT_MS)
        if timeout_ms:
            waits.add(asyncio.ensure_future(self.agent.clock.sleep(timeout_ms / 1000)))
        quiet_ms = number(self.fields, Tag.NO_OUTPUT_MS)
        if quiet_ms:
            waits.add(asyncio.ensure_future(self._quiet(quiet_ms / 1000)))
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                ended = work.result()
            else:
                self.timed_out = not self.killed.done()
                ended = Ended(signal=self.signal)
                if self.lost_step is not None:
                    ended = Ended(error_step=self.lost_step, errno=errno.ESRCH)
        finally:
            for waiting in waits:
                waiting.cancel()
        self._finish(ended, begin)

    async def _spin(self) -> Ended:
        """Uses processor time until that is more than it may have; without a limit for ever."""
        limit_ms = number(self.fields, Tag.CPU_MS)
        if not limit_ms:
            await asyncio.get_running_loop().create_future()
        await self.agent.clock.sleep(limit_ms / 1000)
        self.cpu_limit, self.cpu_us = True, limit_ms * 1000
        return Ended(signal=9)

    async def _quiet(self, seconds: float) -> None:
        """Returns once nothing was written for so long."""
        while True:
            self.heard.clear()
            await self.agent.clock.sleep(seconds)
            if not self.heard.is_set():
                self.no_output = True
                return

    async def _work(self) -> Ended:
        await self.agent.running.wait()
        if self.shell is not None:
            return await self.shell.run()
        if self.kind in (CALL, ZYGOTE):
            run = self.agent.cells.run_call if self.kind == CALL else self.agent.cells.run_zygote
            return await run(self)
        return await (self._file() if self.kind == FILE else self._command())

    def kill(self, signal: int) -> None:
        """Ends it; `run` then records DONE."""
        if not self.killed.done():
            self.signal = signal
            self.killed.set_result(None)

    async def _file(self) -> Ended:
        words = [os.fsdecode(word) for word in self.fields[Tag.ARG]]
        content = bytearray()
        while piece := await self.read():
            content += piece
        self.agent.send(Code.STARTED, self.handle << 2, [(Tag.PID, 1000 + self.handle)])
        cwd = os.fsdecode(self.fields.get(Tag.CWD, [b"/"])[0])
        files = self.files
        files.now_ns = self.agent.clock.now_ns()
        try:
            if words[0] == "watch":
                await watch_words(files, words, cwd, lambda data: self.write(2, data))
                return Ended(exit_code=0)
            await self.write(2, run_words(files, words, bytes(content), cwd))
        except OSError as error:
            await self.write(3, f"{error.errno} {words[0]}\n".encode())
            return Ended(exit_code=1)
        return Ended(exit_code=0)

    async def _command(self) -> Ended:
        pairs = [os.fsdecode(item).partition("=") for item in self.fields.get(Tag.ENV, [])]
        call = Call(
            argv=[os.fsdecode(word) for word in self.fields[Tag.ARG]],
            env=self.agent.env | {name: value for name, _, value in pairs},
            cwd=os.fsdecode(self.fields.get(Tag.CWD, [b"/" if self.cell is None else b"/call"])[0]),
            user=self.fields.get(Tag.USER, [b"0:0"])[0].decode(),
            files=self.files,
            clock=self.agent.clock,
            write=self._write_merged if number(self.fields, Tag.MERGE) else self.write,
            read=self.read,
            spin=self._spin,
            started=lambda: self.agent.send(
                Code.STARTED, self.handle << 2, [(Tag.PID, 1000 + self.handle)]
            ),
        )
        return await run_program(call)

    def _finish(self, ended: Ended, begin: int) -> None:
        pairs: list[tuple[int, int | bytes]] = []
        if ended.error_step is not None:
            pairs += [(Tag.ERROR_STEP, ended.error_step.encode()), (Tag.ERRNO, ended.errno or 0)]
        elif ended.signal is not None:
            pairs += [(Tag.SIGNO, ended.signal)]
        else:
            pairs += [(Tag.EXIT_CODE, ended.exit_code or 0)]
        pairs += [
            (Tag.TIMED_OUT, int(self.timed_out)),
            (Tag.NO_OUTPUT, int(self.timed_out and self.no_output)),
            (Tag.CANCELLED, int(self.cancelled)),
            (Tag.OOM, int(ended.oom)),
            (Tag.START_NS, begin),
            (Tag.END_NS, self.agent.clock.now_ns()),
            (Tag.CPU_US, self.cpu_us),
            (Tag.STDOUT_TOTAL, self.output[2].total),
            (Tag.STDERR_TOTAL, self.output[3].total),
        ]
        if self.lost_step is not None:
            pairs.append((Tag.PID, 1000 + self.handle))
        if self.cpu_limit:
            pairs.append((Tag.CPU_LIMIT, 1))
        if self.cell is not None:
            nodes = self.files.nodes.values()
            pairs.append((Tag.DISK_USED, sum(len(node.content) for node in nodes)))
        if 1 in self.output:
            pairs.append((Tag.RESULT_TOTAL, self.output[1].total))
        self.done = pairs
        self.agent.ended(self)


def number(fields: dict[int, list[bytes]], tag: int) -> int:
    """Returns the first value of a tag as a number; 0 if it is not there."""
    values = fields.get(tag)
    return int.from_bytes(values[0], "little") if values else 0
