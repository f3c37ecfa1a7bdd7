"""Commands whose agent does not keep their timeout."""

from __future__ import annotations

import asyncio

import pytest
from node_stand import ManualClock

from skerry.errors import SandboxFailed
from skerry.spec.command import CommandSpec
from skerry.spec.sandbox import CpuClass, SandboxSpec, State
from waiting import until


@pytest.mark.parametrize(("kind", "over"), [("latency-sensitive", 15.0), ("best-effort", 75.0)])
async def test_command_that_cannot_be_ended_costs_its_sandbox_later_where_it_starves(
    stand, manual, kind: str, over: float
) -> None:
    """The soak: in what a full host leaves, a killed crowd takes longer to die than 15 s."""
    async with stand.alive() as node:
        sandbox = await node.lives.create(SandboxSpec(cpu_class=CpuClass(kind)))
        # The agent's own clock stands still: it does not keep the timeout.
        stand.world.instances[sandbox.id].agent.clock = ManualClock()
        spec = CommandSpec(argv=("sleep", "600"), timeout_s=1.0)
        running = asyncio.create_task(node.operations.run(sandbox, None, spec))
        await until(lambda: node.admission.operations == 1)
        for _ in range(int(over)):
            await manual.advance(1.0)
        assert sandbox.state is State.RUNNING
        await manual.advance(1.5)
        with pytest.raises(SandboxFailed, match=f"{over:g} s over its timeout"):
            await running
        assert sandbox.state is State.FAILED
