"""The table of routes, and the application made of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from starlette.routing import BaseRoute, Route, Router, WebSocketRoute

from skerry.errors import NotFound
from skerry.node.node import Node
from skerry.node.server import (
    attach,
    commands,
    commits,
    connections,
    events,
    files,
    functions,
    images,
    jobs,
    meta,
    network,
    sandboxes,
    sessions,
    trajectories,
    usage,
    workers,
)
from skerry.node.server.endpoint import Endpoint, Handler
from skerry.node.server.exchange import Exchange, Receive, Scope, Send
from skerry.node.server.guard import Guard
from skerry.node.server.sockets import Socket, SocketEndpoint

_ALL = "/v1/sandboxes/"
_ONE = _ALL + "{id}"

# Tried in this order, but for what `Below` finds.
ROUTES: tuple[tuple[str, dict[str, Handler]], ...] = (
    (f"{_ONE}/run", {"POST": commands.run}),
    ("/v1/sandboxes", {"POST": sandboxes.create, "GET": sandboxes.list_page}),
    ("/v1/sandboxes/batch", {"POST": sandboxes.create_batch}),
    (_ONE, {"GET": sandboxes.get, "DELETE": sandboxes.delete, "PATCH": sandboxes.change}),
    (f"{_ONE}/stream", {"POST": commands.stream}),
    ("/v1/functions/call", {"POST": functions.call}),
    ("/v1/functions/prewarm", {"POST": functions.prewarm}),
    ("/v1/functions/pools", {"GET": functions.pools}),
    (f"{_ONE}/files", {"GET": files.read, "PUT": files.write}),
    (f"{_ONE}/files/op", {"POST": files.apply}),
    (f"{_ONE}/files/walk", {"GET": files.walk}),
    (f"{_ONE}/files/watch", {"GET": files.watch}),
    (f"{_ONE}/files/usage", {"GET": files.usage}),
    (f"{_ONE}/tree", {"GET": files.tree_get, "PUT": files.tree_put}),
    (f"{_ONE}/ops", {"POST": commands.start, "GET": commands.list_all}),
    (f"{_ONE}/ops/{{op}}", {"GET": commands.status}),
    (f"{_ONE}/ops/{{op}}/output", {"GET": commands.output}),
    (f"{_ONE}/ops/{{op}}/stdin", {"POST": commands.feed}),
    (f"{_ONE}/ops/{{op}}/resize", {"POST": commands.resize}),
    (f"{_ONE}/ops/{{op}}/signal", {"POST": commands.signal}),
    (f"{_ONE}/ops/{{op}}/cancel", {"POST": commands.cancel}),
    (f"{_ONE}/pause", {"POST": sandboxes.pause}),
    (f"{_ONE}/resume", {"POST": sandboxes.resume}),
    (f"{_ONE}/stop", {"POST": sandboxes.stop}),
    (f"{_ONE}/sessions", {"POST": sessions.create, "GET": sessions.list_all}),
    (f"{_ONE}/sessions/{{session}}", {"GET": sessions.get, "DELETE": sessions.close}),
    (f"{_ONE}/usage", {"GET": sandboxes.usage}),
    ("/v1/usage", {"GET": usage.table}),
    (f"{_ONE}/network", {"GET": network.get, "PUT": network.put}),
    (f"{_ONE}/wait", {"GET": sandboxes.wait}),
    (f"{_ONE}/diff", {"GET": files.diff}),
    (f"{_ONE}/diff/tar", {"GET": files.diff_tar}),
    (f"{_ONE}/commit", {"POST": files.commit}),
    (f"{_ONE}/commits", {"POST": commits.begin}),
    (f"{_ONE}/fork", {"POST": commits.fork}),
    (f"{_ONE}/events", {"POST": events.post}),
    ("/v1/commits", {"GET": commits.list_all}),
    ("/v1/commits/{commit}", {"GET": commits.get}),
    ("/v1/sandboxes/batch/delete", {"POST": sandboxes.delete_batch}),
    ("/v1/trajectories", {"GET": trajectories.list_page}),
    ("/v1/trajectories/blobs/{digest}", {"GET": trajectories.blob}),
    ("/v1/trajectories/{id}/events", {"GET": trajectories.events}),
    ("/v1/trajectories/{id}/verify", {"GET": trajectories.verify}),
    ("/v1/jobs", {"POST": jobs.create, "GET": jobs.list_all}),
    ("/v1/jobs/{job}", {"GET": jobs.get, "DELETE": jobs.delete, "PATCH": jobs.change}),
    ("/v1/jobs/{job}/heartbeat", {"POST": jobs.heartbeat}),
    ("/v1/jobs/{job}/pause", {"POST": jobs.pause, "DELETE": jobs.cancel_pause}),
    ("/v1/jobs/{job}/resume", {"POST": jobs.resume, "DELETE": jobs.cancel_resume}),
    ("/v1/jobs/{job}/queue", {"GET": jobs.queue}),
    ("/v1/images", {"GET": images.list_all}),
    ("/v1/images/{name:path}/import", {"POST": images.import_archive}),
    ("/v1/images/{name:path}/debian", {"POST": images.debian}),
    ("/v1/images/{name:path}/registry", {"POST": images.registry}),
    ("/v1/images/{name:path}/push", {"POST": images.push}),
    ("/v1/images/{name:path}/collapse", {"POST": images.collapse}),
    ("/v1/images/{name:path}/pin", {"POST": images.pin, "DELETE": images.unpin}),
    ("/v1/images/{name:path}/verify", {"GET": images.last_check, "POST": images.verify}),
    ("/v1/store/verify", {"POST": images.verify_records}),
    ("/v1/store/collect", {"POST": images.collect}),
    ("/v1/images/{name:path}", {"GET": images.inspect, "DELETE": images.remove}),
    ("/v1/health", {"GET": meta.health}),
    (
        "/v1/node/drain",
        {"GET": meta.drain_state, "POST": meta.drain, "DELETE": meta.undrain},
    ),
    ("/v1/workers", {"GET": workers.table}),
    (
        "/v1/workers/{worker}/{path:path}",
        {"GET": workers.ask, "POST": workers.ask, "DELETE": workers.ask},
    ),
    ("/v1/openapi.json", {"GET": meta.document}),
    ("/v1/metrics", {"GET": meta.metrics}),
)
# Where Prometheus looks unless it is told otherwise.
ALIASES: tuple[tuple[str, dict[str, Handler]], ...] = (("/metrics", {"GET": meta.metrics}),)

SOCKETS: tuple[tuple[str, Callable[[Any, Socket], Awaitable[None]]], ...] = (
    (f"{_ONE}/attach", attach.attach),
    (f"{_ONE}/forward", connections.forward),
    (f"{_ONE}/connect", connections.connect),
    ("/v1/connection", connections.owner),
    ("/v1/functions/attach", functions.attach),
)


class Below:
    """Looks up what is fixed, below one sandbox too: every hot route. The router has the rest."""

    def __init__(self, endpoints: dict[str, Endpoint], rest: Router) -> None:
        self._endpoints = {
            route.removeprefix(_ONE + "/"): endpoint
            for route, endpoint in endpoints.items()
            if route.startswith(_ONE + "/") and route.count("{") == 1
        }
        self._fixed = {route: one for route, one in endpoints.items() if "{" not in route}
        self._rest = rest

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request."""
        path = scope["path"]
        if scope["type"] == "http" and (fixed := self._fixed.get(path)) is not None:
            scope["path_params"] = {}
            await fixed(scope, receive, send)
            return
        if scope["type"] == "http" and path.startswith(_ALL):
            sandbox_id, _, tail = path[len(_ALL) :].partition("/")
            endpoint = self._endpoints.get(tail)
            if endpoint is not None and sandbox_id:
                scope["path_params"] = {"id": sandbox_id}
                await endpoint(scope, receive, send)
                return
        await self._rest(scope, receive, send)


def build_app(node: Node) -> Guard:
    """Returns the node's API as an ASGI application."""
    endpoints = {
        path: Endpoint(node, methods, path, node.metrics) for path, methods in (*ROUTES, *ALIASES)
    }
    routes: list[BaseRoute] = [Route(path, endpoint) for path, endpoint in endpoints.items()]
    routes += [WebSocketRoute(path, SocketEndpoint(node, handler)) for path, handler in SOCKETS]
    router = Router(routes, redirect_slashes=False, default=_missing)
    return Guard(Below(endpoints, router), node.config.tokens)


async def _missing(scope: Scope, receive: Receive, send: Send) -> None:
    """Answers for a path that is none."""
    if scope["type"] == "websocket":
        await receive()
        await send({"type": "websocket.close", "code": 4404, "reason": "no such path"})
        return
    error = NotFound(f"there is no path {scope['path'][:200]!r}")
    await Exchange(scope, receive, send).fail(error)
