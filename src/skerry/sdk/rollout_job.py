"""Rollouts of a job, seen from the trainer: it holds nothing that it could not do without.

    job = await client.jobs.create("step-1000")
    await job.submit(tasks, scaffold=["my-agent"], n=8)
    async for request in job.requests():
        await request.answer(await sample(request.body))
    async for record in job.results():
        ...

The workers of the node own the rollouts. A trainer that was killed attaches by the job's id and goes on
with the same calls: what was submitted is there, what was asked and not answered is asked again.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Sequence
from contextlib import aclosing
from typing import Any, TypeVar

import msgspec

from skerry.errors import InvalidRequest, NotFound
from skerry.sdk.transport import Transport
from skerry.sdk.typed import typed
from skerry.spec.rollout import Line, RolloutRecord
from skerry.spec.task import TaskSpec
from skerry.spec.worker import (
    AnswerBody,
    AnswerUrl,
    JobStatus,
    LogPage,
    ModelRequest,
    ModelSettings,
    RequestPage,
    ResultPage,
    RolloutStatus,
    Scaffold,
    Signal,
    Submit,
    Taken,
)

T = TypeVar("T")
POLL_S = 20.0  # of one long poll
RENEW_S = 8.0  # what is held is renewed while nothing is asked for: well within the lease
AT_ONCE = 32  # requests that are held beside those that were yielded
PAGE = 500
SIGNAL_S = 0.25  # between two looks at several workers


class AsyncModelRequest:
    """One request of an agent to its model. The first answer that is recorded is the one it gets."""

    def __init__(self, job: RolloutJob, asked: ModelRequest) -> None:
        self._job = job
        self.asked = asked
        self.id = asked.id
        self.body = asked.body
        self.endpoint = asked.endpoint
        self.rollout = asked.rollout
        self.task = asked.task

    def __repr__(self) -> str:
        return f"<ModelRequest {self.id} of {self.asked.job}>"

    async def answer(self, answer: Any) -> Taken:
        """Records the answer: a text, a message (`content`, `tool_calls`), a whole object, or an error.

        With a whole object token ids, log-probabilities and all else reach the agent as they are. An
        error is {"error": TEXT, "status": 429}. The same answer again is fine; `needed` is false if
        the attempt that asked was given up. Raises Conflict if another answer is on record.
        """
        return await self._job.answer(self.id, answer)


class RolloutJob:
    """What a job can do with rollouts. Needs `_transport` and `id` of the class that it is part of."""

    _transport: Transport
    _workers: int | None = None  # that have a share, once it is known
    id: str

    async def submit(
        self,
        tasks: Sequence[TaskSpec],
        policy: str | Sequence[str] = (),
        *,
        scaffold: Scaffold | Sequence[str] | None = None,
        model: ModelSettings | None = None,
        n: int = 1,
        concurrency: int = 4,
        answers: AnswerUrl | None = None,
        pause_after: float = 60.0,
    ) -> list[JobStatus]:
        """Gives the job's rollouts to the workers: `n` of each task and each of those who act.

        Those are policies by name (gold, noop, cheat), the command `scaffold`, and the bash-tool agent
        with `model`. `concurrency` is for all workers together. Requests for a model come to
        `requests`, or are put to the server `answers`. A sandbox whose request has waited for
        `pause_after` seconds is paused. The same again changes nothing; Conflict for something else.
        """
        if scaffold is not None and not isinstance(scaffold, Scaffold):
            scaffold = Scaffold(argv=tuple(scaffold))
        count = await self._count()
        given = Submit(
            job=self.id,
            tasks=tuple(tasks),
            policies=(policy,) if isinstance(policy, str) else tuple(policy),
            scaffold=scaffold,
            model=model,
            n=n,
            concurrency=max(1, concurrency // count),
            answers=answers,
            pause_after_s=pause_after,
        )
        typed(given).check()
        count = min(count, given.total)
        shares = [msgspec.structs.replace(given, share=(one, count)) for one in range(count)]
        made = [
            await self._call(one, "POST", "", JobStatus, body=share)
            for one, share in enumerate(shares)
        ]
        self._workers = count
        return made

    async def rollouts(self) -> AsyncIterator[RolloutStatus]:
        """Yields each rollout as it stands, those of one worker after those of another."""
        for worker in range(await self._shares()):
            first: int | None = 0
            while first is not None:
                query = f"?from={first}&limit={PAGE}"
                status = await self._call(worker, "GET", query, JobStatus)
                for one in status.page:
                    yield one
                first = status.next

    async def status(self) -> list[JobStatus]:
        """Returns how each worker's share stands; NotFound if nothing was submitted."""
        return [
            await self._call(worker, "GET", "", JobStatus) for worker in range(await self._shares())
        ]

    async def requests(self, consumer: str | None = None) -> AsyncIterator[AsyncModelRequest]:
        """Yields the agents' requests as they come, until none will ever come again.

        What earlier consumers held and did not answer comes again: they are taken to be gone. Trainers
        that work side by side use `shared_requests`. Several requests may be answered at once. One
        that was yielded is held for as long as the iteration lives.
        """
        async with aclosing(self._requests(consumer, takes_over=True)) as requests:
            async for request in requests:
                yield request

    async def shared_requests(
        self, consumer: str | None = None
    ) -> AsyncIterator[AsyncModelRequest]:
        """Like `requests`, beside other consumers: each request is held by one of them.

        What a consumer holds comes to another one when it has been silent for half a minute.
        """
        async with aclosing(self._requests(consumer, takes_over=False)) as requests:
            async for request in requests:
                yield request

    async def answer(self, request: str, answer: Any) -> Taken:
        """Records the answer to a request by its id; see `AsyncModelRequest.answer`."""
        number = request.partition(".")[0]
        if not number.isdecimal():
            raise InvalidRequest(f"{request[:80]!r} names no request: NUMBER.ATTEMPT.ORDINAL")
        worker = int(number) % await self._shares()
        path = f"/requests/{request}/answer"
        return await self._call(worker, "POST", path, Taken, body=AnswerBody(answer))

    async def results(self) -> AsyncIterator[RolloutRecord]:
        """Yields rollouts as they end, from the first on, until all have.

        Raises InvalidRequest if the rest never will: the environments cannot be made.
        """

        async def pages(
            worker: int, put: Callable[[RolloutRecord], Coroutine[Any, Any, None]]
        ) -> None:
            first, ended = 0, False
            while not ended:
                query = f"/results?from={first}&limit={PAGE}&wait={POLL_S:g}"
                page = await self._call(worker, "GET", query, ResultPage)
                for record in page.records:
                    await put(record)
                first, ended = page.next, page.ended

        async with aclosing(_merged(await self._shares(), pages)) as records:
            async for record in records:
                yield record
        for status in await self.status():
            if status.failure and not status.ended:
                raise InvalidRequest(f"the job cannot go on: {status.failure}")

    async def lines(self) -> AsyncIterator[Line]:
        """Yields what happens, from the first line on, until all has ended: one record a worker."""

        async def pages(worker: int, put: Callable[[Line], Coroutine[Any, Any, None]]) -> None:
            first, ended = 0, False
            while not ended:
                query = f"/events?from={first}&limit={PAGE}&wait={POLL_S:g}"
                page = await self._call(worker, "GET", query, LogPage)
                for line in page.lines:
                    await put(line)
                first, ended = page.next, page.ended

        async with aclosing(_merged(await self._shares(), pages)) as lines:
            async for line in lines:
                yield line

    async def blob(self, digest: str) -> bytes:
        """Returns a long output or a submission that a line names by its sha256; NotFound."""
        for worker in range(await self._shares()):
            with contextlib.suppress(NotFound):
                path = f"{self._root(worker)}/blobs/{digest}"
                async with aclosing(self._transport.receive("GET", path)) as chunks:
                    return b"".join([chunk async for chunk in chunks])
        raise NotFound(f"the job has no blob {digest[:80]!r}")

    async def signal(self, *, version: int = 0, wait: float = 0.0) -> Signal:
        """Returns whether there is work for the model, and when there will be.

        With the version of the last signal it waits for up to `wait` seconds until that changes.
        """
        workers = range(await self._shares())
        if len(workers) == 1:
            return await self._signal(0, version, wait)
        until = asyncio.get_running_loop().time() + wait
        while True:
            whole = combined([await self._signal(worker, 0, 0.0) for worker in workers])
            left = until - asyncio.get_running_loop().time()
            if whole.version != version or left <= 0:
                return whole
            await asyncio.sleep(min(SIGNAL_S, left))

    async def _signal(self, worker: int, version: int, wait: float) -> Signal:
        query = f"/signal?version={version}&wait={max(0.0, wait):.3f}"
        return await self._call(worker, "GET", query, Signal)

    async def forget(self) -> None:
        """Ends the rollouts and what they have; the workers forget them. Idempotent."""
        for worker in await self._used():
            await self._transport.call("DELETE", self._root(worker), repeatable=True)
        self._workers = None

    # --- inside ----------------------------------------------------------------------------------

    async def _requests(
        self, consumer: str | None, *, takes_over: bool
    ) -> AsyncGenerator[AsyncModelRequest]:
        name = consumer or secrets.token_hex(8)
        yielded: set[str] = set()

        async def pages(
            worker: int, put: Callable[[ModelRequest], Coroutine[Any, Any, None]]
        ) -> None:
            if takes_over:
                await self._call(worker, "POST", f"/attach?consumer={name}", None)
            got = 0
            while True:
                query = f"/requests?consumer={name}&max={AT_ONCE}&wait={POLL_S:g}&got={got}"
                page = await self._call(worker, "GET", query, RequestPage)
                got = page.turn
                for asked in page.requests:
                    if asked.id not in yielded:  # else the worker was killed, and told of it again
                        yielded.add(asked.id)
                        await self._renewing(worker, name, put(asked))
                if page.ended:
                    return

        async with aclosing(_merged(await self._shares(), pages, room=AT_ONCE)) as asked:
            async for one in asked:
                yield AsyncModelRequest(self, one)

    async def _renewing(self, worker: int, name: str, work: Coroutine[Any, Any, None]) -> None:
        """Does work that may take long, and says meanwhile that this consumer is there."""
        task = asyncio.ensure_future(work)
        try:
            while not (await asyncio.wait({task}, timeout=RENEW_S))[0]:
                query = f"/requests?consumer={name}&max=0&wait=0"
                await self._call(worker, "GET", query, RequestPage)
            await task
        finally:
            task.cancel()

    def _root(self, worker: int) -> str:
        return f"/v1/workers/{worker}/jobs/{self.id}"

    async def _call(
        self, worker: int, method: str, path: str, answer: type[T] | None, *, body: Any = None
    ) -> T:
        root = self._root(worker)
        target = root.rpartition("/")[0] if isinstance(body, Submit) else root + path
        found: Any = await self._transport.call(method, target, answer, body=body, repeatable=True)
        result: T = found
        return result

    async def _count(self) -> int:
        """Returns how many workers the node has."""
        found = await self._transport.call("GET", "/v1/workers", list[Any], repeatable=True)
        if not found:
            raise InvalidRequest("the node has no workers")
        return len(found)

    async def _used(self) -> list[int]:
        """Returns the workers that may know the job: those that ever ran."""
        found = await self._transport.call("GET", "/v1/workers", list[dict[str, Any]])
        return [one["worker"] for one in found if one.get("state") != "unused"]

    async def _shares(self) -> int:
        """Returns over how many workers the job was spread when it was submitted."""
        if self._workers is None:
            self._workers = (await self._call(0, "GET", "", JobStatus)).share[1]
        return self._workers


