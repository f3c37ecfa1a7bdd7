"""Carries commands from START to a recorded answer, over lost connections and restarts."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial

from skerry.errors import (
    Bug,
    Conflict,
    InvalidRequest,
    NotFound,
    OutcomeUnknown,
    Overloaded,
    SandboxFailed,
    SkerryError,
    StorageFailed,
)
from skerry.guest.api import Outcome, Stream
from skerry.guest.client import GuestClient
from skerry.guest.operation import RunningOperation
from skerry.node import ledger
from skerry.node.commands import command
from skerry.node.commands.answers import Answers
from skerry.node.commands.inputs import INLINE_BYTES_MAX, Input, ShortInput, SpooledInput
from skerry.node.commands.operation import Op, Past, never_begun, never_left
from skerry.node.commands.sessions import Sessions
from skerry.node.life.link import Link
from skerry.node.life.lives import Lives
from skerry.node.life.sandbox import Sandbox
from skerry.node.parts import Parts
from skerry.spec.command import RunResult
from skerry.spec.sandbox import CpuClass

log = logging.getLogger("skerry.node")

# The agent keeps a command's timeout; these are for when it does not.
PING_AFTER_S = 5.0
KILL_AFTER_S = 15.0
# To die takes some of the time that a full host leaves, as to start does, for each of its processes.
KILL_STARVED_AFTER_S = 75.0
LOOK_AGAIN_S = 1.0  # at a deadline that was put off by a hold
CUT_AFTER_S = 1.0  # after a cancel, readers of the output have so long to catch up
SHELLS_MAX = 4096


class Execution:
    """What happens to one operation between its beginning and its answer."""

    def __init__(self, parts: Parts, lives: Lives, answers: Answers, sessions: Sessions) -> None:
        self._clock = parts.clock
        self._timers = parts.timers
        self._tasks = parts.tasks
        self._admission = parts.admission
        self._ledger = parts.ledger
        self._outputs = parts.outputs
        self._levels = parts.trail.levels
        self._lives = lives
        self._answers = answers
        self._handles = lives.handles
        self._sessions = sessions
        # Told of every answer; raises nothing.
        self.observe: Callable[[Op, RunResult | SkerryError], None] = lambda _op, _answer: None
        self._without_bash: dict[tuple[str, ...], None] = {}

    def enter(self, sandbox: Sandbox, op: Op) -> None:
        """Counts the operation as under way; that is activity."""
        sandbox.ops[op.id] = op
        op.on_cancel = self._cut_readers
        sandbox.running += 1
        self._admission.operations += 1
        sandbox.touch(self._clock.wall(), self._clock.monotonic())

    async def drive(self, sandbox: Sandbox, op: Op, link: Link) -> RunResult | SkerryError:
        """Carries an operation to its answer, which is recorded when this returns.

        It is new, or (`op.sent`) one of an earlier node process. If it is cancelled (the node is
        ending) nothing is recorded: the next node takes over.
        """
        answer: RunResult | SkerryError
        running: RunningOperation | None
        try:
            if op.spec.session is not None:
                outcome, running = await self._sessions.carry(sandbox, op, link, self._watch)
            else:
                outcome, running = await self._with_shell(sandbox, op, link)
            answer = self._result(sandbox, op, outcome)
        except SkerryError as error:
            answer, running = error, None
        except Exception as error:
            # Whoever repeats it would wait for ever for an answer that nobody gives.
            log.exception("the command %s", op.id)
            answer, running = Bug(f"{type(error).__name__}: {error}", op_id=op.id), None
        await self._answers.keep_output(op, answer)
        answer = self.finish(sandbox, op, answer, running)
        return answer if op.done.done() else await asyncio.shield(op.done)

    async def _with_shell(
        self, sandbox: Sandbox, op: Op, link: Link
    ) -> tuple[Outcome, RunningOperation]:
        """Runs the command; a shell line under bash, or under sh where the image has no bash."""
        if op.spec.shell is not None and not op.sent:
            op.shell = command.SH if sandbox.digests in self._without_bash else command.BASH
        outcome, running = await self._carry(sandbox, op, link)
        if op.shell != command.BASH or not command.shell_missing(op.spec, outcome):
            return outcome, running
        # Bash was not reached, so nothing has run yet.
        running.acknowledge()
        if len(self._without_bash) >= SHELLS_MAX:
            self._without_bash.clear()
        self._without_bash[sandbox.digests] = None
        op.shell = command.SH
        op.agent_op = command.fallback_id(op.raw)
        op.handle = self._handles.new(sandbox)
        op.not_running()
        return await self._carry(sandbox, op, link)

    async def _carry(
        self, sandbox: Sandbox, op: Op, link: Link
    ) -> tuple[Outcome, RunningOperation]:
        """Starts the operation unless it was, and follows it over lost connections to its end."""
        if not op.sent:
            await self._keep_input(sandbox, op)
            self._answers.ask(sandbox, op)
        while True:
            try:
                client = await link.ready()
            except SkerryError as error:
                raise error if op.sent else never_left(error) from None
            running = self._start(sandbox, op, client)
            if running is None:
                continue
            feeder = None
            if op.input is not None:
                feeder = self._tasks.spawn(_feed(running, op.input))
            try:
                return await running.wait(), running
            except SkerryError as error:
                if not client.lost.done():
                    raise _refused(error, op) from None
            finally:
                if feeder is not None:
                    feeder.cancel()

    async def _keep_input(self, sandbox: Sandbox, op: Op) -> None:
        """Puts long input into its file, and lets go of it; StorageFailed."""
        data = op.spec.stdin
        if data is None or op.input is not None:
            return
        if len(data) <= INLINE_BYTES_MAX:
            op.input = ShortInput(data)
            return
        op.spec = command.without_stdin(op.spec)
        path = self._outputs.input_path(sandbox.id, op.id)
        op.input = await asyncio.to_thread(SpooledInput.write, path, data)
        await self._answers.keep_input(op, data)

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
                    stdin=op.spec.interactive or op.spec.stdin is not None,
                    resume=op.running,
                )
                if op.overdue is None:  # an earlier process of the node has set it, in vain
                    self._watch(sandbox, op)
            else:
                running = client.start(
                    command.operation(
                        op.spec,
                        sandbox.inside_spec,
                        handle=op.handle,
                        op=op.agent_op,
                        shell=op.shell,
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
                raise never_begun() from None
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
        """Records the answer; returns it.

        Everyone who waits (`op.done`) has it now, or once it is as durable as the sandbox asks for.
        """
        void = isinstance(answer, SkerryError) and not op.sent
        try:
            if sandbox.gone:
                log.warning("%s ended after all of %s was let go of", op.id, sandbox.id)
            elif void:
                self._ledger.append(sandbox.id, ledger.Void(op.raw))
            else:
                self._answers.record(sandbox, op, answer)
        except SkerryError as error:
            answer = error  # nobody may hear what is not recorded
            void = False
            log.exception("the answer of %s cannot be recorded", op.id)
        else:
            if running is not None:
                running.acknowledge()
        op.kept_input.drop()
        op.kept_output.drop()
        self._leave(sandbox, op)
        self.observe(op, answer)
        if op.done.done():
            return answer
        self._levels.when_reached(sandbox.spec, partial(_give, op, answer))
        return answer

    def _cut_readers(self, op: Op) -> None:
        self._timers.after(CUT_AFTER_S, op.sink.cut_slow_readers)

    def _leave(self, sandbox: Sandbox, op: Op) -> None:
        if not isinstance(sandbox.ops.get(op.id), Past):  # it has no answer on record
            sandbox.ops.pop(op.id, None)
            op.sink.close()
        self._admission.operations -= 1
        sandbox.running -= 1
        sandbox.touch(self._clock.wall(), self._clock.monotonic())
        if op.overdue is not None:
            op.overdue.cancel()
        if op.input is not None:
            op.input.close()

    def _result(self, sandbox: Sandbox, op: Op, outcome: Outcome) -> RunResult:
        return command.result(
            outcome,
            op_id=op.id,
            start_error=command.start_error(outcome, op.spec, sandbox.inside_spec, op.shell),
            stdout=op.sink.output(Stream.STDOUT),
            stderr=op.sink.output(Stream.STDERR),
            truncated=op.sink.truncated or outcome.dropped > 0,
            started=op.started,
            ended=self._clock.wall(),
        )

    def _watch(self, sandbox: Sandbox, op: Op) -> None:
        """Sets the backstop behind the agent's own timeout."""
        if op.spec.timeout_s is None:
            return
        if op.overdue is not None:
            op.overdue.cancel()
        end = sandbox.work_time(self._clock.monotonic()) + op.spec.timeout_s
        self._at(end + PING_AFTER_S, self._ping_late, sandbox, op)

    def _at(
        self, work_s: float, call: Callable[[Sandbox, Op], None], sandbox: Sandbox, op: Op
    ) -> None:
        """Calls once the sandbox has worked that long; held time does not count."""
        left = work_s - sandbox.work_time(self._clock.monotonic())
        if left <= 0.001:
            call(sandbox, op)
        else:
            again = partial(self._at, work_s, call, sandbox, op)
            op.overdue = self._timers.after(max(left, LOOK_AGAIN_S), again)

    def _ping_late(self, sandbox: Sandbox, op: Op) -> None:
        op.sink.cut_slow_readers()  # the command is over: only they can hold its end up
        now = sandbox.work_time(self._clock.monotonic())
        self._at(now + _kill_after(sandbox) - PING_AFTER_S, self._kill_late, sandbox, op)
        if sandbox.link is not None:
            self._tasks.spawn(sandbox.link.check())

    def _kill_late(self, sandbox: Sandbox, op: Op) -> None:
        del op
        late = f"a command was {_kill_after(sandbox):g} s over its timeout and could not be ended"
        self._lives.fail(sandbox, late, SandboxFailed(late, sandbox=sandbox.id))


