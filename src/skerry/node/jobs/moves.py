"""One pause or one resume of all sandboxes of a job: bounded, in order, told as it goes on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Final

from skerry.errors import SkerryError
from skerry.node.clock import Clock
from skerry.node.jobs.job import Job
from skerry.node.life.control import Control
from skerry.node.life.sandbox import ENDED, Sandbox
from skerry.spec.sandbox import State
from skerry.wire.http import ErrorBody
from skerry.wire.jobs import JobFailure, JobMoved, JobStep

FAILED_MAX: Final = 500  # are named at the end, which is one frame
AT_ONCE: Final = 32  # the backend bounds what costs more than a freeze


class Move:
    """One of them. It goes on whoever listens; `cancel` ends it with the sandboxes it is at.

    Invariant: `steps` tells of each sandbox once, and ends with `end` exactly when it is over.
    """

    def __init__(self, sandboxes: Sequence[Sandbox], *, pausing: bool, by: str) -> None:
        self.sandboxes = sandboxes
        self.pausing = pausing
        self.by = by
        self.cancelled = False
        self.done = 0
        self.freed = 0
        self.failures = 0
        self.failed: list[JobFailure] = []  # the first ones
        self.steps = [JobStep(total=len(sandboxes))]
        self._more: list[asyncio.Future[None]] = []

    @property
    def over(self) -> bool:
        """Whether it has come to its end."""
        return self.steps[-1].end is not None

    def cancel(self) -> None:
        """No further sandbox is begun with."""
        self.cancelled = True

    def tell(self, sandbox: str = "", error: ErrorBody | None = None, **end: JobMoved) -> None:
        """Adds a step, and wakes who listens."""
        total = len(self.sandboxes)
        step = JobStep(
            total=total, done=self.done, failed=self.failures, sandbox=sandbox, error=error, **end
        )
        self.steps.append(step)
        more, self._more = self._more, []
        for waiter in more:
            if not waiter.done():
                waiter.set_result(None)

    async def listen(self) -> AsyncIterator[JobStep]:
        """Gives every step from the first to the last."""
        at = 0
        while True:
            while at < len(self.steps):
                step = self.steps[at]
                at += 1
                yield step
                if step.end is not None:
                    return
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._more.append(waiter)
            await waiter

    async def until_over(self) -> JobMoved:
        """Returns its end."""
        async for step in self.listen():
            if step.end is not None:
                return step.end
        raise AssertionError("a move without an end")

    async def run(self, control: Control, clock: Clock) -> None:
        """Carries it out; what goes wrong with one sandbox is told, and holds up no other."""
        began = clock.monotonic()

        async def one(sandbox: Sandbox) -> None:
            if not self.cancelled:
                await self._one(sandbox, control)

        try:
            await each(self.sandboxes, one, AT_ONCE)
        except asyncio.CancelledError:
            raise  # the node is ending: who listens finds this again at its next start
        except BaseException:
            self._end(clock.monotonic() - began)
            raise
        self._end(clock.monotonic() - began)

    def _end(self, seconds: float) -> None:
        total = len(self.sandboxes)
        rest = total - self.done - self.failures
        end = JobMoved(
            total=total,
            done=self.done,
            left=rest,
            failures=self.failures,
            failed=tuple(self.failed),
            seconds=round(seconds, 3),
            freed_bytes=self.freed,
            cancelled=rest > 0,
        )
        self.tell(end=end)

    async def _one(self, sandbox: Sandbox, control: Control) -> None:
        try:
            await (self._pause if self.pausing else self._resume)(sandbox, control)
        except SkerryError as error:
            if not (sandbox.gone or sandbox.state in ENDED):
                body = ErrorBody.of(error)
                self.failures += 1
                if len(self.failed) < FAILED_MAX:
                    self.failed.append(JobFailure(sandbox.id, body))
                self.tell(sandbox.id, body)
                return
        self.done += 1
        self.tell(sandbox.id)

    async def _pause(self, sandbox: Sandbox, control: Control) -> None:
        if sandbox.stands or sandbox.state is State.PAUSING:  # by somebody else: that stays so
            await control.pause(sandbox)
            return
        sandbox.paused_by = self.by
        try:
            await control.pause(sandbox)
        finally:
            if not sandbox.stands:
                sandbox.paused_by = ""
        if sandbox.given is not None:
            self.freed += max(0, sandbox.given.bytes)

    async def _resume(self, sandbox: Sandbox, control: Control) -> None:
        if sandbox.state in {State.PAUSED, State.PAUSING, State.RESUMING}:
            await control.resume(sandbox)


def to_pause(job: Job, wanted: Callable[[Sandbox], bool] = lambda _one: True) -> list[Sandbox]:
    """Returns those that live, the one that was idle for longest first.

    What waits for room is left out: it goes on waiting, for creates of a paused job are held.
    """
    live = [one for one in job.sandboxes.values() if _live(one) and wanted(one)]
    return sorted(live, key=lambda one: one.active)


def to_resume(job: Job, by: Sequence[str], *, busy_only: bool) -> list[Sandbox]:
    """Returns those that were paused by that: with commands under way first, then the last used."""
    paused = [
        one
        for one in job.sandboxes.values()
        if one.paused_by in by and _live(one) and (one.running or not busy_only)
    ]
    return sorted(paused, key=lambda one: (not one.running, -one.active))


def _live(sandbox: Sandbox) -> bool:
    waits = sandbox.waits is not None and not sandbox.waits.done.done()
    ending = sandbox.state in ENDED or sandbox.state is State.STOPPING
    return not (sandbox.gone or sandbox.deleting or ending or waits)


Act = Callable[[Sandbox], Awaitable[None]]


async def each(sandboxes: Sequence[Sandbox], act: Act, at_once: int) -> None:
    """Acts on every one of them, so many at a time; `act` raises nothing that is expected."""
    left = iter(sandboxes)

    async def hand() -> None:
        for sandbox in left:
            await act(sandbox)

    async with asyncio.TaskGroup() as group:
        for _ in range(min(at_once, len(sandboxes))):
            group.create_task(hand())
