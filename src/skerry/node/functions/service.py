"""Function calls of one node: a place for each in its turn, what runs there, and what it comes to.

A call that never started gets another place. One that may have run does not, unless it is idempotent:
its caller is told OutcomeUnknown. A call whose caller goes away has no other owner, and ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final, NamedTuple

import msgspec

from skerry.backends.function.member import Stage
from skerry.backends.function.pool import Place
from skerry.errors import CallerError, OutcomeUnknown, Overloaded, SandboxError, SkerryError
from skerry.guest.channel import same_error
from skerry.node.admission.holders import Holder
from skerry.node.admission.refusals import draining, ending
from skerry.node.clock import sleep
from skerry.node.functions import fetching
from skerry.node.functions.api import CallStreams
from skerry.node.functions.calls import execute
from skerry.node.functions.cellrun import CellRun
from skerry.node.functions.functionpool import FunctionPool
from skerry.node.functions.line import CallLine, Kind, Waiting
from skerry.node.functions.outcome import Lost, NotStarted, never
from skerry.node.functions.pools import Pools
from skerry.node.functions.turns import Turns
from skerry.node.gauges.metrics import COMMAND_BOUNDS_S, Histogram
from skerry.node.parts import Parts
from skerry.spec.function import CallSpec, CompileRunCall, PythonCall
from skerry.spec.function_result import CallResult, PoolInfo, Prewarm

TRIES: Final = 3  # places for a call that did not start
YOUNG_S: Final = 0.1  # what has run for longer is looked at that often
IDLE_LOOK_S: Final = 1.0

log = logging.getLogger("skerry.node")


class _Asked(NamedTuple):
    """One call: what is asked, and by whom."""

    spec: CallSpec
    streams: CallStreams | None
    pool: FunctionPool
    kind: Kind
    holder: Holder
    rank: int  # of its job
    memory: int  # that it may use
    since: float


class Functions:
    """See `skerry.node.functions.api.FunctionService`."""

    def __init__(self, parts: Parts) -> None:
        config = self._config = parts.config.functions
        self._parts = parts
        self._now = parts.clock.monotonic
        self.line = CallLine(
            calls_max=config.calls_waiting_max,
            calls_per_owner_max=config.calls_waiting_per_owner_max,
            bytes_max=config.calls_waiting_bytes_max,
            now=self._now,
            weights=parts.config.weights,
        )
        self.turns = Turns(
            self.line, self._now, running_max=config.running_max, memory_max=config.memory_max
        )
        self._pools = Pools(parts, self.turns, config)
        self._closing = False
        self._busy = asyncio.Event()  # something runs that is to be looked at
        self.calls: Counter[tuple[str, str]] = Counter()  # by kind and how it ended
        self.call_s = Histogram(COMMAND_BOUNDS_S)
        self.queued_s = Histogram(COMMAND_BOUNDS_S)

    # -- what callers use ---------------------------------------------------------------------------

    async def call(
        self, spec: CallSpec, *, tenant: str = "", streams: CallStreams | None = None
    ) -> CallResult:
        """Returns how it ended; see the protocol for what it raises."""
        self._check_open()
        asked = self._asked(spec, tenant, streams)
        pool, kind = asked.pool, str(spec.kind.__struct_config__.tag)
        pool.policy.demand.note(asked.since, 1)
        try:
            await self._pools.fresh(pool)
            result = await self._in_some_place(asked)
        except SkerryError as error:
            self.calls[kind, f"error_{error.code}"] += 1
            raise
        except asyncio.CancelledError:
            self.calls[kind, "left"] += 1
            raise
        finally:
            pool.policy.demand.note(self._now(), -1)
        self.calls[kind, _outcome(result)] += 1
        self.call_s.add(self._now() - asked.since)
        return result

    async def prewarm(self, body: Prewarm) -> PoolInfo:
        """Returns the pool once it has as many containers as asked for; raises why it has not."""
        self._check_open()
        pool = self._pools.of(body.environment, body.isolation)
        policy, now = pool.policy, self._now()
        policy.warm(body.minimum, now, keep_s=body.keep_s, most=body.maximum)
        # Without modules nobody has said that the image has Python.
        self._pools.want_zygotes(pool, needed=bool(body.environment.modules))
        await self._pools.fresh(pool)
        until, failed = now + self._config.start_within_s, pool.failed
        while True:
            pool.moved.clear()
            ready = pool.ready()
            wanted = min(body.minimum, policy.marks.containers_max, self._config.containers_max)
            if ready >= wanted:
                return self._pools.info(pool)
            if pool.failed > failed and pool.error is not None:
                policy.warm(0, self._now(), keep_s=1.0)
                raise same_error(pool.error)
            self._check_open()
            self._pools.wake()
            left = until - self._now()
            if left <= 0:
                raise Overloaded(
                    f"function containers: {ready} of {wanted} are ready after "
                    f"{self._config.start_within_s:g} s",
                    limit="function containers",
                    used=ready,
                    maximum=self._config.containers_max,
                    retry_after_s=5.0,
                )
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await pool.moved.wait()

    def pools(self) -> tuple[PoolInfo, ...]:
        """Returns the pools, the one used last first."""
        every = sorted(self._pools.by_key.values(), key=lambda one: -one.policy.demand.last)
        return tuple(self._pools.info(one) for one in every)

    # -- life -------------------------------------------------------------------------------------

    @asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        """Pools are looked after within the block; nothing of them is left behind it."""
        tending = asyncio.ensure_future(self._pools.tend())
        looking = asyncio.ensure_future(self._look())
        try:
            yield
        finally:
            await self.end()
            await self._pools.close(self._parts.config.end_within_s)
            for task in (tending, looking):
                task.cancel()
            await asyncio.wait((tending, looking))

    async def end(self) -> None:
        """No call comes in any more; those that run may take `drain_s`, then they are cut off."""
        self._closing = self._pools.closing = True
        self._pools.wake()
        for wait in self.line.everybody():
            self.line.remove(wait)
            wait.leave(ending())
        until = self._now() + self._config.drain_s
        while self.turns.running and self._now() < until:
            await sleep(self._parts.clock, 0.02)
        for pool in self._pools.by_key.values():
            for container in pool.containers.values():
                if container.busy:
                    await container.give_up(ending())

    async def _look(self) -> None:
        """Looks at limits and stalls: often while something runs for long, else rarely."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(YOUNG_S if self.turns.running else IDLE_LOOK_S):
                    await self._busy.wait()
            self._busy.clear()
            try:
                running = self._pools.look(YOUNG_S)
            except Exception:
                log.exception("function calls are not looked at")
                running = True
            if running:
                await asyncio.sleep(YOUNG_S)

    def _check_open(self) -> None:
        if self._closing or self._parts.admission.closing:
            raise ending()
        if self._parts.admission.draining:
            raise draining()

    # -- one call ---------------------------------------------------------------------------------

    def _asked(self, spec: CallSpec, tenant: str, streams: CallStreams | None) -> _Asked:
        """Returns what is asked and by whom; Conflict if its job has ended.

        A job that this node has not is a name by which calls are served in turn, and no more.
        """
        holder, rank = Holder(tenant, None, spec.job), 0
        job = self._parts.jobs.by_id.get(spec.job or "")
        if job is not None:
            if job.ended:
                raise job.over()
            holder = job.holder
            rank = self._parts.admission.quotas.terms(holder).priority
        pool = self._pools.of(spec.environment, spec.isolation)
        memory = spec.limits.memory_bytes
        if isinstance(spec.kind, CompileRunCall):
            memory = max(memory, spec.kind.compile_limits.memory_bytes)
        kind = Kind(pool.policy, isinstance(spec.kind, PythonCall))
        return _Asked(spec, streams, pool, kind, holder, rank, memory, self._now())

    async def _in_some_place(self, asked: _Asked) -> CallResult:
        again: SkerryError = NotStarted("no place worked")
        for _ in range(TRIES):
            place = self.turns.take(asked.kind, asked.memory) or await self._wait(asked)
            run = CellRun(asked.pool.containers[place.member.name], place.cell)
            try:
                return await self._run(run, asked)
            except NotStarted as error:
                again = error
                if run.taken:
                    break  # what was streamed in cannot be had again
            except Lost as error:
                again = error
                if not asked.spec.idempotent or run.taken or asked.streams is not None:
                    raise OutcomeUnknown(
                        f"the call may have run: {error.message}", worker=place.member.name
                    ) from error
            finally:
                self._finish(asked, place)
        raise never(again) from again

    async def _wait(self, asked: _Asked) -> Place:
        """Returns a place when its turn has come; Overloaded once its time is over."""
        self._check_open()
        pool, spec = asked.pool, asked.spec
        error = pool.error
        known = pool.policy.barred(self._now()) and not pool.policy.living
        if known and isinstance(error, CallerError | SandboxError):
            raise same_error(error)  # it was found out a moment ago
        if asked.kind.zygote:
            self._pools.want_zygotes(pool, needed=True)
        wait = Waiting(asked.kind, asked.holder, size=_size(spec), memory_bytes=asked.memory)
        self.turns.wait(wait, priority=spec.priority, rank=asked.rank)
        self._pools.wake()
        left = max(0.0, asked.since + spec.wait_s - self._now())
        timer = self._parts.timers.after(left, lambda: wait.leave(self._late(asked, wait)))
        try:
            place = await wait.done
        except BaseException:
            self.turns.left(wait)
            raise
        finally:
            timer.cancel()
        self.queued_s.add(self._now() - asked.since)
        return place

    def _late(self, asked: _Asked, wait: Waiting) -> Overloaded:
        error = self.line.late(wait, asked.spec.wait_s)
        why = asked.pool.error
        return error if why is None else Overloaded(f"{error}: {why.message}", **error.fields)

    async def _run(self, run: CellRun, asked: _Asked) -> CallResult:
        container, spec = run.container, asked.spec
        queued_s = self._now() - asked.since
        self._busy.set()
        if not container.fits(run.cell, spec.limits.disk_bytes):
            made = container.renew(run.cell)
            try:
                if made is None:
                    raise NotStarted("its container was lost")
                await made
            except SkerryError as error:
                raise NotStarted(error.message) from error
        try:
            result = await execute(run, spec, asked.streams, queued_s=queued_s)
            if spec.fetch and (result.compile is None or result.compile.ok):
                result = await self._fetched(run, spec, asked.streams, result)
        except BaseException:
            run.abandon()
            raise
        return msgspec.structs.replace(result, worker=container.name)

    async def _fetched(
        self, run: CellRun, spec: CallSpec, streams: CallStreams | None, result: CallResult
    ) -> CallResult:
        if streams is None:
            files, left_out = await fetching.read_all(run, spec.fetch)
            return msgspec.structs.replace(result, files=files, left_out=left_out)
        found = await fetching.find(run, spec.fetch)
        await streams.fetched(fetching.tar_of(run, found))
        return msgspec.structs.replace(result, left_out=found.left_out)

    def _finish(self, asked: _Asked, place: Place) -> None:
        """A place is free again: its cell is made anew, beside whatever comes next."""
        member = place.member
        self.turns.end(asked.pool.policy, place, asked.memory)
        container = asked.pool.containers.get(member.name)
        if member.stage is Stage.RETIRING or container is None or not container.alive:
            if container is not None and container.alive:
                container.drop(place.cell)
            self._pools.wake()
        else:
            container.renew(place.cell)
        self.turns.let_in()

    # -- readings ---------------------------------------------------------------------------------

    def gauges(self) -> dict[str, float]:
        """Returns counts and readings for whoever exports them."""
        return {
            **self._pools.gauges(),
            "function_calls_running": self.turns.running,
            "function_calls_waiting": len(self.line),
            "function_calls_waiting_bytes": self.line.bytes,
            "function_calls_refused_total": self.line.refused.total(),
        }

    def check_invariants(self) -> None:
        """Raises Bug unless the invariants hold."""
        self.turns.check_invariants()
        for pool in self._pools.by_key.values():
            pool.policy.check_invariants()


def _size(spec: CallSpec) -> int:
    """Returns about how many bytes a call holds while it waits."""
    total = len(spec.stdin) + sum(
        len(one.data) if one.text is None else len(one.text) for one in spec.files.values()
    )
    kind = spec.kind
    if isinstance(kind, CompileRunCall):
        return total + sum(map(len, kind.sources.values()))
    return total + len(kind.code if isinstance(kind, PythonCall) else getattr(kind, "source", ""))


def _outcome(result: CallResult) -> str:
    if result.limit is not None:
        return f"limit_{result.limit}"
    if result.compile is not None and not result.compile.ok:
        return "not_compiled"
    if result.start_error is not None:
        return "not_started"
    return "ok" if result.ok else "failed"
