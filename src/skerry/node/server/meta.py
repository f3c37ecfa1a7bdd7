"""Routes about the node itself."""

from __future__ import annotations

import os

from skerry.errors import SkerryError
from skerry.node.node import Node
from skerry.node.server.exchange import Exchange
from skerry.wire import openapi
from skerry.wire.http import Health


async def health(node: Node, exchange: Exchange) -> None:
    """GET /v1/health."""
    backends = {}
    for name, backend in node.backends.items():
        try:
            seen = await backend.probe()
        except SkerryError as error:
            backends[name] = error.message
        else:
            backends[name] = "usable" if seen.usable else seen.reason
    await exchange.reply(
        Health(
            node=node.identity.name,
            version=node.version,
            epoch=node.identity.epoch,
            pid=os.getpid(),
            sandboxes=len(node.sandboxes),
            uptime_s=round(node.clock.wall() - node.started, 3),
            backends=backends,
        )
    )


async def document(node: Node, exchange: Exchange) -> None:
    """GET /v1/openapi.json."""
    await exchange.reply(openapi.document(node.version))
