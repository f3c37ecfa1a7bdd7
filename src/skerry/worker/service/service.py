"""A worker: its jobs, and the tasks that carry them on (`docs/guide/worker.md`)."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from skerry.errors import Conflict, NotFound, SkerryError
from skerry.spec.worker import (
    LogPage,
    ResultPage,
    Signal,
    Submit,
)
from skerry.worker.aside import Aside
from skerry.worker.downloads import Downloads
from skerry.worker.model.handler import ModelHandler
from skerry.worker.ports import Client
from skerry.worker.service import views
from skerry.worker.service.book import Book, Sheet
from skerry.worker.service.delivery import Delivery
from skerry.worker.service.desk import Desk
from skerry.worker.service.lines import Lines
from skerry.worker.service.runner import Runner, policies_of
from skerry.worker.service.source import JobSource

log = logging.getLogger("skerry.worker")
JOBS_MAX = 10_000
LOOK_S = 0.5  # between two looks at all lines
LOOK_AT_JOBS_S = 2.0
TURNS_AT_ONCE = 16  # sandboxes that are paused or resumed
LEAVE_AGAIN_S = 5.0


class Service:
    """Owns the book. `running` carries everything on; what is asked of it is in the book at once.

    Invariant: each job that is not leaving has a runner and one task that runs it.
    """

    def __init__(
        self,
        state: Path,
        client: Client,
        downloads: Downloads,
        *,
        worker: int = 0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._client = client
        self._downloads = downloads
        self._worker = worker
        self._clock = clock
        self.book = Book.open(state, now_ns=time.time_ns)
        self.aside = Aside()
        self.lines = Lines(self._forget_line, self.aside)
        self.model = ModelHandler(self.lines, self.aside, now=clock)
        self.desk = Desk(self.runner, self.aside, clock)
        self._runners: dict[str, Runner] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._group: asyncio.TaskGroup | None = None
        self._turns = asyncio.Semaphore(TURNS_AT_ONCE)
        for name, one in self.book.jobs.items():
            if not one.leaving:
                self._runners[name] = self._runner(name)

    def _forget_line(self, line: str) -> None:
        self.model.forget(line)

    def _runner(self, job: str) -> Runner:
        return Runner(
            self.book.jobs[job],
            self._client,
            self._downloads,
            self.lines,
            worker=self._worker,
            clock=self._clock,
        )

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Service]:
        """Carries all jobs on for a block. At its end everything stays as it is."""
        try:
            async with asyncio.TaskGroup() as group:
                self._group = group
                looking = [group.create_task(one) for one in (self._look(), self._look_at_jobs())]
                for name in self.book.jobs:
                    self._go_on(name)
                try:
                    yield self
                finally:
                    self._group = None
                    for task in [*looking, *self._tasks.values()]:
                        task.cancel()
        finally:
            await self.aside.close()
            for runner in self._runners.values():
                runner.close()
            self.book.close()

    def _go_on(self, job: str) -> None:
        assert self._group is not None  # noqa: S101
        work = self._leave(job) if self.book.jobs[job].leaving else self._carry(self._runners[job])
        self._tasks[job] = self._group.create_task(work)

    async def _carry(self, runner: Runner) -> None:
        """Runs a job; a bug of ours in one costs the others nothing."""
        to = runner.submit.answers
        source = JobSource(self, runner)
        delivering = (
            asyncio.ensure_future(Delivery(to, source, trouble=runner.has_trouble).run())
            if to
            else None
        )
        try:
            await runner.run()
        except Exception as error:
            runner.failure = f"bug: {type(error).__name__}: {error}"
            log.exception("%s cannot go on", runner.submit.job)
            runner.finish()
        finally:
            if delivering is not None:
                delivering.cancel()
                await asyncio.gather(delivering, return_exceptions=True)

    async def _look(self) -> None:
        """Pauses, resumes and takes back what it is time for."""
        while True:
            await asyncio.sleep(LOOK_S)
            for runner in self._runners.values():
                runner.requests.expire()
            for line in self.lines.all():
                line.expire()
            due = [line for line in self.lines.all() if line.is_due()]
            if due:
                await asyncio.gather(*(self._turn(line) for line in due))

    async def _look_at_jobs(self) -> None:
        """Asks the node how the jobs stand."""
        while True:
            for runner in list(self._runners.values()):
                if not runner.over:
                    await runner.look()
            await asyncio.sleep(LOOK_AT_JOBS_S)

    async def _turn(self, line: Any) -> None:
        async with self._turns:
            await line.look()

    # --- jobs ------------------------------------------------------------------------------------

    def runner(self, job: str) -> Runner:
        """Returns a job's runner; NotFound."""
        found = self._runners.get(job)
        if found is None:
            raise NotFound(f"this worker has no job {job[:80]!r}")
        return found

    def jobs_of(self, tenant: str) -> list[str]:
        """Returns a tenant's jobs, oldest first; "" sees all."""
        return [
            name
            for name, runner in self._runners.items()
            if tenant in ("", runner.book.sheet.tenant)
        ]

    def seen(self, job: str, tenant: str) -> str:
        """Returns the job if the tenant may see it; NotFound."""
        known = self.book.jobs.get(job)
        if known is None or tenant not in ("", known.sheet.tenant):
            raise NotFound(f"this worker has no job {job[:80]!r}")
        return job

    def submit(self, submit: Submit, tenant: str = "") -> Runner:
        """Takes a job; it is on record and runs when this returns. The same one again changes nothing.

        Raises InvalidRequest, Conflict (another job has the id, or the job is being deleted),
        StorageFailed.
        """
        submit.check()
        policies_of(submit)
        known = self.book.jobs.get(submit.job)
        if known is not None:
            same = known.sheet.submit == submit and known.sheet.tenant == tenant
            if known.leaving or not same:
                why = "is being deleted" if known.leaving else "was submitted as something else"
                raise Conflict(f"the job {submit.job!r} {why}")
            return self._runners[submit.job]
        if len(self.book.jobs) >= JOBS_MAX:
            raise Conflict(f"a worker has at most {JOBS_MAX} jobs: delete old ones")
        sheet = Sheet(
            submit=submit, created=self._clock(), secret=secrets.token_bytes(32), tenant=tenant
        )
        self.book.take(sheet)
        runner = self._runners[submit.job] = self._runner(submit.job)
        self._go_on(submit.job)
        return runner

    async def delete(self, job: str) -> None:
        """Ends a job: its sandboxes are destroyed, and the worker forgets it. Idempotent."""
        one = self.book.jobs.get(job)
        if one is None:
            return
        if not one.leaving:
            assert self._group is not None  # noqa: S101
            one.leave()
            # Whoever asked for it may leave at any moment: nothing of it is done by this task.
            ending = self._end(self._runners.pop(job), self._tasks[job])
            self._tasks[job] = self._group.create_task(ending)
        await asyncio.shield(self._tasks[job])

    async def _end(self, runner: Runner, task: asyncio.Task[None]) -> None:
        """Stops what carries a job on, then forgets it."""
        try:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            for number in list(runner.lines):
                runner.drop_line(number)
            runner.finish()
        finally:
            runner.close()
        await self._leave(runner.submit.job)

    async def _leave(self, job: str) -> None:
        """Destroys what a job has and forgets it, however long the node is away."""
        while True:
            try:
                for info in await self._client.sandboxes.list(labels={"job": job}):
                    key = info.spec.key or ""
                    if key.startswith(f"rollout/{job}-"):
                        await (await self._client.sandboxes.get(info.id)).destroy()
                self.book.forget(job)
                return
            except NotFound:
                continue  # gone by itself meanwhile
            except SkerryError as error:
                log.warning("%s cannot be deleted yet: %s", job, error.message)
                await asyncio.sleep(LEAVE_AGAIN_S)
            except Exception:
                log.exception("%s cannot be deleted", job)
                await asyncio.sleep(LEAVE_AGAIN_S)

    # --- the trainer -----------------------------------------------------------------------------

    def attach(self, job: str, consumer: str) -> None:
        """What other consumers hold waits again: they are taken to be gone."""
        self.runner(job).requests.let_go(but=consumer)

    async def log_page(self, job: str, first: int, limit: int, wait_s: float) -> LogPage:
        """Returns lines of the job's record, after waiting for the first of them."""
        runner = self.runner(job)
        until = time.monotonic() + wait_s
        while True:
            seen = runner.pulse.version
            page = views.log_page(runner, first, limit)
            left = until - time.monotonic()
            if page.lines or page.ended or left <= 0:
                return page
            await runner.pulse.wait(seen, left)
            self.runner(job)

    async def results(self, job: str, first: int, limit: int, wait_s: float) -> ResultPage:
        """Returns ended rollouts, after waiting for the first of them."""
        runner = self.runner(job)
        until = time.monotonic() + wait_s
        while True:
            seen = runner.pulse.version
            page = views.results(runner, first, limit)
            left = until - time.monotonic()
            if page.records or page.ended or left <= 0:
                return page
            await runner.pulse.wait(seen, left)
            self.runner(job)

    async def signal(self, job: str, version: int, wait_s: float) -> Signal:
        """Returns the job's signal, after waiting until it has another version."""
        runner = self.runner(job)
        await runner.pulse.wait(version, wait_s)
        return views.signal(runner, self._clock())
