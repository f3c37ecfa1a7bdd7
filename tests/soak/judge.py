"""Judges what clients saw: which errors fit which fault, and which figures must stay flat."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

# A fault explains an error of an operation that it overlapped, or that began this soon after it.
AFTERMATH_S = 2.0
# Requests that the SDK does not repeat by itself: a connection that is lost ends them, typed.
ONE_SHOT = frozenset(
    {"file", "tree", "stream", "forward", "diff", "commit", "cancel", "session", "attach"}
)
# What goes through the launcher.
LAUNCHED = frozenset(
    {"create", "batch", "destroy", "destroy_many", "diff", "commit", "pause", "stop", "repeat"}
)
# What runs inside or is recorded, and so needs the disk.
CHANGES = frozenset({"file", "tree"})
STORED = frozenset(
    {"create", "batch", "run", "file", "tree", "stream", "diff", "commit", "session"}
    | {"job", "hold", "repeat"}
)


@dataclass
class Window:
    """A fault's time; `end` is infinite until it is over."""

    fault: str
    begin: float
    end: float = math.inf

    def covers(self, begin: float, end: float) -> bool:
        """Returns whether an operation of that time may have felt it."""
        return begin <= self.end + AFTERMATH_S and end >= self.begin


def fits(kind: str, code: str, faults: set[str]) -> bool:
    """Returns whether an operation of that kind may end with that error under those faults."""
    if code == "overloaded":
        return True  # an answer of admission, with a reason; how many there are is reported
    if code == "unavailable":
        cut = faults & {"node", "both", "cut", "stall"}
        return bool(cut and kind in ONE_SHOT) or bool(
            faults & {"launcher", "both"} and kind in LAUNCHED
        )
    if code == "storage_failed":
        return "disk" in faults and kind in STORED
    if code == "outcome_unknown":
        # A change that was under way at the kill (docs/guide/records.md); or the end of a sandbox
        # that could not be recorded, and then nobody who remembered it.
        killed = bool(faults & {"node", "both"})
        return killed and (kind in CHANGES or ("disk" in faults and kind in STORED))
    if code == "file_refused":
        return "disk" in faults and kind in CHANGES
    return False


def slope(values: Sequence[float]) -> float:
    """Returns the least-squares slope per step; 0 for fewer than two values."""
    n = len(values)
    if n < 2:
        return 0.0
    mean_x, mean_y = (n - 1) / 2, sum(values) / n
    above = sum((x - mean_x) * (y - mean_y) for x, y in enumerate(values))
    return above / sum((x - mean_x) ** 2 for x in range(n))


def rank(values: Sequence[float], percent: int) -> float:
    """Returns the nearest-rank percentile, 0 of nothing."""
    ordered = sorted(values)
    return ordered[math.ceil(len(ordered) * percent / 100) - 1] if ordered else 0.0


@dataclass
class Judge:
    """Collects what happened; `violations` is what must be empty at the end."""

    windows: list[Window] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)
    done: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    excused: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)
    times: dict[str, list[float]] = field(default_factory=dict)
    _open: list[dict[str, Any]] = field(default_factory=list)

    def begin(self, fault: str, now: float) -> Window:
        """Notes that a fault begins."""
        self.faults[fault] += 1
        window = Window(fault, now)
        self.windows.append(window)
        return window

    def take(self, record: dict[str, Any]) -> None:
        """Takes what a client says of one operation; errors are judged in `settle`."""
        if record["k"] == "op" and not record["x"]:
            self.done[record["n"]] += 1
            self.times.setdefault(record["n"], []).append(record["e"] - record["s"])
            return
        self._open.append(record)

    def settle(self) -> dict[str, list[float]]:
        """Judges everything so far; returns the latencies of the epoch and begins a new one."""
        waiting, self._open = self._open, []
        for record in waiting:
            faults = {w.fault for w in self.windows if w.covers(record["s"], record["e"])}
            if record["k"] == "bad":
                if faults & set(record.get("excuse", ())):
                    self.excused[record["n"]] += 1
                else:
                    self.violations.append(f"{record['who']}: {record['text']} (faults: {faults})")
                continue
            kind, code = record["n"], record["x"]
            self.errors[f"{kind}: {code}"] += 1
            if code not in record.get("own", ()) and not fits(kind, code, faults):
                self.violations.append(
                    f"{record['who']}: {kind} ended with {code}: {record['m']} (faults: {faults})"
                )
        times, self.times = self.times, {}
        return times
