"""The containers of one environment: how many there shall be, and who of them gets a call."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import NamedTuple

from skerry.backends.function.demand import Demand
from skerry.backends.function.marks import Marks
from skerry.backends.function.member import Member, Stage
from skerry.errors import Bug

BACK_OFF_S = (0.1, 10.0)  # between two containers that could not be made: the first, and at most
HOPELESS = 3  # so many in a row, and who waits is told


class Place(NamedTuple):
    """Where a call runs."""

    member: Member
    cell: int


class Pool:
    """Invariant: a place is given out once, and `running` counts those that are out.

    `demand` counts the calls that run or wait.
    """

    def __init__(self, marks: Marks) -> None:
        self.marks = marks
        self.demand = Demand()
        self.members: dict[str, Member] = {}
        self.running = 0
        self.failures = 0  # in a row
        self.calls = 0
        self.began = -math.inf  # its last container
        self._not_before = -math.inf
        self._numbers = itertools.count(1)
        self._warm = 0
        self._warm_until = -math.inf

    # -- how many ---------------------------------------------------------------------------------

    def target(self, now: float) -> int:
        """Returns how many containers shall be there, starting ones too.

        As many as the peak of the last ten to twenty seconds fills; of those that serve one call
        each, as many again wait for the next ones.
        """
        marks = self.marks
        wanted = 0
        # What cannot be made is tried for who waits, and not for who may come.
        if self.demand.count or (not self.failures and self.demand.idle_for(now) < marks.idle_s):
            peak = self.demand.peak(now)
            wanted = min(marks.useful_max, max(1, math.ceil(peak / marks.running)))
            if marks.calls_max == 1:
                wanted = self.demand.count + wanted
        return min(marks.containers_max, max(wanted, self.floor(now)))

    def warm(self, count: int, now: float, *, keep_s: float, most: int | None = None) -> None:
        """So many are kept from now on for that time, used or not; 0 takes that back.

        With `most` there are at most so many from here on; those above it end as they fall idle.
        """
        if most is not None:
            self.marks = replace(self.marks, containers_max=max(most, self.marks.containers_min))
        self._warm = count
        self._warm_until = now + keep_s if count else -math.inf

    def let_go(self) -> None:
        """What was called before, and what was to be kept, asks for no container any more."""
        self.demand = Demand()
        self._warm, self._warm_until = 0, -math.inf

    def floor(self, now: float) -> int:
        """Returns how many are kept whatever the demand is."""
        asked = self._warm if now < self._warm_until else 0
        return min(self.marks.containers_max, max(asked, self.marks.containers_min))

    def barred(self, now: float) -> bool:
        """Returns whether none is begun now because the last ones could not be made."""
        return now < self._not_before

    @property
    def living(self) -> list[Member]:
        """Those that get calls, now or soon; oldest first."""
        return [one for one in self.members.values() if one.stage is not Stage.RETIRING]

    def missing(self, now: float) -> int:
        """Returns how many shall be begun now."""
        if self.barred(now):
            return 0
        return max(0, self.target(now) - len(self.living))

    def surplus(self, now: float) -> list[Member]:
        """Returns which may end, for they were not needed for `idle_s`: youngest first.

        Of those that have served nobody yet the time counts since they were made.
        """
        over = len(self.living) - self.target(now)
        idle = [
            one
            for one in reversed(self.living)
            if one.stage is Stage.READY
            and not one.running
            and now - one.last_used >= self.marks.idle_s
        ]
        return idle[: max(0, over)]

    def spared(self, now: float) -> Member | None:
        """Returns which one another environment may have in its place: idle, used longest ago."""
        kept = len(self.living) - self.floor(now)
        idle = [one for one in self.living if one.stage is Stage.READY and not one.running]
        return min(idle, key=lambda one: one.last_used, default=None) if kept > 0 else None

    # -- which one --------------------------------------------------------------------------------

    def room(self, *, zygote: bool) -> bool:
        """Returns whether a call would get a place now."""
        return any(one.room and (one.zygote or not zygote) for one in self.members.values())

    def take(self, now: float, *, zygote: bool) -> Place | None:
        """Returns a place in the container in which the fewest calls run; None if there is none.

        Among equals the oldest has it: so the others idle, and can end.
        """
        best: Member | None = None
        for one in self.members.values():
            if (
                one.room
                and (one.zygote or not zygote)
                and (best is None or (one.running, one.number) < (best.running, best.number))
            ):
                best = one
        if best is None:
            return None
        self.running += 1
        return Place(best, best.take(now))

    def end(self, place: Place, now: float, residue_bytes: int = 0) -> None:
        """The call of a place has ended: its cell is to be made anew, unless the container ends."""
        self.running -= 1
        self.calls += 1
        place.member.end(place.cell, now, residue_bytes)

    def untouched(self, place: Place) -> None:
        """Nothing ran there, and the next call may have it."""
        self.running -= 1
        place.member.untouched(place.cell)

    # -- what became of them ----------------------------------------------------------------------

    def begin(self, name: str, now: float) -> Member:
        """A container is being made."""
        if name in self.members:
            raise Bug(f"container {name} is there already")
        self.began = now
        member = self.members[name] = Member(name, next(self._numbers), self.marks, now)
        return member

    def made(self, member: Member, now: float) -> None:
        """It takes calls from now on, in each cell that is ready."""
        self.failures = 0
        self._not_before = -math.inf
        member.last_used = now
        if member.stage is Stage.STARTING:
            member.stage = Stage.READY

    def failed(self, member: Member, now: float) -> bool:
        """It could not be made. True: so many could not that whoever waits is to be told."""
        self.gone(member)
        first, most = BACK_OFF_S
        self._not_before = now + min(most, first * 2 ** min(self.failures, 16))
        self.failures += 1
        return self.failures >= HOPELESS and not any(
            one.stage is Stage.READY for one in self.living
        )

    def gone(self, member: Member) -> None:
        """Nothing of it is left; idempotent. Calls that ran there end their places all the same."""
        member.retire("it is gone")
        self.members.pop(member.name, None)

    def finished(self) -> list[Member]:
        """Returns which may be destroyed."""
        return [one for one in self.members.values() if one.finished]

    def over(self, now: float) -> bool:
        """Returns whether nothing is left of it and nobody wants it."""
        return not self.members and not self.demand.count and self.target(now) == 0

    def check_invariants(self) -> None:
        """Raises Bug unless the invariants hold."""
        for one in self.members.values():
            one.check_invariants()
        if self.running < sum(one.running for one in self.members.values()):
            raise Bug("more calls run than were given a place")
