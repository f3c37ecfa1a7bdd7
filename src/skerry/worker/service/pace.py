"""How soon an agent asks its model again: what a scheduler of GPUs wants to know. No I/O."""

from __future__ import annotations

from collections.abc import Iterable

WEIGHT = 0.2  # of the newest observation


class Mean:
    """A mean in which old observations fade."""

    def __init__(self) -> None:
        self.value: float | None = None

    def saw(self, seconds: float) -> None:
        """Takes an observation."""
        seconds = max(0.0, seconds)
        self.value = seconds if self.value is None else self.value + WEIGHT * (seconds - self.value)


class Pace:
    """`think`: from an answer to the next request; `start`: from a rollout's turn to its first one."""

    def __init__(self) -> None:
        self.think = Mean()
        self.start = Mean()

    def next_request(
        self, *, waiting: int, busy_for: Iterable[float], starting: bool, to_come: bool
    ) -> float | None:
        """Returns in how many seconds a request is to be expected; None if none will come.

        `busy_for` are the seconds since each working agent's last answer; `starting`: rollouts are on
        their way to their first request; `to_come`: some wait for their turn. Where nothing was seen
        yet, 0 stands for "at any moment".
        """
        if waiting:
            return 0.0
        expected = [max(0.0, (self.think.value or 0.0) - since) for since in busy_for]
        if starting or (to_come and not expected):
            expected.append(self.start.value or 0.0)
        return min(expected, default=None)
