"""Routes of images: list, inspect, remove, import, push, collapse, build from a Debian suite."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

from skerry.errors import Conflict, InvalidRequest, SkerryError
from skerry.images.oci.images import CollapseWish
from skerry.node.images import LOG_LINES_MAX
from skerry.node.library import Log
from skerry.node.node import Node
from skerry.node.server.bodies import COLLAPSE, DEBIAN, PUSH, REGISTRY
from skerry.node.server.commands import frame
from skerry.node.server.exchange import Exchange
from skerry.spec.layers import LayerKind, parse_layer_name
from skerry.wire.http import STREAM, ErrorBody, StreamEvent

PACKAGES_MAX = 2000
RECIPE_CHARACTERS_MAX = 1 << 20


async def list_all(node: Node, exchange: Exchange) -> None:
    """GET /v1/images."""
    exchange.allow()
    await exchange.reply(await node.images.list_all())


async def inspect(node: Node, exchange: Exchange) -> None:
    """GET /v1/images/NAME."""
    exchange.allow()
    await exchange.reply(await node.images.inspect(_name(exchange)))


async def remove(node: Node, exchange: Exchange) -> None:
    """DELETE /v1/images/NAME."""
    exchange.allow()
    name = _name(exchange)
    try:
        removed = await node.images.remove(name)
    except Conflict as error:
        # Containers that wait for function calls are in nobody's way.
        if not await node.functions.let_go(str(error.fields.get("digest", ""))):
            raise
        removed = await node.images.remove(name)
    await exchange.reply(removed)
    node.keeper.collect_soon()


async def pin(node: Node, exchange: Exchange) -> None:
    """POST /v1/images/NAME/pin."""
    exchange.allow()
    await exchange.reply(await node.images.pin(_name(exchange), on=True))


async def unpin(node: Node, exchange: Exchange) -> None:
    """DELETE /v1/images/NAME/pin."""
    exchange.allow()
    await exchange.reply(await node.images.pin(_name(exchange), on=False))
    node.keeper.collect_soon()


async def verify(node: Node, exchange: Exchange) -> None:
    """POST /v1/images/NAME/verify."""
    exchange.allow("remove")
    name, remove_damaged = _name(exchange), exchange.flag("remove")
    check = await node.images.verify(name, remove_damaged=remove_damaged)
    await node.scrubber.look()
    await exchange.reply(check)


async def last_check(node: Node, exchange: Exchange) -> None:
    """GET /v1/images/NAME/verify."""
    exchange.allow()
    await exchange.reply(await node.images.last_check(_name(exchange)))


async def verify_records(node: Node, exchange: Exchange) -> None:
    """POST /v1/store/verify."""
    exchange.allow()
    await exchange.reply(await node.images.verify_records())


async def collect(node: Node, exchange: Exchange) -> None:
    """POST /v1/store/collect."""
    exchange.allow("dry_run")
    report = await node.keeper.collect(dry_run=exchange.flag("dry_run"))
    await exchange.reply(report)


async def import_archive(node: Node, exchange: Exchange) -> None:
    """POST /v1/images/NAME/import."""
    exchange.allow("kind", "tag", "platform")
    kind, tag, platform = (exchange.param(one) for one in ("kind", "tag", "platform"))
    name = _name(exchange)
    if kind == "oci":
        chunks = exchange.chunks()
        made = await node.imports.archive(name, chunks, tag=tag, platform=platform)
    elif kind not in {None, "tar"}:
        raise InvalidRequest(f"query: kind={kind!r}: neither tar nor oci")
    elif tag is not None or platform is not None:
        raise InvalidRequest("query: tag and platform are for kind=oci")
    else:
        made = await node.images.import_tar(name, exchange.chunks())
    await exchange.reply(made)


async def debian(node: Node, exchange: Exchange) -> None:
    """POST /v1/images/NAME/debian: goes on to its end even if the client is gone."""
    exchange.allow()
    name = _name(exchange)
    body = await exchange.body(DEBIAN)
    if len(body.packages) > PACKAGES_MAX:
        raise InvalidRequest(f"packages: at most {PACKAGES_MAX}")

    async def work(log: Log) -> StreamEvent:
        made = await node.images.debian(name, body.suite, body.packages, log, refresh=body.refresh)
        return StreamEvent(manifest=made)

    await _stream(exchange, work)


async def registry(node: Node, exchange: Exchange) -> None:
    """POST /v1/images/NAME/registry: goes on to its end even if the client is gone."""
    exchange.allow()
    name = _name(exchange)
    body = await exchange.body(REGISTRY)

    async def work(log: Log) -> StreamEvent:
        made = await node.imports.registry(
            name,
            body.reference,
            auth=body.auth,
            tls_verify=body.tls_verify,
            platform=body.platform,
            log=log,
        )
        return StreamEvent(manifest=made)

    await _stream(exchange, work)


async def push(node: Node, exchange: Exchange) -> None:
    """POST /v1/images/NAME/push: goes on to its end even if the client is gone."""
    exchange.allow()
    name = _name(exchange)
    body = await exchange.body(PUSH)

    async def work(log: Log) -> StreamEvent:
        digest = await node.imports.push(
            (name, *body.layers),
            body.reference,
            auth=body.auth,
            tls_verify=body.tls_verify,
            log=log,
        )
        return StreamEvent(pushed=digest)

    await _stream(exchange, work)


async def collapse(node: Node, exchange: Exchange) -> None:
    """POST /v1/images/NAME/collapse: goes on to its end even if the client is gone."""
    exchange.allow()
    name = _name(exchange)
    body = await exchange.body(COLLAPSE)
    if sum(len(key) + len(text) for key, text in body.recipe.items()) > RECIPE_CHARACTERS_MAX:
        raise InvalidRequest(f"recipe: more than {RECIPE_CHARACTERS_MAX} characters")

    async def work(log: Log) -> StreamEvent:
        wish = CollapseWish(body.scrub, body.config, body.recipe)
        made = await node.imports.collapse(
            body.layers, name, threshold=body.threshold_bytes, wish=wish, log=log
        )
        return StreamEvent(manifest=made)

    await _stream(exchange, work)


async def _stream(exchange: Exchange, work: Callable[[Log], Awaitable[StreamEvent]]) -> None:
    """Answers with the log lines of long work and then its result or error."""
    lines: deque[str] = deque(maxlen=LOG_LINES_MAX)
    news = asyncio.Event()

    def log(line: str) -> None:
        lines.append(line)
        news.set()

    task = asyncio.ensure_future(work(log))
    task.add_done_callback(lambda _: news.set())
    try:
        await exchange.open_stream(STREAM)
        while not task.done() or lines:
            await news.wait()
            news.clear()
            while lines:
                await exchange.write(frame(StreamEvent(log=lines.popleft())))
        await exchange.write(frame(_end(task)))
        await exchange.close_stream()
    finally:
        task.cancel()
        await asyncio.wait((task,))


def _end(work: asyncio.Future[StreamEvent]) -> StreamEvent:
    error = work.exception()
    if isinstance(error, SkerryError):
        return StreamEvent(error=ErrorBody.of(error))
    return work.result()


def _name(exchange: Exchange) -> str:
    name = exchange.path("name")
    parse_layer_name(name, LayerKind.BASE)
    return name
