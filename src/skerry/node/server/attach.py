"""Attach: a command's streams in both directions over one WebSocket."""

from __future__ import annotations

import asyncio

from skerry.errors import InvalidRequest, SkerryError
from skerry.node.command import check_signal, check_terminal
from skerry.node.node import Node
from skerry.node.server.bodies import CLIENT_EVENT, COMMAND
from skerry.node.server.commands import kills, op_of
from skerry.node.server.sockets import Socket
from skerry.node.views import View
from skerry.wire.http import ClientEvent, ErrorBody, StreamEvent


async def attach(node: Node, socket: Socket) -> None:
    """GET /v1/sandboxes/ID/attach: ends when the command has, or when the client is gone."""
    query = socket.query
    query.allow("op", "on_disconnect")
    sandbox = node.sandboxes.get(query.path("id"))
    op, kill = op_of(query), kills(query)
    first = await socket.receive(COMMAND)
    if first is None:
        return
    joins = not first.argv and first.shell is None
    if joins and op is None:
        raise InvalidRequest("the first message holds no command: name the operation to join")
    view = await node.operations.view(sandbox, op, None if joins else first)
    with view:
        await socket.send(StreamEvent(started=view.op_id))
        reader = asyncio.create_task(_read(socket, view))
        try:
            async for event in view:
                await socket.send(event)
            if not view.closed:
                await socket.send(await view.last())
        finally:
            gone = reader.done()
            reader.cancel()
            await asyncio.wait((reader,))
            if gone and kill:
                view.cancel()


async def _read(socket: Socket, view: View) -> None:
    """Obeys the client until it is gone, then closes the view."""
    try:
        while (event := await socket.receive(CLIENT_EVENT)) is not None:
            await _obey(event, view)
    except SkerryError as error:
        await socket.send(StreamEvent(error=ErrorBody.of(error)))
    view.close()


async def _obey(event: ClientEvent, view: View) -> None:
    """Does the one thing that an event asks for."""
    given = [name for name in event.__struct_fields__ if getattr(event, name) is not None]
    if len(given) != 1:
        raise InvalidRequest(f"an event sets exactly one field, not {len(given)}")
    if event.cancel:
        view.cancel()
        return
    running = await view.running()
    if running is None:
        return
    if event.stdin is not None:
        await running.write_stdin(event.stdin)
    elif event.eof:
        await running.close_stdin()
    elif event.signal is not None:
        running.signal(check_signal(event.signal))
    elif event.resize is not None:
        check_terminal(event.resize.rows, event.resize.cols)
        running.resize(event.resize.rows, event.resize.cols)
