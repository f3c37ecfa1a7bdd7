"""Routes about the node itself."""

from __future__ import annotations

import os

from skerry.node.gauges.metrics import call_lines, page
from skerry.node.node import Node
from skerry.node.server.bodies import DRAIN
from skerry.node.server.exchange import Exchange
from skerry.wire import openapi
from skerry.wire.http import METRICS, Health


async def health(node: Node, exchange: Exchange) -> None:
    """GET /v1/health."""
    await exchange.reply(
        Health(
            node=node.identity.name,
            version=node.version,
            epoch=node.identity.epoch,
            pid=os.getpid(),
            sandboxes=len(node.sandboxes),
            uptime_s=round(node.clock.wall() - node.started, 3),
            live=node.admission.sandboxes,
            draining=node.drain.on,
            embedded=node.config.embedded,
            backends=await node.probes(),
            blobs=node.blobs.health() if node.blobs else None,
            workers=node.workers.table(),
        )
    )


async def drain(node: Node, exchange: Exchange) -> None:
    """POST /v1/node/drain."""
    await exchange.reply(node.drain.begin(await exchange.body(DRAIN)))


async def drain_state(node: Node, exchange: Exchange) -> None:
    """GET /v1/node/drain."""
    await exchange.reply(node.drain.state())


async def undrain(node: Node, exchange: Exchange) -> None:
    """DELETE /v1/node/drain."""
    await exchange.reply(node.drain.end())


async def metrics(node: Node, exchange: Exchange) -> None:
    """GET /v1/metrics."""
    text = page(
        node.metrics,
        sandboxes=node.sandboxes,
        refused=node.admission.refused,
        gauges=node.gauges(),
        histograms={"loop_beats_seconds": node.loop_watch.beats},
        brakes=node.admission.shortages.brakes,
        calls=call_lines(node.calls.calls, node.calls.call_s, node.calls.queued_s),
        backends=node.backends,
        version=node.version,
    )
    await exchange.open_stream(METRICS)
    await exchange.write(text.encode())
    await exchange.close_stream()


async def document(node: Node, exchange: Exchange) -> None:
    """GET /v1/openapi.json."""
    await exchange.reply(openapi.document(node.version))
