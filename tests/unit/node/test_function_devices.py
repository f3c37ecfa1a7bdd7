"""Calls that want a device: turns are fair, nobody is passed by for ever, and every claim comes back."""

from __future__ import annotations

import asyncio
import random
from contextlib import asynccontextmanager

import pytest
from node_stand import ManualClock, settle

from skerry.errors import InvalidRequest, Overloaded
from skerry.node.admission.holders import Holder
from skerry.node.functions.devices import Desk, Loan
from skerry.node.timers import Timers
from skerry.spec.device import SHARES, Device, DeviceClaim, DeviceMode, DeviceNode

WHOLE = DeviceClaim()
A, B = Holder(job="a"), Holder(job="b")


def device(name: str, asked_as: str = "gpu", **values: object) -> Device:
    nodes = (DeviceNode(name, 195, 0),)
    return Device(id=name, name=asked_as, provider="test", nodes=nodes, **values)


def shared(share: float) -> DeviceClaim:
    return DeviceClaim(mode=DeviceMode.SHARED, share=share)


@asynccontextmanager
async def holding(desk: Desk, claim: DeviceClaim, holder: Holder, **values):
    loan = await desk.borrow(claim, holder, **values)
    try:
        yield loan
    finally:
        desk.give_back(loan)
        desk.give_back(loan)  # the second time changes nothing


class World:
    """A desk, and calls that hold what they got until they are told to end."""

    def __init__(self, *devices: Device, **options: object) -> None:
        self.clock = ManualClock()
        self.desk = Desk(devices, Timers(self.clock), **options)
        self.order: list[str] = []
        self.loans: dict[str, Loan] = {}
        self._ends: dict[str, asyncio.Event] = {}
        self.tasks: dict[str, asyncio.Task[None]] = {}

    async def begin(self, name: str, claim: DeviceClaim = WHOLE, holder: Holder = A, **values):
        self._ends[name] = asyncio.Event()
        values.setdefault("wait_s", 60.0)
        self.tasks[name] = asyncio.create_task(self._call(name, claim, holder, values))
        await settle()
        self.desk.check_invariants()

    async def _call(self, name, claim, holder, values) -> None:
        async with holding(self.desk, claim, holder, **values) as loan:
            self.order.append(name)
            self.loans[name] = loan
            await self._ends[name].wait()

    async def end(self, name: str) -> None:
        self._ends[name].set()
        await self.tasks[name]
        await settle()
        self.desk.check_invariants()

    async def cancel(self, name: str) -> None:
        self.tasks[name].cancel()
        await asyncio.wait((self.tasks[name],))
        await settle()
        self.desk.check_invariants()


async def refused(world: World, claim: DeviceClaim, holder: Holder = A, wait_s: float = 0.0):
    with pytest.raises(Overloaded) as caught:
        async with holding(world.desk, claim, holder, wait_s=wait_s):
            raise AssertionError("it holds one")
    world.desk.check_invariants()
    return caught.value


async def test_exclusive_calls_take_turns_on_one_device() -> None:
    world = World(device("a"))
    for name in ("one", "two", "three"):
        await world.begin(name)
    assert world.order == ["one"]
    await world.clock.advance(2.5)
    await world.end("one")
    await world.end("two")
    await world.clock.advance(1.0)
    await world.end("three")
    assert world.order == ["one", "two", "three"]
    use = world.loans["two"].use(world.clock.now)
    assert (use.id, use.queued_s, use.share) == ("a", 2.5, 1.0)
    assert world.desk.gauges()["devices_held_seconds_total"] == 3.5
    assert world.desk.gauges()["devices_calls"] == 0


async def test_jobs_take_turns_however_many_calls_one_of_them_has() -> None:
    world = World(device("a"))
    for number in range(6):
        await world.begin(f"a{number}", holder=A)
    await world.begin("b0", holder=B)
    for _ in range(3):
        await world.end(world.order[-1])
    assert "b0" in world.order[:3]
    for name in world.tasks:
        await world.cancel(name)


async def test_exclusive_call_is_not_passed_by_for_ever_by_shared_ones() -> None:
    world = World(device("a"))
    await world.begin("s1", shared(0.5))
    await world.begin("whole", WHOLE, B)
    # There is room for it; but the device would never be free for the one who is next.
    await world.begin("s2", shared(0.5))
    assert world.order == ["s1"]
    await world.end("s1")
    assert world.order == ["s1", "whole"]
    await world.end("whole")
    assert world.order == ["s1", "whole", "s2"]
    await world.end("s2")


