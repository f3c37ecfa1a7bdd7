"""Routes of sessions."""

from __future__ import annotations

from skerry.node.node import Node
from skerry.node.server.bodies import SESSION
from skerry.node.server.exchange import Exchange


async def create(node: Node, exchange: Exchange) -> None:
    """POST /v1/sandboxes/ID/sessions."""
    exchange.allow()
    sandbox = node.sandboxes.get(exchange.path("id"))
    body = await exchange.body(SESSION)
    await exchange.reply(await node.sessions.create(sandbox, body.id, body.spec()))


async def list_all(node: Node, exchange: Exchange) -> None:
    """GET /v1/sandboxes/ID/sessions."""
    exchange.allow()
    await exchange.reply(node.sessions.list_all(node.sandboxes.get(exchange.path("id"))))


async def get(node: Node, exchange: Exchange) -> None:
    """GET /v1/sandboxes/ID/sessions/SID."""
    exchange.allow()
    sandbox = node.sandboxes.get(exchange.path("id"))
    await exchange.reply(node.sessions.get(sandbox, exchange.path("session")).info())


async def close(node: Node, exchange: Exchange) -> None:
    """DELETE /v1/sandboxes/ID/sessions/SID."""
    exchange.allow()
    sandbox = node.sandboxes.get(exchange.path("id"))
    await node.sessions.close(sandbox, exchange.path("session"))
    await exchange.reply({})
