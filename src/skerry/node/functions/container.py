"""One live function container: its connection, its cells, its zygote, and what runs in it.

There is no second connection: if this one is lost the container ends, and with it only the calls
that ran there.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol

from skerry.backends.api import Celled, Instance
from skerry.backends.function.member import Member, Stage
from skerry.errors import InvalidRequest, SkerryError, Unavailable
from skerry.guest import zygote as zygotes
from skerry.guest.api import Kind, Operation, Stream
from skerry.guest.cells import Zygote
from skerry.guest.channel import same_error
from skerry.guest.client import GuestClient
from skerry.guest.output import MemorySink
from skerry.spec.function import Environment
from skerry.spec.limits import KIB

if TYPE_CHECKING:
    from skerry.node.functions.cellrun import CellRun

CONNECT_S: Final = 10.0
ANSWER_S: Final = 15.0  # a cell that is not made by then, and an end that is not told: a stall
LOG_BYTES: Final = 64 * KIB  # of what imports print
INODES_PER_BYTE: Final = 1 / 4096
INODES_MIN: Final = 4096
PING_EVERY_S: Final = 2.0
PING_WITHIN_S: Final = 8.0  # an agent answers in a millisecond, on a busy host in a hundred
OWN_STALL_S: Final = 3.0  # between two looks: then it is this process that stood still
RESIDUE_EVERY: Final = 32  # renewals between two looks at what stays in memory
LOST: Final = "its connection was lost"

log = logging.getLogger("skerry.node")


class CelledInstance(Instance, Celled, Protocol):
    """What a backend makes of a function container."""


class Container:
    """See above. `on_cell(cell, error)` is called when a cell was made, or could not be."""

    def __init__(
        self,
        member: Member,
        instance: CelledInstance,
        client: GuestClient,
        *,
        disk_bytes: int,
        now: Callable[[], float],
        on_cell: Callable[[Container, int, SkerryError | None], None],
    ) -> None:
        self.member = member
        self.instance = instance
        self.client = client
        self.zygote: Zygote | None = None
        self.zygote_asked = False
        self.ending = False  # it is being destroyed
        self.error: SkerryError | None = None  # why it was given up
        self._disk_bytes = disk_bytes  # of a cell that is made in advance
        self._disks: dict[int, int] = {}  # what each cell was made with
        self._now = now
        self._on_cell = on_cell
        self._handle = 0
        self._renewing: dict[int, float] = {}  # cells, and since when
        self._watched: dict[CellRun, tuple[float, float]] = {}  # since when, and until when at most
        self._renewals = 0
        self._pinged = self._looked = now()
        self._ping: asyncio.Future[None] | None = None  # that is not answered yet
        self.crowded = 0  # cells in a row that held too much memory to be used

    @property
    def name(self) -> str:
        """Its id."""
        return self.member.name

    @property
    def alive(self) -> bool:
        """Whether calls may be started in it."""
        return self.error is None and not self.client.lost.done()

    @property
    def busy(self) -> bool:
        """Whether something runs in it that is watched."""
        return bool(self._watched)

    def new_operation(self) -> tuple[int, bytes]:
        """Returns a handle and an operation id that were never used in it."""
        self._handle += 1
        return self._handle, self._handle.to_bytes(16, "big")

    # -- cells ------------------------------------------------------------------------------------

    def fits(self, cell: int, disk_bytes: int) -> bool:
        """Returns whether a cell was made with that much room for files; the next ones are."""
        self._disk_bytes = disk_bytes
        return self._disks.get(cell) == disk_bytes

    def renew(self, cell: int) -> asyncio.Future[None] | None:
        """Has a cell made anew, empty; what was in it is ended. None if the container is lost."""
        size = self._disk_bytes
        inodes = max(INODES_MIN, int(size * INODES_PER_BYTE))
        try:
            made = self.client.cells.renew(cell, disk_bytes=size, inodes=inodes)
        except SkerryError as error:
            self._on_cell(self, cell, error)
            return None
        self._renewing[cell] = self._now()
        made.add_done_callback(lambda done: self._renewed(cell, size, done))
        return made

    def _renewed(self, cell: int, size: int, made: asyncio.Future[None]) -> None:
        self._renewing.pop(cell, None)
        error = None if made.cancelled() else made.exception()
        if error is not None:
            self._on_cell(self, cell, error if isinstance(error, SkerryError) else None)
            return
        self._disks[cell] = size
        self._renewals += 1
        if self._renewals % RESIDUE_EVERY == 0:
            self.member.residue_bytes = self.instance.cell_residue(cell)
        self._on_cell(self, cell, None)

    def drop(self, cell: int) -> asyncio.Future[None] | None:
        """Ends what is in a cell that serves no further call. None if the container is lost."""
        try:
            dropped = self.client.cells.drop(cell)
        except SkerryError:
            return None
        dropped.add_done_callback(_told)
        return dropped

    # -- the zygote -------------------------------------------------------------------------------

    async def start_zygote(self, environment: Environment, library: bytes) -> None:
        """Returns once the interpreter runs with its modules imported, and takes calls.

        InvalidRequest says what the image lacks, with what the imports printed; Unavailable if the
        container was lost.
        """
        start = zygotes.start(environment.python, environment.modules, library=library)
        handle, op_id = self.new_operation()
        operation = Operation(
            handle=handle,
            op_id=op_id,
            kind=Kind.ZYGOTE,
            argv=tuple(map(os.fsencode, start.args)),
            script=start.script,
        )
        said, report = MemorySink(LOG_BYTES), MemorySink(LOG_BYTES)
        zygote = self.zygote = self.client.cells.start_zygote(operation, said, result=report)
        try:
            await zygote.ready
        except SkerryError as error:
            if not self.alive:
                raise
            raise await self._why_not(environment, zygote, said, report, error) from error

    async def _why_not(
        self,
        environment: Environment,
        zygote: Zygote,
        said: MemorySink,
        report: MemorySink,
        error: SkerryError,
    ) -> SkerryError:
        """Returns why there is no zygote: what the image has not is the caller's to know."""
        outcome = None
        if not zygote.running.ended:
            zygote.running.cancel()
        with contextlib.suppress(SkerryError, TimeoutError):
            async with asyncio.timeout(ANSWER_S):
                outcome = await zygote.running.wait()
        with contextlib.suppress(ValueError):  # it may have said nothing
            told = zygotes.read_report(report.output(Stream.STDOUT)).error
            if told is not None:
                return _unfit(environment, told)
        if outcome is not None and outcome.error_step == "exec":
            return InvalidRequest(
                f"python: the image has no {environment.python} that runs: name another image or layer",
                lacks=environment.python[:200],
            )
        tail = said.output(Stream.STDERR)[-2000:].decode("utf-8", "replace")
        # Killed is what the kernel or an operator may have done; any other end is the modules' doing.
        ended = outcome is not None and outcome.error_step is None and not outcome.cancelled
        if outcome is not None and ended and outcome.signal != signal.SIGKILL:
            how = f"signal {outcome.signal}" if outcome.signal else f"exit code {outcome.exit_code}"
            return InvalidRequest(
                f"modules: {environment.python} ended while it imported them, with {how}: {tail[-500:]}"
            )
        return Unavailable(f"the interpreter did not start: {error.message}", stderr=tail)

    # -- what runs --------------------------------------------------------------------------------

    def watch(self, run: CellRun) -> None:
        """Something runs in a cell: it is looked at until `unwatch`."""
        now = self._now()
        self._watched[run] = (now, now + run.limits.wall_s + ANSWER_S)

    def unwatch(self, run: CellRun) -> None:
        """It has ended, or nobody waits for it."""
        self._watched.pop(run, None)

    def look(self, young_s: float) -> str | None:
        """Looks at the limits of what has run for longer than that; returns why to give it up, if so."""
        now, stood = self._now(), 0.0
        if now - self._looked > OWN_STALL_S:  # what the agent said meanwhile may lie unread
            stood = now - self._looked
            self._pinged += stood
            self._renewing = {cell: since + stood for cell, since in self._renewing.items()}
        self._looked = now
        for run, (since, before) in list(self._watched.items()):
            until = before + stood
            self._watched[run] = (since, until)
            if now > until:
                return f"its agent has not told of an end for {ANSWER_S:g} s"
            if now - since >= young_s:
                run.look()
        oldest = min(self._renewing.values(), default=now)
        if now - oldest > ANSWER_S:
            return f"its agent has not made a cell for {ANSWER_S:g} s"
        return self._ask(now)

    def _ask(self, now: float) -> str | None:
        """Asks the agent for a sign of life now and then; returns what is wrong if there is none."""
        if not self.alive:
            return None
        ping = self._ping
        if ping is not None and not ping.done():
            late = now - self._pinged > PING_WITHIN_S
            return f"its agent has not answered for {PING_WITHIN_S:g} s" if late else None
        if ping is not None and not ping.cancelled():
            ping.exception()  # the connection is lost: that is told elsewhere
        if now - self._pinged >= PING_EVERY_S:
            self._pinged, self._ping = now, asyncio.ensure_future(self.client.ping())
        return None

    async def give_up(self, error: SkerryError) -> None:
        """Ends the connection: what runs in it raises the error. The first one counts; idempotent."""
        if self.error is None:
            self.error = error
            if self.member.stage is not Stage.RETIRING:
                self.member.retire(error.message)
        if self._ping is not None:
            self._ping.cancel()
        await self.client.close(same_error(error))


def _told(dropped: asyncio.Future[None]) -> None:
    """A cell that could not be dropped goes with its container."""
    if not dropped.cancelled():
        dropped.exception()


def _unfit(environment: Environment, told: zygotes.Failure) -> InvalidRequest:
    """Returns what is said of an interpreter or a module that no call can be forked from."""
    what = told.module or environment.python
    if told.kind == "import":
        said = (
            f"modules: {told.message[:1000]}: name an image or a layer that has it; "
            "skerry image build base/NAME --suite bookworm --package python3-MODULE makes one"
        )
        return InvalidRequest(said, traceback=told.traceback[:20_000], lacks=what[:200])
    said = (
        f"modules: calls cannot begin from {what} ({told.kind}): {told.type}: {told.message[:1000]}"
    )
    return InvalidRequest(said, traceback=told.traceback[:20_000])
