"""Commands as users see them: started at most once, answered from the record afterwards."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator
from typing import Any

from skerry.errors import Conflict, NotFound, SkerryError, StorageFailed
from skerry.guest.api import Stream
from skerry.node.commands import command
from skerry.node.commands.answers import Answers
from skerry.node.commands.execution import Execution
from skerry.node.commands.feeding import feed
from skerry.node.commands.operation import Op, Past
from skerry.node.commands.results import Answer, unwrap, wrap
from skerry.node.commands.sessions import Sessions
from skerry.node.commands.views import View
from skerry.node.ledger import Did
from skerry.node.life.link import Link
from skerry.node.life.lives import Lives
from skerry.node.life.sandbox import Sandbox
from skerry.node.parts import Parts
from skerry.spec.command import CommandSpec, RunResult, Terminal
from skerry.spec.sandbox import State
from skerry.wire.http import ErrorBody, OpStatus, StdinTaken

log = logging.getLogger("skerry.node")


class Operations:
    """Every command of every sandbox (decisions 12 to 14).

    One operation id runs at most one command. Its `Asked` record is in the journal before START
    leaves, its `Answered` record before anyone hears the answer; in between, a repeat joins.
    """

    def __init__(
        self,
        parts: Parts,
        lives: Lives,
        execution: Execution,
        answers: Answers,
        sessions: Sessions,
    ) -> None:
        self._clock = parts.clock
        self._trail = parts.trail
        self._tasks = parts.tasks
        self._admission = parts.admission
        self._outputs = parts.outputs
        self._lives = lives
        self._execution = execution
        self._answers = answers
        self._handles = lives.handles
        self._sessions = sessions

    async def run(self, sandbox: Sandbox, op_id: str | None, spec: CommandSpec) -> RunResult:
        """Returns the command's result, running it unless this operation id already has one.

        Raises InvalidRequest, Conflict (the id names another command), Overloaded, what ended the
        sandbox, or the recorded error.
        """
        found = await self._find_or_begin(sandbox, op_id, spec)
        del spec  # its input may be large, and is kept elsewhere from here on
        if not isinstance(found, tuple):
            return unwrap(await self._answer(sandbox, found))
        op, link = found
        answer = await self._execution.drive(sandbox, op, link)
        if isinstance(answer, SkerryError):
            raise answer
        return answer

    async def start(self, sandbox: Sandbox, op_id: str | None, spec: CommandSpec) -> OpStatus:
        """Returns how the command stands once its program runs, or it has ended without; see `run`."""
        found = await self._find_or_begin(sandbox, op_id, spec)
        del spec  # its input may be large, and is kept elsewhere from here on
        if isinstance(found, tuple):
            found, link = found
            self._tasks.spawn(self._execution.drive(sandbox, found, link))
        if isinstance(found, Op):
            await found.reached()
        return await self.status(sandbox, found.id, 0.0)

    async def view(
        self,
        sandbox: Sandbox,
        op_id: str | None,
        spec: CommandSpec | None,
        *,
        watch: bool = True,
        **how: Any,
    ) -> View:
        """Returns a view of the command, which runs on its own; `spec` None only joins.

        `how` is passed on to the View.
        """
        link: Link | None = None
        found: Op | Found
        if spec is None:
            found = self._known(sandbox, op_id or "")
        else:
            either = await self._find_or_begin(sandbox, op_id, spec)
            del spec
            found, link = either if isinstance(either, tuple) else (either, None)
        if isinstance(found, Found):
            return View(found.id, await self._answer(sandbox, found), watch=watch, **how)
        view = View(found.id, found, watch=watch, **how)
        if link is not None:
            self._tasks.spawn(self._execution.drive(sandbox, found, link))
        return view

    async def status(self, sandbox: Sandbox, op_id: str, wait_s: float) -> OpStatus:
        """Returns how the operation stands, after its end or `wait_s` seconds."""
        while sandbox.state is State.RESUMING and op_id not in sandbox.ops and not sandbox.gone:
            await sandbox.changed()  # a restarted node has not heard of it from the agent yet
        found = self._known(sandbox, op_id)
        if isinstance(found, Op) and wait_s > 0:
            await asyncio.wait((found.done,), timeout=wait_s)
            found = self._known(sandbox, op_id) if op_id in sandbox.ops else found
        if isinstance(found, Op):
            return _status(found)
        answer = await self._answer(sandbox, found)
        past = found.past
        if isinstance(answer, ErrorBody):
            return OpStatus(
                op_id=op_id, state="lost", command=past.command, started=past.started, error=answer
            )
        return OpStatus(
            op_id=op_id, state="done", command=past.command, started=past.started, result=answer
        )

    def list_all(self, sandbox: Sandbox) -> list[OpStatus]:
        """Returns every operation that is remembered, oldest first, without results."""
        found = [
            _status(op)
            if isinstance(op, Op)
            else OpStatus(
                op_id=op_id,
                state="lost" if op.lost else "done",
                command=op.command,
                started=op.started,
            )
            for op_id, op in sandbox.ops.items()
        ]
        return sorted(found, key=lambda status: status.started)

    async def signal(self, sandbox: Sandbox, op_id: str, number: int) -> None:
        """Sends a signal to every process of the command; nothing if it has ended."""
        found = self._known(sandbox, op_id)
        if isinstance(found, Op):
            await self._lives.ensure_running(sandbox)  # what stands still would hear nothing
            running = await found.begun()
            if running is not None:
                self._note(sandbox, "command.signal", {"command": op_id, "signal": number})
                running.signal(number)

    async def resize(self, sandbox: Sandbox, op_id: str, size: Terminal) -> None:
        """Sets the size of the command's terminal; Conflict if it has none, nothing if it ended."""
        command.check_terminal(size.rows, size.cols)
        found = self._known(sandbox, op_id)
        if isinstance(found, Op):
            if found.spec.terminal is None:
                raise Conflict(f"{op_id} has no terminal")
            await self._lives.ensure_running(sandbox)
            running = await found.begun()
            if running is not None:
                running.resize(size.rows, size.cols)

    async def feed(
        self, sandbox: Sandbox, op_id: str, offset: int, chunks: AsyncIterator[bytes], *, eof: bool
    ) -> StdinTaken:
        """Passes standard input on; see `feeding`. Conflict for bytes after its end."""
        found = self._known(sandbox, op_id)
        if isinstance(found, Op):

            async def awake() -> None:  # what stands still would read nothing
                await self._lives.ensure_running(sandbox)

            return await feed(found, offset, chunks, eof=eof, awake=awake)
        async for _ in chunks:
            raise Conflict("the command has ended: it reads no more input")
        return StdinTaken(offset, open=False)

    def find(self, sandbox: Sandbox, op_id: str) -> Op | None:
        """Returns the command if it is known and has not ended."""
        found = sandbox.ops.get(op_id)
        return found if isinstance(found, Op) else None

    def cancel(self, sandbox: Sandbox, op_id: str) -> None:
        """Ends every process of the command; nothing if it has ended."""
        found = self._known(sandbox, op_id)
        if isinstance(found, Op):
            try:
                self._note(sandbox, "command.cancel", {"command": op_id})
            except StorageFailed as error:  # what is to end does not wait for a disk
                log.warning("the cancel of %s is not on record: %s", op_id, error)
            found.cancel()

    def _note(self, sandbox: Sandbox, action: str, asked: dict[str, Any]) -> None:
        now = self._clock.wall()
        self._trail.note(sandbox, Did(action, asked, result={}, started=now, ended=now))

    def _known(self, sandbox: Sandbox, op_id: str) -> Op | Found:
        op = sandbox.ops.get(op_id)
        if op is None:
            raise NotFound(f"{sandbox.id} has no operation {op_id}")
        return op if isinstance(op, Op) else Found(op_id, op)

    async def _find_or_begin(
        self, sandbox: Sandbox, op_id: str | None, spec: CommandSpec
    ) -> Op | Found | tuple[Op, Link]:
        """Returns the operation if it exists; else a new one, which the caller must drive."""
        command.check(spec, sandbox.inside_spec)
        fingerprint = command.fingerprint(spec)
        if op_id is not None:
            known = sandbox.ops.get(op_id)
            if known is not None:
                if known.fingerprint != fingerprint:
                    raise Conflict(f"operation {op_id} is another command")
                return known if isinstance(known, Op) else Found(op_id, known)
        link = await self._lives.ensure_running(sandbox)
        if op_id is None:
            op_id = secrets.token_hex(16)
        elif op_id in sandbox.ops:  # begun by another request while the sandbox was resumed
            return await self._find_or_begin(sandbox, op_id, spec)
        return self._begin(sandbox, op_id, spec, fingerprint), link

    def _begin(self, sandbox: Sandbox, op_id: str, spec: CommandSpec, fingerprint: bytes) -> Op:
        self._admission.check_operation(sandbox.running)
        if spec.session is not None:
            self._sessions.get(sandbox, spec.session).check_room()
        op = Op(
            op_id,
            spec,
            fingerprint=fingerprint,
            handle=self._handles.new(sandbox),
            started=self._clock.wall(),
            sink=self._outputs.make(sandbox.id, op_id, spec.output_limit),
        )
        self._execution.enter(sandbox, op)
        return op

    async def _answer(self, sandbox: Sandbox, found: Op | Found) -> Answer:
        """Returns the answer of an operation when there is one."""
        if isinstance(found, Op):
            return wrap(await asyncio.shield(found.done))
        if not self._trail.levels.at_once(sandbox.spec):
            await self._trail.levels.reach(sandbox.spec)
        return self._answers.find(sandbox, found.id, found.past)


class Found:
    """A finished operation, by id."""

    __slots__ = ("id", "past")

    def __init__(self, op_id: str, past: Past) -> None:
        self.id = op_id
        self.past = past


def _status(op: Op) -> OpStatus:
    running = op.running
    return OpStatus(
        op_id=op.id,
        state="running",
        command=command.text(op.spec),
        started=op.started,
        interactive=op.spec.interactive,
        terminal=op.spec.terminal is not None,
        stdin_total=running.stdin_sent if running is not None else 0,
        stdout_total=op.sink.total(Stream.STDOUT),
        stderr_total=op.sink.total(Stream.STDERR),
        holder=op.holder.who if op.holder is not None else None,
    )
