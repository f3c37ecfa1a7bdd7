"""When an instance's memory is moved, how often the launcher is asked, and what failures leave."""

from __future__ import annotations

import logging

import pytest

from skerry.backends.container import memory
from skerry.backends.container.instance import ContainerInstance, Facts
from skerry.backends.container.parts import Parts, Places
from skerry.backends.container.slots import Slot
from skerry.backends.shared.cgroup import Counters, Layout, Limits
from skerry.backends.shared.launcher import LauncherFailed
from skerry.errors import Unavailable
from skerry.wire import plan, replies
from skerry.wire.fields import FieldBuilder
from skerry.wire.frames import Tag

MIB = 1 << 20
V1 = Layout("v1", "/u", {"memory": "/m", "pids": "/p", "cpu": "/c"}, True)
V2 = Layout("v2", "/u")
LIMITS = Limits(256 * MIB, 10, 1.0)


class World:
    """One instance with 40 MiB; each RECLAIM moves `step` of it."""

    def __init__(self, layout: Layout, monkeypatch, *, prefetch: bool = True) -> None:
        places = Places("/s", "/r", "n", prefetch=prefetch)
        self.parts = Parts(places, layout, logging.getLogger("test"))
        self.asked: list[plan.Request] = []
        self.failing: dict[type[plan.Request], Exception] = {}
        self.memory, self.swapped, self.step = 40 * MIB, 0, 40 * MIB
        self.now, self.takes_s = 100.0, 0.1
        monkeypatch.setattr(self.parts, "ask_raw", self.ask)
        monkeypatch.setattr(self.parts, "read_counters", lambda _slot: self.counters())
        monkeypatch.setattr(memory, "swap_free_bytes", lambda: self.free)
        monkeypatch.setattr(memory.time, "monotonic", lambda: self.now)
        self.free = 1 << 30
        self.slot = Slot(3, self.parts.groups)
        self.slot.limits = LIMITS
        facts = Facts("i", 3, 9, 1, "boot", (), LIMITS, Counters())
        self.instance = ContainerInstance(self.parts, facts, self.slot)
        self.instance.born(9, 1, ())

    def counters(self) -> Counters:
        return Counters(memory_bytes=self.memory, swap_bytes=self.swapped)

    async def ask(self, request: plan.Request) -> replies.Reply:
        self.asked.append(request)
        if type(request) in self.failing:
            raise self.failing[type(request)]
        moved = 0
        if isinstance(request, plan.Reclaim):
            moved = min(self.step, request.bytes, self.memory)
            self.memory -= moved
            self.swapped += moved
            self.now += self.takes_s
        return replies.Reply(1, None, FieldBuilder().u64(Tag.BYTES, moved).payload())

    def count(self, kind: type[plan.Request]) -> int:
        return sum(type(asked) is kind for asked in self.asked)


@pytest.fixture
async def world(monkeypatch):
    return World(V1, monkeypatch)


async def test_pause_freezes_then_moves_all_and_a_repeat_asks_nothing(world):
    given = await world.instance.pause()
    assert [type(asked) for asked in world.asked] == [plan.Freeze, plan.Reclaim]
    assert given.bytes == 40 * MIB
    assert await world.instance.pause() == given
    assert len(world.asked) == 2


async def test_work_that_was_cut_short_is_asked_for_again_within_bounds(world):
    world.step, world.takes_s = 10 * MIB, plan.MEMORY_WORK_S
    assert (await world.instance.pause()).bytes == 40 * MIB
    assert world.count(plan.Reclaim) == 4
    world.asked.clear()
    world.memory, world.step, world.instance.paused = 1 << 40, MIB, False
    await world.instance.pause()
    assert world.count(plan.Reclaim) == memory.ROUNDS_MAX


async def test_without_swap_or_memory_nothing_is_asked(world):
    world.free = 0
    assert (await world.instance.pause()).bytes == 0
    assert world.count(plan.Reclaim) == 0
    world.free, world.memory, world.instance.paused = 1 << 30, 1000, False
    assert (await world.instance.pause()).bytes == 0
    assert world.count(plan.Reclaim) == 0


@pytest.mark.parametrize(
    "error",
    [LauncherFailed("RECLAIM", replies.Failure(errno=11)), Unavailable("the launcher is lost")],
)
async def test_memory_that_cannot_be_moved_does_not_undo_the_pause(world, error):
    world.failing[plan.Reclaim] = error
    assert (await world.instance.pause()).bytes == 0
    assert world.instance.paused


async def test_resume_reads_ahead_only_what_is_in_swap(world):
    await world.instance.pause()
    await world.instance.resume()
    await world.parts.settle()
    assert world.count(plan.Prefetch) == world.count(plan.Thaw) == 1
    world.asked.clear()
    world.memory, world.swapped, world.free = 40 * MIB, 0, 0
    await world.instance.pause()
    await world.instance.resume()
    await world.parts.settle()
    assert [type(asked) for asked in world.asked] == [plan.Freeze, plan.Thaw]


async def test_failed_read_ahead_does_not_fail_the_resume(world):
    await world.instance.pause()
    world.failing[plan.Prefetch] = Unavailable("the launcher is lost")
    await world.instance.resume()
    await world.parts.settle()
    assert not world.instance.paused


async def test_read_ahead_can_be_switched_off(monkeypatch):
    world = World(V1, monkeypatch, prefetch=False)
    await world.instance.pause()
    await world.instance.resume()
    await world.parts.settle()
    assert world.count(plan.Prefetch) == 0


async def test_running_instance_gives_what_was_asked_and_a_paused_one_nothing(world):
    assert (await world.instance.reclaim(8 * MIB)).bytes == 8 * MIB
    assert [type(asked) for asked in world.asked] == [plan.Reclaim]
    await world.instance.pause()
    assert (await world.instance.reclaim(8 * MIB)).bytes == 0


async def test_v2_closes_swap_for_what_runs_and_tells_the_next_owner_of_the_slot(monkeypatch):
    world = World(V2, monkeypatch)
    await world.instance.pause()
    (reclaim,) = [asked for asked in world.asked if isinstance(asked, plan.Reclaim)]
    assert reclaim.step[0].endswith("/w/memory.swap.max max")
    assert world.slot.limits is None
    await world.instance.resume()
    await world.parts.settle()
    *_, last = [asked for asked in world.asked if isinstance(asked, plan.Reclaim)]
    assert (last.bytes, last.step) == (0, ("write /u/skerry-n/slot-3/w/memory.swap.max 0",))


def test_free_swap_is_read_from_the_kernels_table():
    table = (
        "Filename Type Size Used Priority\n/dev/zram0 partition 1000 400 100\n/a b file 50 50 -2\n"
    )
    assert memory.swap_free_bytes(table) == 600 << 10
    assert memory.swap_free_bytes("Filename Type Size Used Priority\n") == 0
    assert memory.swap_free_bytes("") == 0
