"""The model's calls over HTTP, as the node's relay makes them on the worker's socket.

    POST /model/v1/chat/completions   202: durable, and the trainer's to answer; or an error
    POST /model/v1/responses          the same
    GET  /model/wait                  the answer to a request, whenever it comes, in one piece
    POST /model/handed                tells what was handed over; 204
    GET  /model/v1/models[/NAME]      at once

Two steps, so that nobody but the book keeps bodies while a trainer is away. Both may be done again: the
request is named by `X-Skerry-Request`. The node says whose it is (`X-Skerry-Sandbox`), which of that
sandbox's requests still wait (`X-Skerry-Waiting`) and which answers were handed over
(`X-Skerry-Handed`). With an answer, `X-Skerry-Resume: 1` says that the sandbox is to be resumed with it;
`ETag` names its bytes: they are the same whenever they are asked for.

The socket is the node's: who can connect to it can say anything.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
import re
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import msgspec
from aiohttp import web

from skerry.errors import InvalidRequest, NotFound, SkerryError
from skerry.wire.relay import HANDED, REQUEST, RESUME, SANDBOX, WAITING, handed_pair
from skerry.worker.aside import BYTES_MAX, Aside
from skerry.worker.model import events
from skerry.worker.model.answers import TRANSIENT, error_body
from skerry.worker.model.book import Answer, Asked, Book, Call, Failed, Handed, Note
from skerry.worker.model.canonical import BODY_BYTES_MAX, digest, parse
from skerry.worker.model.ordinals import Incoming, Ordinals

RETRY = "X-Stainless-Retry-Count"
RELAYS_MAX = 1024  # named in one header
LONG_AT_ONCE = 2  # bodies beyond BYTES_MAX that are in this process before they are on record
_RELAY = re.compile(r"[0-9a-f]{32}")
_CALLS = {
    "/model/v1/chat/completions": Call.CHAT,
    "/model/v1/responses": Call.RESPONSES,
}


class Shape(NamedTuple):
    """How an answer is to be given; bodies are not kept for it."""

    call: Call
    stream: bool
    usage: bool  # at the end of the stream


class Read(NamedTuple):
    """What is taken from the body of a request."""

    digest: str
    shape: Shape


def read(call: Call, body: bytes) -> Read:
    """Returns what a request says; raises InvalidRequest for what is none. Pure."""
    parsed = parse(call, body)
    options = parsed.get("stream_options") or {}
    shape = Shape(call, bool(parsed.get("stream")), bool(options.get("include_usage")))
    return Read(digest(call, parsed), shape)


class Rollout:
    """The model's side of one rollout. Decisions about ordinals are made one after the other."""

    def __init__(self, notes: Iterable[Note]) -> None:
        self.ordinals = Ordinals()
        self.shapes: list[Shape] = []  # by ordinal
        self.turn = asyncio.Lock()
        self.reading = asyncio.Lock()  # one of its long bodies at a time
        self.apply(notes)

    def apply(self, notes: Iterable[Note]) -> None:
        """Takes what is on record."""
        for note in notes:
            self.ordinals.apply((note,))
            if isinstance(note, Asked):
                self.shapes.append(Shape(note.call, note.stream, note.usage))


