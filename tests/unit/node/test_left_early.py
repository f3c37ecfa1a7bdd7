"""An iteration that is left by a break is ended inside, however soon its client is closed."""

from __future__ import annotations

import asyncio

import pytest
from node_stand import FREE, sandboxes_of

from skerry.node.config import Limits
from skerry.spec.sandbox import SandboxSpec
from waiting import until


async def test_batch_left_by_a_break_leaves_nothing_though_the_client_is_closed_at_once(
    stand,
) -> None:
    async with stand.serving(limits=Limits(creates_in_flight_max=4, **FREE)) as (node, _):
        stand.backend.knobs.slow_create_s = 0.01
        async with sandboxes_of(node) as sandboxes:
            mine = []
            async for sandbox in sandboxes.create_each(SandboxSpec(), 200):
                mine.append(sandbox.id)
                break
        assert [one.id for one in node.sandboxes] == mine
        assert len(node.batches) == 0


async def test_batch_that_is_still_held_when_its_client_is_closed_is_undone(stand) -> None:
    async with stand.serving(limits=Limits(creates_in_flight_max=4, **FREE)) as (node, _):
        stand.backend.knobs.slow_create_s = 0.01
        async with sandboxes_of(node) as sandboxes:
            stream = sandboxes.create_each(SandboxSpec(), 200)
            sandbox = await anext(stream)
        assert [one.id for one in node.sandboxes] == [sandbox.id]
        await stream.aclose()
        assert [one.id for one in node.sandboxes] == [sandbox.id]


async def test_command_left_by_a_break_ends_though_the_client_is_closed_at_once(stand) -> None:
    async with stand.serving(limits=Limits(**FREE)) as (node, _):
        async with sandboxes_of(node) as sandboxes:
            sandbox = await sandboxes.create()
            async for event in sandbox.stream("echo begun; sleep 1000"):
                if event.stdout:
                    break
            assert node.admission.operations == 1
        await until(lambda: node.admission.operations == 0)


async def test_iteration_that_ended_owes_nothing(stand) -> None:
    async with stand.serving(limits=Limits(**FREE)) as (node, _):
        async with sandboxes_of(node) as sandboxes:
            made = [one async for one in sandboxes.create_each(SandboxSpec(), 3)]
            events = [event async for event in made[0].stream(["echo", "x"])]
            assert events[-1].result.ok
            assert not sandboxes._transport.debts._open
        assert len(node.sandboxes) == 3


async def test_cancelled_reader_does_not_take_back_what_was_said(stand) -> None:
    """The first cancel has begun to say it; a second one stops the waiting only."""
    async with stand.serving(limits=Limits(creates_in_flight_max=2, **FREE)) as (node, _):
        stand.backend.knobs.slow_create_s = 0.02
        stand.backend.knobs.slow_destroy_s = 0.05
        async with sandboxes_of(node) as sandboxes:

            async def read() -> None:
                async for _ in sandboxes.create_each(SandboxSpec(), 200):
                    await asyncio.sleep(1000)

            reader = asyncio.create_task(read())
            await until(lambda: len(node.sandboxes) >= 3)
            for _ in range(3):
                reader.cancel()
                await asyncio.sleep(0.01)
            await asyncio.gather(reader, return_exceptions=True)
        assert len(node.sandboxes) <= 1
        assert len(node.batches) == 0


async def test_command_that_is_still_waited_for_when_its_client_is_closed_is_cancelled_quietly(
    stand,
) -> None:
    async with stand.serving(limits=Limits(**FREE)) as (node, api):
        async with sandboxes_of(node) as sandboxes:
            sandbox = await sandboxes.create()
            waiting = asyncio.create_task(sandbox.run("sleep 1000"))
            await until(lambda: node.admission.operations == 1)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await api.call("DELETE", f"/v1/sandboxes/{sandbox.id}")


async def _cancel_until_done(task: asyncio.Task) -> None:
    """Cancels as AnyIO does: again at each turn of the loop, until the task has left its scope."""
    while not task.done():
        task.cancel()
        await asyncio.sleep(0)


async def test_command_whose_caller_is_cancelled_again_and_again_ends(stand) -> None:
    async with stand.serving(limits=Limits(**FREE)) as (node, _), sandboxes_of(node) as sandboxes:
        sandbox = await sandboxes.create()
        for ask in (sandbox.run, _listen(sandbox)):
            task = asyncio.create_task(ask("sleep 1000"))
            await until(lambda: node.admission.operations == 1)
            await _cancel_until_done(task)
            await until(lambda: node.admission.operations == 0)


def _listen(sandbox):
    async def ask(line: str) -> None:
        async for _ in sandbox.stream(line):
            pass

    return ask


async def test_creates_that_are_cancelled_again_and_again_leave_nothing(stand) -> None:
    async with stand.serving(limits=Limits(**FREE)) as (node, _):
        stand.backend.knobs.slow_create_s = 0.3
        async with sandboxes_of(node) as sandboxes:
            for make in (sandboxes.create, lambda: sandboxes.create_many(3)):
                task = asyncio.create_task(make())
                await until(lambda: len(node.sandboxes) > 0)
                await _cancel_until_done(task)
                await until(lambda: len(node.sandboxes) == 0)
            # Closing the client waits for what is still to be said.
            task = asyncio.create_task(sandboxes.create())
            await until(lambda: len(node.sandboxes) > 0)
            await _cancel_until_done(task)
        assert len(node.sandboxes) == 0
