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
from typing import Final

import msgspec

from skerry.backends.function.member import Stage
from skerry.backends.function.pool import Place
from skerry.errors import OutcomeUnknown, Overloaded, SkerryError
from skerry.node.admission.holders import Holder
from skerry.node.admission.refusals import draining, ending
from skerry.node.clock import sleep
from skerry.node.functions import fetching
from skerry.node.functions.api import CallStreams
from skerry.node.functions.artifacts import Artifacts
from skerry.node.functions.asked import Asked, Emptied, R, Work
from skerry.node.functions.calls import execute
from skerry.node.functions.cellrun import CellRun
from skerry.node.functions.device_calls import DeviceCalls
from skerry.node.functions.devices import Desk
from skerry.node.functions.line import CallLine, Waiting, Wanted
from skerry.node.functions.outcome import Lost, NotStarted, never
from skerry.node.functions.pools import Pools
from skerry.node.functions.turns import Turns
from skerry.node.functions.warming import Warming
from skerry.node.gauges.metrics import COMMAND_BOUNDS_S, Histogram
from skerry.node.parts import Parts
from skerry.spec.device import Device
from skerry.spec.function import CallSpec, CompileRunCall, PythonCall
from skerry.spec.function_result import CallResult, PoolInfo, Prewarm

TRIES: Final = 3  # places for a call that did not start
YOUNG_S: Final = 0.1  # what has run for longer is looked at that often
IDLE_LOOK_S: Final = 1.0

log = logging.getLogger("skerry.node")


