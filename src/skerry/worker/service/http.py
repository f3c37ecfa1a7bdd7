"""The worker's API on its unix socket, for its node: that passes on trainers' requests and models'.

    POST   /jobs                                   submit; the same again is fine
    GET    /jobs                                   the ids of the worker's jobs
    GET    /jobs/ID            ?from= &limit=      status, with a page of rollouts
    DELETE /jobs/ID                                ends the job and forgets it
    GET    /jobs/ID/events     ?from= &limit= &wait=       lines of the record
    GET    /jobs/ID/results    ?from= &limit= &wait=       ended rollouts
    GET    /jobs/ID/blobs/SHA256                   a long output, or a submission
    GET    /jobs/ID/requests   ?consumer= &max= &wait= &got=   leased to the consumer; max=0 renews only
    POST   /jobs/ID/attach     ?consumer=          what other consumers hold waits again
    POST   /jobs/ID/requests/RID/answer            the first answer wins
    GET    /jobs/ID/signal     ?version= &wait=
    *      /model/...                              worker/model/handler.py

Bodies are msgpack or JSON, as Content-Type says; answers as Accept says. The socket is 0600: who can
connect may do anything, so the node checks tokens before.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from aiohttp import web

from skerry.errors import Bug, InvalidRequest, NotFound, SkerryError
from skerry.spec.worker import (
    ANSWER_BYTES_MAX,
    PAGE_MAX,
    SUBMIT_BYTES_MAX,
    WAIT_MAX_S,
    Submit,
    check_consumer,
)
from skerry.wire.http import MSGPACK, ErrorBody
from skerry.wire.relay import TENANT
from skerry.worker.service import views
from skerry.worker.service.service import Service

T = TypeVar("T")
FIELD_BYTES_MAX = 65_536  # a node names all requests of a sandbox that wait in one header
REQUESTS_AT_ONCE_MAX = 256  # of one long poll
_SHA256 = re.compile(r"[0-9a-f]{64}")
log = logging.getLogger("skerry.worker")
_pack = msgspec.msgpack.Encoder().encode
_json = msgspec.json.Encoder().encode
Handler = Callable[[web.Request], Awaitable[Any]]


class Api:
    """The handlers; what they return is encoded."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def app(self) -> web.Application:
        """Returns the application."""
        app = web.Application(client_max_size=max(SUBMIT_BYTES_MAX, ANSWER_BYTES_MAX) + 4096)
        one = "/jobs/{job}"
        routes: list[tuple[str, str, Handler]] = [
            ("POST", "/jobs", self._submit),
            ("GET", "/jobs", self._jobs),
            ("GET", one, self._status),
            ("DELETE", one, self._delete),
            ("GET", f"{one}/events", self._events),
            ("GET", f"{one}/results", self._results),
            ("GET", f"{one}/requests", self._requests),
            ("POST", f"{one}/attach", self._attach),
            ("POST", f"{one}/requests/{{request}}/answer", self._answer),
            ("GET", f"{one}/signal", self._signal),
        ]
        for method, path, handler in routes:
            app.router.add_route(method, path, _answering(handler))
        app.router.add_get(f"{one}/blobs/{{digest}}", self._blob)
        app.router.add_routes(self._service.model.routes())
        app.router.add_route("*", "/{rest:.*}", _answering(_missing))
        return app

    async def _submit(self, request: web.Request) -> Any:
        submit = await _body(request, Submit, SUBMIT_BYTES_MAX)
        return views.status(self._service.submit(submit, _tenant(request)), 0, 0)

    async def _jobs(self, request: web.Request) -> Any:
        return self._service.jobs_of(_tenant(request))

    def _job(self, request: web.Request) -> str:
        """Returns the job that is asked about; NotFound if it is not the asker's."""
        return self._service.seen(request.match_info["job"], _tenant(request))

    async def _status(self, request: web.Request) -> Any:
        runner = self._service.runner(self._job(request))
        return views.status(runner, _int(request, "from", 0), _limit(request, 0))

    async def _delete(self, request: web.Request) -> Any:
        try:
            job = self._job(request)
        except NotFound:
            return None
        await self._service.delete(job)
        return None

    async def _events(self, request: web.Request) -> Any:
        first, limit = _int(request, "from", 0), _limit(request, PAGE_MAX)
        return await self._service.log_page(
            self._job(request), first, max(1, limit), _wait(request)
        )

    async def _results(self, request: web.Request) -> Any:
        first, limit = _int(request, "from", 0), _limit(request, PAGE_MAX)
        return await self._service.results(self._job(request), first, max(1, limit), _wait(request))

    async def _requests(self, request: web.Request) -> Any:
        consumer = check_consumer(request.query.get("consumer", ""))
        most = min(_int(request, "max", 1), REQUESTS_AT_ONCE_MAX)
        got = _int(request, "got", 0) if "got" in request.query else None
        packed, wait_s = _packed(request), _wait(request)
        return await self._service.desk.poll(
            self._job(request), consumer, most, wait_s, got, packed=packed
        )

    async def _attach(self, request: web.Request) -> Any:
        consumer = check_consumer(request.query.get("consumer", ""))
        self._service.attach(self._job(request), consumer)
        return None

    async def _answer(self, request: web.Request) -> Any:
        body = await _read(request, ANSWER_BYTES_MAX)
        job, name = self._job(request), request.match_info["request"]
        packed = request.content_type == MSGPACK
        return await self._service.desk.answer_as_sent(job, name, body, packed=packed)

    async def _signal(self, request: web.Request) -> Any:
        job = self._job(request)
        return await self._service.signal(job, _int(request, "version", 0), _wait(request))

    async def _blob(self, request: web.Request) -> web.StreamResponse:
        try:
            runner = self._service.runner(self._job(request))
            digest = request.match_info["digest"]
            path = runner.log.folder / "blobs" / digest
            if _SHA256.fullmatch(digest) is None or not path.is_file():
                raise NotFound(f"the job has no blob {digest[:80]!r}")
        except SkerryError as error:
            return _failure(request, error)
        return web.FileResponse(path, headers={"Content-Type": "application/octet-stream"})


