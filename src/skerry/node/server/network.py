"""Routes of a sandbox's network: its policy, what came of it, and another policy."""

from __future__ import annotations

from skerry.node.node import Node
from skerry.node.server.bodies import NETWORK
from skerry.node.server.exchange import Exchange


async def get(node: Node, exchange: Exchange) -> None:
    """GET /v1/sandboxes/ID/network."""
    sandbox = node.sandboxes.get(exchange.path("id"))
    await exchange.reply(node.networks.view(sandbox))


async def put(node: Node, exchange: Exchange) -> None:
    """PUT /v1/sandboxes/ID/network."""
    sandbox = node.sandboxes.get(exchange.path("id"))
    body = await exchange.body(NETWORK)
    await node.control.set_network(sandbox, body.network)
    await exchange.reply(node.networks.view(sandbox))
