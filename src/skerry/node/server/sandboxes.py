"""Routes of sandboxes: create, find, delete, wait, in batches too."""

from __future__ import annotations

import asyncio
import contextlib

from skerry.errors import InvalidRequest, SkerryError
from skerry.guest.files import STALL_S
from skerry.node.life.batch import Batch
from skerry.node.node import Node
from skerry.node.server.bodies import BATCH_CREATE, BATCH_DELETE, CHANGE, SANDBOX
from skerry.node.server.commands import frame, watched
from skerry.node.server.exchange import Exchange
from skerry.spec.sandbox import SandboxInfo, State
from skerry.wire.batch import BatchEvent, BatchItem
from skerry.wire.http import OWNER_HEADER, STREAM, ErrorBody

WAIT_MAX_S = 600.0
LAST_WORDS_S = 1.0  # for a client to take what is left to tell of a batch that was ended
ROOM_WAIT_MAX_S = 60.0  # a client that would wait longer asks again
_OWNER = OWNER_HEADER.encode()


async def create(node: Node, exchange: Exchange) -> None:
    """POST /v1/sandboxes."""
    wait_s = 0.0
    if exchange.scope["query_string"]:
        exchange.allow("wait")
        wait_s = exchange.seconds("wait", 0.0, high=ROOM_WAIT_MAX_S)
    spec = await exchange.body(SANDBOX)
    sandbox = await node.lives.create(
        spec,
        owner=exchange.header(_OWNER),
        tenant=exchange.tenant,
        wait_s=wait_s,
        gone=exchange.wait_gone,
    )
    await exchange.reply(sandbox.info())


async def create_batch(node: Node, exchange: Exchange) -> None:
    """POST /v1/sandboxes/batch."""
    exchange.allow("stream")
    body = await exchange.body(BATCH_CREATE)
    stream = exchange.flag("stream")
    batch = node.batches.open(body, owner=exchange.header(_OWNER), tenant=exchange.tenant)
    async with watched(exchange, batch.leave):
        if stream:
            await _stream_batch(node, exchange, batch)
        else:
            await exchange.reply(await node.batches.collect(batch))


async def _stream_batch(node: Node, exchange: Exchange, batch: Batch) -> None:
    """Tells of members as they come. An error before the first is answered with its status.

    A client that takes nothing slows its batch, and counts as gone in the end; at once if the batch
    was ended meanwhile: who ended it waits for that.
    """
    writing = asyncio.Lock()
    stuck = False

    async def write(event: BatchEvent) -> None:
        nonlocal stuck
        async with writing:
            if stuck:
                return
            if not exchange.started:
                await exchange.open_stream(STREAM)
            if not await _written(exchange, batch, frame(event)):
                stuck = True
                batch.leave()

    async def tell(index: int, item: BatchItem) -> None:
        await write(BatchEvent(index=index, item=item))

    try:
        end = await node.batches.run(batch, tell)
    except SkerryError as error:
        if not exchange.started:
            raise
        await write(BatchEvent(error=ErrorBody.of(error)))
    else:
        await write(BatchEvent(end=end))
    await exchange.close_stream()


async def _written(exchange: Exchange, batch: Batch, data: bytes) -> bool:
    """Sends a piece; returns whether the client took it."""
    sending = asyncio.ensure_future(exchange.write(data))
    stopped = asyncio.ensure_future(batch.until_stopped())
    either = {sending, stopped}
    try:
        await asyncio.wait(either, timeout=STALL_S, return_when=asyncio.FIRST_COMPLETED)
        if not sending.done():
            await asyncio.wait({sending}, timeout=LAST_WORDS_S)
        if sending.done():
            await sending
            return True
        return False
    finally:
        sending.cancel()
        stopped.cancel()
        await asyncio.wait(either)


