"""The server: who may ask, how much, each request once; exceptions go as SWE-ReX's client takes them."""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from skerry.compat.serving import TooLarge, body_of, bounded
from skerry.compat.swerex import wire
from skerry.compat.swerex.runtime import Runtime
from skerry.compat.swerex.wire import Thrown
from skerry.errors import SkerryError
from skerry.spec.limits import MIB

BODY_MAX = 96 * MIB  # of a request in JSON
UPLOAD_MAX = 2 * 1024 * MIB  # of an upload, and of what a zip in it holds
REMEMBERED_MAX = 32  # answers that are given again when their request comes again
TEXT_MAX = 16 * MIB  # of one of them: a longer answer is not remembered
TOKEN_HEADER, ONCE_HEADER = "x-api-key", "x-request-id"

log = logging.getLogger("skerry.swerex")
Work = Callable[[], Awaitable[dict[str, Any]]]


def build_app(runtime: Runtime, token: str) -> Starlette:
    """Returns the application; only requests with the token are served."""
    server = _Server(runtime, token)
    posts: dict[str, tuple[type | None, Callable[..., Awaitable[dict[str, Any]]]]] = {
        "create_session": (wire.CreateSession, runtime.create_session),
        "run_in_session": (wire.Action, runtime.run_in_session),
        "close_session": (wire.CloseSession, runtime.close_session),
        "execute": (wire.Command, runtime.execute),
        "read_file": (wire.ReadFile, runtime.read_file),
        "write_file": (wire.WriteFile, runtime.write_file),
        "close": (None, runtime.close),
    }
    routes = [Route(f"/{name}", server.post(*how), methods=["POST"]) for name, how in posts.items()]
    routes += [
        Route("/", server.hello),
        Route("/is_alive", server.alive),
        Route("/upload", server.upload, methods=["POST"]),
        Route("/{rest:path}", server.nothing, methods=["GET", "POST", "PUT", "DELETE"]),
    ]
    return Starlette(routes=routes)


class _Server:
    def __init__(self, runtime: Runtime, token: str) -> None:
        self._runtime = runtime
        self._token = token.encode()
        self._answers: OrderedDict[str, asyncio.Task[Response]] = OrderedDict()

    def _unauthorized(self, request: Request) -> Response | None:
        given = request.headers.get(TOKEN_HEADER, "").encode()
        if not given:
            return JSONResponse({"detail": "Not authenticated"}, status_code=403)
        if hmac.compare_digest(given, self._token):
            return None
        return JSONResponse({"detail": "Invalid API Key"}, status_code=401)

    async def hello(self, request: Request) -> Response:
        return self._unauthorized(request) or JSONResponse({"message": "hello world"})

    async def nothing(self, request: Request) -> Response:
        return self._unauthorized(request) or JSONResponse({"detail": "Not Found"}, status_code=404)

    async def alive(self, request: Request) -> Response:
        return self._unauthorized(request) or JSONResponse(await self._runtime.is_alive())

    def post(
        self, kind: type | None, do: Callable[..., Awaitable[dict[str, Any]]]
    ) -> Callable[[Request], Awaitable[Response]]:
        async def handle(request: Request) -> Response:
            if answer := self._unauthorized(request):
                return answer
            try:
                body = await body_of(request, BODY_MAX)
                if kind is None:
                    return await self._once(request, do)
                asked: Any = msgspec.json.decode(body, type=kind)
            except TooLarge as error:
                return JSONResponse({"detail": str(error)}, status_code=413)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                return JSONResponse({"detail": f"no such request: {error}"}, status_code=422)
            return await self._once(request, lambda: do(asked))

        return handle

    async def upload(self, request: Request) -> Response:
        if answer := self._unauthorized(request):
            return answer
        try:
            bounded(request, UPLOAD_MAX)
            async with request.form(max_files=1, max_fields=8, max_part_size=64 << 10) as form:
                file, target = form.get("file"), form.get("target_path")
                if not isinstance(file, UploadFile) or not isinstance(target, str) or not target:
                    return JSONResponse({"detail": "file and target_path"}, status_code=422)
                unzip = str(form.get("unzip", "")).lower() in ("true", "1", "yes", "on")
                return await _answered(
                    lambda: self._runtime.upload(file.file, target, unzip=unzip, limit=UPLOAD_MAX)
                )
        except TooLarge as error:
            return JSONResponse({"detail": str(error)}, status_code=413)
        except MultiPartException as error:
            return JSONResponse({"detail": str(error)}, status_code=422)

    async def _once(self, request: Request, work: Work) -> Response:
        """A request that comes again under its id joins the first one, or gets its answer."""
        name = request.headers.get(ONCE_HEADER, "")[:200]
        if not name:
            return await _answered(work)
        task = self._answers.get(name)
        if task is None:
            task = self._answers[name] = asyncio.create_task(_answered(work))
            # One that is under way stays: its request may come again, and only this holds the task.
            done = [key for key, one in self._answers.items() if one.done()]
            for key in done[: max(0, len(self._answers) - REMEMBERED_MAX)]:
                del self._answers[key]
        response = await asyncio.shield(task)
        if len(response.body) > TEXT_MAX:
            self._answers.pop(name, None)
        return response


async def _answered(work: Work) -> Response:
    """Returns the answer; what is raised has status 511, a fault of Skerry's under its own name."""
    try:
        return _json(await work())
    except Thrown as thrown:
        return _json(thrown.body(), 511)
    except SkerryError as error:
        return _json(Thrown(f"skerry.errors.{type(error).__name__}", str(error)).body(), 511)
    except Exception as error:
        log.exception("a request failed")
        return _json(Thrown("skerry.errors.Bug", f"{type(error).__name__}: {error}").body(), 511)


def _json(body: dict[str, Any], status: int = 200) -> Response:
    # Lone surrogates of names are escaped, which JSON can say and UTF-8 cannot.
    return Response(json.dumps(body).encode(), status, media_type="application/json")