def _kill_after(sandbox: Sandbox) -> float:
    """Returns how long after its timeout a command that does not end costs its sandbox."""
    starved = sandbox.spec.cpu_class is CpuClass.BEST_EFFORT
    return KILL_STARVED_AFTER_S if starved else KILL_AFTER_S


def _give(op: Op, answer: RunResult | SkerryError, failed: SkerryError | None) -> None:
    """Gives the answer to everyone who waits, or why its record is not durable."""
    if not op.done.done():
        op.done.set_result(answer if failed is None else failed)


def _refused(error: SkerryError, op: Op) -> SkerryError:
    """Returns what a refusal of the agent means for the operation."""
    if isinstance(error, Conflict) and not op.exec_reached():
        return OutcomeUnknown("the guest agent has seen this operation before", op_id=op.id)
    if isinstance(error, Overloaded | InvalidRequest):
        op.sent = False  # refused whole: it has not run, and may be asked again
    return error


async def _feed(running: RunningOperation, source: Input) -> None:
    """Gives a command its standard input, from where an earlier connection or process left off."""
    try:
        while running.reads and running.stdin_sent < source.size:
            await running.write_stdin(source.read(running.stdin_sent))
        await running.close_stdin()
    except StorageFailed as error:
        running.fail(error)  # half an input must not look like a whole one
    except SkerryError as error:
        log.debug("standard input was cut short: %s", error)  # the command's end tells the rest