async def delete_batch(node: Node, exchange: Exchange) -> None:
    """POST /v1/sandboxes/batch/delete."""
    body = await exchange.body(BATCH_DELETE)
    if body.key is not None:
        await exchange.reply(await node.batches.undo(body.key, body.keep))
        return
    await exchange.reply(await node.batches.delete(body.ids))


async def list_page(node: Node, exchange: Exchange) -> None:
    """GET /v1/sandboxes."""
    exchange.allow("state", "label", "key", "job", "limit", "cursor")
    labels = labels_of(exchange)
    page = node.sandboxes.page(
        states=_states(exchange),
        labels=labels,
        key=exchange.param("key"),
        job=exchange.param("job"),
        limit=exchange.number("limit", 100, low=1, high=1000),
        cursor=exchange.param("cursor"),
    )
    await exchange.reply(page)


async def get(node: Node, exchange: Exchange) -> None:
    """GET /v1/sandboxes/ID."""
    await exchange.reply(node.sandboxes.get(exchange.path("id")).info())


async def delete(node: Node, exchange: Exchange) -> None:
    """DELETE /v1/sandboxes/ID."""
    sandbox = node.sandboxes.find(exchange.path("id"))
    if sandbox is None:
        await exchange.reply({"id": exchange.path("id"), "state": "stopped", "spec": {}})
        return
    await node.lives.delete(sandbox)
    await exchange.reply(sandbox.info())


async def change(node: Node, exchange: Exchange) -> None:
    """PATCH /v1/sandboxes/ID."""
    sandbox = node.sandboxes.get(exchange.path("id"))
    await node.control.change(sandbox, await exchange.body(CHANGE))
    await exchange.reply(sandbox.info())


async def pause(node: Node, exchange: Exchange) -> None:
    """POST /v1/sandboxes/ID/pause."""
    sandbox = node.sandboxes.get(exchange.path("id"))
    await node.control.pause(sandbox)
    await exchange.reply(sandbox.info())


async def resume(node: Node, exchange: Exchange) -> None:
    """POST /v1/sandboxes/ID/resume."""
    sandbox = node.sandboxes.get(exchange.path("id"))
    await node.control.resume(sandbox)
    await exchange.reply(sandbox.info())


async def stop(node: Node, exchange: Exchange) -> None:
    """POST /v1/sandboxes/ID/stop."""
    sandbox = node.sandboxes.get(exchange.path("id"))
    await node.control.stop(sandbox)
    await exchange.reply(sandbox.info())


async def usage(node: Node, exchange: Exchange) -> None:
    """GET /v1/sandboxes/ID/usage."""
    sandbox = node.sandboxes.get(exchange.path("id"))
    if sandbox.instance is None:
        raise sandbox.ended()
    await exchange.reply(await sandbox.instance.usage())


async def wait(node: Node, exchange: Exchange) -> None:
    """GET /v1/sandboxes/ID/wait."""
    exchange.allow("state", "timeout")
    sandbox = node.sandboxes.get(exchange.path("id"))
    states = _states(exchange) or {State.RUNNING, State.STOPPED, State.FAILED}
    timeout = exchange.seconds("timeout", 30.0, high=WAIT_MAX_S)

    async def reached() -> SandboxInfo:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                while sandbox.state not in states and not sandbox.gone:
                    await sandbox.changed()
        return sandbox.info()

    await exchange.reply(await exchange.while_there(reached()))


def labels_of(exchange: Exchange) -> dict[str, str]:
    """Returns the labels that a query asks for."""
    labels = {}
    for text in exchange.params().get("label", ()):
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise InvalidRequest("query: write label=name=value")
        labels[name] = value
    return labels


def _states(exchange: Exchange) -> set[State]:
    states = set()
    for text in exchange.params().get("state", ()):
        for word in text.split(","):
            if word not in State.__members__.values():
                raise InvalidRequest(f"query: state {word[:40]!r} is none of {', '.join(State)}")
            states.add(State(word))
    return states