class ModelHandler:
    """Serves the model's calls of all rollouts of a book."""

    def __init__(self, book: Book, aside: Aside, *, now: Callable[[], float] = time.time) -> None:
        self._book = book
        self._aside = aside
        self._long = asyncio.Semaphore(LONG_AT_ONCE)
        self._now = now
        self._rollouts: dict[str, Rollout] = {}
        self._tasks: set[asyncio.Task[Any]] = set()

    def routes(self) -> list[web.RouteDef]:
        """Returns the routes, for the worker's application."""
        return [
            *(web.post(path, self._guarded(self._ask)) for path in _CALLS),
            web.get("/model/wait", self._guarded(self._wait)),
            web.post("/model/handed", self._guarded(self._handed)),
            web.get("/model/v1/models", self._guarded(self._models)),
            web.get("/model/v1/models/{name}", self._guarded(self._model)),
            web.route("*", "/model/{rest:.*}", self._guarded(self._missing)),
        ]

    def forget(self, rollout: str) -> None:
        """Lets go of a rollout that has ended; if it asks again, its notes are read anew."""
        self._rollouts.pop(rollout, None)

    # -- handlers -------------------------------------------------------------------------------------

    async def _ask(self, request: web.Request) -> web.StreamResponse:
        name, rollout = self._rollout(request)
        call = _CALLS[request.path]
        async with self._room(name, rollout, request.content_length):
            body = await _read(request)
            found = await self._aside.call(len(body), read, call, body)
            incoming = Incoming(
                call=call,
                digest=found.digest,
                relay=_relay(request),
                body=body,
                stream=found.shape.stream,
                usage=found.shape.usage,
                retry=_retries(request),
                waiting=frozenset(_listed(request, WAITING)),
                handed=_handed(request),
            )
            place = rollout.ordinals.place
            await self._record(name, rollout, lambda: place(incoming, self._now())[1])
        return web.Response(status=202)

    @asynccontextmanager
    async def _room(self, name: str, rollout: Rollout, length: int | None) -> AsyncIterator[None]:
        """Room for a body of that length, for a block: long ones come one after the other.

        They wait where the node holds them. A rollout has one turn among all: what one sends at once
        keeps the others waiting for one body only.
        """
        if length is not None and length <= BYTES_MAX:
            yield
            return
        with self._book.reading(name):
            async with rollout.reading, self._long:
                yield

    async def _wait(self, request: web.Request) -> web.StreamResponse:
        name, rollout = self._rollout(request)
        ordinal = rollout.ordinals.of(_relay(request))
        if ordinal is None:
            raise NotFound("this request was never asked here")
        answer = await self._book.answer(name, ordinal)
        if answer.status in TRANSIENT and not rollout.ordinals.failed(ordinal):
            await self._record(name, rollout, lambda: _failed(rollout, ordinal))
        kind, data, tag = await self._aside.call(
            len(answer.body), rendered, rollout.shapes[ordinal], answer
        )
        headers = {"ETag": f'"{tag}"'}
        if self._book.resumes(name):
            headers[RESUME] = "1"
        return web.Response(status=answer.status, body=data, content_type=kind, headers=headers)

    async def _handed(self, request: web.Request) -> web.StreamResponse:
        name, rollout = self._rollout(request)
        handed = _handed(request)
        await self._record(name, rollout, lambda: rollout.ordinals.news(handed))
        return web.Response(status=204)

    async def _models(self, request: web.Request) -> web.StreamResponse:
        name, _ = self._rollout(request)
        found = [_described(model) for model in self._book.models(name)]
        return _json(200, {"object": "list", "data": found})

    async def _model(self, request: web.Request) -> web.StreamResponse:
        name, _ = self._rollout(request)
        wanted = request.match_info["name"]
        if wanted not in self._book.models(name):
            raise NotFound(f"there is no model {wanted[:100]!r}")
        return _json(200, _described(wanted))

    async def _missing(self, _: web.Request) -> web.StreamResponse:
        raise NotFound("served are chat/completions, responses and models below /v1")

    def _guarded(self, handler: Callable[[web.Request], Any]) -> Callable[[web.Request], Any]:
        """Returns the handler with its errors in OpenAI's shape."""

        async def guarded(request: web.Request) -> web.StreamResponse:
            try:
                found: web.StreamResponse = await handler(request)
            except SkerryError as error:
                return failure(error)
            return found

        return guarded

    # -- decisions ------------------------------------------------------------------------------------

    def _rollout(self, request: web.Request) -> tuple[str, Rollout]:
        token = request.headers.get("Authorization", "").removeprefix("Bearer ").strip()
        name = self._book.rollout(request.headers.get(SANDBOX, ""), token)
        rollout = self._rollouts.get(name)
        if rollout is None:
            rollout = self._rollouts[name] = Rollout(self._book.notes(name))
        return name, rollout

    async def _record(
        self, name: str, rollout: Rollout, decide: Callable[[], Sequence[Note]]
    ) -> None:
        """Decides, records what was decided, and takes it in: one after the other, and never cut in two.

        A client that leaves cuts its handler, not this.
        """

        async def whole() -> None:
            async with rollout.turn:
                notes = decide()
                if notes:
                    await self._book.note(name, notes)
                    rollout.apply(notes)

        task = asyncio.ensure_future(whole())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        await asyncio.shield(task)


