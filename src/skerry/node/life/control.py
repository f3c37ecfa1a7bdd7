"""What users do to a live sandbox besides running things in it: pause, resume, stop, more time."""

from __future__ import annotations

import msgspec

from skerry.errors import InvalidRequest
from skerry.lifecycle import table
from skerry.lifecycle.table import Event
from skerry.node import ledger
from skerry.node.life.lives import Lives
from skerry.node.life.sandbox import ENDED, Sandbox
from skerry.node.parts import Parts
from skerry.spec.sandbox import SandboxSpec, State
from skerry.wire.control import SandboxChange


class Control:
    """Requests that become events of the lifecycle table, and waits for what they lead to."""

    def __init__(self, parts: Parts, lives: Lives) -> None:
        self._clock = parts.clock
        self._ledger = parts.ledger
        self._trail = parts.trail
        self._networks = parts.networks
        self._lives = lives

    async def pause(self, sandbox: Sandbox) -> None:
        """Returns once it stands still, or a request that came meanwhile has set it going again.

        Raises InvalidRequest if its backend cannot, why it ended if it has, and what went wrong:
        then it runs on.
        """
        await self._made(sandbox)
        self._check_live(sandbox)
        if sandbox.pausable is None:
            raise InvalidRequest(f"the backend {sandbox.spec.backend} cannot pause")
        if sandbox.state is not State.PAUSED:
            if sandbox.state is not State.PAUSING:
                sandbox.pause_error = None
                await self._lives.drive(sandbox, Event.PAUSE)
            while sandbox.state in {State.PAUSING, State.RESUMING} and not sandbox.gone:
                await sandbox.changed()
        if sandbox.state is State.PAUSED:
            await self._trail.levels.reach(sandbox.spec)
            return
        self._check_live(sandbox)
        error, sandbox.pause_error = sandbox.pause_error, None
        if error is not None:
            raise type(error)(error.message, **error.fields)

    async def resume(self, sandbox: Sandbox) -> None:
        """Returns once it runs; raises why it cannot."""
        await self._lives.ensure_running(sandbox)
        sandbox.touch(self._clock.wall(), self._clock.monotonic())
        await self._trail.levels.reach(sandbox.spec)

    async def stop(self, sandbox: Sandbox, reason: str = "a request asked for it") -> None:
        """Returns when nothing of its instance is left; its name and its results stay.

        Raises a platform error if the instance cannot be destroyed now: that is tried again.
        """
        if sandbox.gone or sandbox.state in ENDED:
            return
        if sandbox.state is not State.STOPPING:
            sandbox.reason = reason
            await self._lives.drive(sandbox, Event.STOP)
        while not sandbox.gone and sandbox.state not in ENDED:
            await sandbox.changed()
        await self._trail.levels.reach(sandbox.spec)

    async def change(self, sandbox: Sandbox, change: SandboxChange) -> None:
        """Gives it other deadlines or labels, on record when this returns.

        Raises InvalidRequest for a value out of bounds, why it ended if it has, StorageFailed.
        """
        await self._made(sandbox)
        asked = msgspec.to_builtins(change)
        async with self._trail.act(sandbox, "change", asked):
            self._check_live(sandbox)
            self._record(
                sandbox, change.apply(sandbox.spec, self._clock.monotonic() - sandbox.born)
            )
            self._lives.deadlines.arm_again(sandbox)

    async def set_network(self, sandbox: Sandbox, entries: tuple[str, ...]) -> None:
        """Gives it another network policy, on record and in force when this returns.

        Connections that it no longer allows are cut. Raises InvalidRequest for an entry that is
        none or unknown, Conflict if the proxy's port is taken inside, StorageFailed.
        """
        await self._networks.check(entries)
        await self._made(sandbox)
        asked = {"network": list(entries)}
        async with sandbox.network_turn, self._trail.act(sandbox, "network", asked):
            link = await self._lives.ensure_running(sandbox)
            self._record(sandbox, msgspec.structs.replace(sandbox.spec, network=entries))
            await self._networks.change(sandbox, link, entries)

    def _record(self, sandbox: Sandbox, spec: SandboxSpec) -> None:
        """Gives it another spec, on record first; what its key names stays what was asked for."""
        self._ledger.append(sandbox.id, ledger.Changed(spec))
        if sandbox.asked is None:
            sandbox.asked = sandbox.spec
        sandbox.spec = spec

    async def _made(self, sandbox: Sandbox) -> None:
        while sandbox.state is State.CREATING and not sandbox.gone:
            await sandbox.changed()

    def _check_live(self, sandbox: Sandbox) -> None:
        if sandbox.gone or not table.accepts_requests(sandbox.state):
            raise sandbox.ended()
