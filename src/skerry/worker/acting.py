"""The time in which a policy acts, and what ends it: it is done, out of time, or something broke."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable

from aiohttp import ClientError

from skerry.errors import CallerError, SandboxError, SkerryError, StorageFailed, Unavailable
from skerry.integrity.verdict import failed
from skerry.spec.sandbox import State
from skerry.worker.clock import ActClock, Clocks
from skerry.worker.lives import is_host_full, is_lost
from skerry.worker.memory import Acted, Memory, NodeAway
from skerry.worker.plan import Models, Plan
from skerry.worker.ports import Client, Sandbox
from skerry.worker.session import Session

DISK_PATIENCE_S = 600.0  # then it costs an attempt
PROBE_S = 60.0  # for a program that does nothing


async def check_node(client: Client) -> None:
    """Raises NodeAway unless the node answers: then what went wrong is more than its absence."""
    try:
        await client.health()
    except SkerryError as error:
        raise NodeAway(error.message) from error


def _unanswered(error: SkerryError) -> bool:
    """Whether the node was away, whatever it answers now: the connection was refused or broke off."""
    return isinstance(error, Unavailable) and isinstance(error.__cause__, (OSError, ClientError))


class NodeDisk:
    """How long a rollout stands still because its node is away or starts, or a disk takes nothing."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._since: dict[str, float] = {}

    def bear(self, plan: Plan, memory: Memory, error: SkerryError) -> None:
        """Raises NodeAway if the error is of that kind, who has it can wait, and has not for long."""
        if not memory.durable or not (isinstance(error, StorageFailed) or _unanswered(error)):
            return
        since = self._since.setdefault(plan.rollout, self._now())
        if self._now() - since < DISK_PATIENCE_S:
            raise NodeAway(error.message) from error

    def over(self, plan: Plan) -> None:
        """The attempt has come to an end: the next one has all patience again."""
        self._since.pop(plan.rollout, None)


class Acting:
    """Lets policies act, within the time that they have."""

    def __init__(self, client: Client, models: Models | None, clocks: Clocks) -> None:
        self._client = client
        self._models = models
        self._clocks = clocks

    async def let_act(
        self, plan: Plan, memory: Memory, sandbox: Sandbox, session: Session
    ) -> Acted:
        """Lets the policy act. Its own failures are graded, not raised; platform errors are raised."""
        limit = plan.environment.task.limits.act_timeout_s
        clock = ActClock(limit, memory.active_s, time.monotonic)
        async with contextlib.AsyncExitStack() as stack:
            stack.enter_context(self._clocks.joined(clock))
            if session.access is not None and self._models is not None:
                serving = self._models.serving(plan, memory, sandbox, clock)
                await stack.enter_async_context(serving)
            acting = asyncio.ensure_future(plan.policy.act(session, plan.variant))
            expiry = asyncio.ensure_future(clock.expired())
            try:
                await asyncio.wait({acting, expiry}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                done = acting.done()
                for task in (acting, expiry):
                    task.cancel()
                await asyncio.gather(acting, expiry, return_exceptions=True)
            if not done:
                message = f"the policy took longer than {limit:g} s"
                session.record({"action": "stop", "message": message}, step="stop")
                return Acted(active_s=clock.spent_s, expired=True, deeds=session.told_deeds())
            try:
                acting.result()
            except (SandboxError, CallerError) as error:
                if is_lost(error):
                    raise
                if is_host_full(error):
                    raise StorageFailed(f"the host's disk: {error.message}") from error
                return await self._ended_early(error, sandbox, session, clock.spent_s)
            except SkerryError:
                if memory.durable:
                    await check_node(self._client)  # else nobody would be served any more
                raise
            broken = await self._probe(plan, session)
            return Acted(
                active_s=clock.spent_s,
                verdict=failed(broken) if broken else None,
                repercussion=broken,
                deeds=session.told_deeds(),
            )

    async def _probe(self, plan: Plan, session: Session) -> str:
        """Returns how an agent has left its environment unusable; "" if it has not.

        Scripts of our own leave theirs as it is.
        """
        if plan.policy.needs.port is None:
            return ""
        interpreter = plan.environment.task.tests.interpreter
        argv = [interpreter, "-I", "-S", "-c", "pass"]
        result = await session.run(argv, timeout=PROBE_S, cwd="/", deed=False)
        if result.ok:
            return ""
        why = result.start_error or result.error_text.strip()[-300:] or "it does not end"
        return f"the agent left its environment broken: {interpreter}: {why}"

    async def _ended_early(
        self, error: SkerryError, sandbox: Sandbox, session: Session, active_s: float
    ) -> Acted:
        """What it asked for was refused, or its sandbox broke: what is left decides."""
        data = {"action": "stop", "error": error.code, "message": error.message[:500]}
        session.record(data, step="stop")
        info = await sandbox.info()
        broken = info.state in (State.FAILED, State.STOPPED)
        return Acted(
            active_s=active_s,
            verdict=failed(f"the policy ended early: {error.message}"),
            repercussion=(info.reason or error.message) if broken else "",
            deeds=session.told_deeds(),
        )