class Functions:
    """See `skerry.node.functions.api.FunctionService`."""

    def __init__(self, parts: Parts, devices: tuple[Device, ...] = ()) -> None:
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
        self._pools = Pools(parts, self.turns, config, {one.id: one.nodes for one in devices})
        self.warming = Warming(self._pools, config, self._now, self._check_open)
        self.devices = DeviceCalls(
            Desk(
                devices,
                parts.timers,
                waiting_max=parts.config.devices.waiting_max,
                weights=parts.config.weights,
            ),
            Artifacts(parts.config.state_dir, bytes_max=parts.config.devices.artifacts_bytes_max),
            places=self,
            warming=self.warming,
            pools=self._pools,
            tasks=parts.tasks,
            now=self._now,
            finish=self._with_files,
        )
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
        kind = str(spec.kind.__struct_config__.tag)
        try:
            if spec.device is None:
                result = await self.in_place(asked, self._whole)
            else:
                result = await self.devices.call(asked, self._whole, spec.device)
        except SkerryError as error:
            self.calls[kind, f"error_{error.code}"] += 1
            raise
        except asyncio.CancelledError:
            self.calls[kind, "left"] += 1
            raise
        self.calls[kind, _outcome(result)] += 1
        self.call_s.add(self._now() - asked.since)
        return result

    async def prewarm(self, body: Prewarm) -> PoolInfo:
        """Returns the pool once it has as many containers as asked for; raises why it has not.

        With a device, the pools of all devices of that name; the first one is returned.
        """
        self._check_open()
        found = []
        for device in self.devices.ids(body.device):
            # One after the other: a pool that nobody wants yet is forgotten.
            pool = self._pools.of(body.environment, body.isolation, device)
            await self.warming.prewarm(pool, body)
            found.append(self._pools.info(pool))
        return found[0]

    def pools(self) -> tuple[PoolInfo, ...]:
        """Returns the pools, the one used last first."""
        every = sorted(self._pools.by_key.values(), key=lambda one: -one.policy.demand.last)
        return tuple(self._pools.info(one) for one in every)

    async def let_go(self, digest: str) -> bool:
        """Ends containers of that layer in pools that nobody calls; returns whether there were any."""
        return await self._pools.let_go(digest)

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
        self.devices.desk.refuse(ending)
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

    def _asked(self, spec: CallSpec, tenant: str, streams: CallStreams | None) -> Asked:
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
        wanted = Wanted(pool.policy, isinstance(spec.kind, PythonCall))
        return Asked(spec, streams, pool, wanted, holder, rank, memory, self._now())

    async def in_place(self, asked: Asked, work: Work[R], emptied: Emptied | None = None) -> R:
        """Returns what the work does in a cell of the pool, in its turn.

        What never started is done in another cell. `emptied` is told of each that was used.
        """
        demand = asked.pool.policy.demand
        demand.note(self._now(), 1)
        try:
            await self._pools.fresh(asked.pool)
            return await self._in_some_place(asked, work, emptied)
        finally:
            demand.note(self._now(), -1)

    async def _in_some_place(self, asked: Asked, work: Work[R], emptied: Emptied | None) -> R:
        again: SkerryError = NotStarted("no place worked")
        for _ in range(TRIES):
            place = self.turns.take(asked.wanted, asked.memory) or await self._wait(asked)
            run = CellRun(asked.pool.containers[place.member.name], place.cell)
            try:
                return await self._in_cell(run, asked, work)
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
                made = self._finish(asked, place, told=emptied is not None)
                if emptied is not None:
                    emptied(asked.pool.empty(place.member.name, made))
        raise never(again) from again

    async def _wait(self, asked: Asked) -> Place:
        """Returns a place when its turn has come; Overloaded once its time is over."""
        self._check_open()
        pool, spec = asked.pool, asked.spec
        self.warming.raise_known(pool)
        if asked.wanted.zygote:
            self._pools.want_zygotes(pool, needed=True)
        wait = Waiting(asked.wanted, asked.holder, size=asked.size, memory_bytes=asked.memory)
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

    def _late(self, asked: Asked, wait: Waiting) -> Overloaded:
        error = self.line.late(wait, asked.spec.wait_s)
        why = asked.pool.error
        return error if why is None else Overloaded(f"{error}: {why.message}", **error.fields)

    async def _in_cell(self, run: CellRun, asked: Asked, work: Work[R]) -> R:
        container = run.container
        self._busy.set()
        if not container.fits(run.cell, asked.spec.limits.disk_bytes):
            made = container.renew(run.cell)
            try:
                if made is None:
                    raise NotStarted("its container was lost")
                await made
            except SkerryError as error:
                raise NotStarted(error.message) from error
        try:
            return await work(run, asked)
        except BaseException:
            run.abandon()
            raise

    async def _whole(self, run: CellRun, asked: Asked) -> CallResult:
        queued_s = self._now() - asked.since
        result = await execute(run, asked.spec, asked.streams, queued_s=queued_s)
        return await self._with_files(run, asked, result)

    async def _with_files(self, run: CellRun, asked: Asked, result: CallResult) -> CallResult:
        """Returns it with the files that were asked for, and where it ran."""
        spec, streams = asked.spec, asked.streams
        result = msgspec.structs.replace(result, worker=run.container.name)
        if not spec.fetch or (result.compile is not None and not result.compile.ok):
            return result
        if streams is None:
            files, left_out = await fetching.read_all(run, spec.fetch)
            return msgspec.structs.replace(result, files=files, left_out=left_out)
        found = await fetching.find(run, spec.fetch)
        await streams.fetched(fetching.tar_of(run, found))
        return msgspec.structs.replace(result, left_out=found.left_out)

    def _finish(self, asked: Asked, place: Place, *, told: bool) -> asyncio.Future[None] | None:
        """A place is free again: its cell is made anew, beside whatever comes next.

        Returns, if that is to be `told`, what is done when it is empty; None: its container ends.
        """
        member, made = place.member, None
        self.turns.end(asked.pool.policy, place, asked.memory)
        container = asked.pool.containers.get(member.name)
        if member.stage is Stage.RETIRING or container is None or not container.alive:
            if container is not None and container.alive:
                made = container.drop(place.cell)
            self._pools.wake()
        elif told:
            made = container.renew(place.cell)
        else:  # the answer leaves first
            asyncio.get_running_loop().call_soon(container.renew, place.cell)
        self.turns.let_in()
        return made

    # -- readings ---------------------------------------------------------------------------------

    def gauges(self) -> dict[str, float]:
        """Returns counts and readings for whoever exports them."""
        return {
            **self._pools.gauges(),
            **self.devices.gauges(),
            "function_calls_running": self.turns.running,
            "function_calls_waiting": len(self.line),
            "function_calls_waiting_bytes": self.line.bytes,
            "function_calls_refused_total": self.line.refused.total(),
        }

    def check_invariants(self) -> None:
        """Raises Bug unless the invariants hold."""
        self.turns.check_invariants()
        self.devices.desk.check_invariants()
        for pool in self._pools.by_key.values():
            pool.policy.check_invariants()


def _outcome(result: CallResult) -> str:
    if result.limit is not None:
        return f"limit_{result.limit}"
    if result.compile is not None and not result.compile.ok:
        return "not_compiled"
    if result.start_error is not None:
        return "not_started"
    return "ok" if result.ok else "failed"
