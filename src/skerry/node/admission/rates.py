"""How often something happened lately: an exponential average, in constant memory."""

from __future__ import annotations

import math
from collections.abc import Callable

WINDOW_S = 20.0
SEEN_MIN_S = 5.0  # so much time a rate is of at least: of less nobody could tell one


class Rate:
    """Events a second over about the last twenty seconds, or since it began if that is less."""

    def __init__(self, now: Callable[[], float], window_s: float = WINDOW_S) -> None:
        self._now = now
        self._window_s = window_s
        self._weight = 0.0
        self._at = self._since = now()
        self.total = 0

    def note(self) -> None:
        """One happened now."""
        self._weight = self._decayed() + 1.0
        self._at = self._now()
        self.total += 1

    def per_second(self) -> float:
        """Returns the rate; 0 if nothing happened for long."""
        seen = 1.0 - math.exp(-(self._now() - self._since) / self._window_s)
        return self._decayed() / max(SEEN_MIN_S, self._window_s * seen)

    def _decayed(self) -> float:
        return self._weight * math.exp(-(self._now() - self._at) / self._window_s)
