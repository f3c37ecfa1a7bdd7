"""Pressure stall information and brakes on it (kernel: Documentation/accounting/psi.rst).

Values are `avg10`: the share of the last ten seconds, in percent, in which some task (or all that
were not idle) waited for the resource. The kernel updates them every two seconds, and reading one
file costs about 10 us, so a look at most every half second costs nothing. The kernel's triggers
would save even that, but they wake with POLLPRI, which libuv's loops cannot wait for.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, fields
from typing import Final, NamedTuple

from skerry.errors import InvalidRequest

RESOURCES: Final = ("cpu", "memory", "io")
HOST: Final = "/proc/pressure"


def _read(path: str) -> bytes:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(descriptor, 512)
    except OSError:  # PSI is compiled in and switched off
        return b""
    finally:
        os.close(descriptor)


class Stall(NamedTuple):
    """`avg10` of one resource, in percent."""

    some: float = 0.0
    full: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Marks:
    """(high, low) in percent for each brake: it holds above `high` until below `low`. High 0: off.

    The defaults brake on memory only. At density some task always waits for a processor, and on an
    idle host one task that reads a cold image makes `io full` 100: both are healthy. Memory stalls
    are not, once memory is really short: a sandbox that thrashes within its own limit stalls too,
    so the memory brakes count only while less than `memory_available_below` of the host's memory
    is available (a share of 1).
    """

    cpu_some: tuple[float, float] = (0.0, 0.0)
    cpu_full: tuple[float, float] = (0.0, 0.0)
    memory_some: tuple[float, float] = (20.0, 10.0)
    memory_full: tuple[float, float] = (5.0, 2.0)
    io_some: tuple[float, float] = (0.0, 0.0)
    io_full: tuple[float, float] = (0.0, 0.0)
    memory_available_below: float = 0.25

    def check(self) -> Marks:
        """Returns itself; InvalidRequest unless 0 <= low <= high <= 100 for every brake."""
        for name, (high, low) in self.brakes():
            if not 0 <= low <= high <= 100:
                raise InvalidRequest(
                    f"pressure.{name}: high and low must be 0 <= low <= high <= 100"
                )
        if not 0 <= self.memory_available_below <= 1:
            raise InvalidRequest("pressure.memory_available_below must be between 0 and 1")
        return self

    def brakes(self) -> Iterable[tuple[str, tuple[float, float]]]:
        """Gives each brake's name and marks."""
        for item in fields(self):
            value = getattr(self, item.name)
            if isinstance(value, tuple):
                yield item.name, value


@dataclass(slots=True)
class Brake:
    """Hysteresis: holds once the value is above `high`, until it is below `low`. High 0: never."""

    name: str
    high: float
    low: float
    value: float = 0.0
    holds: bool = False
    times: int = 0  # how often it began to hold

    def take(self, value: float, *, spare: bool = False) -> bool:
        """Takes a new value; returns whether the brake holds now.

        While there is enough to `spare` it does not, whatever the value.
        """
        self.value = value
        if self.high <= 0:
            return False
        before = self.holds
        self.holds = not spare and (value >= self.low if before else value > self.high)
        self.times += self.holds and not before
        return self.holds


@dataclass(slots=True)
class Pressure:
    """The brakes of one node over the host and, on cgroup v2, its own group: the higher one counts.

    A file that is missing (no PSI in this kernel) reads as no pressure.
    """

    marks: Marks
    places: Sequence[str] = (HOST,)
    read: Callable[[str], bytes] = _read
    brakes: dict[str, Brake] = field(init=False)

    def __post_init__(self) -> None:
        self.brakes = {
            name: Brake(name, high, low) for name, (high, low) in self.marks.check().brakes()
        }

    def look(self, memory_available_share: float = 0.0) -> list[Brake]:
        """Reads the files and returns the brakes that hold. Costs about 30 us a place."""
        held = []
        for resource in RESOURCES:
            stall = self._stall(resource)
            spare = (
                resource == "memory" and memory_available_share > self.marks.memory_available_below
            )
            for kind, value in zip(Stall._fields, stall, strict=True):
                brake = self.brakes[f"{resource}_{kind}"]
                if brake.take(value, spare=spare):
                    held.append(brake)
        return held

    def _stall(self, resource: str) -> Stall:
        found = [parse(self.read(_file(place, resource))) for place in self.places]
        return Stall(
            max((stall.some for stall in found), default=0.0),
            max((stall.full for stall in found), default=0.0),
        )


def parse(content: bytes) -> Stall:
    """Returns the averages over ten seconds; what cannot be read counts as 0."""
    values = {}
    for line in content.splitlines():
        words = line.split()
        if len(words) < 2 or not words[1].startswith(b"avg10="):
            continue
        try:
            values[words[0]] = float(words[1][6:])
        except ValueError:
            continue
    return Stall(values.get(b"some", 0.0), values.get(b"full", 0.0))


def places(own_cgroup: str, unified: str | None) -> tuple[str, ...]:
    """Returns where to look: the host, and the group that /proc/self/cgroup names if it is no root.

    `own_cgroup` is the content of that file, `unified` the mount of cgroup2.
    """
    for line in own_cgroup.splitlines():
        if unified is not None and line.startswith("0::/") and line != "0::/":
            return HOST, f"{unified}{line[3:]}"
    return (HOST,)


def _file(place: str, resource: str) -> str:
    return f"{place}/{resource}" if place == HOST else f"{place}/{resource}.pressure"
