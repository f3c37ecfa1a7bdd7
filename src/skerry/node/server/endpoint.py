"""One route: its handlers, what becomes of their errors, and what the metrics are told."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

from skerry.errors import Bug, InvalidRequest, SkerryError, Unavailable
from skerry.node.gauges.metrics import Metrics
from skerry.node.server.exchange import ClientGone, Exchange, Receive, Scope, Send
from skerry.wire.http import ErrorBody

log = logging.getLogger("skerry.node.server")

Handler: TypeAlias = Callable[[Any, Exchange], Awaitable[None]]


class Endpoint:
    """The handlers of one route by method, as an ASGI application that never lets an error out.

    Metrics are told of each request; a client that is gone before its answer counts as status 0.
    """

    def __init__(
        self,
        node: Any,
        handlers: dict[str, Handler],
        route: str,
        metrics: Metrics,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._node = node
        self._handlers = handlers
        self._route = route
        self._metrics = metrics
        self._now = now

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request."""
        began, exchange = self._now(), Exchange(scope, receive, send)
        method = scope["method"]
        handler = self._handlers.get(method)
        try:
            if handler is None:
                method = "other"  # whatever a client calls it
                await self._refuse(exchange)
            else:
                await self._serve(handler, exchange)
        finally:
            self._metrics.served(
                method,
                self._route,
                exchange.status,
                self._now() - began,
                bytes_in=exchange.bytes_in,
                bytes_out=exchange.bytes_out,
            )

    async def _refuse(self, exchange: Exchange) -> None:
        allowed = ", ".join(sorted(self._handlers))
        error = InvalidRequest(f"{exchange.scope['method']} here? only {allowed}")
        await exchange.reply(ErrorBody.of(error), 405, ((b"allow", allowed.encode()),))

    async def _serve(self, handler: Handler, exchange: Exchange) -> None:
        scope = exchange.scope
        try:
            await handler(self._node, exchange)
        except SkerryError as error:
            if exchange.started:
                log.warning("%s broke off: %s", scope["path"], error)
                return  # without an end: the client sees that it is not complete
            await exchange.fail(error)
        except ClientGone:
            return
        except asyncio.CancelledError:
            # The node is ending, and this is the request's last breath: nobody waits for the
            # cancellation itself, and uvicorn would answer it with a bare 500.
            if not exchange.started:
                again = Unavailable("the node is ending: ask again", retry_after_s=0.1)
                await exchange.fail(exchange.when_cut or again)
        except Exception as error:
            log.exception("%s %s", scope["method"], scope["path"])
            if not exchange.started:
                await exchange.fail(Bug(f"{type(error).__name__}: {error}"))
