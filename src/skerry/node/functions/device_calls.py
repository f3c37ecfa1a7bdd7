"""Calls that want a device, and hold it only while their program runs.

What is compiled is compiled where there is no device; its directory is carried to a container that has
it. A device has containers of its own (node/functions/pools): whoever gets a place there holds a claim.
The claim is given back when the call's cell is empty again or its container is gone: until then
something of the call may use the device. The answer does not wait for that.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NamedTuple

import msgspec

from skerry.errors import Bug
from skerry.node.functions.artifacts import Artifact, Artifacts
from skerry.node.functions.asked import Asked, Places, Work
from skerry.node.functions.calls import compile_in, run_compiled
from skerry.node.functions.cellrun import HOME, CellRun
from skerry.node.functions.devices import Desk, Loan
from skerry.node.functions.line import Wanted
from skerry.node.functions.pools import Pools
from skerry.node.functions.warming import Warming
from skerry.node.tasks import Tasks
from skerry.spec.device import Device, DeviceClaim
from skerry.spec.function import CompileRunCall
from skerry.spec.function_result import CallResult, Step

Finish = Callable[[CellRun, Asked, CallResult], Awaitable[CallResult]]


class _Compiled(NamedTuple):
    """How compiling ended; with an artifact if it went well."""

    step: Step
    artifact: Artifact | None
    worker: str
    queued_s: float


class DeviceCalls:
    """Invariant: a device is lent as long as something of the call that borrowed it can be there.

    `finish` gives a result the files that were asked for.
    """

    def __init__(
        self,
        desk: Desk,
        artifacts: Artifacts,
        *,
        places: Places,
        warming: Warming,
        pools: Pools,
        tasks: Tasks,
        now: Callable[[], float],
        finish: Finish,
    ) -> None:
        self.desk = desk
        self.artifacts = artifacts
        self._places = places
        self._warming = warming
        self._pools = pools
        self._tasks = tasks
        self._now = now
        self._finish = finish

    async def call(self, asked: Asked, whole: Work[CallResult], claim: DeviceClaim) -> CallResult:
        """Returns how it ended, with the device that it had; `whole` is all that is done in a cell.

        `asked.pool` is the one without a device.
        """
        self.desk.check(claim)
        if not isinstance(asked.spec.kind, CompileRunCall):
            return await self._with_device(asked, whole, claim)
        compiled = await self._places.in_place(asked, self._compile)
        if compiled.artifact is None:
            return CallResult(compile=compiled.step, worker=compiled.worker)
        try:
            work = self._run_step(compiled, compiled.artifact)
            return await self._with_device(asked, work, claim)
        finally:
            compiled.artifact.close()

    def ids(self, name: str | None) -> list[str | None]:
        """Returns the devices of a name; of none, none of them. Raises as the desk's `check` does."""
        if name is None:
            return [None]
        self.desk.check(DeviceClaim(name=name).check())
        return [device.id for device in self.desk.ledger.named(name)]

    def gauges(self) -> dict[str, float]:
        """Returns counts for whoever exports them."""
        return {
            **self.desk.gauges(),
            "function_artifacts_bytes": self.artifacts.bytes,
            "function_artifacts_total": self.artifacts.taken,
        }

    # -- steps ------------------------------------------------------------------------------------

    async def _compile(self, run: CellRun, asked: Asked) -> _Compiled:
        queued_s = self._now() - asked.since
        if not isinstance(asked.spec.kind, CompileRunCall):
            raise Bug("this is nothing to compile")
        step = await compile_in(run, asked.spec, asked.spec.kind, asked.streams)
        artifact = await self.artifacts.take(run.files.tree_get(HOME)) if step.ok else None
        return _Compiled(step, artifact, run.container.name, queued_s)

    def _run_step(self, compiled: _Compiled, artifact: Artifact) -> Work[CallResult]:
        async def work(run: CellRun, asked: Asked) -> CallResult:
            result = await run_compiled(
                run,
                asked.spec,
                artifact.pieces(),
                asked.streams,
                compiled=compiled.step,
                queued_s=compiled.queued_s,
            )
            return await self._finish(run, asked, result)

        return work

    # -- the device -------------------------------------------------------------------------------

    async def _with_device(
        self, asked: Asked, work: Work[CallResult], claim: DeviceClaim
    ) -> CallResult:
        await self._one_is_warm(asked, claim)
        loan = await self.desk.borrow(
            claim,
            asked.holder,
            wait_s=self._left(asked),
            priority=asked.spec.priority,
            prefer=lambda device: self._ready(asked, device) > 0,
        )
        cells: list[Awaitable[None]] = []
        try:
            result = await self._places.in_place(self._there(asked, loan), work, cells.append)
            return msgspec.structs.replace(result, device=loan.use(self._now()))
        finally:
            self._tasks.spawn(self._give_back(loan, cells))

    async def _give_back(self, loan: Loan, cells: list[Awaitable[None]]) -> None:
        try:
            for emptied in cells:
                await emptied
        finally:
            self.desk.give_back(loan)

    def _there(self, asked: Asked, loan: Loan) -> Asked:
        """Returns what is asked, of the pool of a device, with the device's variables."""
        spec = asked.spec
        pool = self._pools.of(spec.environment, spec.isolation, loan.device.id)
        return asked._replace(
            spec=msgspec.structs.replace(spec, env=loan.held.environment() | spec.env),
            pool=pool,
            wanted=Wanted(pool.policy, asked.wanted.zygote),
            memory=spec.limits.memory_bytes,
        )

    def _ready(self, asked: Asked, device: Device) -> int:
        return self._pools.ready_of(asked.spec.environment, asked.spec.isolation, device.id)

    async def _one_is_warm(self, asked: Asked, claim: DeviceClaim) -> None:
        """Returns once a device of that name has a container for the call: making one holds none."""
        ledger, spec = self.desk.ledger, asked.spec
        devices = ledger.named(claim.name)
        if not any(self._ready(asked, device) for device in devices):
            first = min(devices, key=lambda one: ledger.shares_of(one.id))
            pool = self._pools.of(spec.environment, spec.isolation, first.id)
            await self._warming.until_ready(
                pool, zygote=asked.wanted.zygote, within_s=self._left(asked)
            )

    def _left(self, asked: Asked) -> float:
        """Returns how long it waits yet."""
        return max(0.0, asked.since + asked.spec.wait_s - self._now())
