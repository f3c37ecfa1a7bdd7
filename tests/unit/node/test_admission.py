"""The exact rules at the door: which limit says no, and what is answered."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from skerry.errors import Overloaded
from skerry.node.admission.doors import Admission
from skerry.node.admission.holders import Holder
from skerry.node.admission.refusals import JITTER
from skerry.node.admission.shortage import Claim, Shortage
from skerry.node.config import Limits
from skerry.node.gauges.readings import Descriptors, Host, Readings
from skerry.node.timers import Timers

GIB = 1 << 30
MIB = 1 << 20


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
