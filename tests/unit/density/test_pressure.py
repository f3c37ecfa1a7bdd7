"""Pressure is read as the kernel writes it, and brakes hold between two marks."""

from __future__ import annotations

import pytest

from skerry.density.pressure import HOST, Brake, Marks, Pressure, Stall, parse, places
from skerry.errors import InvalidRequest

CALM = b"some avg10=0.00 avg60=0.00 avg300=0.00 total=0\n" * 2


def stalled(some: float, full: float) -> bytes:
    return (
        f"some avg10={some:.2f} avg60=1.00 avg300=0.00 total=5\n"
        f"full avg10={full:.2f} avg60=1.00 avg300=0.00 total=5\n"
    ).encode()


class Files(dict[str, bytes]):
    """The pressure files of a host; those that are not set are calm."""

    def read(self, path: str) -> bytes:
        return self.get(path, CALM)


@pytest.mark.parametrize(
    ("content", "stall"),
    [
        (stalled(12.5, 3.25), Stall(12.5, 3.25)),
        (b"some avg10=7.00 avg60=0.00 avg300=0.00 total=0\n", Stall(7.0, 0.0)),
        (b"", Stall()),
        (b"some avg10=nonsense\nfull\nthird avg10=9\n", Stall()),
        (b"\xff\xfe", Stall()),
    ],
)
def test_averages_are_parsed_and_nonsense_is_no_pressure(content, stall) -> None:
    assert parse(content) == stall


def test_brake_holds_above_the_high_mark_until_below_the_low_one() -> None:
    brake = Brake("x", 20.0, 10.0)
    seen = [brake.take(value) for value in (5, 20, 21, 15, 10, 9.9, 15, 20.1)]
    assert seen == [False, False, True, True, True, False, False, True]
    assert brake.times == 2


def test_brake_without_a_high_mark_never_holds() -> None:
    assert not Brake("x", 0.0, 0.0).take(100.0)


def test_busy_processors_and_disks_do_not_brake_by_default() -> None:
    files = Files({f"{HOST}/cpu": stalled(99, 80), f"{HOST}/io": stalled(99, 99)})
    assert Pressure(Marks(), read=files.read).look(0.1) == []


def test_memory_stalls_brake_only_while_memory_is_short() -> None:
    files = Files({f"{HOST}/memory": stalled(80, 60)})
    pressure = Pressure(Marks(), read=files.read)
    assert pressure.look(0.9) == []  # a sandbox that thrashes within its own limit
    assert [brake.name for brake in pressure.look(0.1)] == ["memory_some", "memory_full"]
    files[f"{HOST}/memory"] = stalled(15, 1)
    assert [brake.name for brake in pressure.look(0.1)] == ["memory_some"]
    assert pressure.look(0.9) == []  # there is memory again, whatever stalls
    assert pressure.brakes["memory_some"].value == 15.0  # which is still what is told
    files[f"{HOST}/memory"] = CALM
    assert pressure.look(0.1) == []


def test_own_group_counts_where_it_is_worse_than_the_host() -> None:
    files = Files({"/sys/fs/cgroup/pod/cpu.pressure": stalled(90, 70)})
    where = places("12:cpu:/x\n0::/pod\n", "/sys/fs/cgroup")
    pressure = Pressure(Marks(cpu_full=(50.0, 20.0)), where, files.read)
    assert [(brake.name, brake.value) for brake in pressure.look()] == [("cpu_full", 70.0)]


@pytest.mark.parametrize(
    ("own", "unified"), [("0::/\n", "/sys/fs/cgroup"), ("0::/pod\n", None), ("", "/u")]
)
def test_root_group_and_hosts_without_cgroup2_are_read_once(own, unified) -> None:
    assert places(own, unified) == (HOST,)


@pytest.mark.parametrize(
    "marks",
    [
        {"cpu_some": (10.0, 20.0)},
        {"io_full": (101.0, 1.0)},
        {"memory_full": (10.0, -1.0)},
        {"memory_available_below": 2.0},
    ],
)
def test_marks_that_make_no_sense_are_refused(marks) -> None:
    with pytest.raises(InvalidRequest):
        Marks(**marks).check()


def test_this_host_is_read_without_an_error() -> None:
    assert isinstance(Pressure(Marks()).look(0.5), list)
