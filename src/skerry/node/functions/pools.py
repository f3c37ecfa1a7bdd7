"""The pools of a node: found by what a call names, looked after as the policy decides."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Mapping
from typing import Final

from skerry.backends.function import house
from skerry.backends.function.marks import once
from skerry.backends.function.member import Stage
from skerry.backends.function.pool import Pool
from skerry.errors import CallerError, SandboxError, SkerryError, Unavailable
from skerry.node.admission.refusals import draining, ending
from skerry.node.clock import sleep
from skerry.node.functions.functionpool import FunctionPool, PoolKey
from skerry.node.functions.making import Making
from skerry.node.functions.options import FunctionsConfig
from skerry.node.functions.turns import Turns
from skerry.node.parts import Parts
from skerry.spec.device import DeviceNode
from skerry.spec.function import Environment, Isolation
from skerry.spec.function_result import PoolInfo

LOOK_S: Final = 0.5  # between two plans, when nothing asks for one
STAY_FRESH_S: Final = 5.0  # a tag that another node moves is seen after at most that long
LET_GO_S: Final = 10.0
KEYS_MAX: Final = 1024
BACKEND: Final = "container"

log = logging.getLogger("skerry.node")


class Pools:
    """Invariant: every member of a policy has a container, or a task that makes or destroys one."""

    def __init__(
        self,
        parts: Parts,
        turns: Turns,
        config: FunctionsConfig,
        devices: Mapping[str, tuple[DeviceNode, ...]],
    ) -> None:
        self.by_key: dict[PoolKey, FunctionPool] = {}
        self.closing = False
        self._wake = asyncio.Event()
        self._parts = parts
        self._turns = turns
        self._config = config
        self._now = parts.clock.monotonic
        self._keys: dict[Environment, str] = {}
        backend = parts.backends.get(BACKEND)
        self.making = (
            Making(parts, turns, config, backend, devices=devices, wake=self.wake)
            if backend
            else None
        )

    def wake(self) -> None:
        """Has the pools looked after at once."""
        self._wake.set()

    def of(
        self, environment: Environment, isolation: Isolation, device: str | None = None
    ) -> FunctionPool:
        """Returns the pool, made if there is none; Unavailable without a backend for it."""
        if self.making is None:
            raise Unavailable(f"this node serves no function calls: it has no backend {BACKEND}")
        name = self._keys.get(environment)
        if name is None:
            if len(self._keys) >= KEYS_MAX:
                self._keys.clear()
            name = self._keys[environment] = environment.key()
        key = PoolKey(name, isolation, device)
        pool = self.by_key.get(key)
        if pool is None:
            marks = self._config.marks()
            if isolation is Isolation.CONTAINER:
                marks = once(marks, stock_max=self._config.stock_max)
            pool = self.by_key[key] = FunctionPool(key, environment, Pool(marks))
        return pool

    def ready_of(self, environment: Environment, isolation: Isolation, device: str) -> int:
        """Returns how many containers there are of a device; makes no pool."""
        name = self._keys.get(environment)
        pool = None if name is None else self.by_key.get(PoolKey(name, isolation, device))
        return 0 if pool is None else pool.ready()

    def info(self, pool: FunctionPool) -> PoolInfo:
        """Returns how it stands."""
        now, policy = self._now(), pool.policy
        idle_s = policy.demand.idle_for(now)
        return PoolInfo(
            key=pool.key.environment,
            environment=pool.environment,
            isolation=pool.key.isolation,
            device=pool.key.device,
            containers=pool.of_stage(Stage.READY),
            starting=pool.of_stage(Stage.STARTING),
            cells=sum(len(one.fresh) for one in policy.living),
            running=policy.running,
            waiting=self._turns.waiting(policy),
            target=policy.target(now),
            minimum=policy.floor(now),
            maximum=policy.marks.containers_max,
            calls=policy.calls,
            failed=pool.failed,
            idle_s=round(idle_s, 3) if idle_s != float("inf") else 0.0,
            last_error=None if pool.error is None else pool.error.message,
        )

    # -- layers -----------------------------------------------------------------------------------

    async def fresh(self, pool: FunctionPool) -> None:
        """Returns once its containers are of the layers that its names stand for now.

        At once, but after a change of this node's images; what another node moved is looked for
        every few seconds, beside the calls. Raises nothing: a container that cannot be made says why.
        """
        images = self._parts.images
        if pool.changes == images.changes and self._now() - pool.checked < STAY_FRESH_S:
            return
        if pool.looking is None:
            pool.looking = self._parts.tasks.spawn(self._look_up(pool))
        if pool.changes != images.changes and pool.digests:
            await asyncio.shield(pool.looking)

    async def _look_up(self, pool: FunctionPool) -> None:
        changes, now = self._parts.images.changes, self._now()
        try:
            composed = await self._parts.images.plan(pool.sandbox_spec)
        except SkerryError as error:
            # What lives is of layers that were right a moment ago; a store that is away is no reason.
            if isinstance(error, CallerError | SandboxError):
                pool.made_of((), error.message)
        else:
            pool.made_of(composed.digests, "its image is another one now")
        finally:
            pool.looking = None
            pool.changes, pool.checked = changes, now
            self.wake()

    async def let_go(self, digest: str) -> bool:
        """Ends the containers with a layer of that digest in pools that nobody calls.

        Returns whether there were any; they are gone then, or take longer than `LET_GO_S`.
        """
        idle = [
            pool
            for pool in self.by_key.values()
            if digest in pool.digests and pool.policy.members and not pool.policy.demand.count
        ]
        for pool in idle:
            pool.policy.let_go()
            for member in pool.policy.living:
                member.retire("its image is to be removed")
        until = self._now() + LET_GO_S
        while any(pool.policy.members for pool in idle) and self._now() < until:
            self.wake()
            await sleep(self._parts.clock, 0.02)
        return bool(idle)

    # -- tending ----------------------------------------------------------------------------------

    async def tend(self) -> None:
        """Makes and ends containers until it is cancelled."""
        while True:
            self._wake.clear()
            try:
                self.step()
            except Exception:
                log.exception("the pools of function containers are not looked after")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await self._wake.wait()

    def step(self) -> None:
        """Does what the policy wants now."""
        making = self.making
        if making is None:
            return
        stopped = self.closing or self._parts.admission.draining
        if not stopped:
            policies = {key: pool.policy for key, pool in self.by_key.items()}
            moves = house.plan(policies, self._now(), containers_max=self._config.containers_max)
            for key, count in moves.begin.items():
                for _ in range(count):
                    making.begin(self.by_key[key])
            for _, member, why in moves.retire:
                member.retire(why)
        for key, pool in list(self.by_key.items()):
            if stopped:
                self._turns.refuse(pool.policy, ending if self.closing else draining)
                for member in pool.policy.living:
                    if member.stage is Stage.READY:
                        member.retire("its node takes no calls")
            elif pool.zygotes:
                making.start_zygotes(pool)
            for member in pool.policy.finished():
                making.end(pool, member)
            if pool.policy.over(self._now()) and not self._turns.waiting(pool.policy):
                self._turns.forget(pool.policy)
                del self.by_key[key]

    def want_zygotes(self, pool: FunctionPool, *, needed: bool) -> None:
        """Its containers get an interpreter from here on; if it is not needed, where there is one."""
        pool.needed = pool.needed or needed
        if not pool.zygotes:
            pool.zygotes = True
            self.wake()

    def look(self, young_s: float) -> bool:
        """Looks at everything that has run for longer; returns whether something runs."""
        running = False
        for pool in self.by_key.values():
            for container in pool.containers.values():
                why = container.look(young_s)
                running = running or container.busy
                if why is not None and container.alive and self.making is not None:
                    self.making.give_up(pool, container, why)
        return running

    async def close(self, within_s: float) -> None:
        """Ends every container; returns when nothing of them is left, or the time is over."""
        self.closing = True
        until = self._now() + within_s
        while any(pool.policy.members for pool in self.by_key.values()) and self._now() < until:
            self.wake()
            await sleep(self._parts.clock, 0.02)

    def gauges(self) -> dict[str, float]:
        """Returns counts for whoever exports them."""
        pools, making = self.by_key.values(), self.making
        return {
            "function_pools": len(pools),
            "function_containers": sum(pool.of_stage(Stage.READY) for pool in pools),
            "function_containers_starting": sum(pool.of_stage(Stage.STARTING) for pool in pools),
            "function_containers_made_total": making.made if making else 0,
            "function_containers_lost_total": making.lost if making else 0,
            "function_cells_ready": sum(
                len(one.fresh) for pool in pools for one in pool.policy.living
            ),
        }
