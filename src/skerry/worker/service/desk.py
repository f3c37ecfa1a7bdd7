"""Where a trainer takes model requests, and gives answers. A long body is read beside the event loop."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import msgspec

from skerry.errors import Conflict, InvalidRequest, NotFound, StorageFailed
from skerry.spec.worker import (
    AnswerBody,
    ModelRequest,
    RequestPage,
    Taken,
    parse_request_id,
    request_id,
    rollout_id,
)
from skerry.worker.aside import BYTES_MAX, Aside
from skerry.worker.memory import Given, NotRecorded
from skerry.worker.model.answers import complete
from skerry.worker.model.book import Answer, Asked
from skerry.worker.service.remembered import Remembered
from skerry.worker.service.requests import Name
from skerry.worker.service.runner import Runner

PAGE_BYTES_MAX = 16 << 20  # of the bodies in one page of requests; the first is always in it


class Desk:
    """Of a worker. `runner_of` returns a job's runner, or raises NotFound."""

    def __init__(
        self, runner_of: Callable[[str], Runner], aside: Aside, clock: Callable[[], float]
    ) -> None:
        self._runner_of = runner_of
        self._aside = aside
        self._clock = clock

    async def poll(
        self,
        job: str,
        consumer: str,
        most: int,
        wait_s: float,
        got: int | None = None,
        *,
        packed: bool = False,
    ) -> RequestPage:
        """Returns requests, leased to the consumer; see `Requests.poll`.

        Long bodies stand in them as they are sent, which is `packed` as msgpack, or JSON.
        """
        runner = self._runner_of(job)
        taken = await runner.requests.poll(consumer, most, wait_s, got)
        found: list[ModelRequest] = []
        size = 0
        for place, (name, waiting) in enumerate(taken):
            asked = self.asked(runner, name)
            if asked is None:  # its rollout went on meanwhile
                runner.requests.remove(name)
                continue
            size += len(asked.body)
            if found and size > PAGE_BYTES_MAX:
                for rest, _ in taken[place:]:
                    runner.requests.give_back(rest)
                break
            body = await self._aside.call(len(asked.body), as_sent, asked.body, packed)
            found.append(self._told(runner, name, asked, waiting.deliveries, body))
        turn = runner.requests.turn(consumer) if taken else got or 0
        return RequestPage(tuple(found), ended=runner.over, turn=turn)

    def asked(self, runner: Runner, name: Name) -> Asked | None:
        """Returns a request as it came; None if nobody waits for its answer any more."""
        memory = runner.book.open.get(name.number)
        if memory is None or memory.attempt != name.attempt or name.ordinal not in memory.open:
            return None
        return memory.request(name.ordinal)

    def _told(
        self, runner: Runner, name: Name, asked: Asked, deliveries: int, body: Any
    ) -> ModelRequest:
        job = runner.submit.job
        return ModelRequest(
            id=request_id(*name),
            job=job,
            rollout=rollout_id(job, name.number),
            number=name.number,
            attempt=name.attempt,
            ordinal=name.ordinal,
            task=runner.submit.tasks[runner.task_of(name.number)].id,
            policy=runner.policy_of(name.number).name,
            endpoint=str(asked.call),
            body=body,
            digest=asked.digest,
            asked=asked.at,
            deliveries=deliveries,
        )

    async def answer(self, job: str, request: str, given: Any) -> Taken:
        """Records an answer and lets the agent have it; the first one wins.

        Raises InvalidRequest for what is no answer, NotFound for what was never asked, Conflict if
        another answer is on record, StorageFailed.
        """
        return await self._answer(job, request, 0, complete, given)

    async def answer_as_sent(
        self, job: str, request: str, body: bytes, *, packed: bool = False
    ) -> Taken:
        """Does the same with an `AnswerBody` as it was sent, which is `packed` as msgpack, or JSON.

        A long one is read beside the event loop.
        """
        taken = await self._answer(job, request, len(body), complete_as_sent, body, packed)
        if not taken.needed:  # what is none is refused all the same
            await self._aside.call(len(body), answer_of, body, packed)
        return taken

    async def _answer(
        self, job: str, request: str, size: int, work: Callable[..., Answer], *words: Any
    ) -> Taken:
        runner = self._runner_of(job)
        name = Name(*parse_request_id(request))
        known = self._owed(runner, name)
        if known is not None:
            asked = known.request(name.ordinal)
            whole = await self._aside.call(max(size, len(asked.body)), work, asked, *words)
            known = self._owed(runner, name)  # it may have changed meanwhile
        if known is None:
            return Taken(id=request, first=False, needed=False)
        return self._given(runner, known, name, whole)

    def _owed(self, runner: Runner, name: Name) -> Remembered | None:
        """Returns the memory of a request's attempt; None if that is over. NotFound."""
        memory = runner.book.open.get(name.number)
        if memory is None or memory.attempt > name.attempt or memory.acted is not None:
            if name.number not in runner.submit.numbers():
                raise NotFound(f"there is no request {request_id(*name)}")
            return None
        if memory.attempt < name.attempt or name.ordinal >= memory.asked:
            raise NotFound(f"there is no request {request_id(*name)}")
        return memory

    def _given(self, runner: Runner, memory: Remembered, name: Name, whole: Answer) -> Taken:
        """Records an answer, unless there is one; Conflict, StorageFailed."""
        request = request_id(*name)
        digest = hashlib.sha256(f"{whole.status} ".encode() + whole.body).hexdigest()
        known = memory.given.get(name.ordinal)
        if known is not None:
            if known.digest != digest:
                raise Conflict(f"the request {request} has another answer")
            return Taken(id=request, first=False)
        line = runner.lines.get(name.number)
        active_s = line.active_s if line is not None else memory.active_s
        entry = Given(
            ordinal=name.ordinal,
            status=whole.status,
            digest=digest,
            at=self._clock(),
            active_s=active_s,
            body=whole.body,
        )
        try:
            memory.note(entry)
        except NotRecorded as error:
            raise StorageFailed(str(error)) from error
        runner.requests.remove(name)
        if line is not None:
            line.given(name.ordinal)
        runner.answered(name, entry)
        return Taken(id=request, first=True)


def complete_as_sent(asked: Asked, body: bytes, packed: bool) -> Answer:
    """Returns the complete answer that a body gives; InvalidRequest for what is none. Pure."""
    return complete(asked, answer_of(body, packed))


def answer_of(body: bytes, packed: bool) -> Any:
    """Returns what a body gives as an answer; InvalidRequest. Pure."""
    decode: Any = msgspec.msgpack.decode if packed else msgspec.json.decode
    try:
        found: AnswerBody = decode(body, type=AnswerBody)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidRequest(f"the body: {error}") from error
    return found.answer


def as_sent(body: bytes, packed: bool) -> Any:
    """Returns a body as it stands in a page of requests; a long one in the bytes of that page. Pure."""
    if len(body) <= BYTES_MAX:
        return msgspec.json.decode(body)
    return msgspec.Raw(msgspec.msgpack.encode(msgspec.json.decode(body)) if packed else body)
