"""Routes of images: list, inspect, remove, import, build from a Debian suite."""

from __future__ import annotations

import asyncio
from collections import deque

from skerry.errors import InvalidRequest, SkerryError
from skerry.node.images import LOG_LINES_MAX
from skerry.node.node import Node
from skerry.node.server.bodies import DEBIAN
from skerry.node.server.commands import frame
from skerry.node.server.exchange import Exchange
from skerry.spec.layers import LayerKind, LayerManifest, parse_layer_name
from skerry.wire.http import STREAM, ErrorBody, StreamEvent

PACKAGES_MAX = 2000


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
    await exchange.reply(await node.images.remove(_name(exchange)))
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
    await exchange.reply(await node.images.verify(name, remove_damaged=remove_damaged))


async def collect(node: Node, exchange: Exchange) -> None:
    """POST /v1/store/collect."""
    exchange.allow("dry_run")
    report = await node.keeper.collect(dry_run=exchange.flag("dry_run"))
    await exchange.reply(report)


async def import_tar(node: Node, exchange: Exchange) -> None:
    """POST /v1/images/NAME/import."""
    exchange.allow("kind")
    kind = exchange.param("kind")
    if kind not in {None, "tar"}:
        raise InvalidRequest(f"query: kind={kind!r}: only tar is available yet")
    await exchange.reply(await node.images.import_tar(_name(exchange), exchange.chunks()))


async def debian(node: Node, exchange: Exchange) -> None:
    """POST /v1/images/NAME/debian: goes on to its end even if the client is gone."""
    exchange.allow()
    name = _name(exchange)
    body = await exchange.body(DEBIAN)
    if len(body.packages) > PACKAGES_MAX:
        raise InvalidRequest(f"packages: at most {PACKAGES_MAX}")
    lines: deque[str] = deque(maxlen=LOG_LINES_MAX)
    news = asyncio.Event()

    def log(line: str) -> None:
        lines.append(line)
        news.set()

    work = asyncio.ensure_future(
        node.images.debian(name, body.suite, body.packages, log, refresh=body.refresh)
    )
    work.add_done_callback(lambda _: news.set())
    try:
        await exchange.open_stream(STREAM)
        while not work.done() or lines:
            await news.wait()
            news.clear()
            while lines:
                await exchange.write(frame(StreamEvent(log=lines.popleft())))
        await exchange.write(frame(_end(work)))
        await exchange.close_stream()
    finally:
        work.cancel()
        await asyncio.wait((work,))


def _end(work: asyncio.Future[LayerManifest]) -> StreamEvent:
    error = work.exception()
    if isinstance(error, SkerryError):
        return StreamEvent(error=ErrorBody.of(error))
    return StreamEvent(manifest=work.result())


def _name(exchange: Exchange) -> str:
    name = exchange.path("name")
    parse_layer_name(name, LayerKind.BASE)
    return name
