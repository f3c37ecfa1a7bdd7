"""Routes of commands: run, stream, look, signal, cancel."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import msgspec

from skerry.errors import InvalidRequest, OutcomeUnknown
from skerry.node.commands.command import check_signal
from skerry.node.commands.views import View
from skerry.node.node import Node
from skerry.node.server.bodies import COMMAND, SIGNAL, TERMINAL
from skerry.node.server.exchange import ClientGone, Exchange
from skerry.spec import ids
from skerry.wire.batch import BatchEvent
from skerry.wire.http import STREAM, StreamEvent
from skerry.wire.jobs import JobStep

WAIT_MAX_S = 600.0
_encode = msgspec.msgpack.Encoder().encode
_length = struct.Struct("<I").pack


def frame(event: StreamEvent | BatchEvent | JobStep) -> bytes:
    """Returns one event as it stands in a stream."""
    data = _encode(event)
    return _length(len(data)) + data


def op_of(exchange: Exchange) -> str | None:
    """Returns the operation id of the query, if there is one."""
    op = exchange.param("op")
    return None if op is None else ids.check_op_id(op)


def kills(exchange: Exchange) -> bool:
    """Returns whether the command ends with this client's connection."""
    word = exchange.param("on_disconnect")
    if word not in {None, "keep", "kill"}:
        raise InvalidRequest(f"query: on_disconnect={word!r} is neither keep nor kill")
    return word == "kill"


@asynccontextmanager
async def watched(exchange: Exchange, gone: Callable[[], None]) -> AsyncIterator[None]:
    """Calls `gone` if the client closes its connection before the block ends."""

    async def watch() -> None:
        await exchange.wait_gone()
        gone()

    task = asyncio.create_task(watch())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait((task,))


async def run(node: Node, exchange: Exchange) -> None:
    """POST /v1/sandboxes/ID/run."""
    sandbox = node.sandboxes.get(exchange.path("id"))
    if exchange.scope["query_string"]:
        exchange.allow("op", "on_disconnect")
    op, kill = op_of(exchange), kills(exchange)
    if op is None:
        exchange.when_cut = OutcomeUnknown(
            "the node is ending; the command may go on, and has no id by which to find it"
        )
    # The body is handed over at once: its input may be large, and nothing here may hold on to it.
    if not kill:
        result = await node.operations.run(sandbox, op, await exchange.body(COMMAND))
        await exchange.reply(result)
        return
    view = await node.operations.view(sandbox, op, await exchange.body(COMMAND), watch=False)
    async with watched(exchange, view.cancel):
        await exchange.reply(await view.result())


async def stream(node: Node, exchange: Exchange) -> None:
    """POST /v1/sandboxes/ID/stream."""
    exchange.allow("op", "on_disconnect")
    sandbox = node.sandboxes.get(exchange.path("id"))
    op, kill = op_of(exchange), kills(exchange)
    view = await node.operations.view(sandbox, op, await exchange.body(COMMAND))
    with view:
        try:
            await exchange.while_there(_send_all(exchange, view))
        except ClientGone:
            if kill:
                view.cancel()
            raise


async def _send_all(exchange: Exchange, view: View) -> None:
    await exchange.open_stream(STREAM)
    await exchange.write(frame(StreamEvent(started=view.op_id)))
    async for event in view:
        await exchange.write(frame(event))
    await exchange.write(frame(await view.last()))
    await exchange.close_stream()


async def start(node: Node, exchange: Exchange) -> None:
    """POST /v1/sandboxes/ID/ops."""
    exchange.allow("op")
    sandbox = node.sandboxes.get(exchange.path("id"))
    op = op_of(exchange)
    status = await node.operations.start(sandbox, op, await exchange.body(COMMAND))
    await exchange.reply(status)


async def output(node: Node, exchange: Exchange) -> None:
    """GET /v1/sandboxes/ID/ops/OPID/output."""
    exchange.allow("stdout", "stderr", "pace")
    sandbox = node.sandboxes.get(exchange.path("id"))
    op = ids.check_op_id(exchange.path("op"))
    since = tuple(exchange.number(name, 0, low=0, high=1 << 62) for name in ("stdout", "stderr"))
    paced = exchange.param("pace") is None or exchange.flag("pace")
    view = await node.operations.view(sandbox, op, None, since=since, positions=True, paced=paced)
    with view:
        await exchange.while_there(_send_all(exchange, view))


async def feed(node: Node, exchange: Exchange) -> None:
    """POST /v1/sandboxes/ID/ops/OPID/stdin."""
    exchange.allow("offset", "eof")
    sandbox = node.sandboxes.get(exchange.path("id"))
    op = ids.check_op_id(exchange.path("op"))
    offset = exchange.number("offset", 0, low=0, high=1 << 62)
    eof = exchange.flag("eof")
    if exchange.param("offset") is None:
        raise InvalidRequest("query: say the offset at which the bytes begin")
    taken = await node.operations.feed(sandbox, op, offset, exchange.chunks(), eof=eof)
    await exchange.reply(taken)


async def resize(node: Node, exchange: Exchange) -> None:
    """POST /v1/sandboxes/ID/ops/OPID/resize."""
    sandbox = node.sandboxes.get(exchange.path("id"))
    op = ids.check_op_id(exchange.path("op"))
    await node.operations.resize(sandbox, op, await exchange.body(TERMINAL))
    await exchange.reply({})


async def list_all(node: Node, exchange: Exchange) -> None:
    """GET /v1/sandboxes/ID/ops."""
    exchange.allow()
    await exchange.reply(node.operations.list_all(node.sandboxes.get(exchange.path("id"))))


async def status(node: Node, exchange: Exchange) -> None:
    """GET /v1/sandboxes/ID/ops/OPID."""
    exchange.allow("wait")
    sandbox = node.sandboxes.get(exchange.path("id"))
    op = ids.check_op_id(exchange.path("op"))
    wait_s = exchange.seconds("wait", 0.0, high=WAIT_MAX_S)
    if wait_s == 0.0:
        await exchange.reply(await node.operations.status(sandbox, op, wait_s))
        return
    found = exchange.while_there(node.operations.status(sandbox, op, wait_s))
    await exchange.reply(await found)


async def signal(node: Node, exchange: Exchange) -> None:
    """POST /v1/sandboxes/ID/ops/OPID/signal."""
    sandbox = node.sandboxes.get(exchange.path("id"))
    op = ids.check_op_id(exchange.path("op"))
    body = await exchange.body(SIGNAL)
    await node.operations.signal(sandbox, op, check_signal(body.signal))
    await exchange.reply({})


async def cancel(node: Node, exchange: Exchange) -> None:
    """POST /v1/sandboxes/ID/ops/OPID/cancel."""
    sandbox = node.sandboxes.get(exchange.path("id"))
    node.operations.cancel(sandbox, ids.check_op_id(exchange.path("op")))
    await exchange.reply({})
