"""One command: under way as an `Op`, finished as a `Past`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from skerry.errors import SandboxFailed, SkerryError, Unavailable
from skerry.guest.operation import RunningOperation
from skerry.guest.output import SpoolSink
from skerry.node.commands.inputs import Input
from skerry.node.timers import Timer
from skerry.node.trail.streams import Streams
from skerry.spec.command import CommandSpec, RunResult
from skerry.trajectory.journal.journal import Position


class Past(NamedTuple):
    """What stays of a finished command: enough to answer a repeat from the journal."""

    fingerprint: bytes
    position: Position  # of its answer in the journal
    asked: str  # the chapter of the journal that holds the question
    size: int  # bytes that its answer takes
    command: str
    started: float
    lost: bool
    spooled: bool


class Holder:
    """A client that has a command's terminal: the only one that may type."""

    def __init__(self, who: str, since: float, taken: Callable[[str], None]) -> None:
        self.who = who
        self.since = since
        self.taken = taken  # told who took it over


class Op:
    """A command that has no answer yet.

    `done` gets its answer, result or error, and never an exception. Invariants: `sent` is true
    while the command may have had effects; `running` belongs to the newest connection.
    """

    __slots__ = (
        "_begun",
        "_cancelled",
        "adopted",
        "agent_op",
        "asked",
        "done",
        "fingerprint",
        "handle",
        "holder",
        "id",
        "input",
        "input_lock",
        "kept_input",
        "kept_output",
        "on_cancel",
        "overdue",
        "raw",
        "running",
        "sent",
        "seq",
        "shell",
        "sink",
        "spec",
        "started",
    )

    def __init__(
        self,
        op_id: str,
        spec: CommandSpec,
        *,
        fingerprint: bytes,
        handle: int,
        started: float,
        sink: SpoolSink,
    ) -> None:
        self.id = op_id
        self.raw = bytes.fromhex(op_id)
        self.agent_op = self.raw  # another one for the second try of a shell line, under sh
        self.spec = spec
        self.fingerprint = fingerprint
        self.handle = handle
        self.started = started
        self.sink = sink
        self.shell = ""
        self.asked = ""  # the chapter of the journal that says so
        self.sent = False
        self.seq = 0  # its number in its session
        self.adopted = False  # begun by an earlier process of the node
        self.running: RunningOperation | None = None
        self.overdue: Timer | None = None
        self.input: Input | None = None  # what came with it; None also before it was kept
        self.kept_input, self.kept_output = Streams(), Streams()  # what is too long for a record
        self.input_lock = asyncio.Lock()  # one writer of further input at a time
        self.holder: Holder | None = None  # who has its terminal
        # Told of the first cancel. It knows nothing of the command: a circle would keep both.
        self.on_cancel: Callable[[Op], object] = _ignore
        self.done: asyncio.Future[RunResult | SkerryError] = (
            asyncio.get_running_loop().create_future()
        )
        self._begun: asyncio.Future[None] | None = None
        self._cancelled = False

    async def begun(self, after: RunningOperation | None = None) -> RunningOperation | None:
        """Returns what drives it inside, once that is not `after`; None if it ended without."""
        while self.running is after and not self.done.done():
            if self._begun is None:
                self._begun = asyncio.get_running_loop().create_future()
            await asyncio.wait((self._begun, self.done), return_when=asyncio.FIRST_COMPLETED)
        return None if self.running is after else self.running

    async def reached(self) -> None:
        """Returns when its program runs, or it has an answer."""
        running: RunningOperation | None = None
        while not self.done.done():
            running = await self.begun(after=running)
            if running is None:
                return
            await asyncio.wait((running.started, self.done), return_when=asyncio.FIRST_COMPLETED)
            if self.exec_reached():
                return

    def now_running(self, running: RunningOperation) -> None:
        """Takes what drives it from now on; a cancel that came before is sent on."""
        self.running = running
        if self._begun is not None:
            self._begun.set_result(None)
            self._begun = None
        if self._cancelled:
            running.cancel()

    def not_running(self) -> None:
        """It turned out not to have left: it is started anew."""
        self.running = None
        self.sent = False

    def cancel(self) -> None:
        """Ends every process of it, now or as soon as it runs; idempotent."""
        if not self._cancelled:
            self.on_cancel(self)
        self._cancelled = True
        running = self.running
        if running is not None and not running.ended:
            running.cancel()

    def exec_reached(self) -> bool:
        """Returns whether its program certainly ran."""
        if self.running is None:
            return False
        started = self.running.started
        return started.done() and not started.cancelled() and started.exception() is None


def _ignore(op: Op) -> None:
    """Nobody wants to be told."""


def never_left(error: SkerryError) -> SkerryError:
    """The sandbox died before START left: the command certainly has not run."""
    return SandboxFailed(f"{error.message} (the command was not started)", **error.fields)


def never_begun() -> SkerryError:
    """An earlier process of the node recorded the command and was gone before it left."""
    return Unavailable(
        "the node restarted before the command was started: it has not run", retry_after_s=0.1
    )
