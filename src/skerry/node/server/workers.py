"""Routes to the node's workers: how they stand, and whatever a worker itself serves."""

from __future__ import annotations

import asyncio
import re

from skerry.errors import InvalidRequest, NotFound, Unavailable
from skerry.network.target import Headers
from skerry.node.node import Node
from skerry.node.server.exchange import Exchange
from skerry.node.workers.upstream import Reply, WorkerGone, asking
from skerry.spec.limits import MIB
from skerry.wire.relay import TENANT

BODY_BYTES_MAX = 65 * MIB  # a submission's (spec.worker), and what is around it
QUERY_BYTES_MAX = 4096
TRIES = 5
PAUSE_S = 0.1
# One spelling each: a worker cannot read a path in another way than this node.
_PATH = re.compile(r"[A-Za-z0-9_~-][A-Za-z0-9._~-]*(/[A-Za-z0-9_~-][A-Za-z0-9._~-]*)*")
_PASSED = (b"content-type", b"accept")
_GIVEN = (b"content-type", b"retry-after")


async def table(node: Node, exchange: Exchange) -> None:
    """GET /v1/workers."""
    await exchange.reply(node.workers.table())


async def ask(node: Node, exchange: Exchange) -> None:
    """GET, POST or DELETE /v1/workers/NUMBER/PATH: the worker's own answer, as it comes.

    A worker that is away, or is lost before it answers, is waited for and asked again: all that workers
    take may be asked twice. One that is lost within its answer breaks it off.
    """
    number, target = _number(exchange.path("worker")), _target(exchange)
    body = await exchange.raw(BODY_BYTES_MAX)
    await exchange.while_there(_pass(node, exchange, number, target, body))


async def _pass(node: Node, exchange: Exchange, number: int, target: bytes, body: bytes) -> None:
    headers: Headers = [pair for pair in exchange.scope["headers"] if pair[0] in _PASSED]
    headers.append((TENANT.encode(), exchange.tenant.encode()))
    method = exchange.scope["method"].encode()
    for left in range(TRIES - 1, -1, -1):
        socket = await node.workers.ready_soon(number)
        try:
            async with asking(socket, method, target, headers, body) as reply:
                await _answer(exchange, reply)
            return
        except WorkerGone as error:
            if exchange.started or not left:
                away = f"worker {number} is away: {error}"
                raise Unavailable(away, retry_after_s=0.2) from None
        await asyncio.sleep(PAUSE_S)  # for the node to notice it, too


async def _answer(exchange: Exchange, reply: Reply) -> None:
    given = [(name, reply.header(name)) for name in _GIVEN]
    kept = tuple((name, value) for name, value in given if value is not None)
    await exchange.open_answer(reply.status, kept)
    async for piece in reply.body():
        await exchange.write(piece)
    await exchange.close_stream()


def _number(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or len(text) > 4:
        raise NotFound(f"there is no worker {text[:40]!r}")
    return int(text)


def _target(exchange: Exchange) -> bytes:
    path = exchange.path("path")
    if len(path) > 1024 or _PATH.fullmatch(path) is None:
        raise InvalidRequest(f"{path[:200]!r} is no path of a worker")
    if path.partition("/")[0] == "model":
        raise InvalidRequest("what is below model/ is asked from inside sandboxes only")
    query = bytes(exchange.scope["query_string"])
    if len(query) > QUERY_BYTES_MAX or not query.isascii() or b" " in query:
        raise InvalidRequest(f"query: at most {QUERY_BYTES_MAX} characters, ASCII and no spaces")
    return f"/{path}".encode() + (b"?" + query if query else b"")