def _tenant(request: web.Request) -> str:
    """Returns for whom the node asks; "" is whoever reaches its own socket, and may see all."""
    return request.headers.get(TENANT, "")


async def _missing(request: web.Request) -> Any:
    raise NotFound(f"a worker has no {request.method} {request.path[:200]}")


def _answering(handler: Handler) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    """Returns a handler that encodes what the given one returns or raises."""

    async def answering(request: web.Request) -> web.StreamResponse:
        try:
            return _encoded(request, 200, await handler(request))
        except SkerryError as error:
            return _failure(request, error)
        except (web.HTTPException, asyncio.CancelledError):
            raise
        except Exception as error:
            log.exception("%s %s", request.method, request.path[:200])
            return _failure(request, Bug(f"{type(error).__name__}: {error}"))

    return answering


def _failure(request: web.Request, error: SkerryError) -> web.Response:
    return _encoded(request, error.http_status, ErrorBody.of(error))


def _encoded(request: web.Request, status: int, value: Any) -> web.Response:
    packed = _packed(request)
    return web.Response(
        status=status,
        body=_pack(value) if packed else _json(value),
        content_type=MSGPACK if packed else "application/json",
    )


def _packed(request: web.Request) -> bool:
    return MSGPACK in request.headers.get("Accept", "")


async def _read(request: web.Request, bytes_max: int) -> bytes:
    raw = await request.read()
    if len(raw) > bytes_max:
        raise InvalidRequest(f"the body has {len(raw)} bytes, at most {bytes_max}")
    return raw


async def _body(request: web.Request, kind: type[T], bytes_max: int) -> T:
    raw = await _read(request, bytes_max)
    decode: Any = msgspec.json.decode
    if request.content_type == MSGPACK:
        decode = msgspec.msgpack.decode
    try:
        found: T = decode(raw, type=kind)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidRequest(f"the body: {error}") from error
    return found


def _int(request: web.Request, name: str, default: int) -> int:
    text = request.query.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdecimal() and len(text) < 16):
        raise InvalidRequest(f"{name}: {text[:40]!r} is no number from 0 on")
    return int(text)


def _limit(request: web.Request, default: int) -> int:
    return min(_int(request, "limit", default), PAGE_MAX)


def _wait(request: web.Request) -> float:
    text = request.query.get("wait", "0")
    if re.fullmatch(r"[0-9]{1,6}(\.[0-9]{1,9})?", text) is None:
        raise InvalidRequest(f"wait: {text[:40]!r} is no number of seconds")
    return min(float(text), WAIT_MAX_S)


@contextlib.asynccontextmanager
async def listening(
    service: Service, socket: Path, *, grace_s: float = 1.0
) -> AsyncIterator[web.AppRunner]:
    """Serves the API at a unix socket for a block; one that lies there already is replaced.

    At the end, what is still being answered has `grace_s` seconds.
    """
    runner = web.AppRunner(
        Api(service).app(),
        access_log=None,
        handler_cancellation=True,
        shutdown_timeout=grace_s,
        max_field_size=FIELD_BYTES_MAX,
    )
    await runner.setup()
    try:
        socket.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            socket.unlink()
        umask = os.umask(0o177)
        try:
            await web.UnixSite(runner, str(socket)).start()
        finally:
            os.umask(umask)
        yield runner
    finally:
        await runner.cleanup()
        with contextlib.suppress(FileNotFoundError):
            socket.unlink()
