"""Routes of commits and forks."""

from __future__ import annotations

import asyncio

from skerry.node.life.commits import Commit
from skerry.node.node import Node
from skerry.node.server.bodies import COMMIT, FORK
from skerry.node.server.commands import watched
from skerry.node.server.exchange import Exchange
from skerry.wire.commits import CommitInfo
from skerry.wire.http import OWNER_HEADER

WAIT_MAX_S = 600.0
_OWNER = OWNER_HEADER.encode()


async def begin(node: Node, exchange: Exchange) -> None:
    """POST /v1/sandboxes/ID/commits."""
    exchange.allow()
    body = await exchange.body(COMMIT)
    sandbox_id = exchange.path("id")
    if body.id is not None and (known := node.commits.find(body.id)) is not None:
        # Its sandbox may be gone by now: what is repeated here is only the question.
        await exchange.reply(node.commits.same(known, sandbox_id, body).info())
        return
    commit = await node.commits.begin(node.sandboxes.get(sandbox_id), body)
    await exchange.reply(commit.info())


async def list_all(node: Node, exchange: Exchange) -> None:
    """GET /v1/commits."""
    exchange.allow("sandbox")
    await exchange.reply(node.commits.list_all(exchange.param("sandbox")))


async def get(node: Node, exchange: Exchange) -> None:
    """GET /v1/commits/CID."""
    exchange.allow("wait")
    seconds = exchange.seconds("wait", 0.0, high=WAIT_MAX_S)
    commit = node.commits.get(exchange.path("commit"))
    await exchange.reply(await exchange.while_there(_ended(commit, seconds)))


async def _ended(commit: Commit, seconds: float) -> CommitInfo:
    if seconds:
        await asyncio.wait((commit.layer,), timeout=seconds)
    return commit.info()


async def fork(node: Node, exchange: Exchange) -> None:
    """POST /v1/sandboxes/ID/fork."""
    exchange.allow()
    sandbox = node.sandboxes.get(exchange.path("id"))
    body = await exchange.body(FORK)
    owner = exchange.header(_OWNER)
    batch = node.forks.open(sandbox, body, owner=owner, tenant=exchange.tenant)
    async with watched(exchange, batch.leave):
        await exchange.reply(await node.forks.collect(sandbox, batch))
