"""How large a pool of function containers is, who gets a call, and when a container ends."""

from __future__ import annotations

import pytest

from skerry.backends.function.demand import Demand
from skerry.backends.function.house import TURN_S, plan
from skerry.backends.function.marks import Marks, once
from skerry.backends.function.member import Member, Stage
from skerry.backends.function.pool import HOPELESS, Pool
from skerry.errors import Bug, InvalidRequest

MARKS = Marks(containers_max=4, cells=4, running=2, idle_s=60.0)


def grown(pool: Pool, name: str, now: float = 0.0, *, zygote: bool = True) -> Member:
    member = pool.begin(name, now)
    for cell in range(pool.marks.cells):
        member.ready(cell)
    member.zygote = zygote
    pool.made(member, now)
    return member


def busy(pool: Pool, calls: int, now: float) -> None:
    pool.demand.note(now, calls)


def test_demand_is_the_peak_of_the_last_two_windows() -> None:
    demand = Demand()
    demand.note(0.0, 5)
    demand.note(1.0, -4)
    assert demand.peak(9.0) == 5
    assert demand.peak(15.0) == 5
    assert demand.peak(40.0) == 1
    assert demand.idle_for(50.0) == 0.0
    demand.note(50.0, -1)
    assert demand.idle_for(53.0) == 3.0


def test_pool_that_nobody_called_wants_nothing() -> None:
    assert Pool(MARKS).target(0.0) == 0


def test_pool_grows_with_its_demand_up_to_its_maximum() -> None:
    pool = Pool(MARKS)
    busy(pool, 1, 0.0)
    assert pool.missing(0.0) == 1
    busy(pool, 4, 0.0)
    assert pool.missing(0.0) == 3
    busy(pool, 100, 0.0)
    assert pool.missing(0.0) == 4


def test_demand_asks_for_no_more_containers_than_can_be_of_use() -> None:
    pool = Pool(Marks(containers_max=4, cells=4, running=2, useful_max=2))
    busy(pool, 100, 0.0)
    assert pool.target(0.0) == 2
    pool.warm(3, 0.0, keep_s=600.0)
    assert pool.target(0.0) == 3


def test_starting_containers_are_not_asked_for_again() -> None:
    pool = Pool(MARKS)
    busy(pool, 4, 0.0)
    pool.begin("a", 0.0)
    assert pool.missing(0.0) == 1


def test_pool_shrinks_after_its_idle_time_and_not_before() -> None:
    pool = Pool(MARKS)
    busy(pool, 4, 0.0)
    grown(pool, "a")
    grown(pool, "b")
    busy(pool, -4, 1.0)
    assert pool.surplus(30.0) == []
    assert [one.name for one in pool.surplus(61.0)] == ["b", "a"]


def test_pool_that_is_used_a_little_keeps_one() -> None:
    pool = Pool(MARKS)
    first = grown(pool, "a")
    grown(pool, "b")
    busy(pool, 1, 100.0)
    place = pool.take(100.0, zygote=True)
    assert place is not None
    assert place.member is first
    assert [one.name for one in pool.surplus(130.0)] == ["b"]


def test_warm_pool_stays_until_its_time_is_over() -> None:
    pool = Pool(MARKS)
    pool.warm(2, 0.0, keep_s=600.0)
    assert pool.missing(0.0) == 2
    grown(pool, "a")
    grown(pool, "b")
    assert pool.surplus(599.0) == []
    assert len(pool.surplus(601.0)) == 2
    pool.warm(0, 10.0, keep_s=600.0)
    assert len(pool.surplus(200.0)) == 2


def test_warm_pool_may_be_given_another_maximum() -> None:
    pool = Pool(MARKS)
    pool.warm(1, 0.0, keep_s=600.0, most=1)
    busy(pool, 50, 0.0)
    assert pool.target(0.0) == 1


def test_call_goes_where_the_fewest_run_and_the_oldest_is_first() -> None:
    pool = Pool(MARKS)
    for name in "ab":
        grown(pool, name)
    taken = [pool.take(1.0, zygote=True) for _ in range(5)]
    assert [place.member.name for place in taken if place is not None] == ["a", "b", "a", "b"]
    assert taken[4] is None
    pool.check_invariants()


def test_python_call_waits_for_a_zygote_and_others_do_not() -> None:
    pool = Pool(MARKS)
    member = grown(pool, "a", zygote=False)
    assert pool.take(0.0, zygote=True) is None
    assert pool.take(0.0, zygote=False) is not None
    member.zygote = True
    assert pool.take(0.0, zygote=True) is not None


def test_cell_serves_again_only_when_it_was_made_anew() -> None:
    pool = Pool(Marks(cells=1, running=1))
    member = grown(pool, "a")
    place = pool.take(0.0, zygote=True)
    assert place is not None
    pool.end(place, 1.0)
    assert pool.take(1.0, zygote=True) is None
    member.ready(0)
    assert pool.take(1.0, zygote=True) == place
    assert pool.calls == 1


def test_place_that_nothing_ran_in_is_given_out_again() -> None:
    pool = Pool(Marks(cells=1, running=1))
    grown(pool, "a")
    place = pool.take(0.0, zygote=True)
    assert place is not None
    pool.untouched(place)
    assert pool.take(0.0, zygote=True) == place
    assert pool.calls == 0


def test_container_that_served_its_calls_ends_after_the_last_one() -> None:
    pool = Pool(Marks(cells=4, running=4, calls_max=2))
    member = grown(pool, "a")
    places = [pool.take(0.0, zygote=True) for _ in range(3)]
    assert places[2] is None
    assert places[0] is not None
    assert places[1] is not None
    pool.end(places[0], 1.0)
    assert member.stage is Stage.READY
    assert member.room == 0
    pool.end(places[1], 1.0)
    assert pool.finished() == [member]
    assert "2 calls" in member.why


