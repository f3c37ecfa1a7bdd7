"""One session as the node holds it: data, turns, and the shell over the newest connection."""

from __future__ import annotations

import asyncio
from collections import deque

from skerry.errors import NotFound, Overloaded
from skerry.guest.client import GuestClient
from skerry.guest.session import RunningSession
from skerry.node.commands.operation import Op
from skerry.spec.session import QUEUE_MAX, SessionSpec
from skerry.wire.sessions import SessionInfo


class Withdrawn(Exception):
    """A command was cancelled before it had its turn: it has not run."""


class Session:
    """A shell of a sandbox. Commands have their turns in the order in which they came.

    Invariants: at most one command has the turn, at most QUEUE_MAX wait for it; `seq` is the number
    of the newest command that is in the journal.
    """

    def __init__(
        self,
        session_id: str,
        spec: SessionSpec,
        *,
        shell: str,
        op: bytes,
        handle: int,
        created: float,
        seq: int = 0,
    ) -> None:
        self.id = session_id
        self.spec = spec
        self.shell = shell
        self.op = op  # the agent's id of it
        self.handle = handle
        self.created = created
        self.seq = seq
        self.closing = False
        self.shell_inside: RunningSession | None = None
        self.client: GuestClient | None = None  # the one that shell_inside belongs to
        self.running: Op | None = None
        self._taken = False  # the turn is somebody's, or on its way to the next
        self._waiting: deque[asyncio.Future[bool]] = deque()

    def info(self) -> SessionInfo:
        """Returns what users see of it."""
        return SessionInfo(
            id=self.id,
            spec=self.spec,
            shell=self.shell,
            created=self.created,
            commands=self.seq,
            running=self.running.id if self.running is not None else None,
            waiting=len(self._waiting),
        )

    def check_room(self) -> None:
        """Raises Overloaded if too many commands wait for their turn."""
        if len(self._waiting) >= QUEUE_MAX:
            raise Overloaded(
                f"{QUEUE_MAX} commands wait in the session {self.id} already",
                limit="session_queue",
                retry_after_s=1.0,
            )

    async def take_turn(self, op: Op) -> None:
        """Returns when it is the command's turn, until `end_turn`; raises Withdrawn if cancelled."""
        if self._taken:
            await self._wait(op)
        self._taken = True
        self.running = op

    def end_turn(self) -> None:
        """The next command has its turn."""
        self.running = None
        self._pass_on()

    async def _wait(self, op: Op) -> None:
        """Returns with the turn, which the one before has left taken for this."""
        waiter: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        told = op.on_cancel

        def withdraw(cancelled: Op) -> None:
            told(cancelled)
            if not waiter.done():
                waiter.set_result(False)

        op.on_cancel = withdraw
        self._waiting.append(waiter)
        try:
            if not await waiter:
                raise Withdrawn
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled() and waiter.result():
                self._pass_on()
            raise
        finally:
            op.on_cancel = told
            if waiter in self._waiting:
                self._waiting.remove(waiter)

    def _pass_on(self) -> None:
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(True)
                return
        self._taken = False

    async def attached(self, client: GuestClient, op: Op | None) -> RunningSession:
        """Returns the shell over this connection, once it answers.

        `op` is the command that may be running in it. Raises NotFound if the agent has no such
        session or it has ended, and the channel's error if that is lost.
        """
        if self.shell_inside is None or self.client is not client:
            pending = None if op is None or not op.sent else (op.seq, op.sink)
            self.shell_inside = client.attach_session(self.handle, self.op, pending)
            self.client = client
        started = self.shell_inside.started
        if not started.done():
            await asyncio.wait((started,))
        if started.cancelled() or self.shell_inside.ended:
            await self.shell_inside.wait()  # raises why, unless it ended well
            self.shell_inside.acknowledge_end()
            raise NotFound(f"the session {self.id} has ended")
        started.result()
        return self.shell_inside

    def opened(self, client: GuestClient, shell: RunningSession) -> None:
        """Takes the shell that was just started."""
        self.client, self.shell_inside = client, shell