async def test_shared_calls_run_together_up_to_the_whole() -> None:
    world = World(device("a", memory_bytes=80 << 30))
    for name in ("one", "two", "three", "four"):
        await world.begin(name, shared(0.3))
    assert world.order == ["one", "two", "three"]
    assert world.loans["one"].held.environment() == {
        "SKERRY_DEVICE": "a", "SKERRY_DEVICE_SHARE": "0.3",
        "SKERRY_DEVICE_MEMORY_BYTES": str((80 << 30) * 3 // 10),
    }  # fmt: skip
    await world.end("two")
    assert world.order[-1] == "four"
    for name in ("one", "three", "four"):
        await world.end(name)


async def test_refusal_names_the_limit_and_who_holds_it() -> None:
    world = World(device("a"), waiting_max=1)
    await world.begin("mine", holder=A)
    error = await refused(world, WHOLE, B)
    assert error.fields["limit"] == "gpu"
    assert error.fields["holders"] == [{"who": "job a", "calls": 1}, {"who": "you", "calls": 0}]
    assert (error.fields["used"], error.fields["maximum"]) == (1, 1)
    assert error.fields["retry_after_s"] >= 1.0
    # Of another token no job is named.
    error = await refused(world, WHOLE, Holder("other"))
    assert error.fields["holders"][0] == {"who": "another token", "calls": 1}
    await world.begin("waits", holder=A)
    error = await refused(world, WHOLE, B, wait_s=5.0)  # the queue is full
    assert "1 of 1 calls wait" in error.message
    for name in ("mine", "waits"):
        await world.end(name)


async def test_call_whose_time_is_over_is_refused_and_the_next_one_is_served() -> None:
    world = World(device("a"))
    await world.begin("one", shared(0.5))
    await world.begin("late", WHOLE, wait_s=2.0)
    await world.begin("small", shared(0.5))
    assert world.order == ["one"]
    await world.clock.advance(2.1)
    assert world.order == ["one", "small"]
    with pytest.raises(Overloaded, match="within 2 s"):
        await world.tasks["late"]
    world.desk.check_invariants()
    for name in ("one", "small"):
        await world.end(name)


async def test_claim_is_freed_however_its_call_ends() -> None:
    """By itself, by an error, by a cancellation while it runs, while it waits, as it is served."""
    world = World(device("a"))
    with pytest.raises(ZeroDivisionError):
        async with holding(world.desk, WHOLE, A, wait_s=1.0):
            raise ZeroDivisionError
    await world.begin("runs")
    await world.begin("waits")
    await world.begin("next")
    await world.cancel("waits")
    await world.cancel("runs")
    assert world.order == ["runs", "next"]
    # Cancelled in the very moment in which it is served: the one behind it gets the device.
    await world.begin("served")
    await world.begin("behind")
    world._ends["next"].set()
    freed = world.loans["next"].held
    for _ in range(10):
        if freed not in world.desk.ledger.held:
            break
        await asyncio.sleep(0)
    assert freed not in world.desk.ledger.held
    assert "served" not in world.order  # it has the device, and does not know
    world.tasks["served"].cancel()
    await settle()
    world.desk.check_invariants()
    assert world.order[-1] == "behind"
    await world.end("behind")
    assert world.desk.ledger.held == []


async def test_name_that_no_device_has_is_refused_at_once_and_told_what_there_is() -> None:
    world = World(device("a"), device("b", "tpu"))
    with pytest.raises(InvalidRequest, match=r"no h100; it has: gpu, tpu"):
        async with holding(world.desk, DeviceClaim(name="h100"), A, wait_s=600.0):
            raise AssertionError
    with pytest.raises(InvalidRequest, match="none at all"):
        World().desk.check(WHOLE)


async def test_calls_for_one_name_do_not_wait_for_those_for_another() -> None:
    world = World(device("a"), device("b", "tpu"))
    await world.begin("one")
    await world.begin("two")
    await world.begin("other", DeviceClaim(name="tpu"))
    assert world.order == ["one", "other"]
    for name in ("one", "two", "other"):
        await world.end(name)


@pytest.mark.parametrize("seed", range(8))
async def test_simulation_of_many_jobs_keeps_every_promise(seed: int) -> None:
    """Calls that come, hold, are cancelled, fail and give up, judged by a count of their own."""
    chance = random.Random(seed)
    clock = ManualClock()
    desk = Desk([device("a"), device("b"), device("c", "mig")], Timers(clock), waiting_max=20)
    now_on: dict[str, int] = {"a": 0, "b": 0, "c": 0}
    outcomes: list[str] = []

    @asynccontextmanager
    async def used(loan: Loan):
        shares = loan.held.claim.shares
        now_on[loan.device.id] += shares
        assert now_on[loan.device.id] <= SHARES
        assert loan.queued_s <= 8.0
        try:
            yield
        finally:
            now_on[loan.device.id] -= shares

    async def call(claim: DeviceClaim, holder: Holder, lasts_s: float) -> None:
        try:
            async with holding(desk, claim, holder, wait_s=8.0) as loan, used(loan):
                done = asyncio.Event()
                clock.wake_at(clock.now + lasts_s, done.set)
                await done.wait()
                1 / (chance.random() > 0.1)
            outcomes.append("ran")
        except ZeroDivisionError:
            outcomes.append("failed")
        except Overloaded:
            outcomes.append("refused")

    tasks: list[asyncio.Task[None]] = []
    for _ in range(400):
        share = chance.choice((0.1, 0.4, 0.5, 1.0))
        mode = chance.choice((DeviceMode.EXCLUSIVE, DeviceMode.SHARED))
        claim = DeviceClaim(
            name=chance.choice(("gpu", "gpu", "mig")), mode=mode,
            share=share if mode is DeviceMode.SHARED else None,
        )  # fmt: skip
        tasks.append(
            asyncio.create_task(
                call(claim, chance.choice((A, B, Holder("t"))), chance.random() * 4)
            )
        )
        if chance.random() < 0.1:
            chance.choice(tasks).cancel()
        await clock.advance(chance.random() * 0.5)
        desk.check_invariants()
    await clock.advance(60.0)
    done = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(one is None or isinstance(one, asyncio.CancelledError) for one in done)
    desk.check_invariants()
    assert (desk.waiting, desk.ledger.held, set(now_on.values())) == (0, [], {0})
    assert outcomes.count("ran") > 100
    assert outcomes.count("refused") == desk.refused.total() > 0
