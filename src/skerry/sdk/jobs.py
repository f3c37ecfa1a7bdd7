"""Jobs: sandboxes that outlive the process that made them, as long as somebody comes back for them.

job = await client.jobs.create("train-7b")
async with job:                            # renews the job's lease
    sandbox = await job.sandboxes.create(image="debian:12")
...
job = await client.jobs.attach("train-7b")  # another process, which knows only the name
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

import msgspec
from msgspec import UNSET, UnsetType

from skerry.errors import InvalidRequest, SkerryError, Unavailable
from skerry.sdk.heart import Heart
from skerry.sdk.images import AsyncImages
from skerry.sdk.loss import RECONNECT_FOR_S
from skerry.sdk.rollout_job import RolloutJob
from skerry.sdk.running import CANCEL_WITHIN_S
from skerry.sdk.sandboxes import AsyncSandboxes
from skerry.sdk.stream import frames_of
from skerry.sdk.transport import RETRY_MAX_S, Transport
from skerry.sdk.typed import typed, wrong_type
from skerry.spec.job import JobInfo, JobSpec, OnLost, Resume
from skerry.wire.jobs import JobChange, JobMoved, JobQueue, JobStep

OnProgress = Callable[[JobStep], None]

_decode = msgspec.msgpack.Decoder(JobStep).decode


class AsyncJobs:
    """The jobs of a node."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def create(
        self,
        name: str,
        *,
        lease: float = 60.0,
        on_lost: str = "pause",
        grace: float = 30.0,
        resume: str = "lazy",
        priority: int = 0,
        sandboxes_max: int | None = None,
        ttl: float | None = None,
        labels: dict[str, str] | None = None,
    ) -> AsyncJob:
        """Returns the job of that name, made if it is not there; a repeat must ask for the same.

        Its lease runs from here on: enter the job, or call `heartbeat`, within `lease` seconds. When
        that and `grace` have passed, its sandboxes are paused ("pause"), stopped with the job ("stop"),
        or left as they are ("keep"). When the trainer is back, what was paused goes on: "lazy": where
        commands are under way at once, elsewhere with the next request; "all": at once. Of one
        token's jobs whose creates wait a higher `priority` (-10 to 10) is first; `sandboxes_max` may
        live at once. After `ttl` seconds all of it is stopped, whatever happens.

        Raises InvalidRequest, Conflict (another job has that name, or it has ended), Overloaded.
        """
        for word, kind in ((on_lost, OnLost), (resume, Resume)):
            if word not in kind.__members__.values():
                raise InvalidRequest(f"{word!r} is none of {', '.join(kind)}")
        spec = typed(
            JobSpec(
                id=name,
                lease_s=lease,
                on_lost=OnLost(on_lost),
                grace_s=grace,
                resume=Resume(resume),
                priority=priority,
                sandboxes_max=sandboxes_max,
                ttl_s=ttl,
                labels=labels or {},
            )
        ).check()
        info = await self._transport.call("POST", "/v1/jobs", JobInfo, body=spec, repeatable=True)
        return AsyncJob(self._transport, info)

    async def attach(self, name: str) -> AsyncJob:
        """Returns the job as its trainer: that is a heartbeat, and what its loss has paused goes on.

        Raises NotFound, Conflict if it has ended.
        """
        job = await self.get(name)
        await job.heartbeat()
        return job

    async def get(self, name: str) -> AsyncJob:
        """Returns a handle on a job, which changes nothing for it; NotFound."""
        JobSpec(id=name).check()
        info = await self._transport.call("GET", f"/v1/jobs/{name}", JobInfo, repeatable=True)
        return AsyncJob(self._transport, info)

    async def list(
        self,
        *,
        labels: dict[str, str] | None = None,
        ended: bool = False,
    ) -> list[JobInfo]:
        """Returns what is known of the jobs with these labels, oldest first; ended ones on request."""
        params = [("label", f"{name}={value}") for name, value in (labels or {}).items()]
        if ended:
            params.append(("all", "1"))
        return await self._transport.call(
            "GET", "/v1/jobs", list[JobInfo], repeatable=True, params=params
        )


