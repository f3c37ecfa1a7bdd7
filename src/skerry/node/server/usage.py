"""The route of the live table: what every live sandbox uses, read in one go."""

from __future__ import annotations

import asyncio

from skerry.errors import SkerryError
from skerry.node.gauges.host import host_view
from skerry.node.life.sandbox import Sandbox
from skerry.node.node import Node
from skerry.node.server.exchange import Exchange
from skerry.node.server.sandboxes import labels_of
from skerry.wire.control import NodeUsage, SandboxUsage

YIELD_EVERY = 64  # readings between which others get their turn on the loop


async def table(node: Node, exchange: Exchange) -> None:
    """GET /v1/usage."""
    exchange.allow("label")
    wanted = labels_of(exchange)
    items = []
    for count, sandbox in enumerate(node.sandboxes):
        if sandbox.instance is None or not wanted.items() <= sandbox.spec.labels.items():
            continue
        row = await _row(sandbox)
        if row is not None:
            items.append(row)
        if count % YIELD_EVERY == 0:
            await asyncio.sleep(0)
    host = await asyncio.to_thread(host_view)
    await exchange.reply(
        NodeUsage(
            at=node.clock.monotonic(),
            items=tuple(items),
            cores=host.cores,
            memory_total_bytes=host.memory_total_bytes,
            memory_available_bytes=host.memory_available_bytes,
            load=host.load,
            pressure=host.pressure,
            commands=node.admission.operations,
            draining=node.drain.on,
        )
    )


async def _row(sandbox: Sandbox) -> SandboxUsage | None:
    if sandbox.instance is None:
        return None
    try:
        seen = await sandbox.instance.usage()
    except SkerryError:
        return None  # it is ending
    return SandboxUsage(
        id=sandbox.id,
        state=str(sandbox.state),
        usage=seen,
        commands=sandbox.running,
        image=sandbox.spec.made_of[0],
        created=sandbox.created,
        memory_limit_bytes=sandbox.spec.memory_bytes,
        labels=sandbox.spec.labels,
    )
