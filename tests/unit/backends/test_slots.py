"""The pool of slots: reuse, hygiene, numbers."""

from __future__ import annotations

import asyncio
import logging

import pytest

from skerry.backends.container import slots as slots_module
from skerry.backends.container.slots import (
    IDLE_MIN,
    OWNER_UID_FIRST,
    RESIDUE_UNEXPLAINED_MAX,
    UID_BASE_FIRST,
    SlotPool,
    Window,
)
from skerry.backends.shared.cgroup import Counters, Layout, groups_of
from skerry.backends.shared.launcher import LauncherFailed
from skerry.errors import Overloaded, Unavailable
from skerry.wire import plan, replies

MIB = 1 << 20
LAYOUT = Layout("v1", "/u", {"memory": "/m", "pids": "/p", "cpu": "/c"}, True)


class Answers:
    """Answers the pool; `broken` request types fail."""

    def __init__(self) -> None:
        self.asked: list[plan.Request] = []
        self.broken: dict[type[plan.Request], Exception] = {}

    async def __call__(self, request: plan.Request) -> replies.Reply:
        self.asked.append(request)
        await asyncio.sleep(0)
        if type(request) in self.broken:
            raise self.broken[type(request)]
        return replies.Reply(1, None)


@pytest.fixture
def answers():
    return Answers()


@pytest.fixture
def pool(answers):
    return SlotPool(groups_of(LAYOUT, "n"), answers, logging.getLogger("test"))


async def test_slots_have_disjoint_ids(pool):
    first, second = [await pool.acquire(MIB) for _ in range(2)]
    assert second.uid_base - first.uid_base == 65_536
    assert first.uid_base == UID_BASE_FIRST
    last = UID_BASE_FIRST + slots_module.SLOTS_MAX * 65_536
    assert last < OWNER_UID_FIRST
    assert OWNER_UID_FIRST + slots_module.SLOTS_MAX < 1 << 32


async def test_clean_slot_is_used_again_with_its_base(pool, answers):
    slot = await pool.acquire(64 * MIB)
    after = Counters(memory_bytes=5 * MIB, cache_bytes=5 * MIB, oom_kills=3, cpu_us=9)
    await pool.release(slot, clean=True, after=after)
    again = await pool.acquire(64 * MIB)
    assert again is slot
    assert again.base is after
    assert len(answers.asked) == 1


async def test_slot_keeps_its_class_for_life(pool, answers):
    slot = await pool.acquire(MIB, best_effort=True)
    assert any("-idle/slot-0" in path for path in answers.asked[0].tasks)
    await pool.release(slot, clean=True, after=Counters())
    usual = await pool.acquire(MIB)
    assert usual is not slot
    assert not any("-idle" in path for path in answers.asked[-1].tasks)
    assert await pool.acquire(MIB, best_effort=True) is slot
    pool.check_invariants()


async def test_slot_with_cells_is_made_for_one_container_and_never_used_again(pool, answers):
    usual = await pool.acquire(MIB)
    await pool.release(usual, clean=True, after=Counters())
    slot = await pool.acquire(MIB, cells=2)
    made = answers.asked[-1]
    assert (slot.number, made.profile) == (1, plan.FUNCTION)
    assert not any("cell-" in path for path in made.tasks)  # its cgroup namespace has their root
    assert "mkdir /m/skerry-n/slot-1/cell-1 0755 -1" in made.step
    await pool.release(slot, clean=True, after=Counters())
    dropped = answers.asked[-1]
    assert isinstance(dropped, plan.SlotDrop)
    assert set(dropped.step) >= {f"rmdir {step.split()[1]}" for step in made.step}
    assert await pool.acquire(MIB) is usual
    assert answers.asked[0].profile is None
    pool.check_invariants()


async def test_idle_slots_for_best_effort_do_not_stand_for_the_others(pool, answers):
    for slot in [await pool.acquire(MIB, best_effort=True) for _ in range(IDLE_MIN)]:
        await pool.release(slot, clean=True, after=Counters())
    filling = asyncio.ensure_future(pool.keep_filled())
    while pool.idle < 2 * IDLE_MIN:  # noqa: ASYNC110 - one turn of the loop at a time
        await asyncio.sleep(0)
    await pool.close()
    await filling


async def test_slot_is_not_given_a_limit_near_its_residue(pool):
    slot = await pool.acquire(256 * MIB)
    await pool.release(slot, clean=True, after=Counters(60 * MIB, 60 * MIB))
    assert await pool.acquire(64 * MIB) is not slot
    assert await pool.acquire(256 * MIB) is slot


