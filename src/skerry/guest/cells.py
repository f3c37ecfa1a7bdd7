"""Cells of a function container, and its zygote, over one connection.

What the agent says of them is checked against what was asked: an answer to nothing raises
ProtocolError, which ends the channel.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

from skerry.errors import Bug, Conflict, InvalidRequest, Overloaded, SkerryError, Unavailable
from skerry.guest.api import Kind, Operation, OutputSink
from skerry.guest.channel import same_error
from skerry.guest.operation import RunningOperation
from skerry.wire import guest
from skerry.wire.frames import ProtocolError
from skerry.wire.guest_cells import CELLS_MAX, Cell, CellAction, CellIs, CellState, ZygoteIs

ASKED_MAX: Final = 4  # of one cell, unanswered


class Zygote(NamedTuple):
    """A zygote that was started. Its own output is the log of its imports."""

    running: RunningOperation  # whose `on_ended` is taken
    ready: asyncio.Future[None]  # it takes calls; Unavailable if it never will


class _Asked(NamedTuple):
    action: CellAction
    answer: asyncio.Future[None]


class Start(Protocol):
    """`GuestClient.start`."""

    def __call__(
        self, operation: Operation, sink: OutputSink, *, result: OutputSink | None = None
    ) -> RunningOperation:
        """Sends START."""


class Cells:
    """Those of one connection. Answers about one cell come in the order of what was asked."""

    def __init__(self, say: Callable[[guest.Message], None], start: Start) -> None:
        self._say = say
        self._start = start
        self._asked: dict[int, deque[_Asked]] = {}
        self._zygote: Zygote | None = None

    def renew(self, cell: int, *, disk_bytes: int, inodes: int) -> asyncio.Future[None]:
        """Asks for a cell, empty, with a tmpfs of that size; what was in it is ended first.

        Done when programs can be started in it; Unavailable, with `step` and `errno`, if it could not
        be made, or the channel's error. Raises InvalidRequest for a cell that cannot be, Overloaded
        while four answers are due, and the channel's error: then nothing was sent. The caller sets
        the timeout.
        """
        return self._ask(
            Cell(cell=cell, action=CellAction.MAKE, disk=disk_bytes, inodes=inodes), cell
        )

    def drop(self, cell: int) -> asyncio.Future[None]:
        """Asks for the end of all that is in a cell, files too; done when it is. Raises as `renew`."""
        return self._ask(Cell(cell=cell, action=CellAction.DROP), cell)

    def start_zygote(
        self, operation: Operation, sink: OutputSink, *, result: OutputSink | None = None
    ) -> Zygote:
        """Starts the zygote, of which there is one; raises as `GuestClient.start`, and Conflict."""
        if operation.kind is not Kind.ZYGOTE:
            raise InvalidRequest(f"an operation of kind {operation.kind.name} is no zygote")
        if self._zygote is not None and not self._zygote.running.ended:
            raise Conflict("the container has a zygote")
        ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        zygote = self._zygote = Zygote(self._start(operation, sink, result=result), ready)
        zygote.running.on_ended(lambda: _fail(ready, Unavailable("the zygote has ended")))
        return zygote

    def take(self, message: guest.Message) -> bool:
        """Takes what the agent says of them, on the connection itself; False for anything else.

        Raises ProtocolError.
        """
        if isinstance(message, CellIs):
            self._take_cell(message)
        elif isinstance(message, ZygoteIs):
            self._take_zygote(message)
        elif isinstance(message, guest.Error):
            self._take_refusal(message)
        else:
            return False
        return True

    def lose(self, error: SkerryError) -> None:
        """The connection has ended: whoever waits is told."""
        asked, self._asked = self._asked, {}
        for waiting in asked.values():
            for each in waiting:
                _fail(each.answer, same_error(error))
        if self._zygote is not None:
            _fail(self._zygote.ready, same_error(error))

    # --- inside --------------------------------------------------------------------------------

    def _ask(self, message: Cell, cell: int) -> asyncio.Future[None]:
        if not 0 <= cell < CELLS_MAX:
            raise InvalidRequest(f"cell {cell} is not within 0..{CELLS_MAX - 1}")
        waiting = self._asked.setdefault(cell, deque())
        if len(waiting) >= ASKED_MAX:
            raise Overloaded("the guest agent does not answer", limit="cells", retry_after_s=1.0)
        self._say(message)
        answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting.append(_Asked(CellAction(message.action), answer))
        return answer

    def _take_cell(self, told: CellIs) -> None:
        waiting = self._asked.get(told.cell) or deque()
        if told.state == CellState.GONE and not (waiting and waiting[-1].action is CellAction.DROP):
            return  # it has ended by itself; whoever needs it renews it
        makes = any(each.action is CellAction.MAKE for each in waiting)
        if not waiting or (told.state == CellState.READY and not makes):
            raise ProtocolError(f"CELL_IS of state {told.state} for cell {told.cell}, unasked")
        # Where two are asked for before the first is done, both answers say how the last one ended.
        asked = waiting.popleft()
        if asked.action is CellAction.DROP or told.state == CellState.READY:
            if not asked.answer.done():
                asked.answer.set_result(None)
        elif told.state == CellState.FAILED:
            text = f"cell {told.cell} could not be made: errno {told.errno} at {told.error_step!r}"
            _fail(asked.answer, Unavailable(text, step=told.error_step, errno=told.errno))
        else:
            _fail(asked.answer, Unavailable(f"cell {told.cell} was dropped before it was made"))

    def _take_refusal(self, error: guest.Error) -> None:
        """The agent has no such cells: that was for whoever asked to know."""
        asked, self._asked = self._asked, {}
        for each in (each for waiting in asked.values() for each in waiting):
            _fail(each.answer, Bug("the guest agent refused a CELL", errno=error.errno))

    def _take_zygote(self, told: ZygoteIs) -> None:
        zygote = self._zygote
        if zygote is None:
            raise ProtocolError("ZYGOTE_IS without a zygote")
        if zygote.running.ended or zygote.ready.cancelled():
            return  # too late to matter
        if zygote.ready.done():
            raise ProtocolError("ZYGOTE_IS twice")
        if told.state == CellState.FAILED:
            text = f"the zygote could not start: errno {told.errno} at {told.error_step!r}"
            _fail(zygote.ready, Unavailable(text, step=told.error_step, errno=told.errno))
        else:
            zygote.ready.set_result(None)


def _fail(future: asyncio.Future[None], error: SkerryError) -> None:
    if not future.done():
        future.set_exception(error)
        future.exception()  # nobody has to ask