def _failed(rollout: Rollout, ordinal: int) -> Sequence[Note]:
    return () if rollout.ordinals.failed(ordinal) else (Failed(ordinal=ordinal),)


def failure(error: SkerryError) -> web.Response:
    """Returns an error in OpenAI's shape; a client may try again what is not its own fault."""
    status = 400 if error.http_status == 422 else error.http_status
    headers = {}
    retry = error.fields.get("retry_after_s")
    if isinstance(retry, int | float):
        headers["Retry-After"] = str(max(1, math.ceil(retry)))
    elif status == 409:  # a state that stays: OpenAI's clients try again after a 409
        headers["X-Should-Retry"] = "false"
    return _json(status, error_body(status, error.message, error.code), headers)


def rendered(shape: Shape, answer: Answer) -> tuple[str, bytes, str]:
    """Returns the media type and the bytes of an answer, and their digest; the same each time. Pure."""
    kind, data = "application/json", answer.body
    if answer.status == 200 and shape.stream:
        whole = msgspec.json.decode(answer.body)
        kind, data = "text/event-stream", events.render(shape.call, whole, usage=shape.usage)
    return kind, data, hashlib.sha256(data).hexdigest()


def _json(status: int, value: Any, headers: dict[str, str] | None = None) -> web.Response:
    body = msgspec.json.encode(value)
    return web.Response(status=status, body=body, content_type="application/json", headers=headers)


def _described(model: str) -> dict[str, Any]:
    return {"id": model, "object": "model", "created": 0, "owned_by": "skerry"}


async def _read(request: web.Request) -> bytes:
    """Returns the body; InvalidRequest beyond BODY_BYTES_MAX, whatever the application allows."""
    data = bytearray()
    async for piece in request.content.iter_any():
        data += piece
        if len(data) > BODY_BYTES_MAX:
            raise InvalidRequest(f"the body has more than {BODY_BYTES_MAX} bytes")
    return bytes(data)


def _relay(request: web.Request) -> str:
    return _checked(request.headers.get(REQUEST, ""))


def _checked(relay: str) -> str:
    if _RELAY.fullmatch(relay) is None:
        raise InvalidRequest(f"{relay[:40]!r} is not how a node names a request")
    return relay


def _listed(request: web.Request, header: str) -> list[str]:
    """Returns the relays that a header lists, perhaps with a mark behind each."""
    found = [word.strip() for word in request.headers.get(header, "").split(",")]
    found = [word for word in found if word]
    if len(found) > RELAYS_MAX:
        raise InvalidRequest(f"{header}: at most {RELAYS_MAX}")
    return found


def _handed(request: web.Request) -> tuple[Handed, ...]:
    """Returns what was handed over; `;held` marks what a paused sandbox was given."""
    pairs = map(handed_pair, _listed(request, HANDED))
    return tuple(Handed(relay=_checked(relay), held=held) for relay, held in pairs)


def _retries(request: web.Request) -> bool:
    """Whether the client says that it has tried before; what is no number says nothing."""
    text = request.headers.get(RETRY, "")
    return text.isascii() and text.isdecimal() and len(text) < 10 and int(text) > 0
