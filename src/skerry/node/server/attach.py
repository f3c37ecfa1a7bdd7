"""Attach: a command's streams in both directions over one WebSocket."""

from __future__ import annotations

import asyncio
import contextlib
import time

from skerry.errors import Conflict, InvalidRequest, SkerryError
from skerry.guest.operation import RunningOperation
from skerry.node.commands.command import check_signal, check_terminal
from skerry.node.commands.feeding import Feed
from skerry.node.commands.operation import Holder, Op
from skerry.node.commands.views import View
from skerry.node.life.sandbox import Sandbox
from skerry.node.node import Node
from skerry.node.server.bodies import CLIENT_EVENT, COMMAND
from skerry.node.server.commands import kills, op_of
from skerry.node.server.sockets import Socket
from skerry.spec.command import Terminal
from skerry.wire.http import ClientEvent, ErrorBody, StreamEvent

SCREEN_BYTES = 64 * 1024  # of a terminal's output: what who joins it gets of the past
REDRAW_S = 0.05  # between the two sizes that make a full-screen program draw again
WHO_MAX = 200


def _clock(at: float) -> str:
    return time.strftime("%H:%M:%S UTC", time.gmtime(at))


class Attached:
    """One client on one command; it types unless it only watches or was taken over from.

    Invariant: the operation's holder is ours exactly while we hold its terminal.
    """

    def __init__(
        self, node: Node, socket: Socket, sandbox: Sandbox, view: View, op: Op | None
    ) -> None:
        self._node = node
        self._sandbox = sandbox
        self._socket = socket
        self.view = view
        self._op = op
        self._holder: Holder | None = None
        self._taken_by: str | None = None
        self._due: tuple[RunningOperation, Terminal] | None = None  # our size, not yet set
        self.watches = socket.query.flag("watch")

    def hold(self) -> None:
        """Takes the terminal, or raises Conflict: somebody else has it and is not to be moved."""
        op = self._op
        if op is None or op.spec.terminal is None or self.watches:
            return
        who = (self._socket.query.param("who") or "a client")[:WHO_MAX]
        if op.holder is not None:
            if not self._socket.query.flag("takeover"):
                raise Conflict(
                    f"{op.holder.who} holds the terminal since {_clock(op.holder.since)};"
                    " take it over, or watch",
                    holder=op.holder.who,
                    since=op.holder.since,
                )
            op.holder.taken(who)
        self._holder = op.holder = Holder(who, self._node.clock.wall(), self._taken)

    def release(self) -> None:
        """Gives the terminal back; idempotent."""
        if self._op is not None and self._op.holder is self._holder:
            self._op.holder = None

    def _taken(self, by: str) -> None:
        self._taken_by = by
        self.view.close()

    async def last(self) -> StreamEvent | None:
        """Returns the event that ends the conversation; None if the client ended it."""
        if self._taken_by is not None:
            told = Conflict(f"the terminal was taken over by {self._taken_by}", by=self._taken_by)
            return StreamEvent(error=ErrorBody.of(told))
        return None if self.view.closed else await self.view.last()

    async def redraw(self, size: Terminal | None) -> None:
        """Makes a full-screen program draw all of its screen again, in our size."""
        running = await self.view.running() if size is not None and not self.watches else None
        if running is None or size is None:
            return
        await self._node.lives.ensure_running(self._sandbox)
        check_terminal(size.rows, size.cols)
        # The kernel tells programs of a change only; so there is one, whatever the size was.
        running.resize(size.rows, size.cols + 1 if size.cols < 65_535 else size.cols - 1)

        self._due = (running, size)
        self._node.timers.after(REDRAW_S, self._settle_size)

    def _settle_size(self) -> None:
        """Sets our size, where that is due; idempotent."""
        due, self._due = self._due, None
        if due is not None and not due[0].lost:
            due[0].resize(due[1].rows, due[1].cols)

    async def read(self) -> None:
        """Obeys the client until it is gone, then closes the view."""
        try:
            while (event := await self._socket.receive(CLIENT_EVENT)) is not None:
                await self._obey(event)
        except SkerryError as error:
            await self._socket.send(StreamEvent(error=ErrorBody.of(error)))
        self.view.close()

    async def _obey(self, event: ClientEvent) -> None:
        """Does the one thing that an event asks for."""
        given = [name for name in event.__struct_fields__ if getattr(event, name) is not None]
        if len(given) != 1:
            raise InvalidRequest(f"an event sets exactly one field, not {len(given)}")
        if self.watches:
            raise Conflict("who watches has no say: attach without watch")
        if event.cancel:
            self.view.cancel()
            return
        running = await self.view.running()
        if running is None or self._op is None or self._taken_by is not None:
            return
        await self._node.lives.ensure_running(self._sandbox)  # what stands still hears nothing
        self._settle_size()  # nothing that is typed meets the other size
        if event.stdin is not None:
            await self._type(event.stdin)
        elif event.eof:
            async with Feed(self._op) as turn:
                await turn.end()
        elif event.signal is not None:
            running.signal(check_signal(event.signal))
        elif event.resize is not None:
            check_terminal(event.resize.rows, event.resize.cols)
            running.resize(event.resize.rows, event.resize.cols)

    async def _type(self, data: bytes) -> None:
        """Passes on what is typed. What nobody reads is thrown away: the command's end tells."""
        if self._op is None:
            return
        async with Feed(self._op) as turn:
            taken = await turn.taken()
            if not taken.open:
                return
            with contextlib.suppress(Conflict):  # it closed its input, or ended, meanwhile
                await turn.write(taken.offset, data)


async def attach(node: Node, socket: Socket) -> None:
    """GET /v1/sandboxes/ID/attach: ends when the command has, or when the client is gone."""
    query = socket.query
    query.allow("op", "on_disconnect", "who", "takeover", "watch")
    sandbox = node.sandboxes.get(query.path("id"))
    op_id, kill = op_of(query), kills(query)
    first = await socket.receive(COMMAND)
    if first is None:
        return
    joins = not first.argv and first.shell is None
    if joins and op_id is None:
        raise InvalidRequest("the first message holds no command: name the operation to join")
    terminal = first.terminal
    tail = None
    if joins:
        known = node.operations.find(sandbox, op_id or "")
        tail = SCREEN_BYTES if known is not None and known.spec.terminal is not None else None
    paced = not query.flag("watch")  # who only watches slows nobody
    view = await node.operations.view(
        sandbox, op_id, None if joins else first, tail=tail, paced=paced
    )
    del first
    with view:
        op = node.operations.find(sandbox, view.op_id)
        attached = Attached(node, socket, sandbox, view, op)
        attached.hold()
        try:
            await _serve(socket, attached, terminal if joins else None, kill=kill)
        finally:
            attached.release()


async def _serve(socket: Socket, attached: Attached, size: Terminal | None, *, kill: bool) -> None:
    view = attached.view
    await socket.send(StreamEvent(started=view.op_id))
    await attached.redraw(size)
    reader = asyncio.create_task(attached.read())
    try:
        async for event in view:
            await socket.send(event)
        last = await attached.last()
        if last is not None:
            await socket.send(last)
    finally:
        gone = reader.done()
        reader.cancel()
        await asyncio.wait((reader,))
        if gone and kill:
            view.cancel()
