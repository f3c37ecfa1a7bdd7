"""The server: who may ask, how much, and whose fault it is when there is no result."""

from __future__ import annotations

import hmac
import json
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from skerry.compat.sandboxfusion import wire
from skerry.compat.sandboxfusion.languages import Defaults, NotServed, call_of
from skerry.compat.serving import TooLarge, body_of
from skerry.errors import CallerError, NotFound, Overloaded, SkerryError
from skerry.spec.function import CallSpec
from skerry.spec.function_result import CallResult
from skerry.spec.limits import MIB

BODY_MAX = 64 * MIB
RETRY_AFTER_S = 1
NOT_OURS = "of SandboxFusion's interface run_code is served; run_jupyter and the data sets are not"

log = logging.getLogger("skerry.sandboxfusion")
Run = Callable[[CallSpec], Awaitable[CallResult]]


def build_app(run: Run, defaults: Defaults, token: str) -> Starlette:
    """Returns the application. The token is the first part of the path: its clients send no headers."""
    server = _Server(run, defaults, token)
    return Starlette(
        routes=[
            Route("/{token}/run_code", server.run_code, methods=["POST"]),
            Route("/{token}/v1/ping", server.ping, methods=["GET"]),
            Route("/{rest:path}", server.nothing, methods=["GET", "POST", "PUT", "DELETE"]),
        ]
    )


class _Server:
    def __init__(self, run: Run, defaults: Defaults, token: str) -> None:
        self._run = run
        self._defaults = defaults
        self._token = token.encode()

    def _refused(self, request: Request) -> Response | None:
        given = request.path_params["token"].encode("utf-8", "surrogatepass")
        if hmac.compare_digest(given, self._token):
            return None
        return _told(401, "this is not the token; an address is http://HOST:PORT/TOKEN/run_code")

    async def nothing(self, request: Request) -> Response:
        """Of all other paths."""
        del request
        return _told(404, f"not found: {NOT_OURS}")

    async def ping(self, request: Request) -> Response:
        """Says that it is there."""
        return self._refused(request) or _json("pong")

    async def run_code(self, request: Request) -> Response:
        """Runs the program of one request."""
        if refused := self._refused(request):
            return refused
        try:
            asked = msgspec.json.decode(await body_of(request, BODY_MAX), type=wire.RunCode)
            call, wanted = call_of(asked, self._defaults)
        except TooLarge as error:
            return _told(413, str(error))
        except NotServed as error:
            return _json(wire.failure(str(error)))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, CallerError) as error:
            return _told(422, f"no such request: {error}")
        return await self._answered(call, wanted)

    async def _answered(self, call: CallSpec, wanted: dict[str, str]) -> Response:
        """A fault of the platform is never a result of the program."""
        try:
            return _json(wire.answer(await self._run(call), wanted))
        except Overloaded as error:
            # The one status after which verl's client asks again.
            after = error.fields.get("retry_after_s", RETRY_AFTER_S)
            return _told(504, str(error), {"Retry-After": str(max(1, round(after)))})
        except CallerError as error:
            if isinstance(error, NotFound) or "lacks" in error.fields:
                # The operator named the environment: what that has not is no fault of this request.
                return _json(wire.failure(str(error)))
            return _told(422, str(error))
        except SkerryError as error:
            return _json(wire.failure(f"{type(error).__name__}: {error}"))
        except Exception as error:
            log.exception("a request failed")
            return _json(wire.failure(f"Bug: {type(error).__name__}: {error}"))


def _told(status: int, detail: str, headers: dict[str, str] | None = None) -> Response:
    return _json({"detail": detail}, status, headers)


def _json(body: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    # json escapes what is no text in UTF-8.
    return Response(json.dumps(body), status, headers, media_type="application/json")
