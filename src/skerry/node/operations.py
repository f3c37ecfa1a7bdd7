"""Commands: started at most once, answered from the record afterwards (decisions 12 to 14)."""

from __future__ import annotations

import asyncio
import logging
import secrets

import msgspec

from skerry.errors import (
    Bug,
    Conflict,
    InvalidRequest,
    NotFound,
    OutcomeUnknown,
    Overloaded,
    SandboxFailed,
    SkerryError,
    Unavailable,
)
from skerry.guest.api import Outcome, Stream
from skerry.guest.client import GuestClient
from skerry.guest.operation import RunningOperation
from skerry.node import command, ledger
from skerry.node.admission import Admission
from skerry.node.clock import Clock
from skerry.node.ledger import Ledger
from skerry.node.link import Link
from skerry.node.lives import Lives
from skerry.node.operation import Op, Past
from skerry.node.outputs import Outputs
from skerry.node.results import Answer, Results, unwrap, wrap
from skerry.node.sandbox import HANDLE_MAX, HANDLES_BLOCK, Sandbox
from skerry.node.tasks import Tasks
from skerry.node.timers import Timers
from skerry.node.views import View
from skerry.spec.command import CommandSpec, RunResult
from skerry.wire.http import ErrorBody, OpStatus

log = logging.getLogger("skerry.node")

# The agent keeps a command's timeout; these are for when it does not.
PING_AFTER_S = 5.0
KILL_AFTER_S = 15.0
SHELLS_MAX = 4096
INLINE_BYTES_MAX = 1 << 20  # of a stream in the journal; a longer one stays in its spool file