@pytest.mark.parametrize(
    ("clean", "after"),
    [
        (False, Counters()),
        (True, Counters(memory_bytes=RESIDUE_UNEXPLAINED_MAX + 1)),
        (True, Counters(memory_bytes=20 * MIB, cache_bytes=11 * MIB)),
    ],
)
async def test_unclean_slot_is_dropped_and_its_number_free(pool, answers, clean, after):
    slot = await pool.acquire(64 * MIB)
    await pool.release(slot, clean=clean, after=after, why="socket left")
    assert isinstance(answers.asked[-1], plan.SlotDrop)
    assert pool.idle == 0
    assert (await pool.acquire(64 * MIB)).number == slot.number
    pool.check_invariants()


async def test_number_whose_groups_stay_is_put_aside(pool, answers):
    slot = await pool.acquire(MIB)
    failure = replies.Failure(error_step="rmdir", errno=16)
    answers.broken[plan.SlotDrop] = LauncherFailed("SLOT_DROP", failure)
    await pool.release(slot, clean=False, after=Counters())
    assert pool.stuck == (slot.number,)
    assert (await pool.acquire(MIB)).number != slot.number
    answers.broken.clear()
    await pool.close()
    assert pool.stuck == ()


async def test_failed_make_leaves_no_idle_slot(pool, answers):
    answers.broken[plan.SlotMake] = Unavailable("gone")
    with pytest.raises(Unavailable):
        await pool.acquire(MIB)
    assert pool.idle == 0
    assert pool.stuck == (0,)


async def test_filling_waits_between_failures(pool, answers):
    answers.broken[plan.SlotMake] = Unavailable("gone")
    filling = asyncio.ensure_future(pool.keep_filled())
    for _ in range(1000):
        await asyncio.sleep(0)
    assert sum(isinstance(asked, plan.SlotMake) for asked in answers.asked) == 1
    await pool.close()
    await filling


async def test_pool_is_filled_and_emptied(pool, answers):
    filling = asyncio.ensure_future(pool.keep_filled())
    while pool.idle < IDLE_MIN:  # noqa: ASYNC110 - one turn of the loop at a time
        await asyncio.sleep(0)
    await pool.close()
    await filling
    assert pool.idle == 0
    made = sum(isinstance(asked, plan.SlotMake) for asked in answers.asked)
    dropped = sum(isinstance(asked, plan.SlotDrop) for asked in answers.asked)
    assert made == dropped == IDLE_MIN


async def test_what_a_burst_left_over_is_given_back_in_parts_that_creates_may_take_from(
    pool, answers, monkeypatch
):
    monkeypatch.setattr(slots_module, "DEMAND_WINDOW_S", -1.0)  # the demand is long ago
    used = [await pool.acquire(MIB) for _ in range(IDLE_MIN * 2 + 40)]
    for slot in used:
        await pool.release(slot, clean=True, after=Counters())
    assert pool.idle == IDLE_MIN * 2 + 40
    filling = asyncio.create_task(pool._fill())
    await asyncio.sleep(0)
    taken = [await pool.acquire(MIB) for _ in range(30)]  # while it is at it
    pool._wake.set()
    await filling
    assert IDLE_MIN * 2 <= pool.idle + 30 <= IDLE_MIN * 2 + 40
    assert pool.idle <= IDLE_MIN * 2
    assert sum(type(request) is plan.SlotDrop for request in answers.asked) <= 32
    for slot in taken:
        await pool.release(slot, clean=True, after=Counters())
    pool.check_invariants()


async def test_slots_run_out_loudly(pool, monkeypatch):
    monkeypatch.setattr(slots_module, "SLOTS_MAX", 2)
    await pool.acquire(MIB)
    await pool.acquire(MIB)
    with pytest.raises(Overloaded, match="slots"):
        await pool.acquire(MIB)


async def test_reserved_number_is_not_handed_out(pool):
    assert pool.reserve(1).number == 1
    assert [(await pool.acquire(MIB)).number for _ in range(2)] == [0, 2]
    pool.check_invariants()


async def test_slots_of_a_dead_launcher_are_put_aside(pool):
    slots = [await pool.acquire(MIB) for _ in range(3)]
    for slot in slots:
        await pool.release(slot, clean=True, after=Counters())
    pool.lost({slots[1].number})
    assert pool.idle == 1
    assert set(pool.stuck) == {slots[0].number, slots[2].number}


def test_window_tells_the_rise_of_use_not_its_churn():
    window = Window()
    for step in range(100):
        window.note(1.0 + step / 100, 5 + step % 2)
    assert window.rise(2.0) == 1
    for count in range(40):
        window.note(3.0, count)
    assert window.rise(3.0) >= 39
    assert window.rise(100.0) == 0
