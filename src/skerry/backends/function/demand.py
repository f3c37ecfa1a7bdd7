"""How many calls were there at once of late: what a pool is made large enough for."""

from __future__ import annotations

import math

WINDOW_S = 10.0


class Demand:
    """The highest count of a window of ten seconds and of the one before.

    Invariant: `peak` never tells less than the count as it is now.
    """

    def __init__(self) -> None:
        self._begin = -math.inf
        self._high = self._before = self.count = 0
        self.last = -math.inf  # when it was above 0

    def note(self, now: float, change: int) -> None:
        """So many more are there, or less."""
        self._turn(now)
        self.count += change
        self._high = max(self._high, self.count)
        self.last = now

    def peak(self, now: float) -> int:
        """Returns the highest count of the last ten to twenty seconds."""
        self._turn(now)
        return max(self._before, self._high, self.count)

    def idle_for(self, now: float) -> float:
        """Returns for how long it has been 0; 0.0 while it is not."""
        return 0.0 if self.count else now - self.last

    def _turn(self, now: float) -> None:
        if now - self._begin <= WINDOW_S:
            return
        fresh = now - self._begin <= 2 * WINDOW_S
        self._before = self._high if fresh else self.count
        self._begin, self._high = now, self.count
