"""Routes of trajectories."""

from __future__ import annotations

from skerry.node.node import Node
from skerry.node.server.exchange import Exchange
from skerry.node.server.files import give
from skerry.spec.trajectory import EVENTS_PAGE_MAX, TRAJECTORIES_PAGE_MAX
from skerry.trajectory.reading.archive import Wanted
from skerry.wire.route import BYTES

ORDINAL_MAX = 1 << 40


async def list_page(node: Node, exchange: Exchange) -> None:
    """GET /v1/trajectories."""
    exchange.allow("rollout", "job", "sandbox", "limit", "cursor")
    wanted = Wanted(exchange.param("rollout"), exchange.param("job"), exchange.param("sandbox"))
    limit = exchange.number("limit", 100, low=1, high=TRAJECTORIES_PAGE_MAX)
    page = node.trajectories.select(wanted, limit, exchange.param("cursor"))
    await exchange.reply(await exchange.while_there(page))


async def events(node: Node, exchange: Exchange) -> None:
    """GET /v1/trajectories/ID/events."""
    exchange.allow("from", "limit")
    start = exchange.number("from", 0, low=0, high=ORDINAL_MAX)
    limit = exchange.number("limit", EVENTS_PAGE_MAX, low=1, high=EVENTS_PAGE_MAX)
    page = node.trajectories.page(exchange.path("id"), start, limit)
    await exchange.reply(await exchange.while_there(page))


async def verify(node: Node, exchange: Exchange) -> None:
    """GET /v1/trajectories/ID/verify."""
    exchange.allow()
    check = node.trajectories.check(exchange.path("id"))
    await exchange.reply(await exchange.while_there(check))


async def blob(node: Node, exchange: Exchange) -> None:
    """GET /v1/trajectories/blobs/SHA256."""
    exchange.allow()
    await give(exchange, node.trajectories.blob(exchange.path("digest")), BYTES)
