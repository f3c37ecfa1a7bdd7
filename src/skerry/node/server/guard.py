"""Who may speak to the node: anyone on the unix socket (its mode decides), bearers on TCP."""

from __future__ import annotations

import hashlib
import hmac

from skerry.errors import Unauthorized
from skerry.node.server.exchange import Exchange, Receive, Scope, Send

OPEN_PATHS = frozenset({"/v1/health"})


class Guard:
    """Wraps the application. Tokens are compared by digest and in constant time, all of them."""

    def __init__(self, app: object, tokens: tuple[str, ...]) -> None:
        self._app = app
        self._digests = tuple(hashlib.sha256(token.encode()).digest() for token in tokens)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Lets the request through or answers Unauthorized."""
        if scope["type"] not in {"http", "websocket"}:
            return
        server = scope.get("server")
        local = server is not None and server[1] is None
        if not local and scope["path"] not in OPEN_PATHS:
            tenant = self._known(scope)
            if tenant is None:
                await _refuse(scope, receive, send)
                return
            scope["skerry.tenant"] = tenant
        await self._app(scope, receive, send)  # type: ignore[operator]

    def _known(self, scope: Scope) -> str | None:
        """Returns a name for the token that says nothing of it; None if it is unknown."""
        given = b""
        for name, value in scope["headers"]:
            if name == b"authorization":
                given = value
        scheme, _, token = given.partition(b" ")
        if scheme.lower() != b"bearer":
            return None
        digest = hashlib.sha256(token.strip()).digest()
        known = False
        for expected in self._digests:
            known |= hmac.compare_digest(digest, expected)
        return digest.hex()[:16] if known else None


async def _refuse(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] == "websocket":
        await receive()  # websocket.connect
        await send({"type": "websocket.close", "code": 4401, "reason": "unauthorized"})
        return
    error = Unauthorized("no valid token came with the request (a bearer token; SKERRY_TOKEN)")
    await Exchange(scope, receive, send).fail(error)
