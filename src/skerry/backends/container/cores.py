"""Which cores a sandbox sees (decision 29): as many as its `cpu` request, rounded up.

The mask is set on the agent, whose children inherit it, so that `nproc` and `pytest -n auto` tell
what the sandbox has. The quota is what limits; a program may widen its own mask.
"""

from __future__ import annotations

import math
import os


class Cores:
    """Hands out the cores that fewest sandboxes use. Invariant: every count is at least 0."""

    def __init__(self, allowed: set[int] | None = None) -> None:
        cores = os.sched_getaffinity(0) if allowed is None else allowed
        self._used = dict.fromkeys(sorted(cores), 0)

    def take(self, cpu: float) -> tuple[int, ...]:
        """Returns the cores for a request; () if it may use all of them."""
        wanted = math.ceil(cpu)
        if wanted >= len(self._used):
            return ()
        chosen = tuple(sorted(sorted(self._used, key=lambda core: self._used[core])[:wanted]))
        self.retake(chosen)
        return chosen

    def retake(self, cores: tuple[int, ...]) -> None:
        """Counts cores that a recovered sandbox has."""
        for core in cores:
            if core in self._used:
                self._used[core] += 1

    def give_back(self, cores: tuple[int, ...]) -> None:
        """Counts them as free again."""
        for core in cores:
            if self._used.get(core):
                self._used[core] -= 1


def confine(pid: int, cores: tuple[int, ...]) -> None:
    """Sets the mask of a process; one that has just ended is nobody's fault."""
    if cores:
        try:
            os.sched_setaffinity(pid, cores)
        except ProcessLookupError:
            return