def test_container_with_memory_that_nothing_explains_is_replaced() -> None:
    pool = Pool(MARKS)
    member = grown(pool, "a")
    busy(pool, 1, 0.0)
    place = pool.take(0.0, zygote=True)
    assert place is not None
    pool.end(place, 1.0, residue_bytes=65 << 20)
    assert member.finished
    assert pool.missing(1.0) == 1


def test_lost_cells_end_a_container_and_running_calls_are_waited_for() -> None:
    pool = Pool(MARKS)
    member = grown(pool, "a")
    place = pool.take(0.0, zygote=True)
    assert place is not None
    member.broke(2, "no memory")
    assert member.stage is Stage.READY
    member.broke(3, "no memory")
    assert member.stage is Stage.RETIRING
    assert pool.finished() == []
    pool.end(place, 1.0)
    assert pool.finished() == [member]


def test_container_that_is_gone_lets_its_calls_end() -> None:
    pool = Pool(MARKS)
    member = grown(pool, "a")
    place = pool.take(0.0, zygote=True)
    assert place is not None
    pool.gone(member)
    pool.end(place, 1.0)
    assert pool.running == 0
    assert not pool.members


def test_containers_that_cannot_be_made_are_tried_ever_more_rarely() -> None:
    pool = Pool(MARKS)
    busy(pool, 1, 0.0)
    told = []
    now = 0.0
    waits = []
    for number in range(HOPELESS):
        while not pool.missing(now):
            now += 0.01
        waits.append(now)
        told.append(pool.failed(pool.begin(str(number), now), now))
    assert told == [False, False, True]
    assert waits[2] - waits[1] > waits[1] - waits[0] > 0.05
    grown(pool, "works", now)
    assert pool.failures == 0


def test_containers_that_cannot_be_made_are_tried_for_nobody() -> None:
    pool = Pool(MARKS)
    busy(pool, 1, 0.0)
    pool.failed(pool.begin("a", 0.0), 0.0)
    busy(pool, -1, 1.0)
    assert pool.missing(2.0) == 0
    busy(pool, 1, 3.0)
    assert pool.missing(3.0) == 1
    grown(pool, "b", 3.0)
    busy(pool, -1, 4.0)
    assert pool.target(5.0) == 1  # it works again, and is kept for the next call


def test_pool_that_is_let_go_wants_nothing_until_it_is_called_again() -> None:
    pool = Pool(MARKS)
    busy(pool, 1, 0.0)
    pool.warm(2, 0.0, keep_s=100.0)
    busy(pool, -1, 1.0)
    pool.let_go()
    assert pool.target(1.0) == 0
    busy(pool, 1, 2.0)
    assert pool.target(2.0) == 1


def test_pool_of_containers_for_one_call_keeps_a_stock() -> None:
    pool = Pool(once(MARKS, stock_max=8))
    busy(pool, 1, 0.0)
    assert pool.missing(0.0) == 2
    member = grown(pool, "a")
    place = pool.take(0.0, zygote=True)
    assert place is not None
    pool.end(place, 1.0)
    busy(pool, -1, 1.0)
    assert member.finished
    assert pool.missing(1.0) == 1


def test_pools_with_nothing_begin_first() -> None:
    first, second = Pool(MARKS), Pool(MARKS)
    busy(first, 100, 0.0)
    grown(first, "a")
    busy(second, 1, 0.0)
    moves = plan({"first": first, "second": second}, 0.0, containers_max=3)
    assert moves.begin == {"first": 1, "second": 1}
    assert moves.retire == []


def test_idle_container_gives_its_room_to_an_environment_that_has_none() -> None:
    idle, needy = Pool(MARKS), Pool(MARKS)
    busy(idle, 2, 0.0)
    grown(idle, "old")
    grown(idle, "new").last_used = 5.0
    busy(idle, -2, 6.0)
    busy(needy, 1, 7.0)
    pools = {"idle": idle, "needy": needy}
    moves = plan(pools, 7.0, containers_max=2)
    assert moves.begin == {}
    assert [(key, one.name) for key, one, _ in moves.retire] == [("idle", "old")]
    moves.retire[0][1].retire(moves.retire[0][2])
    assert plan(pools, 7.0, containers_max=2).retire == []  # its room is under way
    idle.gone(moves.retire[0][1])
    assert plan(pools, 7.0, containers_max=2).begin == {"needy": 1}


def test_busy_environments_take_turns_when_there_is_room_for_one_alone() -> None:
    loaded, needy = Pool(MARKS), Pool(MARKS)
    member = grown(loaded, "a")
    busy(loaded, 1, 0.0)
    busy(needy, 1, 0.0)
    assert loaded.take(0.0, zygote=True) is not None
    pools = {"loaded": loaded, "needy": needy}
    assert plan(pools, TURN_S / 2, containers_max=1).retire == []
    assert [one for _, one, _ in plan(pools, TURN_S, containers_max=1).retire] == [member]


def test_what_is_kept_at_a_minimum_is_not_given_away_while_it_idles() -> None:
    pool = Pool(Marks(containers_min=1))
    grown(pool, "a")
    assert pool.spared(1000.0) is None
    assert pool.surplus(1000.0) == []


def test_marks_that_make_no_sense_are_refused() -> None:
    for wrong in (Marks(cells=64), Marks(cells=2, running=3), Marks(idle_s=0.0)):
        with pytest.raises(InvalidRequest):
            wrong.check()
    with pytest.raises(InvalidRequest):
        Marks(containers_min=9, containers_max=8).check()


def test_cell_that_is_ready_twice_is_a_bug() -> None:
    member = grown(Pool(MARKS), "a")
    with pytest.raises(Bug):
        member.ready(0)
