"""Which idle sandboxes give memory back, how much, and which are left alone. Pure: no clock, no I/O.

Under pressure, memory that nobody uses is worth more elsewhere. A sandbox is cold when no request
came for `idle_s` and it used no CPU between two looks that are `still_s` apart or more; so one with a
running command that only waits is cold, and one that computes never is. Cold ones give back a step at
a time, the one that has been idle longest first. Who reads back what it gave (refaults) is left alone
for a time that doubles each time; who has nothing left to give, for a while.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from skerry.errors import InvalidRequest

MIB = 1 << 20
STEP_MIN_BYTES = 4 * MIB
STEP_SHARE = 0.5  # of its memory, at most, in one step
ROUND_BYTES_MAX = 512 * MIB
WORTH_BYTES = MIB  # less is left where it is
GAIN_MIN = 0.1  # of what was asked for: less, and it has nothing left to give
EXHAUSTED_S = 300.0
REFAULT_PAGES = 512  # since it gave back: about 2 MiB
CALM_S = 1800.0  # without a refault, after which the next one is the first again


@dataclass(frozen=True, kw_only=True)
class IdleMarks:
    """When idle sandboxes give memory back. Shares are of 1."""

    when: str = "auto"  # "auto": where there is swap to take it; "off"
    available_below: float = 0.15  # share of the host's memory that is available
    # Or: percent of time in which some task waits for memory, with at most twice that available.
    memory_some_above: float = 5.0
    idle_s: float = 60.0
    still_s: float = 10.0
    look_s: float = 5.0
    backoff_s: float = 60.0
    backoff_max_s: float = 3600.0

    def check(self) -> IdleMarks:
        """Returns itself; InvalidRequest naming what is out of bounds."""
        if self.when not in ("auto", "off"):
            raise InvalidRequest(f"idle_reclaim.when: {self.when[:40]!r} is neither auto nor off")
        if not 0 <= self.available_below <= 1:
            raise InvalidRequest("idle_reclaim.available_below must be between 0 and 1")
        if not 0 <= self.memory_some_above <= 100:
            raise InvalidRequest("idle_reclaim.memory_some_above must be between 0 and 100")
        for name in ("idle_s", "still_s", "look_s", "backoff_s", "backoff_max_s"):
            if not 0.01 <= getattr(self, name) <= 86_400:
                raise InvalidRequest(f"idle_reclaim.{name} must be between 0.01 s and a day")
        return self


class Host(NamedTuple):
    """What the host says of its memory."""

    available_share: float = 1.0
    memory_some: float = 0.0  # percent
    swap_free_bytes: int = 0


class Seen(NamedTuple):
    """One sandbox that runs, as it is now."""

    id: str
    active: float  # when its last request came or ended, on the monotonic clock
    memory_bytes: int
    cpu_seconds: float
    major_faults: int


class Step(NamedTuple):
    """One sandbox is to give back up to so much."""

    id: str
    bytes: int


@dataclass(slots=True)
class _Known:
    cpu_seconds: float
    still_since: float
    faults: int | None = None  # when it last gave back; None: it gave nothing that could come back
    gave_at: float = 0.0
    quiet_until: float = 0.0
    backoff_s: float = 0.0  # of the last refault


class Idle:
    """The policy's memory of sandboxes. Invariant: it knows none that has gone by the last look."""

    def __init__(self, marks: IdleMarks) -> None:
        self.marks = marks.check()
        self._known: dict[str, _Known] = {}
        self.refaults = 0

    def pressed(self, host: Host) -> bool:
        """Whether memory is short, and giving it back can help."""
        marks = self.marks
        if marks.when == "off" or host.swap_free_bytes < STEP_MIN_BYTES:
            return False
        if host.available_share < marks.available_below:
            return True
        near = host.available_share < 2 * marks.available_below
        return near and host.memory_some > marks.memory_some_above

    def look(self, now: float, seen: Iterable[Seen], alive: Collection[str]) -> list[Step]:
        """Takes what the sandboxes are now, under pressure; returns who gives back how much.

        `seen` may leave out any that are `alive`; what is known of the others is forgotten.
        """
        self._known = {name: known for name, known in self._known.items() if name in alive}
        cold = []
        for one in seen:
            known = self._take(now, one, self._known.get(one.id))
            self._known[one.id] = known
            if self._is_cold(now, one, known):
                cold.append(one)
        steps, left = [], ROUND_BYTES_MAX
        for one in sorted(cold, key=lambda one: one.active):
            wanted = min(left, max(STEP_MIN_BYTES, int(one.memory_bytes * STEP_SHARE)))
            if wanted < STEP_MIN_BYTES:
                break
            left -= wanted
            steps.append(Step(one.id, wanted))
        return steps

    def gave(self, now: float, step: Step, given: int, major_faults: int) -> None:
        """Takes what a step came to, and the faults that were counted after it."""
        known = self._known.get(step.id)
        if known is None:
            return
        if given > 0:
            known.faults, known.gave_at = major_faults, now
        if given < step.bytes * GAIN_MIN:
            known.quiet_until = max(known.quiet_until, now + EXHAUSTED_S)

    def _take(self, now: float, one: Seen, known: _Known | None) -> _Known:
        if known is None:
            return _Known(one.cpu_seconds, now)
        if one.cpu_seconds > known.cpu_seconds:
            known.cpu_seconds, known.still_since = one.cpu_seconds, now
        if known.faults is not None and one.major_faults - known.faults > REFAULT_PAGES:
            calm = now - known.gave_at > CALM_S or known.backoff_s == 0.0
            doubled = self.marks.backoff_s if calm else 2 * known.backoff_s
            known.backoff_s = min(doubled, self.marks.backoff_max_s)
            known.quiet_until = now + known.backoff_s
            known.faults = None
            self.refaults += 1
        return known

    def _is_cold(self, now: float, one: Seen, known: _Known) -> bool:
        marks = self.marks
        return (
            one.memory_bytes >= WORTH_BYTES
            and now - one.active >= marks.idle_s
            and now - known.still_since >= marks.still_s
            and now >= known.quiet_until
        )
