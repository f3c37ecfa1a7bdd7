"""A door on a host whose readings a test sets."""

from __future__ import annotations

from typing import Any

import pytest

from skerry.density.pressure import Marks, Pressure
from skerry.errors import Overloaded
from skerry.node.admission.doors import Admission
from skerry.node.admission.holders import Holder
from skerry.node.admission.shortage import Claim
from skerry.node.admission.waits import Wait
from skerry.node.config import Limits
from skerry.node.gauges.readings import Readings
from skerry.node.timers import Timers

GIB = 1 << 30


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
