"""Sessions: persistent shells, made, used and ended; their commands are operations like others.

A command of a session has its turn, is recorded as asked (with its number in the session) before
EXEC leaves, and followed over lost connections. Its number says whether it came inside: a restarted
node, or one that lost the connection, never runs it twice.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
from collections.abc import Callable
from errno import ENOENT

from skerry.errors import (
    Conflict,
    InvalidRequest,
    NotFound,
    OutcomeUnknown,
    Overloaded,
    SandboxFailed,
    SkerryError,
    StorageFailed,
    Unavailable,
)
from skerry.guest import shells
from skerry.guest.api import Kind, Operation, Outcome
from skerry.guest.client import GuestClient
from skerry.guest.session import SessionCommand
from skerry.node import ledger
from skerry.node.commands import command
from skerry.node.commands.answers import Answers
from skerry.node.commands.operation import Op, never_begun, never_left
from skerry.node.commands.session import Session, Withdrawn
from skerry.node.life.link import Link
from skerry.node.life.lives import Lives
from skerry.node.life.sandbox import Sandbox
from skerry.node.parts import Parts
from skerry.spec.session import SESSIONS_MAX, SessionSpec, check_session_id
from skerry.wire.guest import KnownOperation
from skerry.wire.sessions import SessionInfo

log = logging.getLogger("skerry.node")

CLOSE_WITHIN_S = 5.0  # the agent ends what does not end by itself after two seconds
_UNKNOWN_USER = (None, 0, ENOENT, 22)


class Sessions:
    """Every session of every sandbox."""

    def __init__(self, parts: Parts, lives: Lives, answers: Answers) -> None:
        self._clock = parts.clock
        self._ledger = parts.ledger
        self._lives = lives
        self._answers = answers
        self._handles = lives.handles

    # --- made, found, ended ---------------------------------------------------------------------

    async def create(
        self, sandbox: Sandbox, session_id: str | None, spec: SessionSpec
    ) -> SessionInfo:
        """Returns the session once its shell runs; one with this id and spec is found again.

        Raises InvalidRequest (no such shell, directory or user), Conflict (the id names another),
        Overloaded beyond SESSIONS_MAX.
        """
        spec.check()
        session_id = secrets.token_hex(8) if session_id is None else check_session_id(session_id)
        link = await self._lives.ensure_running(sandbox)
        making = sandbox.sessions_made.get(session_id)
        while making is not None:  # the same request, made twice at once
            await asyncio.wait((making,))
            making = sandbox.sessions_made.get(session_id)
        known = sandbox.sessions.get(session_id)
        if known is not None:
            if known.spec != spec:
                raise Conflict(f"the session {session_id} is another one")
            return known.info()
        if len(sandbox.sessions) + len(sandbox.sessions_made) >= SESSIONS_MAX:
            raise Overloaded(
                f"a sandbox has at most {SESSIONS_MAX} sessions",
                limit="sessions",
                retry_after_s=1.0,
            )
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        sandbox.sessions_made[session_id] = done
        try:
            session = await self._open(sandbox, session_id, spec, link)
            sandbox.sessions[session_id] = session
        finally:
            del sandbox.sessions_made[session_id]
            done.set_result(None)
        sandbox.touch(self._clock.wall(), self._clock.monotonic())
        return session.info()

    def list_all(self, sandbox: Sandbox) -> list[SessionInfo]:
        """Returns the sessions, oldest first."""
        return [session.info() for session in sandbox.sessions.values()]

    def get(self, sandbox: Sandbox, session_id: str) -> Session:
        """Returns it; NotFound."""
        session = sandbox.sessions.get(session_id)
        if session is None or session.closing:
            raise NotFound(f"{sandbox.id} has no session {session_id[:80]}")
        return session

    async def close(self, sandbox: Sandbox, session_id: str) -> None:
        """Returns when nothing of it runs any more: its shell, its command, its jobs. Idempotent."""
        session = sandbox.sessions.get(check_session_id(session_id))
        if session is None:
            return
        session.closing = True
        try:
            async with asyncio.timeout(CLOSE_WITHIN_S):
                link = await self._lives.ensure_running(sandbox)
                shell = await session.attached(await link.ready(), session.running)
                shell.close()
                await shell.wait()
                shell.acknowledge_end()
        except NotFound:
            pass  # the agent has none
        except TimeoutError:
            raise Unavailable("the session has not ended yet; ask again") from None
        self._forget(sandbox, session)

    def _forget(self, sandbox: Sandbox, session: Session) -> None:
        session.closing = True
        if sandbox.sessions.pop(session.id, None) is not None:
            self._record_end(sandbox, session.id)

    def _record_end(self, sandbox: Sandbox, session_id: str) -> None:
        try:
            self._ledger.append(sandbox.id, ledger.SessionEnded(session_id))
        except StorageFailed as error:
            # A restarted node asks the agent, which has none: ending does not wait for a disk.
            log.warning(
                "the end of session %s of %s is not on record: %s", session_id, sandbox.id, error
            )

    async def _open(
        self, sandbox: Sandbox, session_id: str, spec: SessionSpec, link: Link
    ) -> Session:
        """Starts the shell, which is on record before."""
        tried = [spec.shell, shells.FALLBACK] if spec.shell == "bash" else [spec.shell]
        for shell in tried:
            session = Session(
                session_id,
                spec,
                shell=shell,
                op=secrets.token_bytes(16),
                handle=self._handles.new(sandbox),
                created=self._clock.wall(),
            )
            self._ledger.append(
                sandbox.id,
                ledger.SessionBegan(
                    session_id, spec, shell, session.op, session.handle, session.created
                ),
            )
            client = await link.ready()
            running = client.open_session(_operation(session, sandbox))
            try:
                await asyncio.wait((running.started,))
                if not running.started.cancelled():
                    running.started.result()
                    session.opened(client, running)
                    return session
                outcome = await running.wait()
            except SkerryError:
                self._record_end(sandbox, session_id)
                raise
            running.acknowledge_end()
            self._record_end(sandbox, session_id)
            if outcome.error_step != "exec" or outcome.errno != ENOENT:
                break
        raise _not_opened(outcome, spec, sandbox)

    # --- recovery --------------------------------------------------------------------------------

    def adopt(
        self, sandbox: Sandbox, began: ledger.SessionBegan, seq: int, live: KnownOperation | None
    ) -> None:
        """Takes over a session of an earlier process, if the agent still has it."""
        if live is None:
            self._record_end(sandbox, began.id)
            return
        sandbox.sessions[began.id] = Session(
            began.id,
            began.spec,
            shell=began.shell,
            op=began.op,
            handle=began.handle,
            created=began.created,
            seq=seq,
        )

    # --- commands --------------------------------------------------------------------------------

    async def carry(
        self, sandbox: Sandbox, op: Op, link: Link, watch: Callable[[Sandbox, Op], None]
    ) -> tuple[Outcome, SessionCommand | None]:
        """Runs the command when it has its turn, and follows it to its end.

        `watch` is called when it has been sent. A command that was cancelled while it waited has
        not run, and its outcome says `cancelled`.
        """
        try:
            session = self.get(sandbox, op.spec.session or "")
            await session.take_turn(op)
            try:
                return await self._run(sandbox, session, op, link, watch)
            finally:
                session.end_turn()
        except NotFound:
            if op.sent:
                raise OutcomeUnknown("the session was lost under its command") from None
            raise
        except Withdrawn:
            self._answers.ask(sandbox, op)  # an answer belongs to a question, for who repeats it
            now = round(self._clock.wall() * 1e9)
            return Outcome(signal=9, cancelled=True, start_ns=now, end_ns=now), None

    async def _run(
        self,
        sandbox: Sandbox,
        session: Session,
        op: Op,
        link: Link,
        watch: Callable[[Sandbox, Op], None],
    ) -> tuple[Outcome, SessionCommand]:
        if not op.sent:
            if session.closing:
                raise NotFound(f"the session {session.id} was closed")
            if session.client is None:  # of an earlier process, whose journal may be cut short
                shell = await session.attached(await link.ready(), None)
                session.seq = max(session.seq, shell.seq)
            op.seq = session.seq + 1
            self._answers.ask(sandbox, op)
            session.seq = op.seq
        while True:
            try:
                client = await link.ready()
            except SkerryError as error:
                raise error if op.sent else never_left(error) from None
            try:
                running = await self._begin(session, op, client)
                if op.overdue is None:
                    watch(sandbox, op)
                op.now_running(running)
                return await running.wait(), running
            except SkerryError as error:
                if client.lost.done():
                    continue
                if isinstance(error, NotFound):
                    self._forget(sandbox, session)
                raise

    async def _begin(self, session: Session, op: Op, client: GuestClient) -> SessionCommand:
        """Sends it, unless it came inside over an earlier connection."""
        shell = await session.attached(client, op)
        if op.sent:
            resumed = shell.resumed
            if resumed is not None and resumed.seq == op.seq:
                return resumed
            if shell.seq >= op.seq:
                raise OutcomeUnknown("the session went on without the command's result")
            op.not_running()  # it was lost on its way: it has not run
            if op.adopted:
                raise never_begun()
        op.sent = True
        return await shell.execute(
            op.seq,
            os.fsencode(op.spec.shell or ""),
            op.sink,
            timeout_ms=command.milliseconds(op.spec.timeout_s),
            no_output_ms=command.milliseconds(op.spec.no_output_timeout_s),
        )


def _operation(session: Session, sandbox: Sandbox) -> Operation:
    spec = session.spec
    inside = sandbox.inside_spec
    env = inside.env | spec.env
    return Operation(
        handle=session.handle,
        op_id=session.op,
        kind=Kind.SESSION,
        argv=tuple(map(os.fsencode, shells.argv(session.shell))),
        env=tuple(os.fsencode(f"{name}={value}") for name, value in env.items()),
        cwd=command.directory(spec.cwd, inside.workdir),
        user=os.fsencode(spec.user or inside.user or "root"),
    )


def _not_opened(outcome: Outcome, spec: SessionSpec, sandbox: Sandbox) -> SkerryError:
    reason = os.strerror(outcome.errno) if outcome.errno else "failed"
    if outcome.error_step == "user":
        user = spec.user or sandbox.inside_spec.user
        if outcome.errno in _UNKNOWN_USER:
            return InvalidRequest(f"user: unknown user {user}")
        return InvalidRequest(f"user: {reason}: {user}")
    if outcome.error_step == "cwd":
        cwd = command.directory(spec.cwd, sandbox.inside_spec.workdir)
        return InvalidRequest(f"cwd: {reason}: {os.fsdecode(cwd or b'/')}")
    if outcome.error_step == "exec":
        return InvalidRequest(f"shell: {reason}: {spec.shell}")
    return SandboxFailed(f"the session's shell did not start: {outcome.error_step}: {reason}")
