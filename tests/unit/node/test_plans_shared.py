"""Creates that ask for the same layers at once look them up once, and never what stood there before."""

from __future__ import annotations

import asyncio
import threading

import pytest
from node_stand import Stand

from skerry.errors import NotFound
from skerry.spec.sandbox import SandboxSpec
from waiting import until


class Gate:
    """Holds lookups up until it is opened."""

    def __init__(self, stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
        self.open = threading.Event()
        resolve = stand.library.resolve

        def held(names: tuple[str, ...]) -> object:
            found = resolve(names)
            assert self.open.wait(20)
            return found

        monkeypatch.setattr(stand.library, "resolve", held)


async def test_burst_asks_the_store_once(stand: Stand, monkeypatch) -> None:
    gate = Gate(stand, monkeypatch)
    async with stand.alive() as node:
        plans = [asyncio.create_task(node.images.plan(SandboxSpec())) for _ in range(50)]
        await until(lambda: stand.library.resolved == 1)
        plans[0].cancel()  # who came first gives up: the others still get theirs
        await asyncio.sleep(0.05)
        gate.open.set()
        done = await asyncio.gather(*plans, return_exceptions=True)
        assert isinstance(done[0], asyncio.CancelledError)
        assert {plan.digests for plan in done[1:]} == {done[1].digests}
        assert stand.library.resolved == 1


async def test_lookup_from_before_a_change_is_given_to_nobody_who_asks_after_it(
    stand: Stand, monkeypatch
) -> None:
    gate = Gate(stand, monkeypatch)
    async with stand.alive() as node:
        images = node.images
        before = asyncio.create_task(images.plan(SandboxSpec()))
        await until(lambda: stand.library.resolved == 1)
        made = stand.library.add("base/debian:12")
        images.forget_plans()
        after = asyncio.create_task(images.plan(SandboxSpec()))
        await until(lambda: stand.library.resolved == 2)
        gate.open.set()
        assert (await before).digests != (made.digest,)
        assert (await after).digests == (made.digest,)
        assert (await images.plan(SandboxSpec())).digests == (made.digest,)


async def test_lookup_that_fails_is_told_to_all_and_not_remembered(stand: Stand) -> None:
    async with stand.alive() as node:
        plan = node.images.plan
        wanted = SandboxSpec(image="later:1")
        failed = await asyncio.gather(*(plan(wanted) for _ in range(3)), return_exceptions=True)
        assert [type(one) for one in failed] == [NotFound] * 3
        made = stand.library.add("base/later:1")
        assert (await plan(wanted)).digests == (made.digest,)