class AsyncJob(RolloutJob):
    """A job. Within `async with job` its lease is renewed, from a thread of its own.

    Leaving the block ends nothing: the lease runs out, and then happens what the job was made for.
    `end` ends it. `sandboxes` makes and lists those of the job.
    """

    def __init__(self, transport: Transport, info: JobInfo) -> None:
        self._transport = transport
        self._heart: Heart | None = None
        self.id = info.id
        self.spec = info.spec
        self.created_as = info
        self.sandboxes = AsyncSandboxes(transport, info.id)
        self.images = AsyncImages(transport, self.sandboxes)  # what is built, is in the job's

    async def __aenter__(self) -> AsyncJob:
        if self._heart is not None:
            raise RuntimeError(f"job {self.id} is entered already")
        await self.heartbeat()
        self._heart = Heart(self._transport.another, self.id, self.spec.lease_s)
        self._heart.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._heart is not None:
            await self._heart.stop()
            self._heart = None

    def __repr__(self) -> str:
        return f"<Job {self.id}>"

    @property
    def lost(self) -> SkerryError | None:
        """Why heartbeats have stopped within the block: the job has ended, or was removed."""
        return None if self._heart is None else self._heart.lost

    async def heartbeat(self) -> JobInfo:
        """Renews the lease; what its loss has paused goes on. Raises NotFound, Conflict if it ended."""
        return await self._ask("POST", "/heartbeat")

    async def info(self) -> JobInfo:
        """Returns how it stands."""
        return await self._ask("GET", "")

    async def update(
        self,
        *,
        lease: float | UnsetType = UNSET,
        grace: float | UnsetType = UNSET,
        on_lost: str | UnsetType = UNSET,
        resume: str | UnsetType = UNSET,
        priority: int | UnsetType = UNSET,
        sandboxes_max: int | UnsetType | None = UNSET,
        ttl: float | UnsetType | None = UNSET,
        labels: dict[str, str | None] | None = None,
    ) -> JobInfo:
        """Changes what is given; the rest stays. `ttl` counts from now; None takes a limit away.

        Of `labels` only those named change; None removes one. It is no heartbeat. Raises
        InvalidRequest, Conflict if the job has ended.
        """
        body = {
            "lease_s": lease,
            "grace_s": grace,
            "on_lost": on_lost,
            "resume": resume,
            "priority": priority,
            "sandboxes_max": sandboxes_max,
            "ttl_s": ttl,
        }
        given = {name: value for name, value in body.items() if value is not UNSET}
        try:
            change = msgspec.convert({**given, "labels": labels or {}}, JobChange)
        except msgspec.ValidationError as error:
            raise wrong_type(error) from None
        return await self._transport.call(
            "PATCH", f"/v1/jobs/{self.id}", JobInfo, body=change, repeatable=True
        )

    async def queue(self) -> JobQueue:
        """Returns which of its creates wait for room, in which place, and for how long about."""
        return await self._transport.call(
            "GET", f"/v1/jobs/{self.id}/queue", JobQueue, repeatable=True
        )

    async def pause(self, on_progress: OnProgress | None = None) -> JobMoved:
        """Pauses all its sandboxes; returns when each of them stands still or could not.

        Those are named in `failed`, and run on. The longest idle is first; creates wait from the
        beginning on, until `resume`. `on_progress` is told of each one. A lost connection or a
        restart of the node ends nothing and is waited for; cancelled, it stops where it is.
        """
        return await self._move("pause", on_progress)

    async def resume(self, on_progress: OnProgress | None = None) -> JobMoved:
        """Resumes what `pause` or the loss of the lease has paused, as `pause` does the reverse.

        Those in which commands are under way are first, then the last used.
        """
        return await self._move("resume", on_progress)

    async def end(self) -> JobInfo:
        """Ends its rollouts and sandboxes and forgets it; its name is free then. Idempotent."""
        await self.__aexit__()
        await self.forget()
        return await self._ask("DELETE", "")

    async def _ask(self, method: str, below: str) -> JobInfo:
        return await self._transport.call(
            method, f"/v1/jobs/{self.id}{below}", JobInfo, repeatable=True
        )

    async def _move(self, word: str, on_progress: OnProgress | None) -> JobMoved:
        path = f"/v1/jobs/{self.id}/{word}"
        loop = asyncio.get_running_loop()
        give_up = loop.time() + RECONNECT_FOR_S
        try:
            while True:
                try:
                    async with aclosing(self._steps(path)) as steps:
                        async for step in steps:
                            give_up = loop.time() + RECONNECT_FOR_S
                            if on_progress is not None:
                                on_progress(step)
                            if step.end is not None:
                                return step.end
                except Unavailable:
                    if loop.time() + RETRY_MAX_S > give_up:
                        raise
                    await asyncio.sleep(RETRY_MAX_S / 4)
        except asyncio.CancelledError:
            await self._transport.debts.say(lambda: self._stop_quietly(path))
            raise

    async def _stop_quietly(self, path: str) -> None:
        with contextlib.suppress(SkerryError, TimeoutError):
            async with asyncio.timeout(CANCEL_WITHIN_S):
                await self._transport.call("DELETE", path, JobInfo, repeatable=True)

    async def _steps(self, path: str) -> AsyncGenerator[JobStep, None]:
        chunks = self._transport.receive("POST", path)
        async with aclosing(chunks), aclosing(frames_of(chunks)) as frames:
            async for frame in frames:
                yield _decode(frame)
        raise Unavailable("the stream broke off")