class Operations:
    """Every command of every sandbox.

    One operation id runs at most one command. Its `Asked` record is in the journal before START
    leaves, its `Answered` record before anyone hears the answer; in between, a repeat joins.
    """

    def __init__(
        self,
        *,
        clock: Clock,
        timers: Timers,
        tasks: Tasks,
        admission: Admission,
        ledger: Ledger,
        results: Results,
        outputs: Outputs,
        lives: Lives,
        per_sandbox_max: int,
    ) -> None:
        self._clock = clock
        self._timers = timers
        self._tasks = tasks
        self._admission = admission
        self._ledger = ledger
        self._results = results
        self._outputs = outputs
        self._lives = lives
        self._per_sandbox_max = per_sandbox_max
        self._without_bash: dict[tuple[str, ...], None] = {}

    # -- what users ask ---------------------------------------------------------------------------

    async def run(self, sandbox: Sandbox, op_id: str | None, spec: CommandSpec) -> RunResult:
        """Returns the command's result, running it unless this operation id already has one.

        Raises InvalidRequest, Conflict (the id names another command), Overloaded, what ended the
        sandbox, or the recorded error.
        """
        found = await self._find_or_begin(sandbox, op_id, spec)
        if not isinstance(found, tuple):
            return unwrap(await self._answer(sandbox, found))
        op, link = found
        answer = await self._drive(sandbox, op, link)
        if isinstance(answer, SkerryError):
            raise answer
        return answer

    async def view(
        self, sandbox: Sandbox, op_id: str | None, spec: CommandSpec | None, *, watch: bool = True
    ) -> View:
        """Returns a view of the command, which runs on its own; `spec` None only joins."""
        link: Link | None = None
        found: Op | Found
        if spec is None:
            found = self._known(sandbox, op_id or "")
        else:
            either = await self._find_or_begin(sandbox, op_id, spec)
            found, link = either if isinstance(either, tuple) else (either, None)
        if isinstance(found, Found):
            return View(found.id, await self._answer(sandbox, found), watch=watch)
        view = View(found.id, found, watch=watch)
        if link is not None:
            self._tasks.spawn(self._drive_alone(sandbox, found, link))
        return view

    async def status(self, sandbox: Sandbox, op_id: str, wait_s: float) -> OpStatus:
        """Returns how the operation stands, after its end or `wait_s` seconds."""
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
        return [
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

    async def signal(self, sandbox: Sandbox, op_id: str, number: int) -> None:
        """Sends a signal to every process of the command; nothing if it has ended."""
        found = self._known(sandbox, op_id)
        if isinstance(found, Op):
            running = await found.begun()
            if running is not None:
                running.signal(number)

    def cancel(self, sandbox: Sandbox, op_id: str) -> None:
        """Ends every process of the command; nothing if it has ended."""
        found = self._known(sandbox, op_id)
        if isinstance(found, Op):
            found.cancel()

    def new_handle(self, sandbox: Sandbox) -> int:
        """Returns a handle that was never used in this instance, over restarts of the node too."""
        handle = sandbox.handle_next
        if handle >= HANDLE_MAX:
            raise SandboxFailed("the sandbox has run 2^29 operations; make a new one")
        if handle >= sandbox.handle_top:
            top = handle + HANDLES_BLOCK
            self._ledger.append(sandbox.id, ledger.Handles(top))
            sandbox.handle_top = top
        sandbox.handle_next = handle + 1
        return handle

    # -- find or begin ----------------------------------------------------------------------------

    def _known(self, sandbox: Sandbox, op_id: str) -> Op | Found:
        op = sandbox.ops.get(op_id)
        if op is None:
            raise NotFound(f"{sandbox.id} has no operation {op_id}")
        return op if isinstance(op, Op) else Found(op_id, op)

    async def _find_or_begin(
        self, sandbox: Sandbox, op_id: str | None, spec: CommandSpec
    ) -> Op | Found | tuple[Op, Link]:
        """Returns the operation if it exists; else a new one, which the caller must drive."""
        command.check(spec, sandbox.spec)
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
        self._admission.enter_operation(sandbox.running)
        try:
            handle = self.new_handle(sandbox)
            sink = self._outputs.make(sandbox.id, op_id, spec.output_limit)
            op = Op(
                op_id,
                spec,
                fingerprint=fingerprint,
                handle=handle,
                started=self._clock.wall(),
                sink=sink,
            )
        except BaseException:
            self._admission.operations -= 1
            raise
        self.enter(sandbox, op)
        return op

    def enter(self, sandbox: Sandbox, op: Op) -> None:
        """Counts the operation as under way; that is activity."""
        sandbox.ops[op.id] = op
        sandbox.running += 1
        sandbox.touch(self._clock.wall(), self._clock.monotonic())

    async def _answer(self, sandbox: Sandbox, found: Op | Found) -> Answer:
        """Returns the answer of an operation: awaited, from memory, or from the journal."""
        if isinstance(found, Op):
            return wrap(await asyncio.shield(found.done))
        kept = self._results.get(sandbox.id, found.id)
        if kept is not None:
            return kept
        answer = self._recall(sandbox.id, found)
        self._results.put(sandbox.id, found.id, answer)
        return answer

    def _recall(self, sandbox_id: str, found: Found) -> Answer:
        """Returns an answer from the journal, and from its spool files where they are long."""
        entry = self._ledger.read(sandbox_id, found.past.position)
        if not isinstance(entry, ledger.Answered) or entry.op.hex() != found.id:
            raise Bug(f"record {found.past.position} is not the answer of {found.id}")
        if entry.error is not None:
            return entry.error
        if entry.result is None:
            raise Bug(f"record {found.past.position} answers nothing")
        result = entry.result
        if entry.spooled:
            sink = self._outputs.reopen(sandbox_id, found.id, 0)
            for number in entry.spooled:
                stream = Stream(number)
                result = msgspec.structs.replace(
                    result, **{stream.name.lower(): sink.output(stream)}
                )
            sink.detach()
        return result

    # -- drive ------------------------------------------------------------------------------------

    async def _drive_alone(self, sandbox: Sandbox, op: Op, link: Link) -> None:
        await self._drive(sandbox, op, link)

    async def _drive(self, sandbox: Sandbox, op: Op, link: Link) -> RunResult | SkerryError:
        """Carries a new operation to its answer, which is recorded when this returns.

        If it is cancelled (the node is ending) nothing is recorded: the next node takes over.
        """
        answer: RunResult | SkerryError
        try:
            outcome, running = await self._with_shell(sandbox, op, link)
            answer = self._result(sandbox, op, outcome)
        except SkerryError as error:
            answer, running = error, None
        return self.finish(sandbox, op, answer, running)

    async def adopt(self, sandbox: Sandbox, op: Op, link: Link) -> None:
        """Carries an operation of an earlier node process to its answer; `op.sent` is true."""
        answer: RunResult | SkerryError
        try:
            outcome, running = await self._carry(sandbox, op, link)
            if op.agent_op == op.raw and command.shell_missing(op.spec, outcome):
                outcome, running = await self._with_sh(sandbox, op, link, outcome, running)
            answer = self._result(sandbox, op, outcome)
        except SkerryError as error:
            answer, running = error, None
        self.finish(sandbox, op, answer, running)

    async def _with_shell(
        self, sandbox: Sandbox, op: Op, link: Link
    ) -> tuple[Outcome, RunningOperation]:
        """Runs the command; a shell line under bash, or under sh where the image has no bash."""
        if op.spec.shell is None:
            return await self._carry(sandbox, op, link)
        if sandbox.digests in self._without_bash:
            op.shell = command.SH
            return await self._carry(sandbox, op, link)
        op.shell = command.BASH
        outcome, running = await self._carry(sandbox, op, link)
        if command.shell_missing(op.spec, outcome):
            return await self._with_sh(sandbox, op, link, outcome, running)
        return outcome, running

    async def _with_sh(
        self, sandbox: Sandbox, op: Op, link: Link, _outcome: Outcome, running: RunningOperation
    ) -> tuple[Outcome, RunningOperation]:
        """Runs it again under sh: bash was not reached, so nothing has run yet."""
        running.acknowledge()
        if len(self._without_bash) >= SHELLS_MAX:
            self._without_bash.clear()
        self._without_bash[sandbox.digests] = None
        op.shell = command.SH
        op.agent_op = command.fallback_id(op.raw)
        op.handle = self.new_handle(sandbox)
        op.not_running()
        return await self._carry(sandbox, op, link)

    async def _carry(
        self, sandbox: Sandbox, op: Op, link: Link
    ) -> tuple[Outcome, RunningOperation]:
        """Starts the operation unless it was, and follows it over lost connections to its end."""
        if not op.sent:
            self._ledger.append(
                sandbox.id,
                ledger.Asked(
                    op.raw,
                    op.handle,
                    op.agent_op,
                    op.fingerprint,
                    command.without_stdin(op.spec),
                    op.started,
                ),
            )
        while True:
            try:
                client = await link.ready()
            except SkerryError as error:
                raise error if op.sent else _never_left(error) from None
            running = self._start(sandbox, op, client)
            if running is None:
                continue
            feeder = None
            if op.spec.stdin is not None:
                feeder = self._tasks.spawn(_feed(running, op.spec.stdin))
            try:
                return await running.wait(), running
            except SkerryError as error:
                if not client.lost.done():
                    raise _refused(error, op) from None
            finally:
                if feeder is not None:
                    feeder.cancel()

    def _start(self, sandbox: Sandbox, op: Op, client: GuestClient) -> RunningOperation | None:
        """Starts it or attaches to it; None if the connection was lost meanwhile."""
        try:
            if op.sent:
                running = client.attach(
                    op.handle,
                    op.agent_op,
                    op.sink,
                    op.sink.safe_offset(Stream.STDOUT),
                    op.sink.safe_offset(Stream.STDERR),
                    resume=op.running,
                )
            else:
                running = client.start(
                    command.operation(
                        op.spec, sandbox.spec, handle=op.handle, op=op.agent_op, shell=op.shell
                    ),
                    op.sink,
                )
                op.sent = True
                self._watch(sandbox, op)
        except NotFound:
            if op.exec_reached():
                raise OutcomeUnknown("the guest agent has lost the command") from None
            op.not_running()  # START was lost on its way: it has not run
            if op.adopted:
                raise Unavailable(
                    "the node restarted before the command was started: it has not run"
                ) from None
            return None
        except SkerryError:
            if client.lost.done():
                return None
            raise
        op.now_running(running)
        return running

    def finish(
        self,
        sandbox: Sandbox,
        op: Op,
        answer: RunResult | SkerryError,
        running: RunningOperation | None,
    ) -> RunResult | SkerryError:
        """Records the answer and gives it to everyone who waits; returns it."""
        void = isinstance(answer, SkerryError) and not op.sent
        try:
            if void:
                self._ledger.append(sandbox.id, ledger.Void(op.raw))
            else:
                self._record(sandbox, op, answer)
        except SkerryError as error:
            answer = error  # nobody may hear what is not recorded
            void = False
            log.exception("the answer of %s cannot be recorded", op.id)
        else:
            if running is not None:
                running.acknowledge()
        self._leave(sandbox, op)
        if not op.done.done():
            op.done.set_result(answer)
        return answer

    def _record(self, sandbox: Sandbox, op: Op, answer: RunResult | SkerryError) -> None:
        recorded = wrap(answer)
        spooled: tuple[int, ...] = ()
        if isinstance(recorded, ErrorBody):
            entry = ledger.Answered(op.raw, op.started, error=recorded)
        else:
            inline, spooled = _without_long(recorded)
            entry = ledger.Answered(op.raw, op.started, inline, spooled=spooled)
        position = self._ledger.append(sandbox.id, entry)
        self._results.put(sandbox.id, op.id, recorded)
        lost = entry.error is not None
        text = command.text(op.spec)
        sandbox.ops[op.id] = Past(
            op.fingerprint, position, text, op.started, lost, spooled=bool(spooled)
        )
        if spooled:
            op.sink.finish()
            op.sink.detach()
        else:
            op.sink.close()
        self._forget_oldest(sandbox)

    def _forget_oldest(self, sandbox: Sandbox) -> None:
        """Keeps what is remembered of finished operations within its bound."""
        while len(sandbox.ops) - sandbox.running >= self._per_sandbox_max:
            op_id, oldest = next((k, v) for k, v in sandbox.ops.items() if isinstance(v, Past))
            del sandbox.ops[op_id]
            self._results.drop(sandbox.id, op_id)
            if oldest.spooled:
                self._outputs.drop(sandbox.id, op_id)

    def _leave(self, sandbox: Sandbox, op: Op) -> None:
        if isinstance(sandbox.ops.get(op.id), Op):  # it has no answer on record
            del sandbox.ops[op.id]
            op.sink.close()
        self._admission.operations -= 1
        sandbox.running -= 1
        sandbox.touch(self._clock.wall(), self._clock.monotonic())
        if op.overdue is not None:
            op.overdue.cancel()

    def _result(self, sandbox: Sandbox, op: Op, outcome: Outcome) -> RunResult:
        return command.result(
            outcome,
            op_id=op.id,
            start_error=command.start_error(outcome, op.spec, sandbox.spec, op.shell),
            stdout=op.sink.output(Stream.STDOUT),
            stderr=op.sink.output(Stream.STDERR),
            truncated=op.sink.truncated,
            started=op.started,
            ended=self._clock.wall(),
        )

    # -- when the agent does not keep the time ----------------------------------------------------

    def _watch(self, sandbox: Sandbox, op: Op) -> None:
        """Sets the backstop behind the agent's own timeout."""
        if op.spec.timeout_s is None:
            return
        if op.overdue is not None:
            op.overdue.cancel()

        def kill() -> None:
            late = f"a command was {KILL_AFTER_S:g} s over its timeout and could not be ended"
            self._lives.fail(sandbox, late, SandboxFailed(late, sandbox=sandbox.id))

        def ping() -> None:
            op.overdue = self._timers.after(KILL_AFTER_S - PING_AFTER_S, kill)
            if sandbox.link is not None:
                self._tasks.spawn(sandbox.link.check())

        op.overdue = self._timers.after(op.spec.timeout_s + PING_AFTER_S, ping)


def _without_long(result: RunResult) -> tuple[RunResult, tuple[int, ...]]:
    """Returns the result as it fits into a record, and the streams that were left out."""
    out, err = len(result.stdout) > INLINE_BYTES_MAX, len(result.stderr) > INLINE_BYTES_MAX
    if not out and not err:
        return result, ()
    short = msgspec.structs.replace(
        result,
        stdout=b"" if out else result.stdout,
        stderr=b"" if err else result.stderr,
    )
    return short, (int(Stream.STDOUT),) * out + (int(Stream.STDERR),) * err


class Found:
    """A finished operation, by id."""

    __slots__ = ("id", "past")

    def __init__(self, op_id: str, past: Past) -> None:
        self.id = op_id
        self.past = past


def _status(op: Op) -> OpStatus:
    return OpStatus(op_id=op.id, state="running", command=command.text(op.spec), started=op.started)


def _never_left(error: SkerryError) -> SkerryError:
    """The sandbox died before START left: the command certainly has not run."""
    return SandboxFailed(f"{error.message} (the command was not started)", **error.fields)


def _refused(error: SkerryError, op: Op) -> SkerryError:
    """Returns what a refusal of the agent means for the operation."""
    if isinstance(error, Conflict) and not op.exec_reached():
        return OutcomeUnknown("the guest agent has seen this operation before", op_id=op.id)
    if isinstance(error, Overloaded | InvalidRequest):
        op.sent = False  # refused whole: it has not run, and may be asked again
    return error


async def _feed(running: RunningOperation, data: bytes) -> None:
    """Gives a command its standard input, from where an earlier connection left off."""
    try:
        await running.write_stdin(data[running.stdin_sent :])
        await running.close_stdin()
    except SkerryError as error:
        log.debug("standard input was cut short: %s", error)  # the command's end tells the rest