def combined(signals: Sequence[Signal]) -> Signal:
    """Returns the signal of a job of which several workers have shares."""
    expected = [one.next_request_s for one in signals if one.next_request_s is not None]
    return Signal(
        version=sum(one.version for one in signals),
        waiting=sum(one.waiting for one in signals),
        leased=sum(one.leased for one in signals),
        oldest_s=max(one.oldest_s for one in signals),
        sandboxes_busy=sum(one.sandboxes_busy for one in signals),
        verifying=sum(one.verifying for one in signals),
        rollouts_waiting=sum(one.rollouts_waiting for one in signals),
        rollouts_running=sum(one.rollouts_running for one in signals),
        rollouts_ended=sum(one.rollouts_ended for one in signals),
        next_request_s=min(expected, default=None),
    )


async def _merged(
    count: int,
    pages: Callable[[int, Callable[[T], Coroutine[Any, Any, None]]], Coroutine[Any, Any, None]],
    *,
    room: int = PAGE,
) -> AsyncGenerator[T]:
    """Yields what the pages of all workers put, as it comes, and raises what one of them raises."""
    queue: asyncio.Queue[T] = asyncio.Queue(room)
    work = [asyncio.ensure_future(pages(worker, queue.put)) for worker in range(count)]
    try:
        while True:
            getting = asyncio.ensure_future(queue.get())
            try:
                await asyncio.wait({getting, *work}, return_when=asyncio.FIRST_COMPLETED)
                while not getting.done() and not all(one.done() for one in work):
                    _raise_first(work)
                    left = {one for one in work if not one.done()}
                    await asyncio.wait({getting, *left}, return_when=asyncio.FIRST_COMPLETED)
                if not getting.done():
                    _raise_first(work)
                    return
                yield getting.result()
            finally:
                getting.cancel()
    finally:
        for one in work:
            one.cancel()
        await asyncio.gather(*work, return_exceptions=True)


def _raise_first(work: Sequence[asyncio.Future[None]]) -> None:
    for one in work:
        if one.done() and (error := one.exception()) is not None:
            raise error


class AsyncRolloutJob(RolloutJob):
    """The rollouts of a job at a single worker that is reached without a node, through its socket."""

    def __init__(self, transport: Transport, job: str) -> None:
        self._transport = transport
        self.id = job

    def _root(self, worker: int) -> str:
        del worker
        return f"/jobs/{self.id}"

    async def _count(self) -> int:
        return 1

    async def _used(self) -> list[int]:
        return [0]
