"""Counts requests, their time and their bytes around an endpoint, which knows nothing of it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from skerry.node.gauges.metrics import Metrics
from skerry.node.server.exchange import Receive, Scope, Send


class Metered:
    """An ASGI application around another one, of one route."""

    __slots__ = ("_app", "_metrics", "_now", "_route")

    def __init__(
        self,
        app: Callable[[Scope, Receive, Send], Any],
        route: str,
        metrics: Metrics,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._app = app
        self._route = route
        self._metrics = metrics
        self._now = now

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request; a client that is gone before its answer counts as status 0."""
        began, status, metrics = self._now(), 0, self._metrics

        async def counted_receive() -> Any:
            message = await receive()
            metrics.bytes_in += len(message.get("body", b""))
            return message

        async def counted_send(message: Any) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            else:
                metrics.bytes_out += len(message.get("body", b""))
            await send(message)

        try:
            await self._app(scope, counted_receive, counted_send)
        finally:
            method = scope["method"] if status != 405 else "other"
            metrics.served(method, self._route, status, self._now() - began)
