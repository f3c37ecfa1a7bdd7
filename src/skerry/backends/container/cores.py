"""Which cores a sandbox sees (decision 29): as many as its `cpu` request, rounded up.

The mask is set on the agent, whose children inherit it, so that `nproc` and `pytest -n auto` tell
what the sandbox has. The quota is what limits; a program may widen its own mask.
"""

from __future__ import annotations

import math
import os


class Cores:
    """Hands out the cores that fewest sandboxes of the same class use, then fewest of the other.

    So each class is spread evenly by itself: those that must be quick do not meet on one core
    because best-effort ones, which give way anyway, fill the others. Invariant: counts are >= 0.
    """

    def __init__(self, allowed: set[int] | None = None) -> None:
        cores = sorted(os.sched_getaffinity(0) if allowed is None else allowed)
        self._used = {best_effort: dict.fromkeys(cores, 0) for best_effort in (False, True)}

    def take(self, cpu: float, *, best_effort: bool = False) -> tuple[int, ...]:
        """Returns the cores for a request; () if it may use all of them."""
        wanted = math.ceil(cpu)
        own, other = self._used[best_effort], self._used[not best_effort]
        if wanted >= len(own):
            return ()
        order = sorted(own, key=lambda core: (own[core], other[core]))
        chosen = tuple(sorted(order[:wanted]))
        self.retake(chosen, best_effort=best_effort)
        return chosen

    def retake(self, cores: tuple[int, ...], *, best_effort: bool = False) -> None:
        """Counts cores that a recovered sandbox has."""
        own = self._used[best_effort]
        for core in cores:
            if core in own:
                own[core] += 1

    def give_back(self, cores: tuple[int, ...], *, best_effort: bool = False) -> None:
        """Counts them as free again."""
        own = self._used[best_effort]
        for core in cores:
            if own.get(core):
                own[core] -= 1


def confine(pid: int, cores: tuple[int, ...]) -> None:
    """Sets the mask of a process; one that has just ended is nobody's fault."""
    if cores:
        try:
            os.sched_setaffinity(pid, cores)
        except ProcessLookupError:
            return
