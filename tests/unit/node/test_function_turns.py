"""Calls get their places in fair turns, whatever environments they name and whatever breaks."""

from __future__ import annotations

import heapq
import itertools
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from skerry.backends.function import house
from skerry.backends.function.marks import Marks
from skerry.backends.function.member import Member, Stage
from skerry.backends.function.pool import Place, Pool
from skerry.errors import Overloaded, Unavailable
from skerry.node.admission.holders import Holder
from skerry.node.functions.line import CallLine, Waiting, Wanted
from skerry.node.functions.turns import Turns

MARKS = Marks(containers_max=4, cells=4, running=2, idle_s=30.0)


class Stand:
    """A queue with one pool on a clock that a test moves."""

    def __init__(self, **changes: Any) -> None:
        self.now = 0.0
        options = {"calls_max": 100, "calls_per_owner_max": 50, "bytes_max": 1 << 20} | changes
        running_max = options.pop("running_max", 8)
        memory_max = options.pop("memory_max", 1 << 40)
        weights = options.pop("weights", {})
        self.line = CallLine(now=lambda: self.now, weights=weights, **options)
        self.turns = Turns(
            self.line, lambda: self.now, running_max=running_max, memory_max=memory_max
        )
        self.pool = Pool(MARKS)

    def grow(self, name: str, *, zygote: bool = True) -> Member:
        member = self.pool.begin(name, self.now)
        for cell in range(self.pool.marks.cells):
            member.ready(cell)
        member.zygote = zygote
        self.pool.made(member, self.now)
        self.turns.look_again(self.pool)
        return member

    def push(self, job: str = "a", *, zygote: bool = False, **changes: Any) -> Waiting:
        priority = changes.pop("priority", 0)
        wait = Waiting(Wanted(self.pool, zygote), Holder(job=job), **changes)
        self.turns.wait(wait, priority=priority)
        self.turns.check_invariants()
        return wait

    def end(self, wait: Waiting) -> None:
        place = wait.done.result()
        self.turns.end(self.pool, place, wait.memory_bytes)
        place.member.ready(place.cell)
        self.turns.look_again(self.pool)
        self.turns.check_invariants()


async def test_call_gets_a_place_at_once_when_nobody_waits() -> None:
    stand = Stand()
    assert stand.turns.take(Wanted(stand.pool, False), 0) is None
    stand.grow("c")
    assert stand.turns.take(Wanted(stand.pool, False), 0) is not None


async def test_newcomer_does_not_overtake_who_waits() -> None:
    stand = Stand(running_max=1)
    stand.grow("c")
    first, second = stand.push(), stand.push()
    assert first.done.done()
    assert not second.done.done()
    assert stand.turns.take(Wanted(stand.pool, False), 0) is None
    stand.end(first)
    assert second.done.done()


async def test_jobs_take_turns_however_many_calls_one_has_pushed() -> None:
    stand = Stand(running_max=1)
    stand.grow("c")
    running = stand.push()
    waits = [stand.push("big") for _ in range(20)] + [stand.push("small") for _ in range(2)]
    order = []
    for _ in range(4):
        stand.end(running)
        running = next(wait for wait in waits if wait.done.done() and wait not in order)
        order.append(running)
    assert [wait.holder.job for wait in order].count("small") == 2


async def test_weight_of_a_job_gives_it_more_turns() -> None:
    stand = Stand(running_max=1, weights={"vip": 3.0})
    stand.grow("c")
    running = stand.push("x")
    waits = [stand.push(job) for job in ("vip", "low") for _ in range(20)]
    served: list[Waiting] = []
    for _ in range(16):
        stand.end(running)
        running = next(wait for wait in waits if wait.done.done() and wait not in served)
        served.append(running)
    assert [wait.holder.job for wait in served].count("vip") == pytest.approx(12, abs=1)


async def test_call_of_higher_priority_is_first_within_its_job() -> None:
    stand = Stand(running_max=1)
    stand.grow("c")
    running = stand.push()
    low, high = stand.push(priority=0), stand.push(priority=5)
    stand.end(running)
    assert high.done.done()
    assert not low.done.done()


async def test_calls_that_need_python_do_not_hold_up_those_that_do_not() -> None:
    stand = Stand()
    member = stand.grow("c", zygote=False)
    python, program = stand.push(zygote=True), stand.push()
    assert program.done.done()
    assert not python.done.done()
    member.zygote = True
    stand.turns.look_again(stand.pool)
    assert python.done.done()


async def test_calls_that_may_use_much_memory_do_not_run_together() -> None:
    stand = Stand(memory_max=100)
    stand.grow("c")
    large = stand.push(memory_bytes=150)
    small = stand.push(memory_bytes=10)
    assert large.done.done()
    assert not small.done.done()
    stand.end(large)
    assert small.done.done()


async def test_full_queue_names_the_limit_and_who_waits() -> None:
    stand = Stand(calls_max=3, calls_per_owner_max=2)
    stand.push("big")
    stand.push("big")
    with pytest.raises(Overloaded) as caught:
        stand.push("big")
    assert caught.value.fields["limit"] == "function calls per owner"
    stand.push("other")
    with pytest.raises(Overloaded) as caught:
        stand.push("third")
    fields = caught.value.fields
    assert (fields["limit"], fields["used"], fields["maximum"]) == ("function calls", 3, 3)
    assert fields["retry_after_s"] >= 1.0
    assert {"who": "job big", "calls": 2} in fields["holders"]
    assert fields["holders"][-1] == {"who": "you", "calls": 0}
    assert stand.line.refused == {"function calls": 1, "function calls per owner": 1}


async def test_other_tokens_are_not_named_to_who_is_refused() -> None:
    stand = Stand(calls_max=1)
    stand.turns.wait(Waiting(Wanted(stand.pool, False), Holder(tenant="t", job="secret")))
    with pytest.raises(Overloaded) as caught:
        stand.push("mine")
    assert "secret" not in repr(caught.value.fields)


async def test_bytes_that_wait_are_bounded() -> None:
    stand = Stand(bytes_max=100)
    stand.push(size=500)  # it was let in by itself
    with pytest.raises(Overloaded) as caught:
        stand.push(size=1)
    assert caught.value.fields["limit"] == "bytes of function calls"


async def test_call_that_leaves_gives_its_place_on() -> None:
    stand = Stand(running_max=1)
    stand.grow("c")
    running = stand.push()
    left, next_one = stand.push(), stand.push()
    stand.end(running)
    assert left.done.done()
    stand.turns.left(left)  # it was cancelled in the moment in which it was served
    assert next_one.done.done()
    last = stand.push()
    stand.turns.left(last)
    assert len(stand.line) == 0
    assert stand.line.bytes == 0


async def test_pool_that_cannot_work_tells_all_who_wait_for_it() -> None:
    stand = Stand()
    python, program = stand.push(zygote=True), stand.push()
    stand.turns.refuse(stand.pool, lambda: Unavailable("no python"), zygote=True)
    assert isinstance(python.done.exception(), Unavailable)
    assert not program.done.done()
    stand.turns.refuse(stand.pool, lambda: Unavailable("no container"))
    assert isinstance(program.done.exception(), Unavailable)
    assert len(stand.line) == 0


class World:
    """Jobs that call, containers that take time to start and die: everything from one seed."""

    def __init__(self, seed: int, *, containers_max: int = 3, running_max: int = 4) -> None:
        self.random = random.Random(seed)
        self.now = 0.0
        self.events: list[tuple[float, int, Callable[[], None]]] = []
        self.count = itertools.count()
        self.line = CallLine(
            calls_max=400,
            calls_per_owner_max=200,
            bytes_max=1 << 30,
            now=lambda: self.now,
            weights={},
        )
        self.turns = Turns(self.line, lambda: self.now, running_max=running_max, memory_max=1 << 40)
        self.pools = {name: Pool(MARKS) for name in ("python", "gcc", "node", "go")}
        self.containers_max = containers_max
        self.asked: Counter[str] = Counter()
        self.served: Counter[str] = Counter()
        self.lost: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self.names = itertools.count()

    def at(self, delay: float, do: Callable[[], None]) -> None:
        heapq.heappush(self.events, (self.now + delay, next(self.count), do))

    def run(self, until: float) -> None:
        while self.events and self.events[0][0] <= until:
            self.now, _, do = heapq.heappop(self.events)
            do()
            self.check()
        self.now = until

    def check(self) -> None:
        self.turns.check_invariants()
        for pool in self.pools.values():
            pool.check_invariants()
        assert sum(len(pool.members) for pool in self.pools.values()) <= self.containers_max
        assert self.turns.running == sum(pool.running for pool in self.pools.values())

    def tend(self) -> None:
        moves = house.plan(self.pools, self.now, containers_max=self.containers_max)
        for key, number in moves.begin.items():
            for _ in range(number):
                self.begin(self.pools[key])
        for _, member, why in moves.retire:
            member.retire(why)
        self.clear()
        self.at(0.25, self.tend)

    def begin(self, pool: Pool) -> None:
        member = pool.begin(f"c{next(self.names)}", self.now)
        if self.random.random() < 0.1:
            self.at(0.2, lambda: self.failed(pool, member))
        else:
            self.at(self.random.uniform(0.1, 0.4), lambda: self.made(pool, member))

    def failed(self, pool: Pool, member: Member) -> None:
        if pool.failed(member, self.now):
            self.turns.refuse(pool, lambda: Unavailable("it cannot be made"))

    def made(self, pool: Pool, member: Member) -> None:
        for cell in range(member.marks.cells):
            member.ready(cell)
        member.zygote = True
        pool.made(member, self.now)
        self.turns.look_again(pool)
        if self.random.random() < 0.3:
            self.at(self.random.uniform(1.0, 20.0), lambda: self.dies(pool, member))

    def dies(self, pool: Pool, member: Member) -> None:
        pool.gone(member)

    def clear(self) -> None:
        for pool in self.pools.values():
            for member in pool.finished():
                pool.gone(member)

    def call(self, job: str, env: str, then: Callable[[], None]) -> None:
        pool = self.pools[env]
        wait = Waiting(Wanted(pool, self.random.random() < 0.5), Holder(job=job))
        self.asked[job] += 1
        pool.demand.note(self.now, 1)
        try:
            self.turns.wait(wait)
        except Overloaded:
            pool.demand.note(self.now, -1)
            self.refused[job] += 1
            self.at(1.0, then)
            return
        self.watch(job, pool, wait, then)

    def watch(self, job: str, pool: Pool, wait: Waiting, then: Callable[[], None]) -> None:
        if not wait.done.done():
            self.at(0.03, lambda: self.watch(job, pool, wait, then))
        elif wait.done.exception() is not None:
            pool.demand.note(self.now, -1)
            self.refused[job] += 1
            self.at(1.0, then)
        else:
            self.at(0.05, lambda: self.ended(job, pool, wait.done.result(), then))

    def ended(self, job: str, pool: Pool, place: Place, then: Callable[[], None]) -> None:
        self.turns.end(pool, place, 0)
        pool.demand.note(self.now, -1)
        if place.member.name in pool.members:
            self.served[job] += 1
            if place.member.stage is Stage.READY:
                self.at(0.02, lambda: self.renewed(pool, place))
        else:
            self.lost[job] += 1
        self.turns.let_in()
        then()

    def renewed(self, pool: Pool, place: Place) -> None:
        if place.member.name in pool.members:
            place.member.ready(place.cell)
            self.turns.look_again(pool)

    def client(self, job: str, envs: list[str]) -> None:
        """Calls again and again, one call at a time."""
        self.call(job, self.random.choice(envs), lambda: self.at(0.0, again))

        def again() -> None:
            self.client(job, envs)


@pytest.mark.parametrize("seed", range(3))
async def test_simulated_half_minute_serves_jobs_alike_while_containers_die(seed: int) -> None:
    world = World(seed, containers_max=2)
    for _ in range(30):
        world.client("big", ["python"])
    for _ in range(4):
        world.client("small", ["python"])
    world.at(0.0, world.tend)
    world.run(30.0)
    assert world.served["small"] > 50
    # Four callers of one job and thirty of another: each has what it can use of half the turns.
    assert world.served["small"] > 0.7 * world.served["big"]


@pytest.mark.parametrize("seed", range(3))
async def test_simulated_environments_beyond_the_room_all_come_to_their_turn(seed: int) -> None:
    world = World(seed, containers_max=2)
    for env in world.pools:
        for _ in range(5):
            world.client(f"job-{env}", [env])
    world.at(0.0, world.tend)
    world.run(90.0)
    assert all(world.served[f"job-{env}"] > 50 for env in world.pools), world.served


@pytest.mark.parametrize("seed", range(2))
async def test_simulated_quiet_after_a_burst_ends_all_containers(seed: int) -> None:
    world = World(seed)
    done: list[int] = []
    for number in range(200):
        env = world.random.choice(list(world.pools))
        world.at(0.0, lambda env=env, n=number: world.call("a", env, lambda: done.append(n)))
    world.at(0.0, world.tend)
    world.run(200.0)
    assert len(done) == 200
    assert len(world.line) == world.turns.running == 0
    assert all(not pool.members and pool.over(world.now) for pool in world.pools.values())
