"""The exact rules at the door: which limit says no, who waits, who is next, what is answered."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from node_stand import settle

from skerry.density.pressure import Marks, Pressure
from skerry.errors import Overloaded, Unavailable
from skerry.node.admission.doors import JITTER, Admission
from skerry.node.admission.holders import Holder
from skerry.node.admission.shortage import Claim, Shortage
from skerry.node.admission.waits import Wait
from skerry.node.config import Limits
from skerry.node.gauges.readings import Descriptors, Host, Readings
from skerry.node.timers import Timers

GIB = 1 << 30
MIB = 1 << 20


class World:
    """A host whose readings a test sets, and a door to it."""

    def __init__(self, clock: Any, **limits: Any) -> None:
        self.clock = clock
        self.readings = Readings(memory_total=16 * GIB, memory_available=8 * GIB)
        self.lag = 0.0
        self.stall = b""
        self.looks = 0
        self.door = Admission(
            Limits(**limits),
            clock,
            Timers(clock),
            self._look,
            pressure=Pressure(Marks(), read=lambda path: self.stall if "memory" in path else b""),
            lag=lambda: self.lag,
            weights={"vip": 3.0},
            jitter=lambda low, high: 1.0,
        )
        self._made = 0

    def _look(self) -> Readings:
        self.looks += 1
        return self.readings

    def claim(self, job: str = "a", **changes: Any) -> Claim:
        self._made += 1
        return Claim(f"s{self._made}", Holder(job=job), **changes)

    def admit(self, job: str = "a", **changes: Any) -> str:
        claim = self.claim(job, **changes)
        assert self.door.ask(claim) is None
        return claim.sandbox

    def refused(self, **changes: Any) -> dict[str, Any]:
        with pytest.raises(Overloaded) as caught:
            self.door.ask(self.claim(**changes))
        self.door.check_invariants()
        return caught.value.fields

    def wait(self, job: str = "a", wait_s: float = 60.0, priority: int = 0) -> Wait:
        wait = self.door.ask(self.claim(job), wait_s=wait_s, priority=priority)
        assert wait is not None
        return wait


@pytest.fixture
def world(manual) -> Callable[..., World]:
    return lambda **limits: World(manual, **limits)


# -- limits ---------------------------------------------------------------------------------------


def test_full_node_tells_numbers_and_the_biggest_holders(world) -> None:
    node = world(sandboxes_max=10)
    for job, count in (("sphinx", 6), ("django", 3), ("flask", 1)):
        for _ in range(count):
            node.admit(job)
    fields = node.refused(job="flask")
    assert fields["limit"] == "sandboxes"
    assert (fields["used"], fields["maximum"]) == (10, 10)
    assert fields["holders"] == [
        {"who": "job sphinx", "sandboxes": 6},
        {"who": "job django", "sandboxes": 3},
        {"who": "job flask", "sandboxes": 1},
        {"who": "you", "sandboxes": 1},
    ]


def test_holders_that_came_since_the_last_refusal_are_named(world) -> None:
    node = world(sandboxes_max=0)
    assert node.refused(job="a")["holders"] == [{"who": "you", "sandboxes": 0}]
    node.door.count(Claim("x", Holder("another", None, "b")))
    node.door.count(Claim("y", Holder(job="c")))
    assert node.refused(job="a")["holders"] == [
        {"who": "another token", "sandboxes": 1},
        {"who": "job c", "sandboxes": 1},
        {"who": "you", "sandboxes": 0},
    ]


def test_among_thousands_of_holders_the_biggest_are_named(world) -> None:
    node = world(sandboxes_max=0)
    for number in range(2_000):
        node.door.count(Claim(f"x{number}", Holder(job=f"job-{number}")))
    node.refused()
    for number in range(100):
        node.door.count(Claim(f"y{number}", Holder(job="late")))
    assert node.refused()["holders"][0] == {"who": "job late", "sandboxes": 100}


def test_other_tokens_jobs_and_owners_keep_their_names(world) -> None:
    node = world(sandboxes_max=2)
    secret = "owner-name-that-is-a-key"
    node.door.count(Claim("x", Holder("token-b", None, "secret project")))
    node.door.count(Claim("y", Holder("token-a", secret)))
    with pytest.raises(Overloaded) as caught:
        node.door.ask(Claim("z", Holder("token-a", None, "mine")))
    told = str(caught.value.fields) + caught.value.message
    assert "another token" in told
    assert "owner owner-..." in told
    assert "secret project" not in told
    assert secret not in told
    assert "token-b" not in told


def test_an_ended_sandbox_frees_its_place_at_once_and_only_once(world) -> None:
    """(reports 43, 50, 53)"""
    node = world(sandboxes_max=2)
    first, _ = node.admit(), node.admit()
    node.refused()
    node.door.release(first)
    node.door.release(first)
    node.admit()
    assert node.refused()["used"] == 2
    assert node.door.claims.memory_bytes == 0


def test_asked_memory_is_bounded_where_the_operator_says_so(world) -> None:
    node = world(memory_overcommit=2.0)
    for _ in range(4):
        node.admit(memory_bytes=8 * GIB)
    fields = node.refused(memory_bytes=8 * GIB)
    assert fields["limit"] == "memory_overcommit"
    assert (fields["used"], fields["maximum"]) == (32 * 1024, 32 * 1024)
    unbounded = world()
    for _ in range(100):
        unbounded.admit(memory_bytes=8 * GIB)


def test_asked_processes_are_bounded_where_the_operator_says_so(world) -> None:
    node = world(pids_overcommit=0.5, pids_free_min=0)
    node.readings = Readings(pids_max=1000)
    node.admit(pids=400)
    assert node.refused(pids=101)["limit"] == "pids_overcommit"
    node.admit(pids=100)


async def test_young_sandboxes_count_for_what_they_have_not_taken_yet(world, manual) -> None:
    node = world(memory_free_min_bytes=256 * MIB, memory_young_bytes=16 * MIB)
    node.readings = Readings(memory_total=GIB, memory_available=400 * MIB)
    made = [node.admit() for _ in range(10)]  # 160 MiB: 240 are left, and 256 must stay
    fields = node.refused()
    assert fields["limit"] == "memory_free"
    assert (fields["value"], fields["minimum"]) == (240, 256)
    node.door.release(made[0])
    node.admit()
    await manual.advance(10)
    node.admit()  # the others are grown: what they take is in the reading


@pytest.mark.parametrize(
    ("readings", "limit"),
    [
        (Readings(memory_available=100 * MIB), "memory_free"),
        (Readings(disk_free=100 * MIB), "disk_free"),
        (Readings(pids_used=31_800, pids_max=32_768), "pids_free"),
        (Readings(descriptors=(Descriptors("node", 19_900, 20_000),)), "descriptors_free"),
        (
            Readings(
                descriptors=(Descriptors("node", 5, 20_000), Descriptors("launcher", 900, 1024))
            ),
            "descriptors_free",
        ),
    ],
)
async def test_what_the_host_lacks_is_named_until_it_is_back(
    world, manual, readings, limit
) -> None:
    node = world()
    node.readings = readings
    fields = node.refused()
    assert fields["limit"] == limit
    assert fields["value"] < fields["minimum"]
    node.readings = Readings()
    node.refused()  # the last look is not old enough
    await manual.advance(0.5)
    node.admit()


async def test_host_is_read_twice_a_second_at_most(world, manual) -> None:
    node = world()
    for _ in range(1000):
        node.admit()
    assert node.looks == 1
    await manual.advance(0.5)
    node.admit()
    assert node.looks == 2


async def test_memory_pressure_brakes_until_it_is_below_the_low_mark(world, manual) -> None:
    node = world()
    node.readings = Readings(memory_total=16 * GIB, memory_available=2 * GIB)
    node.stall = b"some avg10=30.00 avg60=0 avg300=0 total=1\nfull avg10=1.00 avg60=0\n"
    fields = node.refused()
    assert fields["limit"] == "pressure_memory_some"
    assert (fields["value"], fields["high"], fields["low"]) == (30.0, 20.0, 10.0)
    node.stall = b"some avg10=15.00 avg60=0 avg300=0 total=1\n"
    await manual.advance(1)
    node.refused()
    node.stall = b"some avg10=9.00 avg60=0 avg300=0 total=1\n"
    await manual.advance(1)
    node.admit()


async def test_loop_that_is_seconds_late_brakes(world, manual) -> None:
    node = world(loop_lag_max_s=3.0)
    node.lag = 3.5
    assert node.refused()["limit"] == "loop_lag"
    node.lag = 1.0
    await manual.advance(1)
    node.refused()
    node.lag = 0.1
    await manual.advance(1)
    node.admit()


# -- when to come back ----------------------------------------------------------------------------


async def test_time_to_come_back_follows_the_rate_of_ends(world, manual) -> None:
    node = world(sandboxes_max=200)
    live = [node.admit() for _ in range(200)]
    assert node.refused()["retry_after_s"] == 5.0  # nothing has ended: nobody can tell
    for _ in range(100):  # two end each second, and are replaced
        node.door.release(live.pop(0))
        live.append(node.admit())
        await manual.advance(0.5)
    assert node.refused()["retry_after_s"] == 1.25  # the least that is said, before the jitter
    waits = [node.wait() for _ in range(20)]
    assert 9 < node.refused()["retry_after_s"] < 14
    assert len(waits) == 20


def test_clients_are_told_different_times() -> None:
    told = set()
    for _ in range(20):
        door = Admission(Limits(sandboxes_max=0), _Still(), Timers(_Still()))
        with pytest.raises(Overloaded) as caught:
            door.ask(Claim("x"))
        told.add(caught.value.fields["retry_after_s"])
    assert len(told) > 5
    assert all(4.0 <= seconds <= 6.25 for seconds in told)


def test_time_to_come_back_is_never_below_a_second_nor_above_a_minute() -> None:
    for jitter, waits in ((JITTER[0], 0.0), (JITTER[1], 1e6)):
        door = Admission(
            Limits(sandboxes_max=0), _Still(), Timers(_Still()), jitter=lambda *_, j=jitter: j
        )
        told = door._refuse(Shortage("x", "x", {}, waits), None).fields["retry_after_s"]
        assert told == (1.0 if waits == 0 else 60.0)


class _Still:
    def monotonic(self) -> float:
        return 0.0

    def wall(self) -> float:
        return 0.0

    def wake_at(self, deadline: float, call: Callable[[], None]) -> Callable[[], None]:
        return lambda: None


# -- waiting for room -----------------------------------------------------------------------------


async def test_freed_places_go_round_by_job(world) -> None:
    node = world(sandboxes_max=4)
    live = [node.admit() for _ in range(4)]
    waits = [("greedy", node.wait("greedy")) for _ in range(50)]
    waits += [("modest", node.wait("modest")) for _ in range(2)]
    for sandbox in live:
        node.door.release(sandbox)
    served = [job for job, wait in waits if wait.done.done()]
    assert sorted(served) == ["greedy", "greedy", "modest", "modest"]
    node.door.check_invariants()


async def test_job_with_a_weight_gets_that_many_places(world) -> None:
    node = world(sandboxes_max=40)
    live = [node.admit() for _ in range(40)]
    waits = [(job, node.wait(job)) for job in ("vip", "plain") for _ in range(60)]
    for sandbox in live:
        node.door.release(sandbox)
    served = [job for job, wait in waits if wait.done.done()]
    assert served.count("vip") == 30


async def test_nobody_overtakes_those_who_wait(world) -> None:
    node = world(sandboxes_max=1)
    first = node.admit()
    wait = node.wait()
    waiting = asyncio.create_task(node.door.until_admitted(wait))
    await settle(3)
    node.door.release(first)
    assert node.refused()["limit"] == "sandboxes"
    await waiting
    node.door.release(wait.claim.sandbox)
    node.admit()


async def test_wait_ends_with_the_limit_that_was_in_the_way(world, manual) -> None:
    node = world(sandboxes_max=1)
    node.admit()
    task = asyncio.create_task(node.door.until_admitted(node.wait(wait_s=10)))
    await manual.advance(9.9)
    assert not task.done()
    await manual.advance(0.2)
    with pytest.raises(Overloaded) as caught:
        await task
    assert caught.value.fields["limit"] == "sandboxes"
    assert node.door.waiting == 0


async def test_memory_that_comes_back_lets_in_who_waits(world, manual) -> None:
    node = world()
    node.readings = Readings(memory_available=0)
    task = asyncio.create_task(node.door.until_admitted(node.wait()))
    await manual.advance(5)
    assert not task.done()
    node.readings = Readings()
    await manual.advance(1)
    await task
    assert len(node.door._timers) == 0


@pytest.mark.parametrize("word", ["draining", "closing"])
async def test_node_that_drains_or_ends_sends_away_who_waits(world, word) -> None:
    node = world(sandboxes_max=1)
    first = node.admit()
    tasks = [asyncio.create_task(node.door.until_admitted(node.wait())) for _ in range(3)]
    await settle(3)
    setattr(node.door, word, True)
    for task in tasks:
        with pytest.raises(Unavailable) as caught:
            await task
        assert caught.value.fields["retry_after_s"] > 0
    node.door.release(first)
    with pytest.raises(Unavailable):
        node.door.ask(node.claim())
    setattr(node.door, word, False)
    node.admit()


async def test_client_that_goes_away_leaves_the_queue(world) -> None:
    node = world(sandboxes_max=1)
    first = node.admit()
    left = asyncio.Event()

    async def gone() -> None:
        await left.wait()

    waits = [node.wait(), node.wait()]
    tasks = [
        asyncio.create_task(node.door.until_admitted(waits[0], gone)),
        asyncio.create_task(node.door.until_admitted(waits[1])),
    ]
    await settle(3)
    left.set()
    with pytest.raises(Unavailable, match="went away"):
        await tasks[0]
    assert node.door.waiting == 1
    node.door.release(first)
    await tasks[1]


async def test_wait_that_is_cancelled_as_its_turn_comes_frees_the_room(world) -> None:
    node = world(sandboxes_max=1)
    first = node.admit()
    waits = [node.wait(), node.wait()]
    tasks = [asyncio.create_task(node.door.until_admitted(wait)) for wait in waits]
    await settle(3)
    node.door.release(first)  # to the first one, whose task is cancelled before it runs
    tasks[0].cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert tasks[1].done()
    assert list(node.door.claims.by_sandbox) == [waits[1].claim.sandbox]
    node.door.check_invariants()


async def test_queues_are_bounded_for_each_job_and_in_all(world) -> None:
    node = world(sandboxes_max=0, creates_waiting_max=10, creates_waiting_per_owner_max=4)
    for job in "abc":
        for _ in range(3):
            node.wait(job)
    node.wait("a")
    with pytest.raises(Overloaded) as caught:
        node.wait("b")
    assert caught.value.fields["limit"] == "creates_waiting"
    other = world(sandboxes_max=0, creates_waiting_max=10, creates_waiting_per_owner_max=4)
    for _ in range(4):
        other.wait("a")
    with pytest.raises(Overloaded) as caught:
        other.wait("a")
    assert caught.value.fields["limit"] == "creates_waiting_per_owner"
    other.wait("b")


async def test_places_for_creates_go_round_by_job_too(world) -> None:
    node = world(creates_in_flight_max=1)
    order: list[str] = []

    async def make(job: str) -> None:
        async with node.door.place(node.claim(job)):
            order.append(job)
            await asyncio.sleep(0)

    async with asyncio.TaskGroup() as group:
        for job in ["greedy"] * 20 + ["modest"]:
            group.create_task(make(job))
    assert order.index("modest") <= 2
    assert node.door.creating == 0


# -- the host -------------------------------------------------------------------------------------


def test_this_host_has_memory_disk_pids_and_descriptors() -> None:
    seen = Host("/", lambda: [("other", 1)])()
    assert 0 < seen.memory_available <= seen.memory_total < 1 << 50
    assert 0 < seen.disk_free < 1 << 60
    assert 0 < seen.pids_used < seen.pids_max
    assert [one.who for one in seen.descriptors] == ["node", "other"]
    assert 0 < seen.descriptors[0].used < seen.descriptors[0].maximum


def test_open_descriptors_are_counted(tmp_path) -> None:
    before = Host("/")().descriptors[0].used
    files = [open("/dev/null") for _ in range(50)]  # noqa: SIM115
    assert Host("/")().descriptors[0].used >= before + 50
    for file in files:
        file.close()


def test_host_that_tells_nothing_counts_as_plenty(tmp_path) -> None:
    seen = Host("/nonexistent", proc=str(tmp_path))()
    assert seen.memory_available == seen.disk_free == seen.pids_max
    assert seen.pids_used == 0
