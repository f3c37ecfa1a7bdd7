"""What is short now: limits against counts, the host's readings, pressure and the loop's lag."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from skerry.density.pressure import Brake, Pressure
from skerry.node.admission.holders import Holder
from skerry.node.config import Limits
from skerry.node.gauges.readings import Readings

LOOK_EVERY_S = 0.5  # the host is read at most that often
YOUNG_S = 10.0
LAG_LOW = 0.25  # of loop_lag_max_s: below that, creates go on


class Claim(NamedTuple):
    """What one sandbox asks for, and for whom."""

    sandbox: str
    holder: Holder = Holder()
    memory_bytes: int = 0
    pids: int = 0


class Shortage(NamedTuple):
    """A limit that says no, in numbers. `after_s` is set where counts of ends say nothing."""

    limit: str
    message: str
    fields: dict[str, Any]
    after_s: float | None = None


class Claims:
    """Everything that was admitted and has not ended.

    Invariant: the sums are those of the claims; `young` holds claims of the last YOUNG_S only,
    oldest first.
    """

    def __init__(self) -> None:
        self.by_sandbox: dict[str, Claim] = {}
        self.memory_bytes = 0
        self.pids = 0
        self.young: dict[str, float] = {}

    def __len__(self) -> int:
        return len(self.by_sandbox)

    def add(self, claim: Claim, now: float) -> None:
        """Counts it in."""
        self.by_sandbox[claim.sandbox] = claim
        self.memory_bytes += claim.memory_bytes
        self.pids += claim.pids
        self.young[claim.sandbox] = now

    def remove(self, sandbox: str) -> Claim | None:
        """Counts it out; None if it was not in."""
        claim = self.by_sandbox.pop(sandbox, None)
        if claim is not None:
            self.memory_bytes -= claim.memory_bytes
            self.pids -= claim.pids
            self.young.pop(sandbox, None)
        return claim

    def young_at(self, now: float) -> int:
        """Returns how many are young: they have not taken yet what they are expected to take."""
        while self.young:
            oldest = next(iter(self.young))
            if now - self.young[oldest] < YOUNG_S:
                break
            del self.young[oldest]
        return len(self.young)


class Shortages:
    """Answers what is short for one more claim. The host is looked at every half second at most."""

    def __init__(
        self,
        limits: Limits,
        now: Callable[[], float],
        host: Callable[[], Readings],
        pressure: Pressure | None,
        lag: Callable[[], float],
    ) -> None:
        self._limits = limits
        self._now = now
        self._host = host
        self._lag = lag
        self._looked = float("-inf")
        self.pressure = pressure
        self.held: list[Brake] = []
        self.readings = Readings()
        high = limits.loop_lag_max_s
        self.loop_brake = Brake("loop_lag", high, high * LAG_LOW)

    @property
    def brakes(self) -> list[Brake]:
        """Every brake, whether it holds or not, as it was at the last look."""
        pressure = [] if self.pressure is None else list(self.pressure.brakes.values())
        return [*pressure, self.loop_brake]

    def find(self, claims: Claims, claim: Claim) -> Shortage | None:
        """Returns the first limit that says no."""
        limits = self._limits
        if len(claims) + 1 > limits.sandboxes_max:
            return _full("sandboxes", len(claims), limits.sandboxes_max)
        self.look()
        return (
            self._committed(claims, claim)
            or self._host_short(claims)
            or self._descriptors_short()
            or self._pressed()
        )

    def look(self) -> None:
        """Reads the host again if the last look is half a second old."""
        now = self._now()
        if now - self._looked < LOOK_EVERY_S:
            return
        self._looked = now
        self.readings = readings = self._host()
        self.loop_brake.take(self._lag())
        if self.pressure is not None:
            self.held = self.pressure.look(
                readings.memory_available / max(1, readings.memory_total)
            )

    def _committed(self, claims: Claims, claim: Claim) -> Shortage | None:
        """What was asked for, against what there is: only where the operator set a bound."""
        limits, readings = self._limits, self.readings
        if limits.memory_overcommit:
            maximum = int(limits.memory_overcommit * readings.memory_total)
            if claims.memory_bytes + claim.memory_bytes > maximum:
                return _full("memory_overcommit", claims.memory_bytes >> 20, maximum >> 20, " MiB")
        if limits.pids_overcommit:
            maximum = int(limits.pids_overcommit * readings.pids_max)
            if claims.pids + claim.pids > maximum:
                return _full("pids_overcommit", claims.pids, maximum)
        return None

    def _host_short(self, claims: Claims) -> Shortage | None:
        limits, readings = self._limits, self.readings
        young = claims.young_at(self._now()) * limits.memory_young_bytes
        left = readings.memory_available - young
        if left < limits.memory_free_min_bytes:
            return _low(
                "memory_free", left >> 20, limits.memory_free_min_bytes >> 20, " MiB", young >> 20
            )
        if readings.disk_free < limits.disk_free_min_bytes:
            return _low(
                "disk_free", readings.disk_free >> 20, limits.disk_free_min_bytes >> 20, " MiB"
            )
        free = readings.pids_max - readings.pids_used
        if free < limits.pids_free_min:
            return _low("pids_free", free, limits.pids_free_min, "")
        return None

    def _descriptors_short(self) -> Shortage | None:
        for daemon in self.readings.descriptors:
            free = daemon.maximum - daemon.used
            if free < self._limits.descriptors_free_min:
                minimum = self._limits.descriptors_free_min
                short = _low("descriptors_free", free, minimum, f" of the {daemon.who}")
                return short._replace(fields=short.fields | {"daemon": daemon.who})
        return None

    def _pressed(self) -> Shortage | None:
        for brake in self.held:
            message = (
                f"pressure_{brake.name}: {brake.value:g}% of the last 10 s; creates stopped above "
                f"{brake.high:g}% and go on below {brake.low:g}%"
            )
            fields = {"value": brake.value, "high": brake.high, "low": brake.low}
            return Shortage(f"pressure_{brake.name}", message, fields, 5.0)
        if self.loop_brake.holds:
            brake = self.loop_brake
            message = f"loop_lag: the node's event loop is {brake.value:.1f} s late"
            return Shortage("loop_lag", message, {"value": round(brake.value, 3)}, 2.0)
        return None


def _full(limit: str, used: int, maximum: int, unit: str = "") -> Shortage:
    message = f"{limit}: {used} of {maximum}{unit} are in use"
    return Shortage(limit, message, {"used": used, "maximum": maximum})


def _low(limit: str, value: int, minimum: int, unit: str, expected: int = 0) -> Shortage:
    less = f" (less {expected}{unit} that young sandboxes are expected to take)" if expected else ""
    message = f"{limit}: {value}{unit} left{less}, and {minimum}{unit} must stay"
    return Shortage(limit, message, {"value": value, "minimum": minimum}, 5.0)
