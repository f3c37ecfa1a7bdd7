"""What a sandbox of a rollout sends its requests through: answers from the record come first.

Requests that are operations (calls.py) get an ordinal when they begin, and the id that follows from it.
If the record has an answer, that is given, and nothing is sent. Else the request goes to the sandbox
with that id: one that is under way is joined, and none runs twice. All other requests go through.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Iterator
from contextlib import aclosing
from typing import Any, NamedTuple

import aiohttp
import msgspec

from skerry.errors import InvalidRequest, NotFound, SandboxFailed, Unavailable
from skerry.sdk.repeat import answers, names
from skerry.sdk.repeat.calls import Query, Step, split, step_of
from skerry.sdk.repeat.choices import diverged
from skerry.sdk.repeat.handles import Handles
from skerry.sdk.repeat.line import Chapter, Line, Turn
from skerry.sdk.repeat.notes import Notes
from skerry.sdk.repeat.past import Past
from skerry.sdk.transport import Transport
from skerry.spec.sandbox import SandboxInfo
from skerry.spec.trajectory import Event, Outcome, content_sha256
from skerry.wire.commits import CommitInfo, ForkBody
from skerry.wire.events import EventsBody, EventsTaken
from skerry.wire.http import CommitBody, ErrorBody

_ROOT = "/v1/sandboxes/"


class Asked(NamedTuple):
    """A request about the sandbox; `tail` is what stands behind it in the path."""

    method: str
    tail: str
    query: Query
    body: Any = None
    content: bytes | None = None
    repeatable: bool = False
    accept: str | None = None


class RepeatingTransport(Transport):
    """The requests of one sandbox of a rollout, over the connections of its client."""

    def __init__(self, inner: Transport, past: Past, line: Line) -> None:
        super().__init__(inner.base, socket_path=inner.socket_path)
        self.debts = inner.debts
        self._inner, self._past, self._line = inner, past, line
        self._handles = Handles(past.trajectories)
        self._notes = Notes(self._post)
        self._aliases: dict[str, tuple[str, Chapter]] = {}  # ids that callers gave, while they wait
        self._commits: dict[str, tuple[Chapter, Event]] = {}
        self._names = 0
        self._joining: SandboxInfo | None = None  # of a fork, of which nothing was asked yet
        self._join_turn = asyncio.Lock()

    @property
    def now(self) -> SandboxInfo | None:  # noqa: D102 - Direct says it
        return self._line.last.info if self._line.chapters else None

    @property
    def rebuilt(self) -> bool:  # noqa: D102
        return self._line.marked == "rebuilt"

    @property
    def branched(self) -> bool:  # noqa: D102
        return self._line.marked == "branched"

    def new_name(self) -> str:  # noqa: D102
        self._names += 1
        return names.derived("name", self._past.key, self._line.name, self._names)[:16]

    def member(self, info: SandboxInfo) -> Transport:  # noqa: D102
        key = info.spec.key or info.id
        line = Line(self._past, key, key=key, forked=True)
        found = RepeatingTransport(self._inner, self._past, line)
        found._joining = info
        return found

    def another(self) -> Transport:  # noqa: D102
        return self._inner.another()

    # --- answers in one piece --------------------------------------------------------------------

    async def call(  # noqa: D102
        self,
        method: str,
        path: str,
        answer: Any = None,
        *,
        body: Any = None,
        content: bytes | None = None,
        repeatable: bool = False,
        params: Any = None,
    ) -> Any:
        tail, query = await self._tail(path, params)
        if tail is None:
            if answer is CommitInfo:
                return await self._commit(path, params)
            return await self._inner.call(
                method, path, answer, body=body, repeatable=repeatable, params=params
            )
        asked = Asked(method, tail, query, body, content, repeatable)
        step = step_of(method, tail, query, body)
        if step is None:
            return await self._through(asked, answer)
        turn = await self._line.turn(step, self._line.take())
        if turn.event is not None:
            return await self._recorded(step, turn.event, answer, turn)
        if step.action == "harness.destroy":
            return await self._destroy(step, turn)
        with self._alias(query, turn):
            async with self._notes.told(step, turn):
                return await self._live(step, turn, asked, answer)

    async def _live(self, step: Step, turn: Turn, asked: Asked, answer: Any) -> Any:
        """Asks the sandbox, under the id that follows from the ordinal."""
        body, params = asked.body, asked.query | {"op": turn.op}
        if isinstance(body, CommitBody):
            body, params = msgspec.structs.replace(body, id=turn.op), {}
        elif isinstance(body, ForkBody):
            body = msgspec.structs.replace(body, key=turn.op)
        if step.first:
            await self._notes.mark(step, turn, None)
        found = await self._ask(
            asked._replace(body=body, query={} if step.marked else params, repeatable=True),
            turn.chapter,
            answer,
        )
        if step.marked and not step.first:
            await self._notes.mark(step, turn, found)
        if step.tail == "/ops":
            self._handles.fresh(turn.op)
        return found

    async def _ask(self, asked: Asked, chapter: Chapter, answer: Any) -> Any:
        given = {} if asked.content is None else {"content": asked.content}
        return await self._inner.call(
            asked.method,
            self._at(chapter, asked.tail),
            answer,
            body=asked.body,
            repeatable=asked.repeatable,
            params=asked.query or None,
            **given,
        )

    async def _recorded(self, step: Step, event: Event, answer: Any, turn: Turn) -> Any:
        """Returns the answer that is on record; raises the error that is."""
        if step.tail == "/ops" and event.action != "harness.refused":
            return self._handles.remember(turn.op, event)
        _fail(event)
        if step.tail == "/run":
            return await answers.run_result(event, self._past.trajectories)
        if step.action == "commit":
            self._commits[event.op] = (turn.chapter, event)
            return answers.commit_info(event, turn.chapter.sandbox)
        if step.tail == "/events":
            return EventsTaken(1, event.seq)
        if step.action == "harness.destroy":  # once more: perhaps it only was about to be
            return await self._delete(turn.chapter)
        if step.marked:
            found = None if event.result is None else event.result.get("answer")
        else:
            found = await answers.called(step.action, event, self._past.trajectories)
        return None if answer is None else msgspec.convert(found, answer, builtin_types=(bytes,))

    async def _destroy(self, step: Step, turn: Turn) -> None:
        """On record first: afterwards there is no record to add to."""
        with contextlib.suppress(NotFound, SandboxFailed):
            await self._notes.mark(step, turn, None)
        await self._delete(turn.chapter)

    async def _delete(self, chapter: Chapter) -> None:
        with contextlib.suppress(NotFound):
            await self._ask(Asked("DELETE", "", {}, repeatable=True), chapter, None)

    async def _through(self, asked: Asked, answer: Any) -> Any:
        """What is no operation: looks at the sandbox as it is now, and at its commands."""
        chapter, tail = self._line.last, asked.tail
        if tail.endswith("/cancel") and self._inner.closed:
            raise Unavailable("the client is closed")
        if tail.startswith("/ops/"):
            op, _, what = tail.removeprefix("/ops/").partition("/")
            found = await self._handles.answer(op, what, asked)
            if found is not None:
                return found
            op, chapter = self._aliases.get(op, (op, chapter))
            tail = f"/ops/{op}/{what}".rstrip("/")
        found = await self._ask(asked._replace(tail=tail), chapter, answer)
        return self._handles.seen(tail, asked, found)

    async def _commit(self, path: str, params: Any) -> CommitInfo:
        """Returns how a commit stands; the node may be another one than when it was made."""
        try:
            return await self._inner.call("GET", path, CommitInfo, repeatable=True, params=params)
        except NotFound:
            told = self._commits.get(path.rpartition("/")[2])
            if told is None:
                raise
            chapter, event = told
            known = await self._past.commit(chapter.sandbox, chapter.story, event)
            if known is None:
                raise
            return known

    # --- bodies and answers in pieces ------------------------------------------------------------

    async def send(  # noqa: D102
        self,
        method: str,
        path: str,
        chunks: AsyncIterable[bytes],
        answer: Any,
        params: Any = None,
    ) -> Any:
        tail, query = await self._tail(path, params)
        step = None if tail is None else step_of(method, tail, query, None)
        if step is None or tail is None:
            raise InvalidRequest(f"{method} {path}: a rollout cannot repeat that")
        turn = await self._line.turn(step, self._line.take())
        if turn.event is not None:
            _fail(turn.event)
            again = await self._compare(step, turn, turn.event, chunks)
            if again is None:
                found = await answers.called(step.action, turn.event, self._past.trajectories)
                return msgspec.convert(found, answer, builtin_types=(bytes,))
            turn, chunks = again
        async with self._notes.told(step, turn):
            target = self._at(turn.chapter, tail)
            return await self._inner.send(method, target, chunks, answer, query | {"op": turn.op})

    async def _compare(
        self, step: Step, turn: Turn, event: Event, chunks: AsyncIterable[bytes]
    ) -> tuple[Turn, AsyncIterable[bytes]] | None:
        """Compares what is sent with what is on record: None if it is the same, else where to branch."""
        digest, count, pieces = hashlib.sha256(), 0, list[bytes]()
        branches = self._past.on_divergence == "branch"
        async for piece in chunks:
            digest.update(piece)
            count += len(piece)
            if branches:  # it may have to be sent
                pieces.append(bytes(piece))
        recorded = event.request.get("content")
        sent = {"bytes": count, "blob": digest.hexdigest()}
        if isinstance(recorded, dict) and content_sha256(recorded) == sent["blob"]:
            return None
        asked = (step.action, step.request | {"content": sent})
        error = diverged(turn.chapter.sandbox, turn.ordinal, (event.action, event.request), asked)
        if not branches:
            raise error
        return await self._line.branch(turn.ordinal, error), _each(pieces)

    async def receive(  # noqa: D102
        self,
        method: str,
        path: str,
        *,
        params: Any = None,
        body: Any = None,
        accept: str | None = None,
    ) -> AsyncGenerator[bytes, None]:
        tail, query = await self._tail(path, params)
        if tail is None:
            raise InvalidRequest(f"{method} {path}: a rollout cannot repeat that")
        asked = Asked(method, tail, query, body, accept=accept)
        step = step_of(method, tail, query, body)
        pieces = self._follow(asked) if step is None else self._stream(step, asked)
        async with aclosing(pieces):
            async for piece in pieces:
                yield piece

    async def fetch(self, path: str, params: Any = None) -> AsyncGenerator[bytes, None]:  # noqa: D102
        tail, query = await self._tail(path, params)
        step = None if tail is None else step_of("GET", tail, query, None)
        if tail is None or step is None:
            raise InvalidRequest(f"GET {path}: a rollout cannot repeat that")
        turn = await self._line.turn(step, self._line.take())
        if turn.event is not None:
            _fail(turn.event)
            pieces = answers.streamed(step.action, turn.event, self._past.trajectories)
        else:
            pieces = self._inner.fetch(self._at(turn.chapter, tail), query | {"op": turn.op})
        async with aclosing(pieces):
            async for piece in pieces:
                yield piece

    async def socket(self, path: str, params: Any = None) -> aiohttp.ClientWebSocketResponse:  # noqa: D102
        tail, query = await self._tail(path, params)
        if tail is None or tail == "/attach":
            raise InvalidRequest(
                "a rollout cannot repeat what is typed live: start the command with interactive=True, "
                "and use `send` and `output` of its handle"
            )
        return await self._inner.socket(self._at(self._line.last, tail), query)

    async def _stream(self, step: Step, asked: Asked) -> AsyncGenerator[bytes, None]:
        """The body of an operation's answer."""
        turn = await self._line.turn(step, self._line.take())
        if turn.event is None:
            with self._alias(asked.query, turn):
                async with self._notes.told(step, turn):
                    whole = asked._replace(query=asked.query | {"op": turn.op})
                    pieces = self._received(whole, turn.chapter)
                    async with aclosing(pieces):
                        async for piece in pieces:
                            yield piece
            return
        _fail(turn.event)
        if asked.tail == "/stream":
            result = await answers.run_result(turn.event, self._past.trajectories)
            for frame in answers.output(result):
                yield frame
            return
        async for piece in answers.streamed(step.action, turn.event, self._past.trajectories):
            yield piece

    async def _follow(self, asked: Asked) -> AsyncGenerator[bytes, None]:
        """The output of a command, and what is no operation."""
        chapter, tail = self._line.last, asked.tail
        if tail.startswith("/ops/"):
            op, _, what = tail.removeprefix("/ops/").partition("/")
            result = await self._handles.result(op)
            if result is not None:
                stdout, stderr = (int(asked.query.get(name, "0")) for name in ("stdout", "stderr"))
                for frame in answers.output(result, stdout, stderr):
                    yield frame
                return
            op, chapter = self._aliases.get(op, (op, chapter))
            tail = f"/ops/{op}/{what}"
        pieces = self._received(asked._replace(tail=tail), chapter)
        async with aclosing(pieces):
            async for piece in pieces:
                yield piece

    def _received(self, asked: Asked, chapter: Chapter) -> AsyncGenerator[bytes, None]:
        return self._inner.receive(
            asked.method,
            self._at(chapter, asked.tail),
            params=asked.query or None,
            body=asked.body,
            accept=asked.accept,
        )

    # --- inner parts -----------------------------------------------------------------------------

    async def _tail(self, path: str, params: Any) -> tuple[str | None, Query]:
        """Returns the path behind the sandbox, None if it is about none of this line."""
        if self._joining is not None or self._join_turn.locked():
            async with self._join_turn:  # whether a fork's member is there still is asked now
                if self._joining is not None:
                    await self._line.join(self._joining)
                    self._joining = None
        path, query = split(path, params)
        if not path.startswith(_ROOT):
            return None, query
        sandbox, slash, tail = path.removeprefix(_ROOT).partition("/")
        ours = any(sandbox == chapter.sandbox for chapter in self._line.chapters)
        return (slash + tail, query) if ours else (None, query)

    def _at(self, chapter: Chapter, tail: str) -> str:
        return f"{_ROOT}{chapter.sandbox}{tail}"

    @contextlib.contextmanager
    def _alias(self, query: Query, turn: Turn) -> Iterator[None]:
        """While it is waited for it is known by the id that the caller gave it, too."""
        given = query.get("op", "")
        self._aliases[given] = (turn.op, turn.chapter)
        try:
            yield
        finally:
            self._aliases.pop(given, None)

    async def _post(self, sandbox: str, op: str, body: EventsBody) -> None:
        path = f"{_ROOT}{sandbox}/events"
        params = {"op": op}
        await self._inner.call("POST", path, EventsTaken, body=body, params=params, repeatable=True)


def _fail(event: Event) -> None:
    if event.action == "harness.refused":
        raise msgspec.convert((event.result or {}).get("error"), ErrorBody).to_error()
    if event.outcome is Outcome.ERROR:
        raise answers.error_of(event)


async def _each(pieces: list[bytes]) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece
