"""Routes of commands: run, stream, look, signal, cancel."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import msgspec

from skerry.errors import InvalidRequest, OutcomeUnknown
from skerry.node.command import check_signal
from skerry.node.node import Node
from skerry.node.server.bodies import COMMAND, SIGNAL
from skerry.node.server.exchange import Exchange
from skerry.node.views import View
from skerry.spec import ids
from skerry.wire.batch import BatchEvent
from skerry.wire.http import STREAM, StreamEvent

WAIT_MAX_S = 600.0
_encode = msgspec.msgpack.Encoder().encode
_length = struct.Struct("<I").pack


def frame(event: StreamEvent | BatchEvent) -> bytes:
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


async def run(node: Node, exchange: Exchange) -> None:
    """POST /v1/sandboxes/ID/run."""
    sandbox = node.sandboxes.get(exchange.path("id"))
    if exchange.scope["query_string"]:
        exchange.allow("op", "on_disconnect")
    op, kill = op_of(exchange), kills(exchange)
    spec = await exchange.body(COMMAND)
    if op is None:
        exchange.when_cut = OutcomeUnknown(
            "the node is ending; the command may go on, and has no id by which to find it"
        )
    if not kill:
        await exchange.reply(await node.operations.run(sandbox, op, spec))
        return
    view = await node.operations.view(sandbox, op, spec, watch=False)
    async with watched(exchange, view.cancel):
        await exchange.reply(await view.result())


async def stream(node: Node, exchange: Exchange) -> None:
    """POST /v1/sandboxes/ID/stream."""
    exchange.allow("op", "on_disconnect")
    sandbox = node.sandboxes.get(exchange.path("id"))
    op, kill = op_of(exchange), kills(exchange)
    spec = await exchange.body(COMMAND)
    view = await node.operations.view(sandbox, op, spec)
    with view:
        if not kill:
            await _send_all(exchange, view)
            return
        async with watched(exchange, view.cancel):
            await _send_all(exchange, view)


async def _send_all(exchange: Exchange, view: View) -> None:
    await exchange.open_stream(STREAM)
    await exchange.write(frame(StreamEvent(started=view.op_id)))
    async for event in view:
        await exchange.write(frame(event))
    await exchange.write(frame(await view.last()))
    await exchange.close_stream()


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
    await exchange.reply(await node.operations.status(sandbox, op, wait_s))


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
