"""Containers that are wanted before a call needs them: asked for ahead, or for a device to wait on."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from skerry.errors import CallerError, Overloaded, SandboxError, SkerryError
from skerry.guest.channel import same_error
from skerry.node.functions.functionpool import FunctionPool
from skerry.node.functions.options import FunctionsConfig
from skerry.node.functions.pools import Pools
from skerry.spec.function_result import Prewarm


class Warming:
    """Waits for containers. `check_open` raises why none is made any more."""

    def __init__(
        self,
        pools: Pools,
        config: FunctionsConfig,
        now: Callable[[], float],
        check_open: Callable[[], None],
    ) -> None:
        self._pools = pools
        self._config = config
        self._now = now
        self._check_open = check_open

    async def prewarm(self, pool: FunctionPool, body: Prewarm) -> None:
        """Returns once the pool has as many containers as asked for; raises why it has not."""
        self._check_open()
        policy, now = pool.policy, self._now()
        policy.warm(body.minimum, now, keep_s=body.keep_s, most=body.maximum)
        # Without modules nobody has said that the image has Python.
        self._pools.want_zygotes(pool, needed=bool(body.environment.modules))
        await self._pools.fresh(pool)
        failed = pool.failed
        wanted = min(body.minimum, policy.marks.containers_max, self._config.containers_max)
        try:
            await self._until_ready(pool, wanted, self._config.start_within_s)
        except SkerryError:
            if pool.failed > failed:
                policy.warm(0, self._now(), keep_s=1.0)
            raise

    async def until_ready(self, pool: FunctionPool, *, zygote: bool, within_s: float) -> None:
        """Returns once a container takes calls, Python ones if asked for; raises why none does."""
        self._check_open()
        if zygote:
            self._pools.want_zygotes(pool, needed=True)
        self.raise_known(pool)
        pool.policy.demand.note(self._now(), 1)
        try:
            await self._until_ready(pool, 1, min(within_s, self._config.start_within_s))
        finally:
            pool.policy.demand.note(self._now(), -1)

    def raise_known(self, pool: FunctionPool) -> None:
        """Raises why there can be no container, if that was found out a moment ago."""
        known = pool.policy.barred(self._now()) and not pool.policy.living
        if known and isinstance(pool.error, CallerError | SandboxError):
            raise same_error(pool.error)

    async def _until_ready(self, pool: FunctionPool, wanted: int, within_s: float) -> None:
        until, failed = self._now() + within_s, pool.failed
        while True:
            pool.moved.clear()
            ready = pool.ready()
            if ready >= wanted:
                return
            if pool.failed > failed and pool.error is not None:
                raise same_error(pool.error)
            self._check_open()
            self._pools.wake()
            left = until - self._now()
            if left <= 0:
                raise Overloaded(
                    f"function containers: {ready} of {wanted} are ready after {within_s:g} s",
                    limit="function containers",
                    used=ready,
                    maximum=self._config.containers_max,
                    retry_after_s=5.0,
                )
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await pool.moved.wait()
